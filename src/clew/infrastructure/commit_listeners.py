"""The listeners of a store, which commits wake, and the poller that sees the commits of other processes."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Protocol

from clew.domain.errors import ClosedError

POLL_SECONDS = 0.02

FAILURE_SECONDS = 0.5
"""How often listeners are woken while polls fail, so that each of them reads and meets the error."""

MOST_WRITTEN = 10_000
"""If other processes wrote more events than that between two polls, all listeners are woken."""

MOST_OWN = 10_000
"""How many of its own commits a store remembers until they are visible. Beyond that it is woken twice."""

SKIPPED = 10_000
"""After so many commits to other streams, the listeners of a prefix are woken: they skip these events once, and later
need not read past all of them."""

_log = logging.getLogger(__name__)

Wake = Callable[[], None]


class Commits(Protocol):
    """What a poller asks a store that other processes write to."""

    def database(self) -> Hashable:
        """The same value for all stores of this process that see the same events: one poller is enough for them."""
        ...

    def visible(self) -> int:
        """The position up to which readers in position order see all events. It can be above the last event."""
        ...

    def written(self, after: int, upto: int, limit: int) -> Sequence[tuple[int, str]]:
        """Position and stream of the events in ``after`` < position ≤ ``upto``, at most ``limit`` of them."""
        ...


class CommitListeners:
    """The listeners of one store. Without ``commits``, only this process can write to it."""

    def __init__(self, commits: Commits | None = None) -> None:
        self.commits = commits
        self.restart()

    def restart(self) -> None:
        """Start without listeners: the child of a fork does not inherit the parent's event loops and threads."""
        self._lock = threading.Lock()
        self.callbacks: dict[object, Wake] = {}
        """The listeners, by their tickets."""
        self._by_name: dict[str, dict[object, Wake]] = {}
        """The same listeners by the name that they gave."""
        self._left: deque[str] = deque()
        """The names of listeners that have left."""
        self._own: list[tuple[int, int]] = []
        """First and last position of each of this store's own commits that the poller has not seen yet."""
        self._polled = -1
        """The position up to which the poller last woke listeners."""
        self._skipped = 0
        self._poller: _Poller | None = None
        self._closed = False

    def listen(self, wake: Wake, of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events ``of`` a stream, until the returned function is called.

        ``of`` is the name of a stream, or the start of names up to a slash; "" is every stream.
        """
        ticket = object()
        with self._lock:
            while self._left:
                left = self._left.pop()
                if not self._by_name.get(left, True):
                    del self._by_name[left]
            listeners = self._by_name.setdefault(of, {})
            listeners[ticket] = self.callbacks[ticket] = wake

        def stop_listening() -> None:
            # Takes no lock: the garbage collector may call it at any moment, even while this thread holds the lock.
            if self.callbacks.pop(ticket, None) is not None:
                listeners.pop(ticket, None)
                self._left.append(of)

        try:
            self._join_poller()
        except BaseException:
            stop_listening()
            raise
        return stop_listening

    def notify(self, streams: Collection[str] | None = None) -> None:
        """Wake the listeners of these streams; None for all. If one raises, the others are woken all the same."""
        for wake in list(self.callbacks.values()) if streams is None else list(self._listeners_of(streams)):
            try:
                wake()
            except Exception:  # noqa: BLE001 - logged: neither the writer nor the other listeners are at fault
                _log.exception("A listener of the store failed")

    def _listeners_of(self, streams: Collection[str]) -> Iterator[Wake]:
        names = {name for stream in streams for name in _names_of(stream)}
        self._skipped += len(streams)
        if self._skipped >= SKIPPED:
            self._skipped = 0
            names.update(name for name in list(self._by_name) if name.endswith("/"))
        for name in names:
            yield from list(self._by_name.get(name, {}).values())

    def own(self, first: int, last: int) -> bool:
        """Expect a commit of this process: the poller must not wake listeners for it, because ``notify`` does.

        False if the poller has seen it already, and has woken them.
        """
        if first > last:
            return True
        with self._lock:
            if last <= self._polled:
                return False
            if self._own and self._own[-1][1] == first - 1:
                first = self._own.pop()[0]
            elif len(self._own) >= MOST_OWN:
                self._own.clear()
            self._own.append((first, last))
            return True

    def disown(self, upto: int) -> None:
        """Have the poller wake listeners for own commits up to this position, as for those of another process."""
        with self._lock:
            self._own = [(first, last) for first, last in self._own if last > upto]

    def covers(self, after: int, upto: int) -> bool:
        """Whether this store wrote all positions in ``after`` < position ≤ ``upto`` itself."""
        with self._lock:
            return any(first <= after + 1 and last >= upto for first, last in self._own)

    def notify_visible(self, upto: int, written: Sequence[tuple[int, str]] | None) -> None:
        """Wake the listeners for events of other processes, which are visible up to a position; None for all."""
        with self._lock:
            self._polled = upto
            own = sorted(each for each in self._own if each[0] <= upto)
            self._own = [each for each in self._own if each[1] > upto]
        self.notify(None if written is None else _without(own, written))

    def _join_poller(self) -> None:
        if self.commits is None or self._closed:
            return
        poller = self._poller
        if poller is None:
            poller = self._poller = _poller_of(self.commits.database())
        poller.join(self, self.commits)

    def close(self) -> None:
        """Leave the poller, and wake the listeners a last time, so that they find the store closed."""
        self._closed = True
        if self._poller is not None:
            self._poller.leave(self)
        self.notify()


def _names_of(stream: str) -> Iterator[str]:
    """The names that listeners of this stream can have given."""
    yield ""
    yield stream
    end = stream.find("/") + 1
    while end:
        yield stream[:end]
        end = stream.find("/", end) + 1


def _without(own: Sequence[tuple[int, int]], written: Sequence[tuple[int, str]]) -> set[str]:
    """The streams of the events whose positions are not in these ranges. Both are in position order."""
    streams: set[str] = set()
    ranges = iter(own)
    first, last = next(ranges, (0, -1))
    for position, stream in written:
        while first <= last < position:
            first, last = next(ranges, (0, -1))
        if not first <= position <= last:
            streams.add(stream)
    return streams


class _Poller:
    """Polls a database for all stores of this process that have listeners on it. Without listeners it does not run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[CommitListeners, Commits] = {}
        self._stop: threading.Event | None = None
        self._seen: int | None = None
        """The position up to which listeners were woken, None while polls fail."""
        self._woken = 0.0
        """When listeners were woken because a poll failed."""

    def join(self, store: CommitListeners, commits: Commits) -> None:
        """Poll for a store. Every commit that is visible later wakes its listeners."""
        with self._lock:
            if self._stop is None:
                self._seen = commits.visible()
                stop = threading.Event()
                threading.Thread(target=self._run, args=(stop,), name="clew-poller", daemon=True).start()
                self._stop = stop
            self._stores[store] = commits

    def leave(self, store: CommitListeners) -> None:
        """Do not poll for a store any more."""
        with self._lock:
            self._stores.pop(store, None)
            if not self._stores and self._stop is not None:
                stop, self._stop = self._stop, None  # after Ctrl-C here, the next listener starts a thread
                stop.set()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_SECONDS) and not self._is_idle(stop):
            self._poll()

    def _is_idle(self, stop: threading.Event) -> bool:
        """Whether the thread may end because there are no listeners; the next listener starts another one."""
        with self._lock:
            for store in [store for store in self._stores if not store.callbacks]:
                del self._stores[store]
            if not self._stores and self._stop is stop:
                self._stop = None
            return self._stop is not stop

    def _poll(self) -> None:
        with self._lock:
            asked = next(iter(self._stores), None)
            if asked is None:
                return
            commits, seen = self._stores[asked], self._seen
        try:
            visible = commits.visible()
            # A lower position is that of another server, or of the same one after a crash.
            written = None if seen is None or visible < seen else self._written(commits, seen, visible)
        except ClosedError:
            self.leave(asked)
            return
        except Exception:  # noqa: BLE001 - the store may be back later; its readers meet the error
            # Repeated, because a read may still succeed, and find nothing new, after the first failed poll.
            if seen is None and time.monotonic() - self._woken < FAILURE_SECONDS:
                return
            self._seen, self._woken = None, time.monotonic()
            visible, written = -1, None
        else:
            self._seen = visible
        if written != []:
            for store in self._opened():
                store.notify_visible(visible, written)

    def _written(self, commits: Commits, seen: int, visible: int) -> Sequence[tuple[int, str]] | None:
        if seen == visible:
            return []
        stores = self._opened()
        if all(store.covers(seen, visible) for store in stores):
            return []
        written = commits.written(seen, visible, MOST_WRITTEN + 1)
        return None if len(written) > MOST_WRITTEN else written

    def _opened(self) -> list[CommitListeners]:
        with self._lock:
            return list(self._stores)


_pollers: weakref.WeakValueDictionary[Hashable, _Poller] = weakref.WeakValueDictionary()


def _poller_of(database: Hashable) -> _Poller:
    """The poller of a database in this process; the child of a fork has its own."""
    # Without a lock, because a thread could hold it while another one forks the process. At worst two pollers run.
    return _pollers.setdefault((os.getpid(), database), _Poller())
