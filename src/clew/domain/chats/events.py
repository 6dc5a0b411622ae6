"""The events of group chats. A chat is a thread: its messages are the primary history, and these events the rest."""

from __future__ import annotations

from operator import not_
from typing import TypeAlias

from pydantic import Field

from clew.domain.event_types import ACTIVE, event_type, without
from clew.domain.json_values import JsonObject
from clew.domain.messages import Value, is_none
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import Cost
from clew.domain.runs.events import Failure, without_quotes

GROUP_CHAT, CHANNEL_OF = "clew:group-chat", "clew:channel-of"
"""The labels of threads that are chats, and of those that chats began: the latter has the id of the chat."""


class ParticipantIdentity(Value):
    """A participant, as the log knows it.

    ``type`` is the class of the agent, ``human``, or ``chat``. ``channel`` is the key of its channel: the digest of the
    kind of the agent and of the address of its service.
    """

    id: str
    name: str | None = Field(default=None, exclude_if=is_none)
    type: str = "Agent"
    description: str | None = Field(default=None, exclude_if=is_none)
    channel: str = ""

    @property
    def author(self) -> str:
        """The author of its messages."""
        return self.name or self.id


class ChatTurn(Value):
    """The turn that began at version ``turn`` of a chat."""

    chat: str
    turn: int


@event_type(
    "chat-configured",
    headline="The group chat was configured",
    sentence="configured the group chat",
    sample={"selection": {"type": "round-robin"}, "termination": [{"type": "max-turns", "turns": 2}]},
    statuses=ACTIVE,
)
class ChatConfigured(Value):
    """How the next speaker is selected, and when a run of the chat ends, as data.

    A newcomer hears the last ``newcomers_read`` messages, None for all.
    """

    selection: JsonObject
    termination: tuple[JsonObject, ...]
    newcomers_read: int | None = Field(default=None, ge=1, exclude_if=is_none)


def _joined(data: ParticipantJoined) -> ParticipantJoined:
    return data.model_copy(update={"participant": _nameless(data.participant)})


def _restored(data: ChannelRestored) -> ChannelRestored:
    return data.model_copy(update={"participant": _nameless(data.participant), "state": None})


def _nameless(participant: ParticipantIdentity) -> ParticipantIdentity:
    return participant.model_copy(update={"name": None, "description": None})


@event_type(
    "participant-joined",
    headline="A participant joined",
    sentence="let a participant join, on thread {thread_id}",
    sample={"participant": {"id": "editor", "channel": "ab"}, "thread_id": "c"},
    statuses=ACTIVE,
    remains=_joined,
)
class ParticipantJoined(Value):
    """A participant joined. Its runs are on the thread ``thread_id``, its channel.

    ``brought`` says that the participant came with that thread, which had ``version``. Otherwise its first run begins
    the thread. A participant that comes back keeps the channel that it had: then both are not used.
    """

    participant: ParticipantIdentity
    thread_id: str
    version: int = Field(default=0, exclude_if=not_)
    brought: bool = Field(default=False, exclude_if=not_)


@event_type(
    "participant-left",
    headline="A participant left",
    sentence="let participant {participant} leave",
    sample={"participant": "editor"},
    statuses=ACTIVE,
)
class ParticipantLeft(Value):
    """A participant left. Its channel is kept."""

    participant: str


@event_type(
    "channel-restored",
    headline="A channel was restored",
    sentence="restored a channel, on thread {thread_id}",
    sample={"participant": {"id": "editor", "channel": "ab"}, "thread_id": "c", "version": 9, "synced": 2},
    statuses=ACTIVE,
    remains=_restored,
)
class ChannelRestored(Value):
    """The channel of a participant was restored from a document, whether or not the participant is present.

    The participant has seen the chat up to version ``synced``. ``brought`` says that the chat did not begin the thread.
    ``state`` is the state of a channel that this Clew does not know: its JSON text, or in early events the object.
    """

    participant: ParticipantIdentity
    thread_id: str
    version: int = 0
    synced: int = 0
    brought: bool = Field(default=False, exclude_if=not_)
    state: str | JsonObject | None = Field(default=None, exclude_if=is_none)


