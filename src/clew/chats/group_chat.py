"""Group chats: a thread with participants who take turns, each on a thread of its own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, overload

from clew.agents.admission import Admission
from clew.agents.journal import Emit
from clew.agents.response import Approval
from clew.agents.run_setup import Input, input_messages
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.execution import Execution, open_approvals
from clew.chats.participants import Joining, Member, SubChat, member_of, members_of
from clew.chats.response import ChatResponse, ChatStream
from clew.chats.termination import Termination
from clew.chats.turn_selection import TurnSelection
from clew.chats.turns import finish_turn, read_chat
from clew.domain.chats.errors import NextSpeakerError
from clew.domain.chats.events import CHANNEL_OF, GROUP_CHAT, ParticipantJoined, ParticipantLeft, TurnFinished
from clew.domain.chats.state import CHAT_STATE, ChatState
from clew.domain.decider import RecordEvents
from clew.domain.errors import NotRedactableError, UnknownThreadError
from clew.domain.event_types import Status
from clew.domain.events import MemoryReading, ThreadEvent
from clew.domain.history import History
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind, TokenUsage
from clew.domain.models.prices import recorded
from clew.domain.runs.errors import NoOpenRunError
from clew.domain.runs.ports import EnginePort
from clew.service.async_effects import drive
from clew.service.redactions import Purged, check_purge
from clew.service.thread_directory import threads
from clew.service.thread_queries import At, ThreadSummary


@dataclass(frozen=True)
class ChatParticipant:
    """A participant of a chat. Its runs are on ``thread``, which its first turn begins; a person has no such runs."""

    id: str
    name: str | None
    type: str
    description: str | None
    thread: LocalThread | RemoteThread


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
        members_of([*(each.joining for each in self._members.values()), joining])
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

    @overload
    def run(
        self,
        input: Input = None,
        *,
        stream: Literal[False] = False,
        actor: str | None = None,
        idempotency_key: str | None = None,
        next_speaker: str | None = None,
        abandon_run: bool = False,
    ) -> Coroutine[Any, Any, ChatResponse]: ...
    @overload
    def run(
        self,
        input: Input = None,
        *,
        stream: Literal[True],
        actor: str | None = None,
        idempotency_key: str | None = None,
        next_speaker: str | None = None,
        abandon_run: bool = False,
    ) -> ChatStream: ...
    def run(
        self,
        input: Input = None,
        *,
        stream: bool = False,
        actor: str | None = None,
        idempotency_key: str | None = None,
        next_speaker: str | None = None,
        abandon_run: bool = False,
    ) -> Coroutine[Any, Any, ChatResponse] | ChatStream:
        """Let the participants take turns until the run ends or waits. Returns a coroutine of a ChatResponse.

        With ``stream`` it is a ChatStream of updates. Each step is on the log before the next one begins, so
        ``continue_run`` continues a run that crashed, in any process. A run with the ``idempotency_key`` of an earlier
        one returns or continues that run. ``next_speaker`` takes the first turn. Raises ChatRunOpenError for a chat
        whose run is not over, unless ``abandon_run`` is true, and the errors of a participant's run; then
        ``continue_run`` gives the turn again.
        """
        messages = input_messages("chat.run", input)

        async def begin(execution: Execution) -> int:
            return await execution.begin(messages, idempotency_key, abandon=abandon_run)

        return self._running(begin, actor, next_speaker, stream=stream)

    @overload
    def continue_run(
        self, *, stream: Literal[False] = False, actor: str | None = None
    ) -> Coroutine[Any, Any, ChatResponse]: ...
    @overload
    def continue_run(self, *, stream: Literal[True], actor: str | None = None) -> ChatStream: ...
    def continue_run(
        self, *, stream: bool = False, actor: str | None = None
    ) -> Coroutine[Any, Any, ChatResponse] | ChatStream:
        """Continue the open run: after a crash, an error or an approval, or when a person has answered.

        Raises NoOpenRunError. Nothing that is on the log is repeated.
        """

        async def find(execution: Execution) -> int:
            _, state = await read_chat(execution.chat)
            if state.run is None:
                raise NoOpenRunError(self.id)
            return state.run.began

        return self._running(find, actor, None, stream=stream)

    def _running(
        self,
        begin: Callable[[Execution], Awaitable[int]],
        actor: str | None,
        speaker: str | None,
        *,
        stream: bool,
    ) -> Coroutine[Any, Any, ChatResponse] | ChatStream:
        """The run that ``begin`` begins or finds."""

        async def execute(emit: Emit | None, admission: Admission | None) -> ChatResponse:
            execution = self._execution(actor, emit)
            began = await begin(execution)
            if admission is not None:
                admission.begin(str(began), self.thread)
            try:
                return await execution.drive(began, speaker)
            finally:
                await self.refresh()

        return ChatStream(execute) if stream else execute(None, None)

    async def respond(self, participant: str, message: Message | str, *, actor: str | None = None) -> None:
        """Answer as a person whose turn it is, also in a chat that is a participant; then ``continue_run``.

        Raises NextSpeakerError if it is not the person's turn.
        """
        found = await self._execution(actor).turn_of(participant)
        if found is None:
            raise NextSpeakerError(participant, [each.participant for each in (await self.refresh()).turns])
        execution, turn, member = found
        (given,) = input_messages("chat.respond", message)
        authored = given.model_copy(update={"author": member.identity.author})
        nothing = TurnFinished(turn=turn.version, usage=TokenUsage(), cost=recorded(Decimal(0)))
        await finish_turn(execution.setup(ChatState()), turn, authored, nothing)
        await self.refresh()

    def _execution(self, actor: str | None, emit: Emit | None = None) -> Execution:
        return Execution(self._engine, self.thread, self._members, self.selection, self.termination, actor, emit)

    async def approvals(self) -> list[Approval]:
        """The function calls of open turns that wait for an approval, requested by any process.

        They are those of all agents, also in chats that are participants.
        """
        await self.refresh()
        return await open_approvals(self.thread)

    def as_participant(self, name: str, *, description: str | None = None) -> SubChat:
        """This chat as a participant of another one. In the other chat its id is ``name``.

        A turn of it is a run of this chat. Its input is what this chat has not heard, and its last message is the
        answer of the turn. Its tokens and costs count in the other chat; what it waits for is in the other response.
        """
        return SubChat(name, description, self.thread, self._members, self.selection, self.termination)

    # The life of a chat

    async def fork(
        self,
        *,
        at: At = None,
        title: str | None = None,
        participants: Sequence[Joining] | None = None,
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> GroupChat:
        """A new chat whose past is this one up to a version, with the same participants in this process.

        It costs one event. A channel is forked when its participant has its next turn there. With ``participants`` the
        fork continues with these: the others leave, and new ones join. One with the id of a participant takes its
        place, and has its channel. ``memory`` is as in ``thread.fork``.
        """
        members = self._members if participants is None else members_of(participants)
        forked = await self.thread.fork(at=at, title=title, memory=memory, actor=actor)
        other = GroupChat(
            self._engine,
            forked,
            dict(members),
            selection=self.selection,
            termination=self.termination,
        )
        present = (await other.refresh()).present
        if participants is not None:
            steps: list[ThreadEvent] = [ParticipantLeft(participant=id_) for id_ in present if id_ not in members]
            steps += [await joined(member) for id_, member in members.items() if id_ not in present]
            if steps:
                await forked.runs.record([RecordEvents(tuple(steps))], actor=actor)
                await other.refresh()
        return other

    async def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """End the chat, and the channel threads that it began. Threads that participants brought stay as they are.

        Nothing is ended at a service. The chat's components are notified before. If a crash interrupts it, call it
        again.
        """
        threads = await self._begun()
        if await self.thread.status != "ended":
            await self.thread.end(reason=reason, actor=actor)
        for thread, status in threads:
            if status in {"active", "suspended"}:
                await thread.end(reason=reason, actor=actor)

    async def delete(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Delete the chat, and the channel threads that it began, as ``thread.delete`` does; nothing at a service.

        If a crash interrupts it, call it again: the chat itself is deleted last.
        """
        for thread, status in await self._begun():
            if status != "deleted":
                await thread.delete(reason=reason, actor=actor)
        await self.thread.delete(reason=reason, actor=actor)

    async def purge(self, *, reason: str | None = None, forks: bool = False, actor: str | None = None) -> list[Purged]:
        """Destroy every text of the chat and of the channel threads that it began, as ``thread.purge`` does.

        Threads that participants brought keep their texts. A chat with forks is refused, unless ``forks`` is true. If a
        crash interrupts it, call it again: the chat itself is purged last. Raises ThreadHasForksError, and
        NotRedactableError for a chat that is already purged.
        """
        await drive(check_purge(self.thread._core, self.id, forks=forks))  # noqa: SLF001  # before the channels
        purged = []
        for thread, _ in await self._begun():
            with suppress(NotRedactableError):  # it is already purged
                purged.append(await thread.purge(reason=reason, forks=True, actor=actor))
        return [*purged, await self.thread.purge(reason=reason, forks=forks, actor=actor)]

    async def _begun(self) -> list[tuple[Thread, Status]]:
        """The threads that the chat began, and those that a chat among them began, with their statuses."""
        thread = self.thread
        begun = {each.id: each.status for each in await _labelled(thread, thread.id)}
        for channel in (await self.refresh()).channels.values() if await thread.status != "deleted" else ():
            if channel.chat == self.id and not channel.brought and channel.thread_id not in begun:
                with suppress(UnknownThreadError):  # it had no turn
                    begun[channel.thread_id] = (await _sibling(thread, channel.thread_id).summary()).status
        return [(_sibling(thread, id_), status) for id_, status in begun.items()]


def _sibling(thread: Thread, thread_id: str) -> Thread:
    """Another thread of the same store, also a deleted one."""
    return type(thread)(thread._core, thread._live, thread_id)  # noqa: SLF001  # a thread of the same engine


async def _labelled(thread: Thread, chat: str) -> list[ThreadSummary]:
    """The threads whose label names the chat, the newest first; those of chats among them come before these."""
    pages = threads(thread._core, labels={CHANNEL_OF: chat}, newest_first=True)  # noqa: SLF001  # as engine.threads
    found: list[ThreadSummary] = []
    while page := await drive(pages.next()):
        for each in page:
            found += await _labelled(thread, each.id) if each.labels.get(GROUP_CHAT) else []
            found.append(each)
    return found


async def joined(member: Member) -> ParticipantJoined:
    """The event of a participant who joins: on the thread that it brings, or on a new one."""
    brought = member.brought
    if brought is None:
        return ParticipantJoined(participant=member.identity, thread_id=uuid.uuid4().hex[:16])
    version = (await brought.runs.control(fresh=True)).version
    return ParticipantJoined(participant=member.identity, thread_id=brought.id, version=version, brought=True)
