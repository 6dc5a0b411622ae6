"""The tables of a SQLite store, and how a file is recognized as one."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from clew.domain.errors import StoreSchemaError
from clew.domain.event_index import BLOBS

APPLICATION_ID = 0x436C6577
"""``Clew`` in ASCII, in the header of the file."""

SCHEMA_VERSION = 6

_SIDE_TABLES = (
    # A table with row ids, so that a new blob never moves the others: the writer explains why shredding needs this.
    "CREATE TABLE blob (digest BLOB PRIMARY KEY NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE lease (stream INTEGER PRIMARY KEY, holder TEXT NOT NULL, until INTEGER NOT NULL)",
    # The margin is a page of zeros. SQLite stores the beginning of a long row in a page of the tree, where rows are
    # moved and copies stay behind. The rest is in overflow pages, which are wiped when the row is deleted.
    """CREATE TABLE draft (
        stream INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        margin BLOB NOT NULL,
        data BLOB NOT NULL
    )""",
)
"""The side tables, since schema 2."""

_INDEX = """CREATE TABLE entry (
        stream INTEGER NOT NULL,
        number INTEGER NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (stream, number, version)
    ) WITHOUT ROWID"""
"""The index of records and rewinds, since schema 3; of checkpoints, too, since schema 5."""

_FOLDS = """CREATE TABLE fold_state (
        stream INTEGER NOT NULL,
        name TEXT NOT NULL,
        slot INTEGER NOT NULL,
        version INTEGER NOT NULL,
        margin BLOB NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (stream, name, slot)
    )"""
"""The states of folds, since schema 4. The margin has the same reason as that of a draft."""

_RECORD_BLOBS = (
    # The number is that of the records in the index. Row ids have the same reason as those of the other blobs.
    "CREATE TABLE record_blob (digest BLOB UNIQUE, number INTEGER NOT NULL, data BLOB NOT NULL)",
    f"CREATE INDEX entry_blob ON entry (number) WHERE number >= {BLOBS}",
)
"""The bytes of records, and how the records are found that have them, since schema 6."""

MIGRATIONS: dict[int, tuple[str, ...]] = {1: _SIDE_TABLES, 2: (_INDEX,), 3: (_FOLDS,), 4: (), 5: _RECORD_BLOBS}
"""The statements that lead from a schema to the next one; the migrations to schemas 3 and 5 then fill the index."""

ADD_TAG = "INSERT OR IGNORE INTO counter (name, value) VALUES ('store', abs(random() % 4294967296))"
"""Gives the file a tag that tells it from others."""

INDEXES = ("stream_parent", "event_stream_version", "append_key_stream_key", "entry_blob")
"""The indexes that are made by name."""

# Streams are integers inside, so that rows and their index stay small and a lineage is read by integer keys.
TABLES = (
    """CREATE TABLE stream (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        parent INTEGER REFERENCES stream,
        cut INTEGER
    )""",
    "CREATE INDEX stream_parent ON stream (parent) WHERE parent IS NOT NULL",
    # AUTOINCREMENT: a position is never used twice, even if tampering deletes rows.
    """CREATE TABLE event (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        stream INTEGER NOT NULL,
        version INTEGER NOT NULL,
        type TEXT NOT NULL,
        state BLOB NOT NULL,
        hash BLOB NOT NULL,
        digest BLOB
    )""",
    "CREATE UNIQUE INDEX event_stream_version ON event (stream, version)",
    # The rows of an append are the positions from first to last, so first finds the key that covers a row.
    """CREATE TABLE append_key (
        first INTEGER PRIMARY KEY,
        last INTEGER NOT NULL,
        stream INTEGER NOT NULL,
        key TEXT NOT NULL,
        salt BLOB NOT NULL,
        digest BLOB
    )""",
    "CREATE UNIQUE INDEX append_key_stream_key ON append_key (stream, key)",
    # The stub of a shredded row if it does not fit into the space of the row: see the writer.
    "CREATE TABLE remains (position INTEGER PRIMARY KEY, state BLOB NOT NULL, digest BLOB NOT NULL)",
    """CREATE TABLE snapshot (
        stream INTEGER NOT NULL,
        version INTEGER NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (stream, version)
    ) WITHOUT ROWID""",
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counter (name, value) VALUES ('shredded', 0)",
    ADD_TAG,
    *_SIDE_TABLES,
    _INDEX,
    _FOLDS,
    *_RECORD_BLOBS,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def file_uri(path: str, options: str) -> str:
    """SQLite's URI of a file, whose name can hold any bytes."""
    return f"file:{quote(os.fsencode(path))}?{options}"