@event_type(
    "chat-restored",
    headline="The group chat was restored",
    sentence="restored the history of chat {chat}",
    sample={"chat": "c", "head": "ab" * 32, "turns": 2, "last_speaker": "editor"},
    statuses=ACTIVE,
)
class ChatRestored(Value):
    """History and channels of the chat ``chat`` were restored. Its head was ``head``, a hash in hex."""

    chat: str
    head: str
    turns: int = 0
    last_speaker: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "chat-run-started",
    headline="A run of the group chat began",
    sentence="began a run of the group chat",
    statuses=ACTIVE,
)
class ChatRunStarted(Value):
    """A run of the chat began. Its input messages follow in the same commit.

    ``within`` is the turn of another chat for which it began: that chat has this one as a participant.
    """

    within: ChatTurn | None = Field(default=None, exclude_if=is_none)


@event_type(
    "turn-selected",
    headline="The turn selection recorded its state",
    sentence="let the turn selection decide",
    sample={"state": {"plan": ["Ask."]}, "by": "manager", "thread_id": "c"},
    statuses=ACTIVE,
    remains=without("state"),
)
class TurnSelected(Value):
    """A turn selection decided, and recorded its ``state`` for the next decision.

    If a model decided, ``by`` is its agent, ``thread_id`` the thread of its run, ``usage`` the tokens of this run, and
    ``cost`` what they cost, None if that is not known. Both are counted on that thread, too.
    """

    state: JsonObject = Field(default_factory=dict)
    by: str | None = Field(default=None, exclude_if=is_none)
    thread_id: str | None = Field(default=None, exclude_if=is_none)
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    cost: Cost | None = Field(default=None, exclude_if=is_none)


@event_type(
    "turn-started",
    headline="A turn began",
    sentence="gave the turn to {participant}, on thread {thread_id}",
    sample={"participant": "editor", "thread_id": "c"},
    statuses=ACTIVE,
)
class TurnStarted(Value):
    """A participant has the turn. Its run is on the thread ``thread_id``, under the key of this event.

    With ``source_thread`` that thread begins as a fork of the source at ``source_version``: the channel as it was at
    this place of the chat, after a fork or a rewind. ``afresh`` says that the channel's thread is not there any more:
    the participant hears the chat again, as a newcomer does.
    """

    participant: str
    thread_id: str
    source_thread: str | None = Field(default=None, exclude_if=is_none)
    source_version: int = Field(default=0, exclude_if=not_)
    afresh: bool = Field(default=False, exclude_if=not_)


@event_type(
    "turn-finished",
    headline="A turn was finished",
    sentence="finished the turn of version {turn}",
    sample={"turn": 7, "thread_version": 6},
    statuses=ACTIVE,
)
class TurnFinished(Value):
    """A turn is finished. Its message, if there is one, is the event before this one.

    ``thread_version`` is the version of the channel's thread after the run. ``usage`` are the tokens of the run, and
    ``cost`` is what they cost, None if that is not known of all. Both are counted on that thread, too. ``handoff`` is
    the participant to whom the turn was handed.
    """

    turn: int
    thread_version: int = 0
    run_id: str | None = Field(default=None, exclude_if=is_none)
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    cost: Cost | None = Field(default=None, exclude_if=is_none)
    handoff: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "turn-failed",
    headline="A turn failed",
    sentence="ended the turn of version {turn} with an error",
    sample={"turn": 7, "error": {"kind": "ModelError"}},
    statuses=ACTIVE,
    remains=without_quotes,
)
class TurnFailed(Value):
    """A turn ended without a message. ``thread_version`` is that of the channel's thread, 0 if it did not begin.

    ``usage`` and ``cost`` are those of the run until it failed.
    """

    turn: int
    error: Failure
    thread_version: int = 0
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    cost: Cost | None = Field(default=None, exclude_if=is_none)


@event_type(
    "chat-run-ended",
    headline="A run of the group chat ended",
    sentence="ended the chat run of version {run} ({reason})",
    sample={"run": 5, "reason": "max-turns"},
    statuses=ACTIVE,
)
class ChatRunEnded(Value):
    """The run that began at version ``run`` ended.

    ``reason`` is the type of the termination, ``nobody`` if the selection selected nobody, or ``abandoned``.
    """

    run: int
    reason: str


ChatEvent: TypeAlias = (
    ChatConfigured
    | TurnSelected
    | ParticipantJoined
    | ParticipantLeft
    | ChannelRestored
    | ChatRestored
    | ChatRunStarted
    | TurnStarted
    | TurnFinished
    | TurnFailed
    | ChatRunEnded
)
