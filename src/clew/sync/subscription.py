# Generated from src/clew/aio/subscription.py by `make generate`. Do not edit it: edit the source.
"""Live subscriptions of Conversations."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from clew.domain.errors import ClosedError
from clew.domain.events import Event
from clew.service.core import Core
from clew.service.effects import run
from clew.service.feeds import Feed


class Subscription(Iterator[Event]):
    """A live stream of events: iterate over it, close it to end the iteration. It needs no OS thread of its own."""

    def __init__(self, core: Core, feed: Feed, live: weakref.WeakSet[Subscription]) -> None:
        self._feed = feed
        self._page: list[Event] = []
        self._next = 0
        self._closed = False
        self._news = threading.Event()  # the log refers to this, so a subscription that nobody uses can be freed
        self._stop_listening = core.log.listen(self._news.set, feed.of)
        weakref.finalize(self, self._stop_listening).atexit = False
        live.add(self)

    def __next__(self) -> Event:
        event = self.wait(None)
        if event is None:
            raise StopIteration
        return event

    def wait(self, timeout: float | None) -> Event | None:
        """The next event; None when the subscription is closed, or after ``timeout`` seconds without an event."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self._next < len(self._page):
                self._next += 1
                return self._page[self._next - 1]
            self._news.clear()
            try:
                self._page, self._next = run(self._feed.next_page()), 0
            except ClosedError:
                if self._closed:  # the service was closed during the read
                    return None
                raise
            remaining = None if deadline is None else deadline - time.monotonic()
            if self._page or self._closed:
                continue
            if (remaining is not None and remaining <= 0) or not self._news.wait(remaining):
                return None
        return None

    def close(self) -> None:
        """End the iteration, even while it waits."""
        self._closed = True
        self._stop_listening()
        self._news.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
