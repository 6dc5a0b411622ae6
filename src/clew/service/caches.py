"""What a service remembers of its log, so that it need not read it again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clew.infrastructure import process_forks

if TYPE_CHECKING:
    from clew.domain.control import Control
    from clew.domain.history import HistoryBuilder

T = TypeVar("T")

CACHED_THREADS = 1_024
CACHED_HISTORIES = 256
CACHED_MESSAGES = 100_000
CACHED_SCOPES = 1_024
CACHED_FACTS = 250_000
LOCKS = 64


class Recent(Generic[T]):
    """The values put last, each with a weight, up to a number and a total weight; for many threads at once."""

    def __init__(self, most: int, heaviest: int) -> None:
        self._most = most
        self._heaviest = heaviest
        self._weight = 0
        self._kept: dict[str, tuple[int, T]] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> T | None:
        """The value of that name, None if it is not kept."""
        found = self._kept.get(name)
        return None if found is None else found[1]

    def put(self, name: str, value: T, weight: int = 1) -> None:
        """Keep a value; those put longest ago make room."""
        with self._lock:
            gone = self._kept.pop(name, None)
            if gone is not None:
                self._weight -= gone[0]
            if weight > self._heaviest:
                return
            self._kept[name] = (weight, value)
            self._weight += weight
            while len(self._kept) > self._most or self._weight > self._heaviest:
                self._drop(next(iter(self._kept)))

    def drop(self, name: str) -> None:
        """Keep it no longer."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        gone = self._kept.pop(name, None)
        if gone is not None:
            self._weight -= gone[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a thread's history, as long as nothing was shredded since."""

    builder: HistoryBuilder
    shredded: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a memory stream, as long as nothing was shredded since; ``made`` is what it is searched by."""

    fold: Any
    shredded: int
    made: dict[str, Any] = field(default_factory=dict)


class Remembered:
    """The caches of a service, shared by its actors.

    ``tips`` are controls that appends are decided on: they count on what was submitted being written. ``controls`` and
    ``histories`` hold what the log had: they are never ahead of it. ``blobs`` are digests of some that the log has.
    ``scopes`` are what is known of memory scopes.
    """

    def __init__(self) -> None:
        self._forget()
        process_forks.watch(self)

    def _forget(self) -> None:
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self.tips: Recent[Control] = Recent(CACHED_THREADS, CACHED_THREADS)
        self.controls: Recent[Control] = Recent(CACHED_THREADS, CACHED_THREADS)
        self.blobs: set[bytes] = set()
        self.histories: Recent[Reading] = Recent(CACHED_HISTORIES, CACHED_MESSAGES)
        self.scopes: Recent[Kept] = Recent(CACHED_SCOPES, CACHED_FACTS)

    def lock(self, stream: str) -> threading.Lock:
        """What is held while something of the stream is decided, or added to what is known of it: of one at a time."""
        return self._locks[hash(stream) % LOCKS]

    def before_fork(self) -> None:
        """Nothing is to be brought to rest: the child takes none of it."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin with nothing: a lock that another thread of the parent held would never be released here."""
        self._forget()
