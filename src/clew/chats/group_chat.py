"""Group chats: a thread with participants who take turns, each on a thread of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clew.agents.admission import Admission
from clew.agents.journal import Emit
from clew.agents.response import Approval, approvals
from clew.agents.run_setup import Input, input_messages
from clew.agents.stream import AgentStream
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.chat_view import ChatView, view_of
from clew.chats.participants import Human, Joining, Member, member_of, members_of
from clew.chats.termination import MAX_TURNS, MaxTurns, Termination, terminations_of
from clew.chats.turn_selection import (
    HandoffSelection,
    RoundRobin,
    TurnSelection,
    decision_of,
    handoff_tools,
    selected,
    selection_of,
    speakers_of,
)
from clew.chats.turns import TurnSetup, finish_turn, read_chat, take_turn
from clew.domain.chats.errors import ChatRunAbandonedError, ChatRunOpenError, NextSpeakerError
from clew.domain.chats.events import (
    ChatConfigured,
    ChatRunEnded,
    ChatRunStarted,
    ParticipantJoined,
    ParticipantLeft,
    TurnFinished,
    TurnSelected,
    TurnStarted,
)
from clew.domain.chats.state import CHAT_STATE, ChannelState, ChatState
from clew.domain.context.provider import ContextProviders, as_providers
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ConflictError, InvalidContentError, UnknownThreadError
from clew.domain.events import ThreadEvent
from clew.domain.history import History, HistoryMessage
from clew.domain.json_values import canonical
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind, TokenUsage
from clew.domain.runs.errors import AgentConfigurationError, NoOpenRunError
from clew.domain.runs.ports import EnginePort, RunKey
from clew.domain.streams import check_idempotency_key
from clew.service.thread_queries import At


@dataclass(frozen=True)
class ChatParticipant:
    """A participant of a chat. Its runs are on ``thread``, which its first turn begins; a person has no such runs."""

    id: str
    name: str | None
    type: str
    description: str | None
    thread: LocalThread | RemoteThread


@dataclass(frozen=True)
class ChatResponse:
    """The result of a run of a chat.

    ``messages`` are those that were added to the chat after the input. ``reason`` is why the run ended, None while it
    waits: for the ``approvals`` of function calls, or for the people in ``waiting_for``. ``usage`` are the tokens of
    the run by participant.
    """

    messages: list[HistoryMessage]
    reason: str | None
    usage: dict[str, TokenUsage] = field(default_factory=dict)
    approvals: list[Approval] = field(default_factory=list)
    waiting_for: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.messages[-1].text if self.messages else ""


class ChatStream(AgentStream[Any]):
    """The updates of all participants while a chat runs: each names its ``author``."""

    async def get_final_response(self) -> Any:
        """Read to the end of the run, and return its ChatResponse. Raises the errors of the run."""
        return await super().get_final_response()


class GroupChat:
    """A conversation of several agents and people: ``engine.start_chat([…])``, or ``engine.chat(id, […])``.

    Its messages and its events are on ``thread``, so everything that a thread can do, a chat can: checkpoints, ``at=``,
    rewinds, search, audit and export. Each participant hears it on a thread of its own, its channel. Agents are code:
    the log has only their identities.
    """

    def __init__(
        self,
        engine: EnginePort[LocalThread, RemoteThread],
        thread: Thread,
        members: dict[str, Any],
        *,
        selection: TurnSelection,
        termination: Sequence[Termination],
    ) -> None:
        self.thread = thread
        """The thread of the chat."""
        self.selection = selection
        self.termination = tuple(termination)
        self._engine = engine
        self._members = members
        self._state = ChatState()

    def __repr__(self) -> str:
        return f"GroupChat({self.id!r})"

    @property
    def id(self) -> str:
        """The id of the chat, which is that of its thread."""
        return self.thread.id

    @property
    def participants(self) -> list[ChatParticipant]:
        """The participants that were present when the chat was last used by this object."""
        return [self._participant(id_) for id_ in self._state.present]

    def _participant(self, id_: str) -> ChatParticipant:
        known, channel = self._state.known[id_], self._state.channels[id_]
        member = self._members.get(id_)
        kind: ThreadKind = "local" if member is None else member.channel.thread_kind
        thread = self._engine.unstarted_thread(kind, channel.thread_id)
        thread = type(thread)(thread._core, thread._live, thread.id)  # noqa: SLF001  # read it, do not begin it
        return ChatParticipant(known.id, known.name, known.type, known.description, thread)

    async def refresh(self) -> ChatState:
        """Read the state of the chat."""
        _, self._state = await read_chat(self.thread)
        return self._state

    async def state(self, *, at: At = None) -> ChatState:
        """The state of the chat at a version, by default the newest: participants, channels, turns and usage."""
        return await self.thread.fold(CHAT_STATE, at=at)

    async def history(self, *, at: At = None, last: int | None = None) -> History:
        """The messages of the chat at a version, by default the newest; or the last ones."""
        return await self.thread.history(at=at, last=last)

    # Participants

    async def add(self, joining: Joining, *, actor: str | None = None) -> None:
        """Let a participant join. It hears the chat so far before its first turn; one that comes back, what it missed.

        Does nothing if it is present. Raises AgentConfigurationError for another one with its id or name.
        """
        member = member_of(joining)
        members_of([*(each.participant or _human(each) for each in self._members.values()), joining])
        state = await self.refresh()
        if member.id not in state.present:
            await self.thread.runs.record([RecordEvents((await joined(member),))], actor=actor)
        self._members[member.id] = member
        await self.refresh()

    async def remove(self, participant: str, *, actor: str | None = None) -> None:
        """Let a participant leave. Its channel is kept for when it comes back. Raises NextSpeakerError."""
        state = await self.refresh()
        if participant not in state.present:
            raise NextSpeakerError(participant, state.present)
        await self.thread.runs.record([RecordEvents((ParticipantLeft(participant=participant),))], actor=actor)
        self._members.pop(participant, None)
        await self.refresh()

    # Running

    def run(
        self,
        input: Input = None,
        *,
        stream: bool = False,
        actor: str | None = None,
        idempotency_key: str | None = None,
        next_speaker: str | None = None,
        abandon_run: bool = False,
    ) -> Any:
        """Let the participants take turns until the run ends or waits. Returns a coroutine of a ChatResponse.

        With ``stream`` it is a ChatStream of updates. Each step is on the log before the next one begins, so
        ``continue_run`` continues a run that crashed, in any process. A run with the ``idempotency_key`` of an earlier
        one returns or continues that run. ``next_speaker`` takes the first turn. Raises ChatRunOpenError for a chat
        whose run is not over, unless ``abandon_run`` is true, and the errors of a participant's run; then
        ``continue_run`` gives the turn again.
        """
        messages = input_messages("chat.run", input)

        async def execute(emit: Emit | None, admission: Admission | None = None) -> Any:
            began = await self._begin(messages, actor, idempotency_key, abandon=abandon_run)
            if admission is not None:
                admission.begin(str(began), self.thread)
            return await self._drive(began, emit, actor, next_speaker)

        return ChatStream(execute) if stream else execute(None)

    def continue_run(self, *, stream: bool = False, actor: str | None = None) -> Any:
        """Continue the open run: after a crash, an error or an approval, or when a person has answered.

        Raises NoOpenRunError. Nothing that is on the log is repeated.
        """

        async def execute(emit: Emit | None, admission: Admission | None = None) -> Any:
            run = (await self.refresh()).run
            if run is None:
                raise NoOpenRunError(self.id)
            if admission is not None:
                admission.begin(str(run.began), self.thread)
            return await self._drive(run.began, emit, actor, None)

        return ChatStream(execute) if stream else execute(None)

    async def respond(self, participant: str, message: Message | str, *, actor: str | None = None) -> None:
        """Answer as a person whose turn it is; then ``continue_run``. Raises NextSpeakerError if it is not."""
        state = await self.refresh()
        turn = next((each for each in state.turns if each.participant == participant), None)
        member = self._members.get(participant)
        if turn is None or member is None or member.agent is not None:
            raise NextSpeakerError(participant, [each.participant for each in state.turns])
        (said,) = input_messages("chat.respond", message)
        authored = said.model_copy(update={"author": member.identity.author})
        await finish_turn(self._setup(None, actor), turn, authored, TurnFinished(turn=turn.version))
        await self.refresh()

    async def approvals(self) -> list[Approval]:
        """The function calls of open turns that wait for an approval, requested by any process."""
        pending: list[Approval] = []
        for turn in (await self.refresh()).turns:
            log = self.thread.runs.of(turn.thread_id)
            try:
                pending += await approvals(log)
            except UnknownThreadError:
                continue  # the turn has begun, and its run has not, or a person has it
        return pending

    async def _begin(
        self, messages: tuple[Message, ...], actor: str | None, given: str | None, *, abandon: bool
    ) -> int:
        """Begin a run; returns the version at which it began. That of the first run with the key, if there is one."""
        key = None
        if given is not None:
            check_idempotency_key(given)
            key = RunKey(given, canonical([each.model_dump(mode="json") for each in messages]).encode())
        log = self.thread.runs
        while True:
            if key is not None and (began := await log.repeated(key)) is not None:
                return began + await self._is_end(began)
            version, state = await read_chat(self.thread)
            steps: list[ThreadEvent] = []
            if state.run is not None:
                if not abandon:
                    raise ChatRunOpenError(self.id, "chat.run")
                steps.append(ChatRunEnded(run=state.run.began, reason="abandoned"))
            if not messages and not (await self.thread.history(last=1)).messages:
                raise InvalidContentError("chat.run: there is nothing to answer. Give some input.")
            steps.append(ChatRunStarted())
            intents: list[Intent] = [RecordEvents(tuple(steps))]
            intents += [Append(messages)] if messages else []
            try:
                await log.record(intents, actor=actor, expected_version=version, key=key)
            except ConflictError:
                continue
            return version + len(steps)

    async def _is_end(self, version: int) -> int:
        """1 if the event at the version ended an earlier run, before this one began in the same commit; else 0."""
        return int(isinstance((await self.thread.runs.event(version)).data, ChatRunEnded))

    async def _drive(self, began: int, emit: Emit | None, actor: str | None, speaker: str | None) -> ChatResponse:
        """Take turns until the run that began at a version ends or waits.

        Each step is decided on a version and recorded after it. So any number of processes can do this at once.
        """
        while True:
            version, state = await read_chat(self.thread)
            self._state = state
            if state.run is None or state.run.began != began:
                return await self._response(began)
            view = view_of(self.thread, version, state)
            if state.turns:
                pending = await self._take(state, view, emit, actor)
                people = self._waiting_for(await self.refresh())
                if pending or people:
                    return await self._response(began, pending, people)
                continue
            step, speaker = await self._next(view, speaker, actor)
            try:
                await self.thread.runs.record(step, actor=actor, expected_version=version)
            except ConflictError:
                continue

    async def _take(self, state: ChatState, view: ChatView, emit: Emit | None, actor: str | None) -> list[Approval]:
        """Take the open turns, those of several participants at the same time."""
        taken = []
        for turn in state.turns:
            member = self._members.get(turn.participant)
            if member is None:
                raise AgentConfigurationError(
                    f"It is the turn of {turn.participant!r}, who is not here. Give this agent: chat.add(agent)."
                )
            if member.agent is not None:
                handoffs = isinstance(self.selection, HandoffSelection)
                tools = handoff_tools(view, member.id) if handoffs else {}
                taken.append(take_turn(self._setup(emit, actor, tools), turn, member))
        outcomes = await asyncio.gather(*taken, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [each for outcome in outcomes if isinstance(outcome, list) for each in outcome]

    async def _next(self, view: ChatView, speaker: str | None, actor: str | None) -> tuple[list[Intent], str | None]:
        """The next step, and who still takes the turn after it: a turn, several turns, or the end of the run."""
        run = self._state.run
        if run is None:
            return [], None
        reason = await self._over(view) if view.turns else None
        decision = decision_of(None if reason else speaker or await self.selection.select(view))
        speakers = speakers_of(decision)
        for each in speakers:
            if each not in self._state.present:
                raise NextSpeakerError(each, self._state.present)
        step: list[ThreadEvent] = [*selected(decision), *[await self._turn(each) for each in speakers]]
        if not speakers:
            step.append(ChatRunEnded(run=run.began, reason=reason or decision.reason))
            await self._learn(run.began, actor)
        said: list[Intent] = [] if decision.message is None else [Append((decision.message,))]
        return [*said, RecordEvents(tuple(step))], None

    async def _over(self, view: ChatView) -> str | None:
        for each in self.termination:
            if await each.is_over(view):
                return str(each.data["type"])
        return None

    async def _turn(self, participant: str) -> TurnStarted:
        """The turn, on the channel's thread or on a fork of it: see ``continues``."""
        channel = self._state.channels[participant]
        if await self._continues(channel):
            return TurnStarted(participant=participant, thread_id=channel.thread_id)
        new = uuid.uuid4().hex[:16]
        if not channel.version:
            return TurnStarted(participant=participant, thread_id=new)
        return TurnStarted(
            participant=participant,
            thread_id=new,
            source_thread=channel.thread_id,
            source_version=channel.version,
        )

    async def _continues(self, channel: ChannelState) -> bool:
        """Whether the next turn is on the same thread: it is this chat's own, and as it was at this place of the chat.

        After a fork or a rewind of the chat it is not. A thread that a participant brought may have grown meanwhile.
        """
        if channel.chat != self.id:
            return False
        try:
            control = await self.thread.runs.of(channel.thread_id).control(fresh=True)
        except UnknownThreadError:
            return True  # it has not begun
        return control.version == channel.version and control.status == "active"

    async def _learn(self, began: int, actor: str | None) -> None:
        """Let the components of the chat learn from the messages of a run that is about to end."""
        if not len(self.thread.context_providers):
            return
        said = list(await self.thread.history(after=began))
        asked = [each for each in said if each.role != "assistant"]
        answers = [each for each in said if each.role == "assistant"]
        await self.thread.notify("invoked", asked, answers, actor=actor)

    async def _response(
        self, began: int, pending: Sequence[Approval] = (), people: tuple[str, ...] = ()
    ) -> ChatResponse:
        usage: dict[str, TokenUsage] = {}
        speakers: dict[int, str] = {}
        reason, ended = None, None
        async for event in self.thread.events(after=began, types=_OF_RUN):
            if isinstance(event.data, TurnStarted):
                speakers[event.version] = event.data.participant
            elif isinstance(event.data, TurnFinished):
                who = speakers.get(event.data.turn, "")
                usage[who] = usage.get(who, TokenUsage()) + (event.data.usage or TokenUsage())
            elif isinstance(event.data, TurnSelected) and event.data.by is not None:
                usage[event.data.by] = usage.get(event.data.by, TokenUsage()) + (event.data.usage or TokenUsage())
            elif isinstance(event.data, ChatRunEnded) and event.data.run == began:
                reason, ended = event.data.reason, event.version
                break
        if reason == "abandoned" or (reason is None and not pending and not people):
            raise ChatRunAbandonedError(self.id, began)
        said = await self.thread.history(at=ended, after=began)
        answers = [each for each in said if each.role == "assistant" or (each.message and each.message.author)]
        return ChatResponse(answers, reason, usage, list(pending), people)

    def _waiting_for(self, state: ChatState) -> tuple[str, ...]:
        members = [self._members.get(each.participant) for each in state.turns]
        return tuple([each.id for each in members if each is not None and each.agent is None])

    def _setup(self, emit: Emit | None, actor: str | None, handoffs: dict[str, Any] | None = None) -> TurnSetup:
        return TurnSetup(self._engine, self.thread, self._state.newcomers_read, actor, emit, handoffs or {})

    # The life of a chat

    async def fork(self, *, at: At = None, title: str | None = None, actor: str | None = None) -> GroupChat:
        """A new chat whose past is this one up to a version, with the same participants in this process.

        It costs one event. A channel is forked when its participant has its next turn there.
        """
        forked = await self.thread.fork(at=at, title=title, actor=actor)
        other = GroupChat(
            self._engine,
            forked,
            dict(self._members),
            selection=self.selection,
            termination=self.termination,
        )
        await other.refresh()
        return other

    async def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """End the chat, and the channel threads that it began. Threads that participants brought stay as they are.

        Nothing is ended at a service. The chat's components are notified before.
        """
        state = await self.refresh()
        await self.thread.end(reason=reason, actor=actor)
        for channel in state.channels.values():
            if channel.chat == self.id and not channel.brought:
                try:
                    thread = await self._engine.thread(channel.thread_id)
                except UnknownThreadError:
                    continue  # it had no turn
                if await thread.status in {"active", "suspended"}:
                    await thread.end(reason=reason, actor=actor)


