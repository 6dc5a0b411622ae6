"""The event store in a SQLite file: Clew's ports and the library's process recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteCursor, SQLiteProcessRecorder

from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.library_recorder import LibraryRecorder
from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore, Synchronous
from clew.infrastructure.sqlite.reads import HIGHEST, SQLiteReads


# The library's max_notification_id returns None, too, although its signature does not say so.
class SQLiteRecorder(SQLiteReads, LibraryRecorder, SQLiteProcessRecorder):  # type: ignore[misc] # see above
    """Events of chained, contiguous streams in a SQLite file.

    Recorders of one library factory share a datastore, and so one writer thread.
    """

    datastore: ClewSQLiteDatastore

    def __init__(self, datastore: ClewSQLiteDatastore, *, events_table_name: str = "stored_events") -> None:
        super().__init__(datastore, events_table_name=events_table_name)
        self.submit = datastore.queue.submit

    @classmethod
    def open(cls, path: str, *, synchronous: Synchronous = "FULL", lock_timeout: float | None = None) -> Self:
        """Open the store in a file, or create it. Ids are text, like Clew's stream names.

        Raises StoreUrlError, StoreUnavailableError or StoreSchemaError.
        """
        datastore = ClewSQLiteDatastore(
            path, synchronous=synchronous, lock_timeout=lock_timeout, originator_id_type="text"
        )
        recorder = cls(datastore)
        recorder.create_table()
        return recorder

    def construct_create_table_statements(self) -> list[str]:
        """Only the library's tracking table: the other tables are made when the file is opened."""
        unused = SQLiteApplicationRecorder.construct_create_table_statements(self)
        return [statement for statement in super().construct_create_table_statements() if statement not in unused]

    def create_table(self) -> None:
        """Make the tracking table if it is missing, under the lock: several processes may open the file at once."""
        with self.datastore.exclusive():
            super().create_table()

    def _insert_events(self, c: SQLiteCursor, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        raise NotImplementedError("Only the store's writer appends to a chained stream: use insert_events().")

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
        found = self.query(
            "SELECT version, type, state FROM event WHERE stream = (SELECT id FROM stream WHERE name = ?) "  # noqa: S608 - marks only
            f"AND version > ? AND version <= ? ORDER BY version {'DESC' if desc else 'ASC'} LIMIT ?",
            (
                stream_name(originator_id),
                -1 if gt is None else gt,
                HIGHEST if lte is None else lte,
                -1 if limit is None else limit,
            ),
        )
        return [StoredEvent(originator_id, *row) for row in found]

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
        after = 0 if start is None else start - inclusive_of_start
        wanted = f"AND e.type IN ({','.join('?' * len(topics))}) " if topics else ""
        found = self.query(
            "SELECT s.name, e.version, e.type, e.state, e.position FROM event e CROSS JOIN stream s "  # noqa: S608 - as above
            f"ON s.id = e.stream WHERE e.position > ? AND e.position <= ? {wanted}ORDER BY e.position LIMIT ?",
            (after, HIGHEST if stop is None else stop, *topics, limit),
        )
        return [Notification(self.convert_originator_id(row[0]), *row[1:]) for row in found]

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit, of this process or another."""
        return self.datastore.listeners.listen(wake)

    def close(self) -> None:
        """Write what was submitted, then release the file."""
        self.datastore.close()
