"""Vectors in memory for comparison: one matrix for each collection, which grows with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from clew.domain.errors import EmbeddingError
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure import process_forks

if TYPE_CHECKING:
    import numpy as np

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

MOST_BYTES = 1 << 30
"""The most bytes of all matrices together, without the one in use."""

Fetch: TypeAlias = Callable[[Collection[bytes]], Mapping[bytes, bytes]]
"""Reads the vectors, as float32, of the digests that have one."""


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is stored: float32, little-endian."""
    return bytes(_numpy().asarray(vector, dtype="<f4").tobytes())


def unpacked(sent: bytes) -> bytes:
    """A vector as it is stored, from pgvector's binary form: a header of four bytes, then float32, big-endian."""
    np = _numpy()
    return bytes(np.frombuffer(sent, dtype=">f4", offset=4).astype("<f4").tobytes())


def check_installed() -> None:
    """Raise MissingExtraError if numpy is not installed, before texts are embedded or stored."""
    _numpy()


class Matrices(process_forks.ForkAware):
    """The matrices of the collections that were used last. Threads use it one at a time."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._begin()
        process_forks.watch(self)

    def _begin(self) -> None:
        self._matrices: OrderedDict[tuple[str, str], _Matrix] = OrderedDict()
        self._lock = threading.Lock()

    def nearest(
        self,
        name: tuple[str, str],
        entries: Mapping[int, bytes],
        stamp: int,
        vector: Sequence[float],
        top: int,
        fetch: Fetch,
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector, by cosine, best first."""
        with self._lock:
            matrix = self._matrices.setdefault(name, _Matrix())
            self._matrices.move_to_end(name)
            matrix.update(entries, stamp, fetch)
            while len(self._matrices) > 1 and sum(each.size for each in self._matrices.values()) > self._most:
                self._matrices.popitem(last=False)
            return matrix.nearest(vector, top)

    def clear(self) -> None:
        """Release all matrices."""
        with self._lock:
            self._matrices.clear()

    def after_fork_in_child(self) -> None:
        """Start empty: a lock that another thread of the parent held would never be released here."""
        self._begin()


class _Matrix:
    """Unit vectors in rows, and the entry of each row."""

    def __init__(self) -> None:
        np = _numpy()
        self._rows: Floats = np.empty((0, 0), dtype=np.float32)
        self._numbers = np.empty(0, dtype=np.int64)
        self._places: dict[int, int] = {}
        self._entries: Mapping[int, bytes] = {}
        self._stamp: int | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self._rows.nbytes + self._numbers.nbytes)

    def update(self, entries: Mapping[int, bytes], stamp: int, fetch: Fetch) -> None:
        """Make the matrix contain exactly the entries that have vectors."""
        if stamp == self._stamp and len(self._places) == len(entries):
            return
        for number, _ in self._entries.items() - entries.items():
            self._remove(number)
        missing = {number: entries[number] for number in entries.keys() - self._places.keys()}
        if missing:
            self._add(missing, fetch(set(missing.values())))
        self._entries = {number: entries[number] for number in self._places}
        self._stamp = stamp

    def nearest(self, vector: Sequence[float], top: int) -> list[tuple[int, float]]:
        """The nearest rows; of equally near ones the lower numbers come first."""
        np = _numpy()
        count = len(self._places)
        if not count or top < 1:
            return []
        target = np.asarray(vector, dtype=np.float32)
        if target.shape != (self._rows.shape[1],):
            raise EmbeddingError(f"A vector of {target.size} numbers cannot be compared with {self._rows.shape[1]}.")
        length = float(np.linalg.norm(target))
        near = self._rows[:count] @ (target / length if length else target)
        chosen = np.arange(count)
        if top < count:
            chosen = np.flatnonzero(near >= np.partition(near, count - top)[count - top])
        order = np.lexsort((self._numbers[chosen], -near[chosen]))[:top]
        return [(int(self._numbers[place]), float(near[place])) for place in chosen[order]]

    def _add(self, missing: Mapping[int, bytes], vectors: Mapping[bytes, bytes]) -> None:
        np = _numpy()
        numbers = sorted(number for number, digest in missing.items() if digest in vectors)
        if not numbers:
            return
        count, needed = len(self._places), len(self._places) + len(numbers)
        joined = b"".join(vectors[missing[number]] for number in numbers)
        rows = np.frombuffer(joined, dtype="<f4").reshape(len(numbers), -1).astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        if needed > len(self._numbers):  # grow by half, so that many small additions stay cheap
            most = needed if not count else needed + needed // 2
            grown = np.empty((most, rows.shape[1]), dtype=np.float32)
            if count:
                grown[:count] = self._rows[:count]
            self._rows = grown
            self._numbers = np.resize(self._numbers, most)
        self._rows[count:needed] = rows
        self._numbers[count:needed] = numbers
        self._places.update((number, count + place) for place, number in enumerate(numbers))

    def _remove(self, number: int) -> None:
        """Remove a row; the last one takes its place."""
        place = self._places.pop(number)
        last = len(self._places)
        if place != last:
            moved = int(self._numbers[last])
            self._rows[place] = self._rows[last]
            self._numbers[place] = moved
            self._places[moved] = place


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtraError("An index of vectors", "numpy", "vectors") from error
    return np
