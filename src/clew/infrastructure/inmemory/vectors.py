"""An index of vectors in memory, which ends with the process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from clew.domain.errors import ClosedError
from clew.domain.memory.ports import VectorIndex
from clew.infrastructure.vector_matrices import Matrices, check_installed, packed


class InMemoryVectors:
    """Vectors by space and digest: see the port."""

    def __init__(self) -> None:
        self._vectors: dict[str, dict[bytes, bytes]] = {}
        self._matrices = Matrices()
        self._closed = False

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """The digests without a vector."""
        check_installed()
        stored = self._space(space)
        return {digest for digest in digests if digest not in stored}

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Store vectors. Existing ones do not change."""
        stored = self._space(space)
        for digest, vector in vectors.items():
            stored.setdefault(digest, packed(vector))

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector."""
        stored = self._space(space)

        def fetch(digests: Collection[bytes]) -> dict[bytes, bytes]:
            return {digest: stored[digest] for digest in digests if digest in stored}

        return self._matrices.nearest((space, collection), entries, stamp, vector, top, fetch)

    def drop(self) -> None:
        """Remove all vectors."""
        self._check_open()
        self._forget()

    def close(self) -> None:
        """Release everything."""
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        self._vectors = {}
        self._matrices.clear()

    def _space(self, space: str) -> dict[bytes, bytes]:
        self._check_open()
        return self._vectors.setdefault(space, {})

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The store is closed: its vectors cannot be used. Open it again.")


class OverlaidVectors:
    """Vectors in an index that is only read, and new ones in memory for this process: see the port."""

    def __init__(self, stored: VectorIndex) -> None:
        self._stored = stored
        self._new = InMemoryVectors()

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """The digests without a vector."""
        return self._stored.missing(space, self._new.missing(space, digests))

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Keep vectors in memory."""
        self._new.put(space, vectors)

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector."""
        both = dict(self._stored.nearest(space, collection, entries, stamp, vector, top))
        both |= dict(self._new.nearest(space, collection, entries, stamp, vector, top))
        return sorted(both.items(), key=lambda entry: (-entry[1], entry[0]))[:top]

    def drop(self) -> None:
        """Remove the vectors in memory."""
        self._new.drop()

    def close(self) -> None:
        """Release everything."""
        self._new.close()
        self._stored.close()
