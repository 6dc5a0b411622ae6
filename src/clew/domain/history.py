"""Histories: the messages on a thread's path.

``evolve`` defines the result, ``HistoryBuilder`` computes the same faster, and ``Walk`` goes backwards for a replay.

The path is the conversation after forks and rewinds. Every version has one previous version: for ``history-rewound``
the version in the event, otherwise the version before it (for a fork's first event, the cut). The path at a version is
the chain of its previous versions. A lineage has no gaps, so a path consists of spans of versions: one more than it has
rewinds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from sys import getsizeof
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from clew.domain.context.state import (
    CONTEXT_STATE_EVENTS,
    HISTORY_STORE,
    NO_CONTEXT_STATE,
    ContextState,
    ContextStateBuilder,
    next_context_state,
)
from clew.domain.decider_state import Control, advance, detached
from clew.domain.event_types import Status
from clew.domain.events import MESSAGE_APPENDED, Event, HistoryRewound, MessageAppended, Shredded, to_time
from clew.domain.json_values import Json, JsonObject, bytes_in_memory
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Role, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Spans of versions, first and last included, in ascending order."""

LAST_VERSION = 2**63 - 1


class HistoryMessage(NamedTuple):
    """A message of a history; ``message`` is None if it was redacted.

    ``on_behalf_of`` names for whom the actor acted, None if that is not known.
    """

    version: int
    role: Role
    message: Message | None
    event_id: str
    recorded_at: int
    actor: str | None = None
    said: int | None = None
    on_behalf_of: str | None = None

    @property
    def redacted(self) -> bool:
        """Whether its content was redacted."""
        return self.message is None

    @property
    def text(self) -> str:
        """The text of the message, empty if it was redacted."""
        return "" if self.message is None else self.message.text

    @property
    def contents(self) -> tuple[Content, ...]:
        """The contents of the message, empty if it was redacted."""
        return () if self.message is None else self.message.contents

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The function calls in the message, empty if it was redacted."""
        return () if self.message is None else self.message.calls

    @property
    def results(self) -> tuple[FunctionResult, ...]:
        """The function results in the message, empty if it was redacted."""
        return () if self.message is None else self.message.results

    @property
    def author(self) -> str | None:
        """The speaker within the role."""
        return None if self.message is None else self.message.author

    @property
    def metadata(self) -> JsonObject:
        """A copy of the application's own JSON. It is a copy because all readers share the message."""
        return {} if self.message is None else deepcopy(self.message.metadata)

    @property
    def time(self) -> datetime:
        """When it was recorded, in UTC."""
        return to_time(self.recorded_at)

    @property
    def said_at(self) -> datetime | None:
        """When it was said, in UTC, if the append named that time."""
        return None if self.said is None else to_time(self.said)


@dataclass(frozen=True, slots=True)
class History:
    """The messages on a thread's path at a version, or a part of them: its length is then that of the part.

    ``version`` is the end of the path; for a part with ``before``, at most the version before that message.
    """

    thread_id: str
    version: int
    messages: tuple[HistoryMessage, ...]
    context: ContextState = field(default=NO_CONTEXT_STATE, repr=False, compare=False)
    """The states that components store in the thread; none in a part that was read from the end."""
    unread: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)
    """The spans of versions whose messages a run does not need, so that they are not among ``messages``."""

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[HistoryMessage]:
        return iter(self.messages)


class NeededHistory(Protocol):
    """The part of a history that a reader needs."""

    @property
    def more(self) -> int:
        """How many of the newest unneeded messages are read as well."""
        ...

    def unneeded(self, context: ContextState) -> Spans:
        """The spans of versions whose messages are not needed; ``context`` is the context state of the history."""
        ...


class NotReduced(NamedTuple):
    """The messages that the current reduction of an agent has not left out: the runs of the agent need only these.

    ``from_newest`` says whether its reducer needs only the newest part.
    """

    agent: str
    from_newest: bool
    more: int = 0

    def unneeded(self, context: ContextState) -> Spans:
        """What the current reduction has left out, or nothing.

        A reducer gets no message that a summary replaces. Without a summary it gets the whole history, unless it needs
        only the newest part: then a later reduction continues from the current one.
        """
        _, current = context.reductions.get(self.agent, (0, None))
        if current is None or current.reducer == HISTORY_STORE:
            return ()
        return current.left_out if self.from_newest or current.summary is not None else ()

    def paired(self, context: ContextState) -> int:
        """The last version that the current reduction has considered."""
        return context.reductions[self.agent][1].upto


