"""The library's subscription on Clew's stores: it waits to be woken, and has no thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from eventsourcing.persistence import ApplicationRecorder, Notification, Subscription

PAGE = 500


class Listenable(Protocol):
    """What a subscription needs of a store."""

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events in position order."""
        ...

    def last_position(self) -> int:
        """The highest position that readers may see."""
        ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit."""
        ...


class StoredSubscription(Subscription[ApplicationRecorder]):
    """Notifications above a position, the stored ones and then the new ones as they are stored, in order.

    Iterating blocks until there is one, the subscription is stopped (StopIteration) or the store is closed
    (ClosedError).
    """

    def __init__(
        self, recorder: ApplicationRecorder, store: Listenable, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._store = store
        self._after = gt or 0
        self._page: deque[Notification] = deque()
        self._woken = threading.Event()
        self._unlisten = store.listen(self._woken.set)

    def stop(self) -> None:
        """End the iteration, in whatever thread it waits."""
        super().stop()
        self._unlisten()
        self._woken.set()

    def __next__(self) -> Notification:
        """The next notification, when there is one."""
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
            # What other topics filled need not be read again at the next commit.
            self._after = max(seen, self._after)
        return bool(self._page)

    def __del__(self) -> None:
        if hasattr(self, "_unlisten"):
            self._unlisten()
