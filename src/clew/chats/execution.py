"""A run of a chat: participants take turns until it ends or waits. Each step is on the log before the next begins."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import cast

from clew.agents.journal import Emit
from clew.agents.response import Approval, approvals
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.chat_view import ChatView, view_of
from clew.chats.participants import CHAT, Human, Member
from clew.chats.response import ChatResponse
from clew.chats.termination import Termination
from clew.chats.turn_selection import (
    HandoffSelection,
    TurnSelection,
    decision_of,
    handoff_tools,
    selected,
    speakers_of,
)
from clew.chats.turns import ChatContext, Outcome, TurnSetup, answer_of, key_of, read_chat, run_agent, take_turn
from clew.domain.chats.errors import ChatRunAbandonedError, ChatRunOpenError, NextSpeakerError
from clew.domain.chats.events import (
    ChatRunEnded,
    ChatRunStarted,
    ChatTurn,
    TurnFailed,
    TurnFinished,
    TurnSelected,
    TurnStarted,
)
from clew.domain.chats.state import ChannelState, ChatState, OpenTurn
from clew.domain.decider import Append, Intent, RecordEvents, check_allowed
from clew.domain.errors import (
    ConflictError,
    InvalidContentError,
    NotAuthorizedError,
    ThreadDeletedError,
    UnknownThreadError,
)
from clew.domain.events import ThreadEvent
from clew.domain.json_values import canonical
from clew.domain.messages import Message
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import plus
from clew.domain.runs.errors import AgentConfigurationError, ServiceCannotForkError
from clew.domain.runs.ports import EnginePort, RunKey
from clew.domain.streams import check_idempotency_key
from clew.service.async_effects import drive
from clew.service.chat_turns import waiting_turns
from clew.service.child_runs import abandon_children
from clew.service.remote_threads import check_fork

_OF_RUN = frozenset({"turn-selected", "turn-started", "turn-finished", "turn-failed", "chat-run-ended"})


@dataclass(frozen=True)
class Execution:
    """What a run of a chat needs: the chat with the participants of this process, and the caller.

    ``given`` is what the chats give of which this one is a participant.
    """

    engine: EnginePort[LocalThread, RemoteThread]
    chat: Thread
    members: Mapping[str, Member]
    selection: TurnSelection
    termination: tuple[Termination, ...]
    actor: str | None = None
    emit: Emit | None = None
    given: tuple[ChatContext, ...] = ()

    async def begin(
        self, messages: Sequence[Message], given: str | None, *, abandon: bool = False, within: ChatTurn | None = None
    ) -> int:
        """Begin a run; returns the version at which it began. That of the first run with the key, if there is one.

        A run ``within`` a turn of another chat abandons an open run of an earlier turn there, which has failed.
        """
        key = None
        if given is not None:
            check_idempotency_key(given)
            key = RunKey(given, canonical([each.model_dump(mode="json") for each in messages]).encode())
        log = self.chat.runs
        while True:
            if key is not None and (began := await log.repeated(key)) is not None:
                return began + await self._is_end(began)
            version, state = await read_chat(self.chat)
            steps: list[ThreadEvent] = []
            if state.run is not None:
                if not abandon and (within is None or state.run.within != within.chat):
                    raise ChatRunOpenError(self.chat.id, "chat.run")
                await self._abandon_turns()
                steps.append(ChatRunEnded(run=state.run.began, reason="abandoned"))
            if not messages and not (await self.chat.history(last=1)).messages:
                raise InvalidContentError("chat.run: there is nothing to answer. Give some input.")
            steps.append(ChatRunStarted(within=within))
            intents: list[Intent] = [RecordEvents(tuple(steps))]
            intents += [Append(tuple(messages))] if messages else []
            try:
                await log.record(intents, actor=self.actor, expected_version=version, key=key)
            except ConflictError:
                continue
            return version + len(steps)

    async def _abandon_turns(self) -> None:
        """Abandon what waits in open turns, before their run ends: see ``abandon_children``."""
        core = self.chat._core  # noqa: SLF001  # of this package
        control = await self.chat.runs.control(fresh=True)
        await drive(abandon_children(core, await drive(waiting_turns(core, self.chat.id, control)), self.actor))

    async def _is_end(self, version: int) -> int:
        """1 if the event at the version ended an earlier run, before this one began in the same commit; else 0."""
        return int(isinstance((await self.chat.runs.event(version)).data, ChatRunEnded))

    async def drive(self, began: int, speaker: str | None = None) -> ChatResponse:
        """Take turns until the run that began at a version ends or waits. ``speaker`` takes the first turn.

        Each step is decided on a version and recorded after it. So any number of processes can do this at once.
        """
        while True:
            version, state = await read_chat(self.chat)
            if state.run is None or state.run.began != began:
                return await self._response(began)
            view = view_of(self.chat, version, state)
            if state.turns:
                outcomes = await self._take(state, view)
                _, state = await read_chat(self.chat)
                pending = [approval for each in outcomes for approval in each.approvals]
                people = (*self._people(state), *(person for each in outcomes for person in each.waiting_for))
                if pending or people:
                    return await self._response(began, pending, people)
                continue
            step, decider = await self._next(state, view, speaker)
            speaker = None
            actor, caller = (self.actor, None) if decider is None else (decider, view.caller)
            try:
                await self.chat.runs.record(step, actor=actor, on_behalf_of=caller, expected_version=version)
            except ConflictError:
                continue

    def setup(self, state: ChatState) -> TurnSetup:
        """What a turn of the chat needs. It is taken for the caller of the run, whoever continues it."""
        caller = self.actor if state.run is None else state.run.caller or self.actor
        return TurnSetup(self.engine, self.chat, state.newcomers_read, caller, self.emit, given=self.given)

    async def _take(self, state: ChatState, view: ChatView) -> list[Outcome]:
        """Take the open turns, those of several participants at the same time. Raises ThreadStatusError."""
        control = await self.chat.runs.control(fresh=True)
        check_allowed(self.chat.id, control, RecordEvents((ChatRunStarted(),)))  # before an agent is asked in vain
        taken = []
        for turn in state.turns:
            member = self.members.get(turn.participant)
            if member is None:
                raise AgentConfigurationError(
                    f"It is the turn of {turn.participant!r}, who is not here. Give this agent: chat.add(agent)."
                )
            if not isinstance(member.joining, Human):
                handoffs = isinstance(self.selection, HandoffSelection)
                tools = handoff_tools(view, member.id) if handoffs else {}
                run = run_agent if member.chat is None else self._run_chat
                taken.append(take_turn(replace(self.setup(state), handoffs=tools), turn, member, run))
        outcomes = await asyncio.gather(*taken, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [each for each in outcomes if isinstance(each, Outcome)]

    async def _run_chat(  # as RunTurn
        self,
        setup: TurnSetup,
        turn: OpenTurn,
        member: Member,
        thread: Thread,
        messages: list[Message],
        context: tuple[ChatContext, ...],
    ) -> Outcome:
        """Run a chat that is a participant. Its answer is the last message that was added to it."""
        inner = self._within(member, thread, setup.actor, context)
        within = ChatTurn(chat=self.chat.id, turn=turn.version)
        began = await inner.begin(messages, key_of(setup, turn), within=within)
        response = await inner.drive(began)
        return Outcome(
            answer=answer_of(member, response.messages),
            usage=sum(response.usage.values(), TokenUsage()),
            cost=response.cost,
            approvals=response.approvals,
            waiting_for=response.waiting_for,
        )

    def _within(
        self, member: Member, thread: Thread, actor: str | None, context: tuple[ChatContext, ...] = ()
    ) -> Execution:
        """The execution of a participant's chat, on the thread of its turn."""
        chat = member.chat
        if chat is None:
            raise AgentConfigurationError(f"{member.id!r} is not a chat.")
        if thread.id == chat.thread.id:
            thread = cast("Thread", chat.thread)  # with its components
        else:
            thread.context_providers.add(*chat.thread.context_providers)
        return Execution(self.engine, thread, chat.members, chat.selection, chat.termination, actor, self.emit, context)

    def _people(self, state: ChatState) -> tuple[str, ...]:
        members = [self.members.get(each.participant) for each in state.turns]
        return tuple([each.id for each in members if each is not None and isinstance(each.joining, Human)])

    async def turn_of(self, person: str) -> tuple[Execution, OpenTurn, Member] | None:
        """The open turn of a person in this chat, or in a chat that has a turn in it."""
        _, state = await read_chat(self.chat)
        inner: list[Execution] = []
        for turn in state.turns:
            member = self.members.get(turn.participant)
            if member is not None and turn.participant == person and isinstance(member.joining, Human):
                return self, turn, member
            if member is not None and member.chat is not None:
                with suppress(UnknownThreadError):
                    inner.append(self._within(member, await self.engine.thread(turn.thread_id), self.actor))
        for each in inner:
            if found := await each.turn_of(person):
                return found
        return None

    async def _next(self, state: ChatState, view: ChatView, speaker: str | None) -> tuple[list[Intent], str | None]:
        """The next step of an open run, and the agent that decided it: a turn, several turns, or the end of the run."""
        began = 0 if state.run is None else state.run.began
        reason = await self._over(view) if view.turns else None
        decision = decision_of(None if reason else speaker or await self.selection.select(view))
        speakers = speakers_of(decision)
        for each in speakers:
            if each not in state.present:
                raise NextSpeakerError(each, state.present)
        turns = [await self._turn(each, state.channels[each]) for each in speakers]
        step: list[ThreadEvent] = [*selected(decision), *turns]
        if not speakers:
            step.append(ChatRunEnded(run=began, reason=reason or decision.reason))
            await self._learn(began, view.caller or self.actor)
        message: list[Intent] = [] if decision.message is None else [Append((decision.message,))]
        return [*message, RecordEvents(tuple(step))], decision.by

    async def _over(self, view: ChatView) -> str | None:
        for each in self.termination:
            if await each.is_over(view):
                return str(each.data["type"])
        return None

    async def _turn(self, participant: str, channel: ChannelState) -> TurnStarted:
        """The turn, on the channel's thread if it is this chat's own, and as it was at this place of the chat.

        After a fork or a rewind of the chat it is not, and the turn is on a fork of the thread. A thread that a
        participant brought may have grown meanwhile. If the thread is not in this store, was deleted, or is at a
        service that cannot fork it, the participant begins afresh.
        """
        same = TurnStarted(participant=participant, thread_id=channel.thread_id)
        new = same.model_copy(update={"thread_id": uuid.uuid4().hex[:16], "afresh": channel.version > 0})
        is_own = channel.chat == self.chat.id
        try:
            control = await (await self.chat.runs.channel(channel.thread_id)).control(fresh=True)
        except UnknownThreadError:
            return same if is_own and not channel.version else new
        except ThreadDeletedError:
            return new
        if is_own and control.version == channel.version and control.status == "active":
            return same
        if not channel.version or (control.kind == "remote" and not await self._can_fork(channel)):
            return new
        source = {"source_thread": channel.thread_id, "source_version": channel.version, "afresh": False}
        return new.model_copy(update=source)

    async def _can_fork(self, channel: ChannelState) -> bool:
        """Whether the service that holds a channel can continue it from its version."""
        core = self.chat._core  # noqa: SLF001  # of this package
        try:
            await drive(check_fork(core, channel.thread_id, channel.version))
        except ServiceCannotForkError:
            return False
        return True

    async def _learn(self, began: int, actor: str | None) -> None:
        """Let the components of the chat learn from the messages of a run that is about to end."""
        if not len(self.chat.context_providers):
            return
        messages = list(await self.chat.history(after=began))
        asked = [each for each in messages if each.role != "assistant"]
        answers = [each for each in messages if each.role == "assistant"]
        await self.chat.notify("invoked", asked, answers, actor=actor)

    async def _response(
        self, began: int, pending: Sequence[Approval] = (), people: tuple[str, ...] = ()
    ) -> ChatResponse:
        usage: dict[str, TokenUsage] = {}
        costs: dict[str, Decimal | None] = {}
        speakers: dict[int, str] = {}
        reason, ended = None, None
        async for event in self.chat.events(after=began, types=_OF_RUN):
            if isinstance(event.data, TurnStarted):
                speakers[event.version] = event.data.participant
            elif isinstance(event.data, TurnFinished) or (isinstance(event.data, TurnFailed) and event.data.usage):
                who = speakers.get(event.data.turn, "")
                usage[who] = usage.get(who, TokenUsage()) + (event.data.usage or TokenUsage())
                costs[who] = plus(costs.get(who, Decimal(0)), event.data.cost)
            elif isinstance(event.data, TurnSelected) and event.data.by is not None:
                usage[event.data.by] = usage.get(event.data.by, TokenUsage()) + (event.data.usage or TokenUsage())
                costs[event.data.by] = plus(costs.get(event.data.by, Decimal(0)), event.data.cost)
            elif isinstance(event.data, ChatRunEnded) and event.data.run == began:
                reason, ended = event.data.reason, event.version
                break
        if reason == "abandoned" or (reason is None and not pending and not people):
            raise ChatRunAbandonedError(self.chat.id, began)
        messages = await self.chat.history(at=ended, after=began)
        answers = [each for each in messages if each.role == "assistant" or (each.message and each.message.author)]
        return ChatResponse(answers, reason, usage, list(pending), people, costs)


async def open_approvals(chat: Thread) -> list[Approval]:
    """The function calls of a chat's open turns that wait for an approval, also of chats that have a turn in it."""
    pending: list[Approval] = []
    _, state = await read_chat(chat)
    for turn in state.turns:
        try:
            if state.known[turn.participant].type == CHAT:
                pending += await open_approvals(type(chat)(chat._core, chat._live, turn.thread_id))  # noqa: SLF001  # its thread
            else:
                pending += await approvals(await chat.runs.channel(turn.thread_id))
        except (UnknownThreadError, NotAuthorizedError):
            continue  # the turn has begun, and its run has not; or a person has it, or it names a thread of others
    return pending
