"""All shards of a directory at once, for an operator. A tenant's threads are opened through `Conversations`."""

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
from clew.infrastructure.postgres.store import PostgresStore
from clew.infrastructure.shards import Positions, Shard, check_shard_name
from clew.infrastructure.shards.store import shard_directory
from clew.infrastructure.stores import store_at
from clew.service.effects import undamaged

PAGE_SIZE = 500

RETRY_SECONDS = 0.5
"""How long to wait before a shard that could not be read is tried again."""

DIRECTORY_POLL_SECONDS = 2.0
"""How often a watcher reads the list of shards from the directory."""

_log = logging.getLogger(__name__)

ListShards: TypeAlias = Callable[[], Sequence[Shard]]
OpenShard: TypeAlias = Callable[[Shard], EventLog]


class Shards:
    """The servers of a ``postgresql+shards://`` directory. For operators: ``authorize`` is not called.

    It keeps no connection open, except in what ``events`` returns.
    """

    def __init__(self, url: str) -> None:
        self._directory = shard_directory(url)

    @classmethod
    def open(cls, url: str) -> Self:
        """The shards of the directory at a URL. Raises StoreUrlError."""
        return cls(url)

    def add(self, name: str, address: str) -> None:
        """Add the server at ``host:port/database`` or ``service=name``, and create Clew's tables there if needed.

        It gets new tenants from now on; existing tenants do not move. A store can be only one shard, even if it has
        several addresses. Raises ShardError, StoreUrlError, InvalidNameError, StoreSchemaError or
        StoreUnavailableError.
        """
        check_shard_name(name)
        url = self._directory.url_at(address)
        self._directory.check_free(name, address)  # before tables are created there
        store_at(url).open_log().close()
        self._directory.add(name, address, PostgresStore(url).address)

    def move(self, name: str, address: str) -> None:
        """Record that a shard's store is at another address now: the same store, or a copy that replaces it.

        Open connections keep the old address. Raises ShardError, StoreUrlError, StoreSchemaError or
        StoreUnavailableError.
        """
        url = self._directory.url_at(address)
        store_at(url).open_log(create=False).close()
        self._directory.move(name, address, PostgresStore(url).address)

    def take_no_more(self, name: str) -> None:
        """Assign no new tenants to a server; it keeps those that it has. Raises ShardError."""
        self._directory.take_no_more(name)

    def shards(self) -> list[Shard]:
        """The servers, sorted by name. Raises StoreSchemaError or StoreUnavailableError."""
        return self._directory.shards()

    def events(self, *, after: Positions | None = None) -> ShardEvents:
        """Every event of every tenant on all shards after these positions, then each new event as it is appended.

        Events of one shard arrive in its order; there is no order between shards. To resume later, store the
        ``positions`` of the last event that you processed, as text, and pass them as ``after``.
        """
        return ShardEvents(self.shards, self._open_log, Positions() if after is None else after)

    def positions(self) -> Positions:
        """The newest position of each shard. Raises StoreUnavailableError if one cannot be reached."""
        newest = {}
        for shard in self.shards():
            with closing(self._open_log(shard)) as log:
                newest[shard.name] = log.newest_position()
        return Positions(newest)

    def make(self) -> None:
        """Create the directory's tables if they do not exist. Raises StoreUnavailableError."""
        self._directory.create()

    def unreachable(self, shard: Shard) -> str | None:
        """Why a shard cannot be read; None if it can."""
        try:
            self._open_log(shard).close()
        except StoreError as error:
            return str(error)
        return None

    def url(self, shard: Shard) -> str:
        """The URL of a shard as an ordinary store, with the directory's user and password."""
        return self._directory.url_at(shard.address)

    def _open_log(self, shard: Shard) -> EventLog:
        return store_at(self.url(shard)).open_log(create=False)


class ShardEvent(NamedTuple):
    """An event, the name of its shard, and the reader's positions after this event."""

    shard: str
    event: Event
    positions: Positions


