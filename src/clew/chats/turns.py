"""One turn of a chat: the channel is synchronised, the participant runs on its thread, and its answer is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeAlias

from clew.agents.journal import Emit, failure, run_to_end
from clew.agents.response import AgentResponse, Approval
from clew.agents.tools import Tool
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.participants import Member
from clew.domain.chats.channels import spoken
from clew.domain.chats.events import CHANNEL_OF, TurnFailed, TurnFinished
from clew.domain.chats.state import CHAT_STATE, ChatState, OpenTurn
from clew.domain.context.provider import Context, ContextProvider, ProviderContext
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ClewError, ConflictError, ThreadExistsError, UnknownThreadError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import plus, recorded
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import Failure, RunStarted
from clew.domain.runs.ports import EnginePort
from clew.domain.runs.state import fold

CONTINUE = Message.user("Continue.")
"""The input of a turn in which the participant hears nothing new: services refuse requests that end with an answer."""


class ChatContext(ContextProvider):
    """What the components of a chat give to a turn. A chat within chats also gives what theirs give."""

    def __init__(self, context: Context, depth: int = 0) -> None:
        self.id = f"group-chat-{depth}" if depth else "group-chat"
        self._context = context

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        """The context."""
        del ctx, messages
        return self._context


@dataclass(frozen=True)
class TurnSetup:
    """What a turn needs: the chat's engine and thread, the ``actor`` for whom it is taken, and tools that hand it over.

    ``given`` is what the chats give of which this one is a participant.
    """

    engine: EnginePort[LocalThread, RemoteThread]
    chat: Thread
    newcomers_read: int | None = None
    actor: str | None = None
    emit: Emit | None = None
    handoffs: dict[str, tuple[str, Tool]] = field(default_factory=dict)
    given: tuple[ChatContext, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What the run of a turn came to: the answer and what it used, or what it waits for."""

    answer: Message | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: Decimal | None = None
    run_id: str | None = None
    handoff: str | None = None
    approvals: Sequence[Approval] = ()
    waiting_for: tuple[str, ...] = ()


RunTurn: TypeAlias = Callable[
    [TurnSetup, OpenTurn, Member, Thread, list[Message], tuple[ChatContext, ...]], Awaitable[Outcome]
]
"""Runs a participant on the thread of its turn, with these messages and this context."""


async def read_chat(chat: Thread) -> tuple[int, ChatState]:
    """The newest version of a chat, and its state there."""
    version = await chat.version
    return version, await chat.fold(CHAT_STATE, at=version)


def key_of(setup: TurnSetup, turn: OpenTurn) -> str:
    """The idempotency key of the run of a turn: a run that another process began is continued, not repeated."""
    return f"{setup.chat.id}:{turn.version}"


async def take_turn(setup: TurnSetup, turn: OpenTurn, member: Member, run: RunTurn) -> Outcome:
    """Carry out a turn, or continue one that another process began. Returns what it waits for.

    A run that is over is read. If it fails, that is recorded, and the error is raised.
    """
    thread = await thread_of(setup, turn, member)
    try:
        messages = await _heard(setup, turn, member)
        outcome = await run(setup, turn, member, thread, messages, await _context(setup, messages))
    except (Exception, asyncio.CancelledError) as error:
        with suppress(ClewError):  # the turn stays open if it cannot be recorded, and can be continued
            await run_to_end(_fail(setup, turn, thread, member.id, Failure(kind=failure(error).kind)))
        raise
    if not outcome.approvals and not outcome.waiting_for:
        finished = TurnFinished(
            turn=turn.version,
            thread_version=await thread.version,
            run_id=outcome.run_id,
            usage=outcome.usage,
            cost=None if outcome.cost is None else recorded(outcome.cost),
            handoff=outcome.handoff,
        )
        await finish_turn(setup, turn, outcome.answer, finished, by=member.id)
    return outcome


async def _fail(setup: TurnSetup, turn: OpenTurn, thread: Thread, by: str, error: Failure) -> None:
    try:
        version = await thread.version
        usage, cost = await _used(thread, turn.after)
    except UnknownThreadError:
        version, usage, cost = 0, None, None
    ended = TurnFailed(
        turn=turn.version,
        error=error,
        thread_version=version,
        usage=usage,
        cost=None if cost is None else recorded(cost),
    )
    await finish_turn(setup, turn, None, ended, by=by)


async def _used(thread: Thread, after: int) -> tuple[TokenUsage | None, Decimal | None]:
    """What the runs on a thread used after a version, those of an agent or those of a chat; None without any."""
    usage, cost = None, Decimal(0)
    known: Decimal | None = cost
    events = await thread.runs.events(after)
    for event in events:
        if isinstance(event.data, RunStarted) and event.run_id is not None:
            run = fold(event.run_id, events)
            usage = (usage or TokenUsage()) + run.usage
            known = None if known is None or run.cost is None else known + run.cost
        elif isinstance(event.data, TurnFinished | TurnFailed) and event.data.usage is not None:
            usage, known = (usage or TokenUsage()) + event.data.usage, plus(known, event.data.cost)
    return usage, known