class NotSent(NamedTuple):
    """The messages of a remote thread that its service lacks: those after its last call, at version ``sent``."""

    sent: int
    more: int = 0

    def unneeded(self, _: ContextState) -> Spans:
        """All that the service has, except its last answer."""
        return ((1, self.sent),) if self.sent else ()

    def paired(self, _: ContextState) -> int:
        """The service has all results up to its last call."""
        return self.sent


NeededByRun: TypeAlias = NotReduced | NotSent
"""The part of a history that a run needs."""


class NotSeen(NamedTuple):
    """The messages that at least one of these context providers has not seen; without providers, none."""

    providers: tuple[str, ...] = ()
    more: int = 0

    def unneeded(self, context: ContextState) -> Spans:
        """All messages that every one of them has seen."""
        return ((1, min(map(context.seen_by, self.providers), default=LAST_VERSION)),)


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The state of a thread at a version: its control and its messages.

    ``context`` holds the states that components store in the thread. ``past`` holds the messages and the context after
    each earlier version, so that a rewind can go back; only ``evolve`` needs it.
    """

    control: Control = field(default_factory=Control)
    messages: tuple[HistoryMessage, ...] = ()
    context: ContextState = field(default=NO_CONTEXT_STATE, repr=False)
    past: tuple[tuple[tuple[HistoryMessage, ...], ContextState], ...] = field(default=(), repr=False, compare=False)

    @property
    def version(self) -> int:
        """The version of this state."""
        return self.control.version

    @property
    def status(self) -> Status:
        """active, suspended, ended or deleted."""
        return self.control.status

    @property
    def title(self) -> str | None:
        """The thread's title."""
        return self.control.title

    @property
    def labels(self) -> JsonObject:
        """The thread's labels."""
        return self.control.labels

    @property
    def metadata(self) -> JsonObject:
        """The metadata that the thread was started with."""
        return self.control.metadata

    @property
    def service_thread_id(self) -> str | None:
        """The id of the thread at the service that holds it, None if Clew holds it or the service has not named it."""
        return self.control.service_thread_id

    @property
    def checkpoints(self) -> dict[str, int]:
        """The names of checkpoints and their versions."""
        return self.control.checkpoints

    @property
    def states(self) -> dict[str, Json]:
        """The states that context providers store in the thread, by their ids."""
        return {provider: deepcopy(recorded.state) for provider, recorded in self.context.states.items()}


def evolve(state: ThreadState, event: Event) -> ThreadState:
    """The state after one more event of the lineage. This is the definition; StateBuilder computes the same faster."""
    messages, context = state.messages, state.context
    if event.type in CONTEXT_STATE_EVENTS:
        context = next_context_state(context, event)
    past = (*state.past, (state.messages, state.context))
    if isinstance(event.data, HistoryRewound):
        target = min(event.data.to, state.version)  # only a forged event has a later target
        messages, earlier = past[target]
        context = context._replace(states=earlier.states, reductions=earlier.reductions, completed=earlier.completed)
    elif (item := as_message(event)) is not None:
        messages = (*messages, item)
    return ThreadState(advance(state.control, event), messages, context, past)


def as_message(event: Event) -> HistoryMessage | None:
    """The message of an event, redacted or not; None for other events."""
    data = event.data
    if isinstance(data, MessageAppended):
        message = data.message
        return HistoryMessage(
            event.version,
            message.role,
            message,
            event.event_id,
            event.recorded_at,
            event.actor,
            event.said,
            event.on_behalf_of,
        )
    if isinstance(data, Shredded) and event.type == MESSAGE_APPENDED and data.role is not None:
        return HistoryMessage(
            event.version,
            data.role,
            None,
            event.event_id,
            event.recorded_at,
            event.actor,
            event.said,
            event.on_behalf_of,
        )
    return None


def previous_version(version: int, event: Event | None) -> int:
    """The version before ``version`` on the path, 0 before the first. ``event`` is its event, None if it is missing."""
    target = version if event is None or not isinstance(event.data, HistoryRewound) else event.data.to
    return max(0, min(target, version - 1))


def new_messages(history: Sequence[HistoryMessage]) -> list[HistoryMessage]:
    """The messages since the last answer."""
    for place in range(len(history), 0, -1):
        if history[place - 1].role == "assistant":
            return list(history[place:])
    return list(history)


