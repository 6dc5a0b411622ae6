"""The flow of a group chat, made of the events on its path: who said what, in which order, and what happened between.

It is what pictures of a chat are drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from clew.domain.chats.events import (
    ChatRestored,
    ChatRunEnded,
    ChatRunStarted,
    ParticipantIdentity,
    ParticipantJoined,
    ParticipantLeft,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from clew.domain.event_types import TYPE_NAMES
from clew.domain.events import Event, HistoryRewound, MessageAppended, Shredded, ThreadForked
from clew.domain.history import previous_version
from clew.domain.messages import Media
from clew.domain.runs.events import ApprovalGiven, ApprovalRequested

FLOW_TYPES = frozenset(
    TYPE_NAMES[each]
    for each in (
        *(ChatRestored, ChatRunEnded, ChatRunStarted, ParticipantJoined, ParticipantLeft, TurnFailed, TurnFinished),
        *(TurnStarted, HistoryRewound, MessageAppended, ThreadForked),
    )
)
"""The types of the events of a chat that its flow is made of."""

APPROVAL_TYPES = frozenset(TYPE_NAMES[each] for each in (ApprovalRequested, ApprovalGiven, MessageAppended))
"""The types of the events of a channel's thread that its approvals are made of."""

USER = ""
"""The id of the lane of those who use the chat; no participant has it."""

StepKind = Literal["said", "turn", "joined", "left", "restored", "ended"]
Outcome = Literal["finished", "failed", "open", "abandoned"]
Verdict = Literal["approved", "rejected", "waiting"]


@dataclass(frozen=True)
class FlowApproval:
    """A function call in a turn that needed an approval."""

    call: str
    verdict: Verdict


@dataclass(frozen=True)
class FlowLane:
    """Somebody who spoke or took part. ``type`` is that of the participant, None for the user and for a manager."""

    id: str
    name: str
    type: str | None = None


@dataclass(frozen=True)
class FlowStep:
    """Something that happened in a chat, at a version, in the lane of somebody; the end of a run has none.

    ``text`` is what was said, the kind of the error, or why the run ended. Turns that were begun at the same time have
    the same number in ``at_once``. The thread of a turn is ``thread_id``, from ``began`` up to ``upto``, None if it is
    open; its ``handoff`` is the participant to whom it was handed.
    """

    kind: StepKind
    version: int
    lane: str | None = None
    text: str = ""
    outcome: Outcome = "finished"
    at_once: int | None = None
    handoff: str | None = None
    thread_id: str = ""
    began: int = 0
    upto: int | None = None
    approvals: tuple[FlowApproval, ...] = ()


@dataclass(frozen=True)
class ChatFlow:
    """The flow of a chat: lanes, and steps in their order. ``earlier`` steps were left out before the first one."""

    lanes: tuple[FlowLane, ...]
    steps: tuple[FlowStep, ...]
    earlier: int = 0

    def newest(self, most: int | None) -> ChatFlow:
        """The flow with at most that many steps, the newest ones."""
        left_out = 0 if most is None else max(0, len(self.steps) - most)
        return replace(self, steps=self.steps[left_out:], earlier=self.earlier + left_out)

    def present(self) -> list[frozenset[str]]:
        """For each step, the lanes of those who were there when it began."""
        there = {each.id for each in self.lanes} - self._arriving()
        present = []
        for each in self.steps:
            present.append(frozenset(there))
            if each.kind == "joined" and each.lane is not None:
                there.add(each.lane)
            elif each.kind == "left" and each.lane is not None:
                there.discard(each.lane)
        return present

    def _arriving(self) -> set[str]:
        """Those whose first coming or going is that they join."""
        first: dict[str, str] = {}
        for each in self.steps:
            if each.kind in {"joined", "left"} and each.lane is not None:
                first.setdefault(each.lane, each.kind)
        return {lane for lane, kind in first.items() if kind == "joined"}


def path_of(events: Iterable[Event], version: int) -> list[Event]:
    """Those of the events that are on the path that ends at a version. The rewinds must be among them."""
    by_version = {each.version: each for each in events}
    path: list[Event] = []
    while version:
        event = by_version.get(version)
        if event is not None:
            path.append(event)
        version = previous_version(version, event)
    path.reverse()
    return path


def flow_of(path: Sequence[Event]) -> ChatFlow:
    """The flow of a chat, from the events on its path."""
    drawing = _Drawing()
    for event in path:
        drawing.add(event)
    drawing.flush()
    return ChatFlow(tuple(drawing.lanes.values()), tuple(drawing.steps))