_OF_RUN = frozenset({"turn-selected", "turn-started", "turn-finished", "chat-run-ended"})


def _human(member: Member) -> Human:
    return Human(member.id, member.identity.name, member.identity.description)


async def joined(member: Member) -> ParticipantJoined:
    """The event of a participant who joins: on the thread that it brings, or on a new one."""
    brought = None if member.participant is None else member.participant.thread
    if brought is None:
        return ParticipantJoined(participant=member.identity, thread_id=uuid.uuid4().hex[:16])
    version = (await brought.runs.control(fresh=True)).version
    return ParticipantJoined(participant=member.identity, thread_id=brought.id, version=version, brought=True)


async def start_chat(  # noqa: PLR0913  # named arguments, each documented at the front door
    engine: EnginePort[LocalThread, RemoteThread],
    participants: Sequence[Joining],
    *,
    chat_id: str | None,
    selection: TurnSelection | None,
    termination: Termination | Sequence[Termination] | None,
    max_turns: int | None,
    context_providers: ContextProviders | None,
    newcomers_read: int | None,
    actor: str | None,
) -> GroupChat:
    """Start a chat. See ``engine.start_chat``."""
    members = members_of(participants)
    thread = engine.unstarted_thread("local", chat_id)
    thread.context_providers.add(*as_providers(context_providers))
    chosen = selection or RoundRobin()
    ends = _terminations(termination, max_turns) or (MaxTurns(MAX_TURNS),)
    configured = ChatConfigured(
        selection=chosen.data, termination=tuple([each.data for each in ends]), newcomers_read=newcomers_read
    )
    steps: list[ThreadEvent] = [configured, *[await joined(each) for each in members.values()]]
    await thread.runs.record([RecordEvents(tuple(steps))], actor=actor)
    await thread.notify("on_thread_created", [], actor=actor)
    chat = GroupChat(engine, thread, members, selection=chosen, termination=ends)
    await chat.refresh()
    return chat


