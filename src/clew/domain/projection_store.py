"""The port through which the service fills and reads the tables of projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from clew.domain.projection import (
    Built,
    Change,
    ForgetText,
    Indexed,
    Parked,
    Projection,
    Query,
    Recount,
    Rows,
    RowValues,
    Span,
    Words,
)


class Filling(Rows, Protocol):
    """The rows of a generation as they are now, and the changes of them."""

    def apply(self, position: int, tenant: str, changes: Iterable[Change]) -> list[ForgetText | Recount]:
        """Make the changes of a tenant's event at a position; returns those that it has left: they look at the log."""
        ...


class ProjectionSession(Protocol):
    """One transaction: everything that is done in it is there afterwards, or nothing of it."""

    def built(self) -> list[Built]:
        """The generations that there are."""
        ...

    def begin(self, projection: Projection, code: str, *, live: bool) -> Built:
        """Make the tables of a new generation, empty, at position 0."""
        ...

    def rows(self, built: Built, projection: Projection) -> Filling:
        """The rows of a generation, until something is undone."""
        ...

    def attempt(self) -> AbstractContextManager[None]:
        """What is applied inside is undone if it raises, and then the error goes on."""
        ...

    def park(self, built: Built, parked: Parked) -> None:
        """Note an event that the projection could not take in."""
        ...

    def forget(self, built: Built, index: str | None, position: int, by: int) -> None:
        """Note that the part of an index, or of all, that holds a position is to be made anew.

        It was shredded by the event at position ``by``: a part that was made of a later log does not have it.
        """
        ...

    def stale(self, built: Built) -> list[Span]:
        """The parts of its indexes that are to be made anew."""
        ...

    def reindex(self, built: Built, span: Span, texts: Iterable[Indexed]) -> None:
        """Make a part of an index anew from these texts; nothing of the old one stays in the store."""
        ...

    def empty(self, built: Built) -> None:
        """Take everything out of the parts that are to be made anew; they are still to be made."""
        ...

    def flush(self) -> None:
        """Write what waits. A server ends a transaction in which nothing is said for long."""
        ...

    def move(self, built: Built, position: int, hash_: bytes) -> None:
        """Note how far a generation has come."""
        ...

    def switch(self, built: Built) -> bool:
        """Let this generation be the live one, and drop the others of its name; False while somebody holds these."""
        ...

    def drop(self, built: Built) -> None:
        """Drop a generation with its tables."""
        ...


class ProjectionStore(Protocol):
    """The tables of projections. They can be built anew from the log at any time, so losing them loses nothing."""

    def session(self, seen: int, names: Iterable[str] | None = None) -> AbstractContextManager[ProjectionSession]:
        """A transaction, in which these projections are filled, or all that there are.

        Of those that fill the same projection, in this process or another, one has its turn at a time. What is written
        in it was read of a log that had come to position ``seen`` at least.
        """
        ...

    def shape(self, projection: Projection) -> str:
        """The digest of a projection's tables as they are declared and are made here: see ``Built``."""
        ...

    def built(self) -> list[Built]:
        """The generations that there are."""
        ...

    def select(self, name: str, query: Query) -> list[RowValues]:
        """Rows of a projection's live tables. Raises UnknownProjectionError when it was never built."""
        ...

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> list[int]:
        """The positions of texts that have the words, newest first, below ``before``."""
        ...

    def parked(self, name: str, limit: int) -> tuple[int, Sequence[Parked]]:
        """How many events the live generation went on without, and the first of them in position order."""
        ...

    def claim(self, worker: str, names: Sequence[str], seconds: float) -> list[str]:
        """The projections of ``names`` whose leases a worker has from now on, for so many seconds.

        Those whose leases have run out are not counted any more; the others share what more than one of them would fill
        (see ``clew.domain.projection_leases``). Leases divide the work: what is filled is right whoever fills it.
        """
        ...

    def release(self, worker: str) -> None:
        """Let others have the leases of a worker at once."""
        ...

    def holders(self) -> Mapping[str, str]:
        """By projection, the worker that holds its lease; without those whose lease nobody holds."""
        ...

    def scrub(self) -> bool:
        """Try again to let go of text that was to be forgotten; True when somebody still reads where it lies."""
        ...

    def close(self) -> None:
        """Let go of everything; later calls raise ClosedError."""
        ...
