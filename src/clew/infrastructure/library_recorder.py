"""What the library asks of a recorder, as far as every store of Clew's answers it alike: by Clew's own port."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from eventsourcing.persistence import ApplicationRecorder, ProcessRecorder, StoredEvent, Subscription

from clew.infrastructure.recorder import Append, Appended
from clew.infrastructure.subscription import StoredSubscription


class LibraryRecorder(ProcessRecorder):
    """A recorder of the library's that appends and is subscribed to as Clew's stores are."""

    @abstractmethod
    def submit(self, append: Append) -> Future[Appended]:
        """Hand an append to the writer."""

    @abstractmethod
    def last_position(self) -> int:
        """The highest position that readers may see, 0 for an empty store."""

    @abstractmethod
    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """Append and wait: the positions, in the order of the events. ``tracking`` is recorded with them."""
        tracking = kwargs.get("tracking")
        if not stored_events and tracking is None:
            return []
        return list(self.submit(Append(stored_events, tracking=tracking)).result().positions)

    def max_notification_id(self) -> int | None:
        """The highest position, None for an empty store."""
        return self.last_position() or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Events above a position, those to come included."""
        return StoredSubscription(self, self, gt, topics)