async def thread_of(setup: TurnSetup, turn: OpenTurn, member: Member) -> LocalThread | RemoteThread:
    """The thread of a turn: as it is, a fork, or a new one that begins with the run. Its label names the chat."""
    engine = setup.engine
    labels: JsonObject = {CHANNEL_OF: setup.chat.id}
    try:
        return await engine.thread(turn.thread_id)
    except UnknownThreadError:
        if turn.source_thread is None:
            return engine.unstarted_thread(member.channel.thread_kind, turn.thread_id, labels)
    source = await engine.thread(turn.source_thread)
    try:
        return await source.fork(at=turn.source_version, thread_id=turn.thread_id, labels=labels, actor=setup.actor)
    except ThreadExistsError:  # another process takes the turn, too
        return await engine.thread(turn.thread_id)


async def _heard(setup: TurnSetup, turn: OpenTurn, member: Member) -> list[Message]:
    """What the participant has not heard, as its channel adapts it."""
    newcomer = turn.synced == 0
    chat, last = setup.chat, setup.newcomers_read if newcomer else None
    heard = await chat.history(at=turn.version, after=None if newcomer else turn.synced, last=last)
    messages = member.channel.adapt(list(heard), member.identity.author, newcomer=newcomer)
    return [CONTINUE] if not messages and turn.answered else messages


async def _context(setup: TurnSetup, messages: list[Message]) -> tuple[ChatContext, ...]:
    """What the components of the chat give to a turn, and those of the chats around it."""
    if not len(setup.chat.context_providers):
        return setup.given
    context = await setup.chat.context(messages, actor=setup.actor)
    return (*setup.given, ChatContext(context, len(setup.given)))


async def run_agent(
    setup: TurnSetup,
    turn: OpenTurn,
    member: Member,
    thread: Thread,
    messages: list[Message],
    context: tuple[ChatContext, ...],
) -> Outcome:
    """Run an agent. Its answer is the last one with text or media, without calls, results and reasoning."""
    agent = member.agent
    if agent is None:
        raise AgentConfigurationError(f"It is the turn of {member.id!r}, who is a person. Use chat.respond(…).")
    options: dict[str, Any] = {"thread": thread, "idempotency_key": key_of(setup, turn)}
    options |= {"actor": setup.actor} if setup.actor is not None else {}
    if setup.handoffs:
        options["tools"] = [each for _, each in setup.handoffs.values()]
    if context:
        options["context_providers"] = context
    response: AgentResponse[Any]
    if setup.emit is None:
        response = await agent.run(messages, **options)
    else:
        async with agent.run(messages, stream=True, **options) as stream:
            async for update in stream:
                await setup.emit(replace(update, author=member.identity.author))
            response = await stream.get_final_response()
    called = [call.name for each in response.messages if each.message is not None for call in each.message.calls]
    handed = [setup.handoffs[name][0] for name in called if name in setup.handoffs]
    return Outcome(
        answer=answer_of(member, [each for each in response.messages if each.role == "assistant"]),
        usage=response.usage,
        cost=response.cost,
        run_id=response.run_id,
        handoff=handed[-1] if handed else None,
        approvals=response.approvals,
    )


def answer_of(member: Member, messages: Sequence[HistoryMessage]) -> Message | None:
    """The last of the messages with text or media, as the chat records it."""
    for each in reversed(messages):
        contents = () if each.message is None else spoken(each.message)
        if each.message is not None and contents:
            return Message(
                role="assistant", author=member.identity.author, contents=contents, metadata=each.message.metadata
            )
    return None


async def finish_turn(
    setup: TurnSetup, turn: OpenTurn, answer: Message | None, ended: TurnFinished | TurnFailed, *, by: str | None = None
) -> bool:
    """Record the end of a turn with its answer; False if the turn is not open any more.

    What an agent or a chat answers is ``by`` it, on behalf of the caller. A person is the actor.
    """
    actor, caller = (setup.actor, None) if by is None else (by, setup.actor)
    intents: list[Intent] = [] if answer is None else [Append((answer,))]
    while True:
        version, state = await read_chat(setup.chat)
        if all(each.version != turn.version for each in state.turns):
            return False  # another process has ended it, or the chat was rewound
        try:
            await setup.chat.runs.record(
                [*intents, RecordEvents((ended,))], actor=actor, on_behalf_of=caller, expected_version=version
            )
        except ConflictError:
            continue
        return True