def flush_the_disk(connection: sqlite3.Connection) -> None:
    """On macOS, wait for the disk itself: fsync only hands the bytes to it. No change elsewhere."""
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")


def refuse_other_files(path: str) -> None:
    """Check a file before anything is made next to it. Raises StoreSchemaError when it is not a SQLite database.

    SQLite reads the file. If this process opened and closed it directly, it would lose all its locks on the file
    (POSIX), and another process could delete the write-ahead log of a store that is open here.
    """
    if not os.path.exists(path):  # noqa: PTH110 - False also for a path that cannot be looked up
        return
    if os.path.isdir(path):  # noqa: PTH112 - as above
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    _recover(path)
    try:
        with closing(sqlite3.connect(file_uri(path, "mode=ro&immutable=1"), uri=True)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            msg = f"{path}: this is not an SQLite database. Choose another path."
            raise StoreSchemaError(msg) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error
        # Other errors are raised when the file is opened.


def _recover(path: str) -> None:
    """Let SQLite finish or undo what a crash interrupted: only then does the file show what it is.

    A rollback journal has the pages of a file that may be half changed. Without its index, a write-ahead log can be
    read only by a connection that may write. Such a connection restores the file when it reads, and removes both.
    """
    left_log = _size(path + "-wal") and not os.path.exists(path + "-shm")  # noqa: PTH110 - as above
    if (left_log or has_journal(path)) and may_be_written(path):
        with (
            suppress(sqlite3.Error),  # raised again when the file is opened
            closing(sqlite3.connect(file_uri(path, "mode=rw"), uri=True)) as connection,
        ):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def has_journal(path: str) -> bool:
    """Whether SQLite must undo a change, or a process is making one. A journal that begins with zero is not in use."""
    try:
        with Path(path + "-journal").open("rb") as journal:
            return journal.read(1) not in {b"", b"\0"}
    except FileNotFoundError:
        return False


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except FileNotFoundError:
        return 0


def is_prepared(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the tables exist; False for an empty file.

    Raises StoreSchemaError for another program's database and for one that another Clew made, with another schema.
    """
    version = schema_version(connection, path)
    if version is not None and version != SCHEMA_VERSION:
        msg = f"{path}: this database has schema {version}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + _advice(version))
    return version is not None


def schema_version(connection: sqlite3.Connection, path: str) -> int | None:
    """The schema of the database, None for an empty file. Raises StoreSchemaError for another program's database."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if application_id != APPLICATION_ID:
        if application_id != 0 or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            msg = f"{path}: this is another program's SQLite database. Choose another path for Clew's."
            raise StoreSchemaError(msg)
        return None
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def rebuildable_version(connection: sqlite3.Connection, path: str, application_id: int, newest: int) -> int | None:
    """The schema of a file that can be rebuilt, None for an empty one.

    Raises StoreSchemaError for another program's database and for one of a newer Clew.
    """
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]  # an error if they are damaged
    if found not in {0, application_id} or (not found and tables):
        raise StoreSchemaError(f"{path}: this is another program's SQLite database. Move it elsewhere.")
    if found and version > newest:
        raise StoreSchemaError(f"{path}: a newer Clew made it. Use that one, or delete the file: it is rebuilt.")
    return version if found else None


def migrations_from(version: int) -> list[int] | None:
    """The schemas from this one to the present one, each with a migration; None if one is missing."""
    schemas = list(range(version, SCHEMA_VERSION))
    return schemas if version <= SCHEMA_VERSION and all(schema in MIGRATIONS for schema in schemas) else None


def _advice(version: int) -> str:
    if migrations_from(version) is not None:
        return "Copy it, then bring it up to date with `clew migrate`."
    return "Open it with the Clew that made it" + (", or a newer one." if version > SCHEMA_VERSION else ".")


def prepare(connection: sqlite3.Connection) -> None:
    """Make all tables or none. The caller holds the lock of the store."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in TABLES:
            connection.execute(statement)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def may_be_written(path: str) -> bool:
    """Whether this user may write to the file and make files next to it; True if it does not exist."""
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - as above
    return not os.path.exists(path) or (os.access(path, os.W_OK) and os.access(folder, os.W_OK))  # noqa: PTH110 - as above
