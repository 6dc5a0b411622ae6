"""The event store in a SQLite file: Clew's ports and the library's process recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteCursor, SQLiteProcessRecorder

from clew.infrastructure.library_recorder import LibraryRecorder
from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore, Synchronous
from clew.infrastructure.sqlite.reads import SQLiteReads

_OWN_EVENTS = (
    "SELECT version, type, state FROM event WHERE stream = (SELECT id FROM stream WHERE name = ?) "
    "AND version > ? AND version <= ? ORDER BY version LIMIT ?"
)
_OWN_EVENTS_BACKWARDS = _OWN_EVENTS.replace("ORDER BY version", "ORDER BY version DESC")


# The library's max_notification_id returns None, too, although its signature does not say so.
class SQLiteRecorder(SQLiteReads, LibraryRecorder, SQLiteProcessRecorder):  # type: ignore[misc] # see above
    """Events of chained, contiguous streams in a SQLite file.

    Recorders of one library factory share a datastore, and so one queue of appends.
    """

    datastore: ClewSQLiteDatastore

    def __init__(self, datastore: ClewSQLiteDatastore, *, events_table_name: str = "stored_events") -> None:
        super().__init__(datastore, events_table_name=events_table_name)
        self.submit = datastore.queue.submit
        self.enqueue = datastore.queue.enqueue

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
        """Create only the library's tracking table: the other tables are created when the file is opened."""
        unused = SQLiteApplicationRecorder.construct_create_table_statements(self)
        return [statement for statement in super().construct_create_table_statements() if statement not in unused]

    def create_table(self) -> None:
        """Create the tracking table if it is missing, under the lock: several processes may open the file at once."""
        if not self.datastore.read_only:
            self.datastore.lock.hold(super().create_table)

    def _insert_events(self, c: SQLiteCursor, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        raise NotImplementedError("Only the store's writer appends to a chained stream: use insert_events().")

    def own_events(
        self, stream: str, after: int, upto: int, limit: int, *, backwards: bool
    ) -> Iterable[tuple[int, str, bytes]]:
        """A stream's own events in version order."""
        return self.query(_OWN_EVENTS_BACKWARDS if backwards else _OWN_EVENTS, (stream, after, upto, limit))

    def events_in_order(
        self, after: int, upto: int, limit: int, types: Sequence[str]
    ) -> Iterable[tuple[int, str, int, str, bytes]]:
        """Events in position order."""
        of_types = f"AND e.type IN ({','.join('?' * len(types))}) " if types else ""
        return self.query(
            "SELECT e.position, s.name, e.version, e.type, e.state FROM event e CROSS JOIN stream s "  # noqa: S608 - marks only
            f"ON s.id = e.stream WHERE e.position > ? AND e.position <= ? {of_types}ORDER BY e.position LIMIT ?",
            (after, upto, *types, limit),
        )

    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""
        return self.convert_originator_id(stream)

    def listen(self, wake: Callable[[], None], of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events, of this process or another."""
        return self.datastore.listeners.listen(wake, of)

    def erase(self) -> int | None:
        """Remove what shredded rows have left in the write-ahead log."""
        return self.datastore.erase()

    def close(self) -> None:
        """Write all submitted appends, then release the file."""
        self.datastore.close()
