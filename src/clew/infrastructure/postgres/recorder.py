"""The event store on one PostgreSQL database: Clew's port and the library's process recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import Tracking
from psycopg.types.numeric import Int8

from clew.infrastructure.library_recorder import LibraryRecorder
from clew.infrastructure.postgres.datastore import READERS, WORKERS, PostgresDatastore
from clew.infrastructure.postgres.reads import PostgresReads
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import HIGHEST, text, within
from clew.infrastructure.recorder import Append, Appended

_TRACKED = statements("appends.sql")["tracked"]


class PostgresRecorder(PostgresReads, LibraryRecorder):
    """Events of chained, contiguous streams in a PostgreSQL database. Recorders may share a datastore."""

    datastore: PostgresDatastore

    def __init__(self, datastore: PostgresDatastore) -> None:
        self.datastore = datastore

    @classmethod
    def open(cls, url: str, *, workers: int = WORKERS, readers: int = READERS, create: bool = True) -> Self:
        """Open the store in a database, or create one there. Stream ids are text, like the names of Clew's streams.

        Raises StoreUrlError, StoreUnavailableError or StoreSchemaError.
        """
        return cls(PostgresDatastore(url, workers=workers, readers=readers, originator_id_type="text", create=create))

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. The future's ``result()`` writes it, unless another thread has started it."""
        return self.datastore.pool.submit(append)

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record how far an application has processed notifications."""
        self.submit(Append((), tracking=tracking)).result()

    def max_tracking_id(self, application_name: str) -> int | None:
        """How far an application has processed notifications, None before its first one."""
        rows = self.datastore.query(_TRACKED, {"application": application_name.encode()})
        return rows[0][0] if rows else None

    def own_events(
        self, stream: str, after: int, upto: int, limit: int, *, backwards: bool
    ) -> Iterable[tuple[int, str, bytes]]:
        """A stream's own events in version order."""
        rows = self._of(
            stream,
            "stored events backwards" if backwards else "stored events",
            after=Int8(within(after)),
            upto=Int8(within(upto)),
            limit=Int8(within(limit)),
        )
        return ((version, text(type_), state) for version, type_, state in rows)

    def events_in_order(
        self, after: int, upto: int, limit: int, types: Sequence[str]
    ) -> Iterable[tuple[int, str, int, str, bytes]]:
        """Events in position order."""
        parameters: dict[str, Any] = {
            "after": Int8(within(after)),
            "upto": Int8(within(upto)),
            "limit": Int8(within(limit)),
            "most": Int8(HIGHEST),
        }
        if types:
            parameters["types"] = [each.encode() for each in types]
        rows = self._in_order("rows of types" if types else "rows", parameters)
        return (
            (position, text(name), version, text(type_), state) for position, name, version, type_, state, *_ in rows
        )

    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""
        return UUID(stream) if self.datastore.originator_id_type == "uuid" else stream

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit, of this process or another."""
        return self.datastore.listeners.listen(wake)

    def close(self) -> None:
        """Write what was submitted, then close the connections."""
        self.datastore.close()