class ShardEvents(Iterator[ShardEvent]):
    """A live stream of the events of all shards: iterate over it, and close it to end the iteration.

    One thread per shard reads one page ahead. A shard that cannot be read does not delay the others; reading resumes at
    the same position as soon as the shard is back, even at another address. Shards that are added later are read too.
    """

    def __init__(self, list_shards: ListShards, open_shard: OpenShard, after: Positions) -> None:
        self.positions = after
        """After the event that was returned last."""
        self._page: _Page | None = None
        self._next = 0
        self._readers = _ShardReaders(open_shard, after)
        watch_shards(list_shards, self._readers.update, self._readers.closed)
        weakref.finalize(self, self._readers.close).atexit = False

    def __next__(self) -> ShardEvent:
        event = self.wait(None)
        if event is None:
            raise StopIteration
        return event

    def wait(self, timeout: float | None) -> ShardEvent | None:
        """The next event; None when closed, or if no event arrives within ``timeout`` seconds."""
        while not self._readers.closed.is_set():
            page = self._page
            if page is not None and self._next < len(page.events):
                event = page.events[self._next]
                self._next += 1
                self.positions = self.positions.at(page.shard, event.position or 0)
                return ShardEvent(page.shard, event, self.positions)
            if page is not None:
                page.consumed.release()
                self._page = None
            try:
                self._page, self._next = self._readers.pages.get(timeout=timeout), 0
            except queue.Empty:
                return None
        return None

    def failing(self) -> Mapping[str, str]:
        """The shards that could not be read at the last attempt, and why."""
        return {name: reader.failure for name, reader in list(self._readers.by_name.items()) if reader.failure}

    def close(self) -> None:
        """End the iteration, also for a thread that waits in it."""
        self._readers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch_shards(list_shards: ListShards, update: Callable[[Sequence[Shard]], object], ended: threading.Event) -> None:
    """Call ``update`` with the list of shards: now, and then repeatedly in a thread, until ``ended`` is set.

    The thread ignores a directory that does not answer, and asks again. The first call raises what ``list_shards``
    raises.
    """
    update(list_shards())
    threading.Thread(target=_watch, args=(list_shards, update, ended), name="clew-shards", daemon=True).start()


def _watch(list_shards: ListShards, update: Callable[[Sequence[Shard]], object], ended: threading.Event) -> None:
    while not ended.wait(DIRECTORY_POLL_SECONDS):
        try:
            shards = list_shards()
        except StoreError:
            continue
        update(shards)


class _Page(NamedTuple):
    shard: str
    events: Sequence[Event]
    consumed: threading.Semaphore


class _ShardReaders:
    """The threads behind one ShardEvents. They do not refer to it, so that they end when it is garbage collected."""

    def __init__(self, open_shard: OpenShard, after: Positions) -> None:
        self._open_shard = open_shard
        self._after = after
        self.pages: queue.SimpleQueue[_Page | None] = queue.SimpleQueue()
        self.by_name: dict[str, _ShardReader] = {}
        self.closed = threading.Event()

    def update(self, shards: Sequence[Shard]) -> None:
        """Start readers for new shards, and note the address of known ones."""
        for shard in shards:
            known = self.by_name.get(shard.name)
            if known is not None:
                known.shard = shard
            elif not self.closed.is_set():
                after = self._after.of(shard.name)
                self.by_name[shard.name] = _ShardReader(shard, self._open_shard, after, self.pages, self.closed)
        if self.closed.is_set():  # possibly since a reader was started
            self.close()

    def close(self) -> None:
        """Takes no lock: the garbage collector may call it in any thread at any moment."""
        self.closed.set()
        for reader in list(self.by_name.values()):
            reader.wake()
        self.pages.put(None)


class _ShardReader:
    """Reads one shard from a position on, in a thread. It holds at most one page that is not consumed."""

    def __init__(
        self,
        shard: Shard,
        open_shard: OpenShard,
        after: int,
        pages: queue.SimpleQueue[_Page | None],
        closed: threading.Event,
    ) -> None:
        self.shard = shard
        """Its address may change: the next attempt to open it uses the new one."""
        self.failure: str | None = None
        self._open_shard = open_shard
        self._after = after
        self._pages = pages
        self._closed = closed
        self._changed = threading.Event()
        self._consumed = threading.Semaphore(0)
        threading.Thread(target=self._run, name=f"clew-shard-{shard.name}", daemon=True).start()

    def wake(self) -> None:
        self._changed.set()
        self._consumed.release()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(self._open_shard(self.shard)) as log:
                    self._follow(log)
            except StoreError as error:
                self.failure = str(error)
            except Exception as error:  # noqa: BLE001 - logged and reported: no shard is skipped silently
                _log.exception("Shard %s could not be read", self.shard.name)
                self.failure = f"{type(error).__name__}: this is a defect in Clew. See the log for details."
            self._closed.wait(RETRY_SECONDS)

    def _follow(self, log: EventLog) -> None:
        stop_listening = log.listen(self._changed.set)
        try:
            while True:
                self._changed.clear()
                if self._closed.is_set():
                    return
                events = undamaged(lambda size: log.with_blobs(log.events_after(self._after, size, "")), PAGE_SIZE)
                self.failure = None
                if not events:
                    self._changed.wait()
                    continue
                self._after = events[-1].position or self._after
                self._pages.put(_Page(self.shard.name, events, self._consumed))
                self._consumed.acquire()
        finally:
            stop_listening()
