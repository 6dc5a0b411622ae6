"""Every event of all shards of a directory, for an operator: each shard's in its own order, none left out or twice."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from clew.domain.errors import StoreError
from clew.domain.events import Event
from clew.domain.ports import EventLog
from clew.domain.sharding import Positions, Shard
from clew.service.new_shards import Listed, tell_of_shards
from clew.service.pages import undamaged

PAGE = 500

AGAIN_SECONDS = 0.5
"""After so long a shard that could not be read is tried again."""

_log = logging.getLogger(__name__)

Logs: TypeAlias = Callable[[Shard], EventLog]


class ShardEvent(NamedTuple):
    """An event, the shard that has it, and where the reader is once it has taken it in."""

    shard: str
    event: Event
    positions: Positions


class ShardEvents(Iterator[ShardEvent]):
    """A live stream of the events of all shards: iterate over it, close it to end the iteration.

    Each shard is read by a thread of its own, a page ahead. One that cannot be read does not hold up the others, and is
    gone on with where it was as soon as it can be, also at another address. Shards that come to the directory are read
    as well.
    """

    def __init__(self, listed: Listed, opened: Logs, after: Positions) -> None:
        self.positions = after
        """Where this reader is: after the event that it gave last."""
        self._pages: queue.SimpleQueue[_Page | None] = queue.SimpleQueue()
        self._page: _Page | None = None
        self._next = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Held while readers begin or end: none begins behind the back of who ends them."""
        self._tails: dict[str, _Tail] = {}
        tell_of_shards(listed, _unless_gone(weakref.WeakMethod(self._begin), opened, after), self._closed)
        weakref.finalize(self, _end, self._closed, self._tails).atexit = False

    def __next__(self) -> ShardEvent:
        found = self.wait(None)
        if found is None:
            raise StopIteration
        return found

    def wait(self, timeout: float | None) -> ShardEvent | None:
        """The next event; None when this is closed or nothing came for so many seconds."""
        while not self._closed.is_set():
            if self._page is not None and self._next < len(self._page.events):
                shard, event = self._page.shard, self._page.events[self._next]
                self._next += 1
                self.positions = self.positions.at(shard, event.position or 0)
                return ShardEvent(shard, event, self.positions)
            if self._page is not None:
                self._page.taken.release()
                self._page = None
            try:
                self._page, self._next = self._pages.get(timeout=timeout), 0
            except queue.Empty:
                return None
        return None

    def failing(self) -> Mapping[str, str]:
        """The shards that could not be read when it was last tried, and why."""
        return {name: tail.failed for name, tail in list(self._tails.items()) if tail.failed is not None}

    def close(self) -> None:
        """End the iteration, also of a thread that waits in it."""
        with self._lock:
            _end(self._closed, self._tails)
        self._pages.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, shards: Sequence[Shard], opened: Logs, after: Positions) -> None:
        with self._lock:
            for shard in shards:
                if shard.name in self._tails:
                    self._tails[shard.name].shard = shard
                elif not self._closed.is_set():
                    self._tails[shard.name] = _Tail(shard, opened, after.of(shard.name), self._pages)


class _Page(NamedTuple):
    shard: str
    events: Sequence[Event]
    taken: threading.Semaphore


class _Tail:
    """One shard, read from a position on by a thread that is never more than a page ahead."""

    def __init__(self, shard: Shard, opened: Logs, after: int, pages: queue.SimpleQueue[_Page | None]) -> None:
        self.failed: str | None = None
        self.shard = shard
        """Where it is opened the next time: it may have moved."""
        self._opened = opened
        self._after = after
        self._pages = pages
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._taken = threading.Semaphore(1)
        threading.Thread(target=self._run, name=f"clew-shard-{shard.name}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        self._taken.release()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with closing(self._opened(self.shard)) as log:
                    self._follow(log)
            except StoreError as error:
                self.failed = str(error)
                self._stopped.wait(AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - logged and told of: a shard is not left out in silence
                _log.exception("Shard %s could not be read", self.shard.name)
                self.failed = f"{type(error).__name__}: this is a mistake in Clew, and the log says more."
                self._stopped.wait(AGAIN_SECONDS)

    def _follow(self, log: EventLog) -> None:
        end = log.listen(self._woken.set)
        try:
            while True:
                self._taken.acquire()
                found: Sequence[Event] = ()
                while not found:
                    self._woken.clear()
                    if self._stopped.is_set():
                        return
                    found = self._read(log)
                    if not found:
                        self._woken.wait()
                self._after = found[-1].position or self._after
                self._pages.put(_Page(self.shard.name, found, self._taken))
        finally:
            end()

    def _read(self, log: EventLog) -> Sequence[Event]:
        try:
            found = undamaged(lambda size: log.events_after(self._after, size, ""), PAGE)
        except BaseException:
            self._taken.release()  # nothing of this turn was given to anybody
            raise
        self.failed = None
        return found


def _end(closed: threading.Event, tails: Mapping[str, _Tail]) -> None:
    closed.set()
    for tail in list(tails.values()):
        tail.stop()


def _unless_gone(
    begin: weakref.WeakMethod[Callable[[Sequence[Shard], Logs, Positions], None]], opened: Logs, after: Positions
) -> Callable[[Sequence[Shard]], bool]:
    """What is told of shards, and does not hold the reader, which nobody may want any more; whether it is there."""

    def told(shards: Sequence[Shard]) -> bool:
        found = begin()
        if found is not None:
            found(shards, opened, after)
        return found is not None

    return told
