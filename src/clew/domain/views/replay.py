"""Steps of a replay: what one event did, without folding the thread from its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clew.domain.decider_state import Control
from clew.domain.event_types import Status
from clew.domain.events import Event, HistoryRewound
from clew.domain.history import HistoryMessage, as_message

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Step:
    """A version of a thread: its event, and the thread after it.

    ``control`` is the control then, ``head`` the one at the newest version. ``messages`` are the last ones on the path,
    oldest first; ``taken`` are the last messages before the event that it removed from the path, as only a rewind
    does.
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
        """The names of checkpoints at this version, made then or later."""
        return tuple(name for name, version in self.head.checkpoints.items() if version == self.version)


class Walk:
    """A walk along the path, backwards from a version, one page of the lineage at a time.

    ``at`` is the current version: the next page must end there. It is 0 if there are no messages before it.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.messages: list[HistoryMessage] = []

    def back(self, page: Iterable[Event], after: int) -> None:
        """Walk over the events with ``after`` < version ≤ ``at``, newest first."""
        there = {event.version: event for event in page}
        while self.at > after:
            event = there.get(self.at)
            self.at -= 1
            if event is None:  # a removed row is skipped, as in a history
                continue
            if isinstance(event.data, HistoryRewound):
                self.at = max(0, min(event.data.to, self.at))
            elif (item := as_message(event)) is not None:
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
    kept = {item.version for item in path.messages}
    return tuple(item for item in before if item.version not in kept)
