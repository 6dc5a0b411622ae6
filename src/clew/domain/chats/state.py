"""The state of a group chat, folded from the events on its path."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pydantic import Field

from clew.domain.application_folds import Fold
from clew.domain.chats.events import (
    ChannelRestored,
    ChatConfigured,
    ChatRestored,
    ChatRunEnded,
    ChatRunStarted,
    ParticipantIdentity,
    ParticipantJoined,
    ParticipantLeft,
    TurnFailed,
    TurnFinished,
    TurnSelected,
    TurnStarted,
)
from clew.domain.event_types import TYPE_NAMES
from clew.domain.events import Event, HistoryRewound, ThreadForked
from clew.domain.json_values import JsonObject, canonical
from clew.domain.messages import Value
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import plus


class ChannelState(Value):
    """Where the channel of a participant stands.

    It is the thread ``thread_id`` at ``version``, recorded by the chat ``chat``; 0 before it has begun. The participant
    has seen the chat up to version ``synced``. ``state`` is the text of that of a channel that this Clew does not know.
    """

    chat: str
    thread_id: str
    version: int = 0
    synced: int = 0
    answered: bool = False
    """Whether the newest message on the thread is the participant's answer."""
    brought: bool = False
    state: str | None = None


class OpenTurn(Value):
    """A turn that has begun at ``version`` of the chat and has not ended.

    Its run began after version ``after`` of the thread; ``synced`` is that of the channel.
    """

    version: int
    participant: str
    thread_id: str
    source_thread: str | None
    source_version: int
    synced: int
    answered: bool
    after: int = 0


class ChatRun(Value):
    """An open run of a chat: where it began, its finished turns, and to whom the last one handed over.

    ``tokens`` and ``cost`` are those of all its turns, also of failed ones, and of the decisions of models. ``caller``
    is the actor for whom it is. ``within`` is the chat for whose turn it began.
    """

    began: int
    turns: int = 0
    tokens: int = 0
    cost: Decimal | None = Decimal(0)
    handoff: str | None = None
    caller: str | None = None
    within: str | None = None


class ChatState(Value):
    """The state of a group chat at a version. ``known`` has all participants that ever were in it."""

    selection: JsonObject = Field(default_factory=dict)
    termination: tuple[JsonObject, ...] = ()
    newcomers_read: int | None = None
    present: tuple[str, ...] = ()
    known: dict[str, ParticipantIdentity] = Field(default_factory=dict)
    channels: dict[str, ChannelState] = Field(default_factory=dict)
    usage: dict[str, TokenUsage] = Field(default_factory=dict)
    costs: dict[str, Decimal | None] = Field(default_factory=dict)
    """What each participant's turns cost in US dollars, None if that is not known of all."""
    turns: tuple[OpenTurn, ...] = ()
    run: ChatRun | None = None
    taken: int = 0
    """All finished turns."""
    last_speaker: str | None = None
    selection_state: JsonObject | None = None
    """What the turn selection recorded at its last decision."""

    @property
    def participants(self) -> tuple[ParticipantIdentity, ...]:
        """The participants that are present, in the order in which they joined."""
        return tuple([self.known[id_] for id_ in self.present])

    @property
    def is_used(self) -> bool:
        """Whether a turn was begun, or a channel has begun."""
        return bool(self.taken or self.turns or self.run or any(each.version for each in self.channels.values()))


def evolve(state: ChatState, event: Event) -> ChatState:
    """The state after one more event on the path."""
    change = _CHANGES.get(type(event.data))
    return state if change is None else state.model_copy(update=change(state, event, event.data))


def _configured(_: ChatState, __: Event, data: ChatConfigured) -> dict[str, Any]:
    return {name: getattr(data, name) for name in ("selection", "termination", "newcomers_read")}


def _joined(state: ChatState, event: Event, data: ParticipantJoined) -> dict[str, Any]:
    who = data.participant
    earlier, known = state.channels.get(who.id), state.known.get(who.id)
    keeps = earlier is not None and known is not None and known.channel == who.channel
    channel = earlier if keeps and not data.brought else _new_channel(event, data)
    return {
        "present": (*(each for each in state.present if each != who.id), who.id),
        "known": {**state.known, who.id: who},
        "channels": {**state.channels, who.id: channel},
    }


def _new_channel(event: Event, data: ParticipantJoined) -> ChannelState:
    return ChannelState(chat=event.thread_id, thread_id=data.thread_id, version=data.version, brought=data.brought)


def _left(state: ChatState, _: Event, data: ParticipantLeft) -> dict[str, Any]:
    return {"present": tuple([each for each in state.present if each != data.participant])}


def _restored(state: ChatState, event: Event, data: ChannelRestored) -> dict[str, Any]:
    who, state_text = data.participant, data.state
    channel = ChannelState(
        chat=event.thread_id,
        thread_id=data.thread_id,
        version=data.version,
        synced=data.synced,
        answered=data.version > 0,
        brought=data.brought,
        state=canonical(state_text) if isinstance(state_text, dict) else state_text,
    )
    known = state.known if who.id in state.present else {**state.known, who.id: who}
    return {"known": known, "channels": {**state.channels, who.id: channel}}


