"""A run of a chat: participants take turns until it ends or waits. Each step is on the log before the next begins."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clew.agents.journal import Emit
from clew.agents.response import Approval
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.chats.chat_view import ChatView, view_of
from clew.chats.participants import Member
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
from clew.chats.turns import TurnSetup, read_chat, take_turn
from clew.domain.chats.errors import ChatRunAbandonedError, ChatRunOpenError, NextSpeakerError
from clew.domain.chats.events import ChatRunEnded, ChatRunStarted, TurnFinished, TurnSelected, TurnStarted
from clew.domain.chats.state import ChannelState, ChatState
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.errors import ConflictError, InvalidContentError, UnknownThreadError
from clew.domain.events import ThreadEvent
from clew.domain.json_values import canonical
from clew.domain.messages import Message
from clew.domain.models.client import TokenUsage
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.ports import EnginePort, RunKey
from clew.domain.streams import check_idempotency_key

_OF_RUN = frozenset({"turn-selected", "turn-started", "turn-finished", "chat-run-ended"})


@dataclass(frozen=True)
class Execution:
    """What a run of a chat needs: the chat with the participants of this process, and the caller."""

    engine: EnginePort[LocalThread, RemoteThread]
    chat: Thread
    members: Mapping[str, Member]
    selection: TurnSelection
    termination: tuple[Termination, ...]
    actor: str | None = None
    emit: Emit | None = None

    async def begin(self, messages: tuple[Message, ...], given: str | None, *, abandon: bool) -> int:
        """Begin a run; returns the version at which it began. That of the first run with the key, if there is one."""
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
                if not abandon:
                    raise ChatRunOpenError(self.chat.id, "chat.run")
                steps.append(ChatRunEnded(run=state.run.began, reason="abandoned"))
            if not messages and not (await self.chat.history(last=1)).messages:
                raise InvalidContentError("chat.run: there is nothing to answer. Give some input.")
            steps.append(ChatRunStarted())
            intents: list[Intent] = [RecordEvents(tuple(steps))]
            intents += [Append(messages)] if messages else []
            try:
                await log.record(intents, actor=self.actor, expected_version=version, key=key)
            except ConflictError:
                continue
            return version + len(steps)

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
                pending = await self._take(state, view)
                _, state = await read_chat(self.chat)
                people = self._waiting_for(state)
                if pending or people:
                    return await self._response(began, pending, people)
                continue
            step = await self._next(state, view, speaker)
            speaker = None
            try:
                await self.chat.runs.record(step, actor=self.actor, expected_version=version)
            except ConflictError:
                continue

    def setup(self, state: ChatState) -> TurnSetup:
        """What a turn of the chat needs."""
        return TurnSetup(self.engine, self.chat, state.newcomers_read, self.actor, self.emit)

    async def _take(self, state: ChatState, view: ChatView) -> list[Approval]:
        """Take the open turns, those of several participants at the same time."""
        taken = []
        for turn in state.turns:
            member = self.members.get(turn.participant)
            if member is None:
                raise AgentConfigurationError(
                    f"It is the turn of {turn.participant!r}, who is not here. Give this agent: chat.add(agent)."
                )
            if member.agent is not None:
                handoffs = isinstance(self.selection, HandoffSelection)
                tools = handoff_tools(view, member.id) if handoffs else {}
                taken.append(take_turn(replace(self.setup(state), handoffs=tools), turn, member))
        outcomes = await asyncio.gather(*taken, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [each for outcome in outcomes if isinstance(outcome, list) for each in outcome]

    def _waiting_for(self, state: ChatState) -> tuple[str, ...]:
        members = [self.members.get(each.participant) for each in state.turns]
        return tuple([each.id for each in members if each is not None and each.agent is None])

    async def _next(self, state: ChatState, view: ChatView, speaker: str | None) -> list[Intent]:
        """The next step of an open run: a turn, several turns, or the end of the run."""
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
            await self._learn(began)
        said: list[Intent] = [] if decision.message is None else [Append((decision.message,))]
        return [*said, RecordEvents(tuple(step))]

    async def _over(self, view: ChatView) -> str | None:
        for each in self.termination:
            if await each.is_over(view):
                return str(each.data["type"])
        return None

    async def _turn(self, participant: str, channel: ChannelState) -> TurnStarted:
        """The turn, on the channel's thread or on a fork of it: see ``_continues``."""
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
        if channel.chat != self.chat.id:
            return False
        try:
            control = await self.chat.runs.of(channel.thread_id).control(fresh=True)
        except UnknownThreadError:
            return True  # it has not begun
        return control.version == channel.version and control.status == "active"

    async def _learn(self, began: int) -> None:
        """Let the components of the chat learn from the messages of a run that is about to end."""
        if not len(self.chat.context_providers):
            return
        said = list(await self.chat.history(after=began))
        asked = [each for each in said if each.role != "assistant"]
        answers = [each for each in said if each.role == "assistant"]
        await self.chat.notify("invoked", asked, answers, actor=self.actor)

    async def _response(
        self, began: int, pending: Sequence[Approval] = (), people: tuple[str, ...] = ()
    ) -> ChatResponse:
        usage: dict[str, TokenUsage] = {}
        speakers: dict[int, str] = {}
        reason, ended = None, None
        async for event in self.chat.events(after=began, types=_OF_RUN):
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
            raise ChatRunAbandonedError(self.chat.id, began)
        said = await self.chat.history(at=ended, after=began)
        answers = [each for each in said if each.role == "assistant" or (each.message and each.message.author)]
        return ChatResponse(answers, reason, usage, list(pending), people)
