"""The eventsourcing library's recorder on Clew's ports: the part that all stores share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

from eventsourcing.persistence import ApplicationRecorder, Notification, ProcessRecorder, StoredEvent, Subscription

from clew.domain.ports import Appended
from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.recorder_ports import HIGHEST, Append

PAGE = 500


class LibraryRecorder(ProcessRecorder):
    """A recorder of the library that appends, and is subscribed to, through Clew's ports."""

    submit: Callable[[Append], Future[Appended]]
    enqueue: Callable[[Append], Future[Appended]]
    """See the port."""

    @abstractmethod
    def own_events(
        self, stream: str, after: int, upto: int, limit: int, *, backwards: bool
    ) -> Iterable[tuple[int, str, bytes]]:
        """Version, type and state of a stream's own events, ``after`` < version ≤ ``upto``, in version order."""

    @abstractmethod
    def events_in_order(
        self, after: int, upto: int, limit: int, types: Sequence[str]
    ) -> Iterable[tuple[int, str, int, str, bytes]]:
        """Position, stream, version, type and state of events, ``after`` < position ≤ ``upto``, in position order.

        Without ``types``, events of all types.
        """

    @abstractmethod
    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""

    @abstractmethod
    def last_position(self) -> int:
        """The highest position that readers see, 0 for an empty store."""

    @abstractmethod
    def listen(self, wake: Callable[[], None], of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events: see the port."""

    def newest_position(self) -> int:
        """The highest position. Here readers see an append at once."""
        return self.last_position()

    def may_fill(self) -> bool:
        """Whether projections can be built from this store: always."""
        return True

    def is_bound(self) -> bool:
        """Whether only one tenant's rows are visible: never."""
        return False

    def is_served(self) -> bool:
        """False: this process executes the reads itself."""
        return False

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """Append and wait. Returns the positions, in the order of the events. ``tracking`` is stored with them."""
        tracking = kwargs.get("tracking")
        if not stored_events and tracking is None:
            return []
        return list(self.enqueue(Append(stored_events, tracking=tracking)).result().positions)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """A stream's own events in the library's form."""
        rows = self.own_events(
            stream_name(originator_id),
            -1 if gt is None else gt,
            HIGHEST if lte is None else lte,
            HIGHEST if limit is None else limit,
            backwards=desc,
        )
        return [StoredEvent(originator_id, *row) for row in rows]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events in position order in the library's form."""
        after = 0 if start is None else start - inclusive_of_start
        return [
            Notification(self.originator_id(stream), version, type_, state, id=position)
            for position, stream, version, type_, state in self.events_in_order(
                after, HIGHEST if stop is None else stop, limit, topics
            )
        ]

    def max_notification_id(self) -> int | None:
        """The highest position, None for an empty store."""
        return self.last_position() or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Events above a position, including later ones."""
        return StoredSubscription(self, gt, topics)


class StoredSubscription(Subscription[ApplicationRecorder]):
    """The library's subscription: the stored notifications above a position and then the new ones, in order.

    It has no thread. Iterating blocks until there is a notification, the subscription is stopped (StopIteration) or
    the store is closed (ClosedError).
    """

    def __init__(self, recorder: LibraryRecorder, gt: int | None = None, topics: Sequence[str] = ()) -> None:
        super().__init__(recorder, gt, topics)
        self._store = recorder
        self._after = gt or 0
        self._page: deque[Notification] = deque()
        self._woken = threading.Event()
        self._unlisten = recorder.listen(self._woken.set)

    def stop(self) -> None:
        """End the iteration, in whatever thread it waits."""
        super().stop()
        self._unlisten()
        self._woken.set()

    def __next__(self) -> Notification:
        """The next notification, as soon as there is one."""
        while not self._has_been_stopped:
            if self._page:
                return self._page.popleft()
            self._woken.clear()
            if not self._pull() and not self._has_been_stopped:
                self._woken.wait()
        raise StopIteration

    def _pull(self) -> bool:
        seen = self._store.last_position()
        self._page.extend(
            self._store.select_notifications(self._after, PAGE, topics=self._topics, inclusive_of_start=False)
        )
        if len(self._page) == PAGE:
            self._after = self._page[-1].id
        elif self._page:
            self._after = max(seen, self._page[-1].id)
        else:
            # Events of other topics need not be read again at the next commit.
            self._after = max(seen, self._after)
        return bool(self._page)

    def __del__(self) -> None:
        if hasattr(self, "_unlisten"):
            self._unlisten()