def _chat_restored(_: ChatState, __: Event, data: ChatRestored) -> dict[str, Any]:
    return {"taken": data.turns, "last_speaker": data.last_speaker}


def _run_started(_: ChatState, event: Event, data: ChatRunStarted) -> dict[str, Any]:
    within = None if data.within is None else data.within.chat
    caller = event.on_behalf_of or event.actor
    return {"run": ChatRun(began=event.version, caller=caller, within=within), "turns": ()}


def _turn_selected(state: ChatState, _: Event, data: TurnSelected) -> dict[str, Any]:
    used = {} if data.by is None else _used(state, data.by, data)
    return {"selection_state": data.state, **used}


def _turn_started(state: ChatState, event: Event, data: TurnStarted) -> dict[str, Any]:
    channel = state.channels.get(data.participant)
    if channel is None:  # only in a forged chat
        return {}
    turn = OpenTurn(
        version=event.version,
        participant=data.participant,
        thread_id=data.thread_id,
        source_thread=data.source_thread,
        source_version=data.source_version,
        synced=0 if data.afresh else channel.synced,
        answered=channel.answered and not data.afresh,
        after=0 if data.afresh else channel.version,
    )
    return {"turns": (*state.turns, turn)}


def _turn_finished(state: ChatState, event: Event, data: TurnFinished) -> dict[str, Any]:
    turn = _turn(state, data.turn)
    if turn is None:
        return {}
    used = _used(state, turn.participant, data)
    if used["run"] is not None:
        used["run"] = used["run"].model_copy(update={"turns": used["run"].turns + 1, "handoff": data.handoff})
    return {
        **_closed(state, event, turn, data.thread_version, answered=True),
        **used,
        "taken": state.taken + 1,
        "last_speaker": turn.participant,
    }


def _turn_failed(state: ChatState, event: Event, data: TurnFailed) -> dict[str, Any]:
    turn = _turn(state, data.turn)
    if turn is None:
        return {}
    closed = _closed(state, event, turn, data.thread_version, answered=False)
    return {**closed, **_used(state, turn.participant, data)} if data.usage is not None else closed


def _used(state: ChatState, who: str, data: TurnFinished | TurnFailed | TurnSelected) -> dict[str, Any]:
    """What a turn or a decision used, added to that of its participant or model and of the run."""
    usage, run = data.usage or TokenUsage(), state.run
    if run is not None:
        run = run.model_copy(update={"tokens": run.tokens + usage.total_tokens, "cost": plus(run.cost, data.cost)})
    return {
        "run": run,
        "usage": {**state.usage, who: state.usage.get(who, TokenUsage()) + usage},
        "costs": {**state.costs, who: plus(state.costs.get(who, Decimal(0)), data.cost)},
    }


def _turn(state: ChatState, version: int) -> OpenTurn | None:
    return next((each for each in state.turns if each.version == version), None)


def _closed(state: ChatState, event: Event, turn: OpenTurn, thread_version: int, *, answered: bool) -> dict[str, Any]:
    """The turn is over. If its thread has begun, that is the channel, and the participant has seen the chat so far."""
    changes: dict[str, Any] = {"turns": tuple([each for each in state.turns if each is not turn])}
    if thread_version:
        before = state.channels[turn.participant]
        brought = before.brought and before.thread_id == turn.thread_id
        channel = ChannelState(
            chat=event.thread_id,
            thread_id=turn.thread_id,
            version=thread_version,
            synced=turn.version,
            answered=answered,
            brought=brought,
        )
        changes["channels"] = {**state.channels, turn.participant: channel}
    return changes


_NO_RUN: Callable[..., dict[str, Any]] = lambda *_: {"run": None, "turns": ()}  # noqa: E731  # one for three types
"""Runs and turns do not cross a cut, and end with the end of a run."""

_CHANGES: dict[type, Callable[[ChatState, Event, Any], dict[str, Any]]] = {
    ChatConfigured: _configured,
    ParticipantJoined: _joined,
    ParticipantLeft: _left,
    ChannelRestored: _restored,
    ChatRestored: _chat_restored,
    ChatRunStarted: _run_started,
    TurnSelected: _turn_selected,
    TurnStarted: _turn_started,
    TurnFinished: _turn_finished,
    TurnFailed: _turn_failed,
    ChatRunEnded: _NO_RUN,
    ThreadForked: _NO_RUN,
    HistoryRewound: _NO_RUN,
}

CHAT_STATE: Fold[ChatState] = Fold(
    "clew-chat", 5, ChatState(), evolve, types=frozenset({TYPE_NAMES[each] for each in _CHANGES}), state_type=ChatState
)
"""The fold of a chat's events."""