def approvals_of(events: Iterable[Event]) -> tuple[FlowApproval, ...]:
    """The approvals among the events of a channel's thread."""
    calls: dict[tuple[int, int], str] = {}
    asked: dict[int, FlowApproval] = {}
    for event in events:
        data = event.data
        if isinstance(data, MessageAppended):
            for index, content in enumerate(data.message.contents):
                calls[event.version, index] = str(getattr(content, "name", ""))
        elif isinstance(data, ApprovalRequested):
            asked[event.version] = FlowApproval(calls.get((data.message, data.index), ""), "waiting")
        elif isinstance(data, ApprovalGiven) and data.request in asked:
            verdict: Verdict = "approved" if data.approved else "rejected"
            asked[data.request] = replace(asked[data.request], verdict=verdict)
    return tuple(asked.values())


@dataclass
class _Drawing:
    lanes: dict[str, FlowLane] = field(default_factory=dict)
    steps: list[FlowStep] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    """The place of each open turn in the steps, by its version."""
    _reached: dict[str, int] = field(default_factory=dict)
    """The version of each channel's thread."""
    _message: FlowStep | None = None
    """The newest message: it is the answer of a turn if the next event ends one."""
    _began: bool = False

    def add(self, event: Event) -> None:
        """Add what an event says."""
        data, message = event.data, self._message
        if isinstance(data, TurnFinished | TurnFailed) and data.turn in self._open:
            self._message = None
            self._end(data, message)
            return
        self.flush()
        if isinstance(data, MessageAppended | Shredded):
            self._say(event)
            return
        match data:
            case ParticipantJoined(participant=who):
                self._reached[who.id] = data.version
                self.lanes[who.id] = _lane(who)
                if self._began:
                    self.steps.append(FlowStep("joined", event.version, who.id))
            case ParticipantLeft(participant=who_left) if who_left in self.lanes:
                self.steps.append(FlowStep("left", event.version, who_left))
            case ChatRestored():
                self.steps.append(FlowStep("restored", event.version, text=data.chat))
            case ChatRunStarted():
                self._began = True
            case TurnStarted() if data.participant in self.lanes:
                self._begin(event.version, data)
            case ChatRunEnded() | HistoryRewound() | ThreadForked():
                self._abandon(event)

    def flush(self) -> None:
        """The newest message is not the answer of a turn."""
        if self._message is not None:
            self.steps.append(self._message)
            self._message = None

    def _say(self, event: Event) -> None:
        if not isinstance(event.data, MessageAppended):
            if event.type == "message-appended":
                self._message = FlowStep("said", event.version, USER, "(redacted)")
            return
        message = event.data.message
        if message.role not in {"user", "assistant"}:
            return
        authors = {each.name: each.id for each in self.lanes.values()}
        lane = USER if message.author is None else authors.get(message.author, f"@{message.author}")
        self.lanes.setdefault(lane, FlowLane(lane, message.author or "User"))
        media = "".join(f"[{each.media_type}]" for each in message.contents if isinstance(each, Media))
        self._message = FlowStep("said", event.version, lane, message.text or media)

    def _begin(self, version: int, data: TurnStarted) -> None:
        """A turn begins; at the same time as those that began in the events before it."""
        at_once = None
        if self.steps and self.steps[-1].kind == "turn" and self.steps[-1].version == version - 1:
            at_once = self.steps[-1].at_once or self.steps[-1].version
            self.steps[-1] = replace(self.steps[-1], at_once=at_once)
        began = data.source_version if data.source_thread else self._reached.get(data.participant, 0)
        self._open[version] = len(self.steps)
        self.steps.append(
            FlowStep(
                *("turn", version, data.participant),
                outcome="open",
                at_once=at_once,
                thread_id=data.thread_id,
                began=began,
            )
        )

    def _end(self, data: TurnFinished | TurnFailed, message: FlowStep | None) -> None:
        place = self._open.pop(data.turn)
        turn = self.steps[place]
        ended: Mapping[str, object] = {"outcome": "failed", "text": ""}
        if isinstance(data, TurnFinished):
            ended = {"outcome": "finished", "text": "" if message is None else message.text, "handoff": data.handoff}
        else:
            ended = {"outcome": "failed", "text": data.error.kind}
        self._reached[turn.lane or ""] = data.thread_version
        self.steps[place] = replace(turn, **ended, upto=data.thread_version)  # type: ignore[arg-type]  # by name

    def _abandon(self, event: Event) -> None:
        """No turn is open any more: the run ended, or runs do not cross a cut."""
        for place in self._open.values():
            self.steps[place] = replace(self.steps[place], outcome="abandoned")
        self._open.clear()
        if isinstance(event.data, ChatRunEnded):
            self.steps.append(FlowStep("ended", event.version, text=event.data.reason))


def _lane(who: ParticipantIdentity) -> FlowLane:
    return FlowLane(who.id, who.author, who.type)