def unshared(events: Sequence[Event]) -> list[Event] | None:
    """The newly written events without any object that their writer could still change.

    None if this is not possible; then the events must be read from the store.
    """
    private = []
    for event in events:
        if isinstance(event.data, MessageAppended):
            message = event.data.message
            if message.metadata or message.source or not all(map(_is_fixed, message.contents)):
                return None
            detached = message.model_copy(update={"metadata": {}, "source": {}})
            private.append(event._replace(data=MessageAppended.model_construct(message=detached)))
        else:
            private.append(event)
    return private


def _is_fixed(content: Content) -> bool:
    if isinstance(content, FunctionResult):
        return not content.contents and not isinstance(content.result, dict | list)
    return isinstance(content, Text | FunctionCall)


_MESSAGE_BYTES = 1_000
_CONTENT_BYTES = 400
"""The memory of a message, and of a content, without its texts and JSON: measured on Python 3.11."""


class HistoryBuilder:
    """Reads a lineage once, forwards, and returns the history at any of its versions.

    It can begin with a ``part`` of a history at its newest version instead: then it has only what was not left out.
    """

    def __init__(self, thread_id: str, part: History | None = None) -> None:
        self.thread_id = thread_id
        self.version = 0
        self._messages: list[HistoryMessage] = []
        self._versions: list[int] = []
        self._rewinds: dict[int, int] = {}
        self._context = ContextStateBuilder()
        self._message_bytes = 0
        self._unread: Spans = ()
        self.weight = 0
        """An estimate of its size in memory, in bytes."""
        self.names_blobs = False
        """Whether a message names bytes that the store has next to its event."""
        if part is not None:
            self._begin_with(part)

    def _begin_with(self, part: History) -> None:
        self._context.continue_from(part.context)
        self.add(part.messages)
        self.version, self._unread = part.version, part.unread

    def add(self, events: Iterable[HistoryMessage | Event]) -> None:  # noqa: C901 - a call for each message takes longer
        """Add the next events of the lineage, or messages in place of their events."""
        version = self.version
        messages, size = len(self._messages), self._message_bytes
        for event in events:
            version = event.version
            item: HistoryMessage | None = None
            if isinstance(event, HistoryMessage):
                item = event
            elif event.type == MESSAGE_APPENDED:
                item = as_message(event)
            elif event.type in CONTEXT_STATE_EVENTS:
                self._context.add(event)
            elif isinstance(event.data, HistoryRewound):
                self._rewinds[version] = event.data.to
            if item is None:
                continue
            self._messages.append(item)
            self._versions.append(version)
            if (message := item.message) is not None:
                for content in message.contents:
                    if type(content) is Text:  # most are
                        size += _CONTENT_BYTES + getsizeof(content.text)
                        continue
                    for part in (content, *content.contents) if isinstance(content, FunctionResult) else (content,):
                        self.names_blobs |= type(part) is Media and part.digest is not None
                        size += _CONTENT_BYTES
                        for value in vars(part).values():
                            size += bytes_in_memory(value) if isinstance(value, dict | list) else getsizeof(value)
                if message.metadata or message.source:
                    size += bytes_in_memory(message.metadata) + bytes_in_memory(message.source)
        self.version = version
        self._message_bytes = size + _MESSAGE_BYTES * (len(self._messages) - messages)
        self.weight = self._message_bytes + self._context.weight

    def has(self, at: int | None, needed: NeededHistory | None) -> bool:
        """Whether it has what is ``needed`` of the path at a version. With all events it has everything.

        A builder that began with a part does not know the path after a rewind.
        """
        if not self._unread:
            return True
        if needed is None or self._rewinds or at not in {None, self.version}:
            return False
        not_needed = self.history(None, needed).unread
        return all(any(first <= begin and end <= last for first, last in not_needed) for begin, end in self._unread)

    def history(self, at: int | None = None, needed: NeededHistory | None = None) -> History:
        """The messages on the path at version ``at``, by default the newest; with ``needed`` only those.

        The builder must have them.
        """
        version = self.version if at is None else at
        messages: list[HistoryMessage] = []
        path = spans(self._rewinds, version) if self._rewinds else [(1, version)]
        context = self._context.at(path)
        unread: Spans = ()
        if needed is not None and (unread := self._without_newest(needed.unneeded(context), needed.more)):
            path = _outside(path, unread)
        for first, last in path:
            messages += self._messages[bisect_left(self._versions, first) : bisect_right(self._versions, last)]
        return History(self.thread_id, version, tuple(messages), context, unread)

    def _without_newest(self, unneeded: Spans, count: int) -> Spans:
        """The spans without their newest ``count`` messages."""
        rest = list(unneeded)
        while rest and count > 0:
            first, last = rest.pop()
            begin, end = bisect_left(self._versions, first), bisect_right(self._versions, last)
            if end - begin > count:
                rest.append((first, self._versions[end - count] - 1))
            count -= end - begin
        return tuple(rest)


