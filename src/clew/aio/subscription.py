"""Live subscriptions of an Engine.

clew/sync/subscription.py is generated from this file: see tools/sync_twin.py.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from clew.domain.errors import ClosedError
from clew.domain.events import Event
from clew.service.async_effects import ThreadsafeEvent, drive
from clew.service.core import Core
from clew.service.feeds import Feed


class Subscription(AsyncIterator[Event]):
    """A live stream of events: iterate over it, close it to end the iteration. It needs no OS thread of its own."""

    def __init__(self, core: Core, feed: Feed, live: weakref.WeakSet[Subscription]) -> None:
        self._feed = feed
        self._page: list[Event] = []
        self._next = 0
        self._closed = False
        self._news = ThreadsafeEvent()  # the log refers to this, so a subscription that nobody uses can be freed
        self._stop_listening = core.log.listen(self._news.set, feed.of)
        weakref.finalize(self, self._stop_listening).atexit = False
        live.add(self)

    async def __anext__(self) -> Event:
        event = await self.wait(None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def wait(self, timeout: float | None) -> Event | None:  # noqa: ASYNC109  # as in Conversations
        """The next event; None when the subscription is closed, or after ``timeout`` seconds without an event."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self._next < len(self._page):
                self._next += 1
                return self._page[self._next - 1]
            self._news.clear()
            try:
                self._page, self._next = await drive(self._feed.next_page()), 0
            except ClosedError:
                if self._closed:  # the service was closed during the read
                    return None
                raise
            remaining = None if deadline is None else deadline - time.monotonic()
            if self._page or self._closed:
                continue
            if (remaining is not None and remaining <= 0) or not await self._news.wait(remaining):
                return None
        return None

    def close(self) -> None:
        """End the iteration, even while it waits."""
        self._closed = True
        self._stop_listening()
        self._news.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
