"""A session of the OpenAI Agents SDK in a thread of Clew: its items are messages, calls and results."""

from typing import Any

from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from examples.integrations.items import as_item, as_message, text_paths

from clew import Engine, FunctionCall, Message
from clew.errors import ConflictError
from clew.types import FunctionResult, LocalThread, RemoteThread

EMPTY = 1
"""The version of a thread at which it has no messages."""


class ClewSession(SessionABC):
    """What is popped or cleared stays on the log. ``thread()`` has the same conversation, to fork, rewind or verify."""

    def __init__(self, session_id: str, engine: Engine, *, session_settings: Any = None) -> None:
        self.session_id = session_id
        self.engine = engine
        self.session_settings = coerce_session_settings(session_settings) if session_settings else SessionSettings()

    async def thread(self) -> LocalThread | RemoteThread:
        """The thread of the session. It is started if it does not exist."""
        return await self.engine.open_thread(self.session_id)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        newest = resolve_session_limit(limit, self.session_settings)
        if newest is not None and newest < 0:
            newest = None  # as the SDK's own sessions
        history = await (await self.thread()).history(last=newest)
        return [to_item(each.message) for each in history if each.message is not None]

    async def add_items(self, items: list[Any]) -> None:
        if items:
            await (await self.thread()).append([to_message(item) for item in items])

    async def pop_item(self) -> Any | None:
        thread = await self.thread()
        while True:  # until no other process was faster
            version = await thread.version
            newest = (await thread.history(last=1, at=version)).messages
            if not newest:
                return None
            try:
                await thread.rewind(newest[0].version - 1, expected_version=version)
            except ConflictError:
                continue
            return None if newest[0].message is None else to_item(newest[0].message)

    async def clear_session(self) -> None:
        await (await self.thread()).rewind(EMPTY)


def to_message(item: dict[str, Any]) -> Message:
    """The message of an item of the Responses API."""
    match item:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            call = FunctionCall(call_id=call_id, name=name, arguments=arguments)
            return Message(role="assistant", contents=(call,), source={"item": {**item, "arguments": None}})
        case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
            result = FunctionResult(call_id=call_id, result=output)
            return Message(role="tool", contents=(result,), source={"item": {**item, "output": None}})
    return as_message(item.get("role", "assistant"), item, text_paths(item, "content"))


def to_item(message: Message) -> dict[str, Any]:
    """The item of a message. A message that another program appended becomes a plain one."""
    item: Any = message.source.get("item")
    if item is None:
        return {"role": message.role, "content": message.text}
    if message.calls:
        return {**item, "arguments": message.calls[0].arguments}
    if message.results:
        return {**item, "output": message.results[0].result}
    return dict(as_item(message))
