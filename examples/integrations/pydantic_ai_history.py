"""The message history of pydantic-ai in a thread of Clew.

Run an agent with ``message_history=await load(thread)``, then ``await save(thread, result)``.
"""

from typing import Any

from examples.integrations.items import as_items, as_message, text_paths
from pydantic_ai import AgentRunResult, ModelMessage, ModelMessagesTypeAdapter

from clew.types import LocalThread, RemoteThread

ROLES = {"system-prompt": "system", "user-prompt": "user", "tool-return": "tool", "retry-prompt": "tool"}


async def load(thread: LocalThread | RemoteThread, *, at: Any = None) -> list[ModelMessage]:
    """The history of a thread, at a version, a checkpoint or a time."""
    return list(ModelMessagesTypeAdapter.validate_python(as_items(await thread.history(at=at))))


async def save(
    thread: LocalThread | RemoteThread, result: AgentRunResult[Any], *, expected_version: int | None = None
) -> None:
    """Append what a run added, in one commit. With ``expected_version``, raises ConflictError if the thread changed."""
    items = ModelMessagesTypeAdapter.dump_python(result.new_messages(), mode="json")
    messages = [as_message(role_of(item), item, text_paths(item, "parts", name="content")) for item in items]
    await thread.append(messages, expected_version=expected_version)


def role_of(item: Any) -> str:
    """The role of a message: a request has that of its last part."""
    kinds = [part["part_kind"] for part in item["parts"]]
    return "assistant" if item["kind"] == "response" else ROLES.get(kinds[-1] if kinds else "", "user")
