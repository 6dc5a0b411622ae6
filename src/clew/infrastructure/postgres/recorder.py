"""The event store on one PostgreSQL database: Clew's port and the library's process recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent, Tracking
from psycopg.types.numeric import Int8

from clew.infrastructure.append_plan import stream_name
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

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """A stream's own events in the library's form."""
        rows = self._of(
            stream_name(originator_id),
            "stored events backwards" if desc else "stored events",
            after=Int8(-1 if gt is None else within(gt)),
            upto=Int8(HIGHEST if lte is None else within(lte)),
            limit=Int8(HIGHEST if limit is None else within(limit)),
        )
        return [StoredEvent(originator_id, version, text(type_), state) for version, type_, state in rows]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events in position order in the library's form."""
        parameters: dict[str, Any] = {
            "after": Int8(0 if start is None else within(start - inclusive_of_start)),
            "upto": Int8(HIGHEST if stop is None else within(stop)),
            "limit": Int8(within(limit)),
            "most": Int8(HIGHEST),
        }
        if topics:
            parameters["types"] = [topic.encode() for topic in topics]
        rows = self._in_order("rows of types" if topics else "rows", parameters)
        return [
            Notification(self._originator_id(text(name)), version, text(type_), state, id=position)
            for position, name, version, type_, state, _, _ in rows
        ]

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit, of this process or another."""
        return self.datastore.listeners.listen(wake)

    def close(self) -> None:
        """Write what was submitted, then close the connections."""
        self.datastore.close()

    def _originator_id(self, name: str) -> UUID | str:
        return UUID(name) if self.datastore.originator_id_type == "uuid" else name
