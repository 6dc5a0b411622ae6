"""The port through which the service writes and reads the tables of projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from clew.domain.projection import (
    Change,
    ForgetText,
    Generation,
    Indexed,
    Parked,
    Projection,
    Query,
    Recount,
    Rows,
    RowValues,
    Span,
    Value,
    Words,
)


class BusyError(Exception):
    """Another writer has the projections, and the caller need not wait for it."""


class ChangeableRows(Rows, Protocol):
    """The rows of a generation: those that are stored, and the changes that wait to be written."""

    def apply(self, position: int, tenant: str, changes: Iterable[Change]) -> list[ForgetText | Recount]:
        """Make the changes of a tenant's event at a position; returns those that need the log."""
        ...


class ProjectionSession(Protocol):
    """One transaction: all of its changes are stored, or none."""

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        ...

    def begin(self, projection: Projection, code: str, *, live: bool) -> Generation:
        """Create the tables of a new generation, empty, at position 0."""
        ...

    def rows(self, generation: Generation, projection: Projection) -> ChangeableRows:
        """The rows of a generation; ask again after an attempt failed."""
        ...

    def attempt(self) -> AbstractContextManager[None]:
        """Undo the changes that are made inside if an error is raised there; the error is raised again."""
        ...

    def park(self, generation: Generation, parked: Parked) -> None:
        """Record an event that the projection could not apply."""
        ...

    def forget(self, generation: Generation, index: str | None, position: int, by: int) -> None:
        """Remove the words of the text at a position from one index or from all, or mark that part of it as stale.

        The event at position ``by`` shredded the text: a part that was built from a later log does not contain it.
        """
        ...

    def stale(self, generation: Generation) -> list[Span]:
        """The parts of its indexes that must be built again."""
        ...

    def reindex(self, generation: Generation, span: Span, texts: Iterable[Indexed]) -> None:
        """Build a part of an index again from these texts; nothing of the old one stays in the store."""
        ...

    def empty(self, generation: Generation) -> None:
        """Remove everything from the stale parts; they stay stale."""
        ...

    def clean(self, generation: Generation) -> None:
        """Texts were removed from the rows of a generation: remove them from the files, too, as far as possible."""
        ...

    def flush(self) -> None:
        """Write the changes that wait. A server ends a transaction that is idle for long."""
        ...

    def move(self, generation: Generation, position: int, hash_: bytes) -> None:
        """Record the position that a generation has reached."""
        ...

    def switch(self, generation: Generation) -> bool:
        """Make this generation the live one and drop the others of its projection; False while those are in use."""
        ...

    def drop(self, generation: Generation) -> None:
        """Drop a generation with its tables."""
        ...


class ProjectionStore(Protocol):
    """The tables of projections. They can be rebuilt from the log at any time, so losing them loses nothing."""

    def session(
        self, seen: int, names: Iterable[str] | None = None, *, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager[ProjectionSession]:
        """A transaction in which these projections are written, or all of them.

        One transaction at a time writes a projection, in this process or another. The log that it reads from has
        reached position ``seen`` at least. With ``unless``, it may raise BusyError after a moment if another
        writer has them, and does so soon after ``unless`` returns True.
        """
        ...

    def shape(self, projection: Projection) -> str:
        """The digest of a projection's tables, as this version of Clew creates them: see ``Generation``."""
        ...

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        ...

    def select(self, name: str, query: Query) -> list[RowValues]:
        """Rows of a projection's live tables. Raises UnknownProjectionError if it was never built."""
        ...

    def values(self, name: str, query: Query) -> Sequence[tuple[Value, ...]]:
        """The same rows as tuples of the query's columns; None for a column that tables of an older version lack."""
        ...

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> list[int]:
        """The positions of texts with these words, newest first, below ``before``."""
        ...

    def parked(self, name: str, limit: int) -> tuple[int, Sequence[Parked]]:
        """The number of events that the live generation has parked, and the first of them in position order."""
        ...

    def claim(self, worker: str, names: Sequence[str], seconds: float) -> list[str]:
        """The projections of ``names`` whose leases a worker has from now on, for that many seconds.

        Expired leases do not count; the workers share the projections that several of them can maintain (see
        ``clew.domain.projection_leases``). Leases only divide the work: the tables are correct without them.
        """
        ...

    def release(self, worker: str) -> None:
        """End the leases of a worker at once."""
        ...

    def holders(self) -> Mapping[str, str]:
        """The worker that holds the lease of each projection; projections without a lease are omitted."""
        ...

    def purge(self, *, of_others: bool = False) -> bool:
        """Try again to remove deleted text from the files; True while a reader still prevents it.

        With ``of_others`` also look for text that other processes deleted, and did not remove before they ended.
        """
        ...

    def close(self) -> None:
        """Release everything; later calls raise ClosedError."""
        ...