async def open_chat(  # as start_chat
    engine: EnginePort[LocalThread, RemoteThread],
    chat_id: str,
    participants: Sequence[Joining],
    *,
    selection: TurnSelection | None,
    termination: Termination | Sequence[Termination] | None,
    context_providers: ContextProviders | None,
) -> GroupChat:
    """Open a chat. See ``engine.chat``."""
    members = members_of(participants)
    thread = await engine.thread(chat_id)
    thread.context_providers.add(*as_providers(context_providers))
    _, state = await read_chat(thread)
    if not state.selection:
        raise AgentConfigurationError(f"Thread {chat_id!r} is not a chat. Start one with engine.start_chat([…]).")
    strangers = sorted(set(members) - set(state.present))
    if strangers:
        raise AgentConfigurationError(
            f"{', '.join(map(repr, strangers))} did not join chat {chat_id!r}. Open it without them, and let them "
            "join: await chat.add(agent)."
        )
    chosen = selection or selection_of(state.selection)
    ends = _terminations(termination, None) or terminations_of(state.termination)
    chat = GroupChat(engine, thread, members, selection=chosen, termination=ends)
    await chat.refresh()
    return chat


def _terminations(
    termination: Termination | Sequence[Termination] | None, max_turns: int | None
) -> tuple[Termination, ...]:
    given = (
        () if termination is None else (termination,) if isinstance(termination, Termination) else tuple(termination)
    )
    return given if max_turns is None else (MaxTurns(max_turns), *given)
