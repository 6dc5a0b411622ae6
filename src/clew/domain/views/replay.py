"""Steps of a replay: what one event did, seen without folding the thread from its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clew.domain.control import Control
from clew.domain.event_types import Status
from clew.domain.events import Event, HistoryRewound
from clew.domain.history import HistoryMessage, as_message

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Step:
    """A version of a thread: the event, and what the thread was after it.

    ``control`` is what was true then, and ``head`` what is true at the newest version. ``messages`` are the last ones
    on the path at the version, oldest first; ``taken`` are those among the last ones before it that the event took from
    the path: only a rewind does.
    """

    event: Event
    control: Control
    head: Control
    messages: tuple[HistoryMessage, ...]
    taken: tuple[HistoryMessage, ...] = ()

    @property
    def version(self) -> int:
        """The version that this is the step of."""
        return self.event.version

    @property
    def newest(self) -> int:
        """The newest version of the thread."""
        return self.head.version

    @property
    def status(self) -> Status:
        """active, suspended, ended or deleted, as it was then."""
        return self.control.status

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The names that the version has, given at the time or later."""
        return tuple(name for name, version in self.head.checkpoints.items() if version == self.version)


class Walk:
    """The path, walked backwards from a version, a page of the lineage at a time.

    ``at`` is the version that the walk has come to: the next page must end there. It is 0 when no message lies before.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.messages: list[HistoryMessage] = []

    def back(self, page: Iterable[Event], after: int) -> None:
        """Take in the events ``after`` < version ≤ ``at``; messages are met newest first."""
        there = {event.version: event for event in page}
        while self.at > after:
            event = there.get(self.at)
            self.at -= 1
            if event is None:  # a row that somebody removed is passed by, as in a history
                continue
            if isinstance(event.data, HistoryRewound):
                self.at = max(0, min(event.data.to, self.at))
            elif (said := as_message(event)) is not None:
                self.messages.append(said)
            if event.messages == 0:
                self.at = 0

    def reached(self, version: int) -> bool:
        """Whether it is known of this version if it is on the path."""
        return self.at < version

    def last(self, count: int) -> tuple[HistoryMessage, ...]:
        """The last messages that were met, oldest first."""
        return tuple(reversed(self.messages[: max(count, 0)]))


def taken(before: Iterable[HistoryMessage], path: Walk) -> tuple[HistoryMessage, ...]:
    """Those of the messages before a rewind that are not on the path after it; it was walked as far back as they."""
    kept = {said.version for said in path.messages}
    return tuple(said for said in before if said.version not in kept)
