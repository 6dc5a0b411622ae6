"""One turn of a chat: the channel is synchronised, the participant runs on its thread, and its answer is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from clew.agents.journal import Emit, failure, run_to_end
from clew.agents.response import AgentResponse, Approval
from clew.agents.tools import Tool
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.participants import Member
from clew.domain.chats.channels import spoken
from clew.domain.chats.events import TurnFailed, TurnFinished
from clew.domain.chats.state import CHAT_STATE, ChatState, OpenTurn
from clew.domain.context.provider import Context, ContextProvider, ProviderContext
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ClewError, ConflictError, UnknownThreadError
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import Failure
from clew.domain.runs.ports import EnginePort

CONTINUE = Message.user("Continue.")
"""The input of a turn in which the participant hears nothing new: services refuse requests that end with an answer."""


class ChatContext(ContextProvider):
    """What the components of a chat give to a turn."""

    id = "group-chat"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        """The context."""
        del ctx, messages
        return self._context


@dataclass(frozen=True)
class TurnSetup:
    """What a turn needs: the chat's engine and thread, the caller, and the tools that hand the turn over."""

    engine: EnginePort[LocalThread, RemoteThread]
    chat: Thread
    newcomers_read: int | None = None
    actor: str | None = None
    emit: Emit | None = None
    handoffs: dict[str, tuple[str, Tool]] = field(default_factory=dict)


async def read_chat(chat: Thread) -> tuple[int, ChatState]:
    """The newest version of a chat, and its state there."""
    version = await chat.version
    return version, await chat.fold(CHAT_STATE, at=version)


async def take_turn(setup: TurnSetup, turn: OpenTurn, member: Member) -> list[Approval]:
    """Carry out a turn, or continue one that another process began. Returns the approvals that it waits for.

    The run has the key of the turn: a run that another process began is continued, and one that is over is read. If it
    fails, that is recorded, and the error is raised.
    """
    thread = await thread_of(setup.engine, turn, member)
    try:
        response = await _run(setup, turn, member, thread)
    except (Exception, asyncio.CancelledError) as error:
        with suppress(ClewError):  # the turn stays open if it cannot be recorded, and can be continued
            await run_to_end(_fail(setup, turn, thread, Failure(kind=failure(error).kind)))
        raise
    if not response.approvals:
        await finish_turn(setup, turn, _answer(member, response), await _finished(setup, turn, response))
    return response.approvals


async def _fail(setup: TurnSetup, turn: OpenTurn, thread: Thread, error: Failure) -> None:
    try:
        version = await thread.version
    except UnknownThreadError:
        version = 0
    await finish_turn(setup, turn, None, TurnFailed(turn=turn.version, error=error, thread_version=version))


async def thread_of(
    engine: EnginePort[LocalThread, RemoteThread], turn: OpenTurn, member: Member
) -> LocalThread | RemoteThread:
    """The thread of a turn: as it is, a fork that begins with the run, or a new one that does."""
    try:
        return await engine.thread(turn.thread_id)
    except UnknownThreadError:
        if turn.source_thread is None:
            return engine.unstarted_thread(member.channel.thread_kind, turn.thread_id)
    source = await engine.thread(turn.source_thread)
    return await source.branch(turn.source_version, turn.thread_id)


async def _run(setup: TurnSetup, turn: OpenTurn, member: Member, thread: Thread) -> AgentResponse[Any]:
    agent = member.agent
    if agent is None:
        raise AgentConfigurationError(f"It is the turn of {member.id!r}, who is a person. Use chat.respond(…).")
    newcomer = turn.synced == 0
    chat, last = setup.chat, setup.newcomers_read if newcomer else None
    heard = await chat.history(at=turn.version, after=None if newcomer else turn.synced, last=last)
    messages = member.channel.adapt(list(heard), member.identity.author, newcomer=newcomer)
    if not messages and turn.answered:
        messages = [CONTINUE]
    options: dict[str, Any] = {"thread": thread, "idempotency_key": f"{chat.id}:{turn.version}"}
    options |= {"actor": setup.actor} if setup.actor is not None else {}
    if setup.handoffs:
        options["tools"] = [each for _, each in setup.handoffs.values()]
    if len(chat.context_providers):
        options["context_providers"] = ChatContext(await chat.context(messages, actor=setup.actor))
    if setup.emit is None:
        response: AgentResponse[Any] = await agent.run(messages, **options)
        return response
    async with agent.run(messages, stream=True, **options) as stream:
        async for update in stream:
            await setup.emit(replace(update, author=member.identity.author))
        return await stream.get_final_response()


def _answer(member: Member, response: AgentResponse[Any]) -> Message | None:
    """The last answer with text or media, as the chat records it: without calls, results and reasoning."""
    for each in reversed(response.messages):
        contents = spoken(each.message) if each.message is not None and each.role == "assistant" else ()
        if each.message is not None and contents:
            return Message(
                role="assistant", author=member.identity.author, contents=contents, metadata=each.message.metadata
            )
    return None


async def _finished(setup: TurnSetup, turn: OpenTurn, response: AgentResponse[Any]) -> TurnFinished:
    called = [call.name for each in response.messages if each.message is not None for call in each.message.calls]
    handed = [setup.handoffs[name][0] for name in called if name in setup.handoffs]
    return TurnFinished(
        turn=turn.version,
        thread_version=await response.thread.version,
        run_id=response.run_id,
        usage=response.usage,
        handoff=handed[-1] if handed else None,
    )


async def finish_turn(
    setup: TurnSetup, turn: OpenTurn, answer: Message | None, ended: TurnFinished | TurnFailed
) -> bool:
    """Record the end of a turn with its answer; False if the turn is not open any more."""
    intents: list[Intent] = [] if answer is None else [Append((answer,))]
    while True:
        version, state = await read_chat(setup.chat)
        if all(each.version != turn.version for each in state.turns):
            return False  # another process has ended it, or the chat was rewound
        try:
            await setup.chat.runs.record(
                [*intents, RecordEvents((ended,))], actor=setup.actor, expected_version=version
            )
        except ConflictError:
            continue
        return True