class StateBuilder:
    """The state after each event of a lineage, computed faster than by ``evolve``."""

    def __init__(self) -> None:
        self._control = Control()
        self._builder = HistoryBuilder("")

    def add(self, event: Event) -> ThreadState:
        """Add the next event. Returns the state after it."""
        self._control = advance(self._control, event)
        self._builder.add((event,))
        history = self._builder.history()
        return ThreadState(detached(self._control), history.messages, history.context)


def spans(rewinds: Mapping[int, int], at: int) -> list[tuple[int, int]]:
    """The path at version ``at`` as spans ``(first, last)`` of versions, both included, in ascending order.

    ``rewinds`` maps the version of each ``history-rewound`` event of the lineage to its target.
    """
    rewind_versions = sorted(rewinds)
    path: list[tuple[int, int]] = []
    last = at
    while last > 0:
        index = bisect_right(rewind_versions, last) - 1
        if index < 0:
            path.append((1, last))
            break
        first = rewind_versions[index]
        path.append((first, last))
        last = min(rewinds[first], first - 1)  # only a forged event has a later target
    path.reverse()
    return path


def _outside(path: Sequence[tuple[int, int]], unread: Spans) -> list[tuple[int, int]]:
    """The parts of a path that are in none of the spans."""
    rest: list[tuple[int, int]] = []
    for first, last in path:
        for begin, end in unread:
            if end < first:
                continue
            if begin > last:
                break
            if begin > first:
                rest.append((first, begin - 1))
            first = end + 1  # noqa: PLW2901  # the rest of this part
        if first <= last:
            rest.append((first, last))
    return rest


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a replay: a version of a thread, with its event and the state after it.

    ``control`` is the control at this version, ``head`` the one at the newest version. ``messages`` are the last ones
    on the path, oldest first. ``taken`` are the last messages that the event removed from the path; only a rewind
    removes messages.
    """

    event: Event
    control: Control
    head: Control
    messages: tuple[HistoryMessage, ...]
    taken: tuple[HistoryMessage, ...] = ()

    @property
    def version(self) -> int:
        """The version of this step."""
        return self.event.version

    @property
    def newest(self) -> int:
        """The newest version of the thread."""
        return self.head.version

    @property
    def status(self) -> Status:
        """The status at this version: active, suspended, ended or deleted."""
        return self.control.status

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The names of the checkpoints at this version, including those that were made later."""
        return tuple(name for name, version in self.head.checkpoints.items() if version == self.version)


class Walk:
    """A walk along the path, backwards from a version, one page of the lineage at a time.

    ``at`` is the current version, where the next page must end. It is 0 if there are no earlier messages.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.messages: list[HistoryMessage] = []

    def back(self, page: Iterable[Event], after: int) -> None:
        """Walk over the events with ``after`` < version ≤ ``at``, newest first."""
        by_version = {event.version: event for event in page}
        while self.at > after:
            event = by_version.get(self.at)
            self.at = previous_version(self.at, event)
            if event is None:  # a removed row is skipped, as in a history
                continue
            if (item := as_message(event)) is not None:
                self.messages.append(item)
            if event.messages == 0:
                self.at = 0

    def reached(self, version: int) -> bool:
        """Whether the walk has passed this version."""
        return self.at < version

    def last(self, count: int) -> tuple[HistoryMessage, ...]:
        """The last messages of the path so far, oldest first."""
        return tuple(reversed(self.messages[: max(count, 0)]))


def removed_messages(before: Iterable[HistoryMessage], path: Walk) -> tuple[HistoryMessage, ...]:
    """The messages before a rewind that are not on the path after it; the walk must reach back that far."""
    remaining = {item.version for item in path.messages}
    return tuple(item for item in before if item.version not in remaining)
