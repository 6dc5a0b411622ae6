"""The files of the OpenAI Agents SDK's ``SQLiteSession`` and ``AdvancedSQLiteSession``: tables with a row per item."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from clew.domain.errors import ImportFormatError
from clew.domain.formats.conversation_import import ImportFailure, Item, failure

SQLITE = b"SQLite format 3\0"
"""The first bytes of a SQLite file."""

_ITEMS = {"id", "session_id", "message_data", "created_at"}
_BRANCHES = {"session_id", "message_id", "branch_id", "sequence_number"}


def read_sessions(path: Path, name: str) -> Iterator[Item | ImportFailure]:
    """The sessions of a file; none if it is another database. Their tables may have any name.

    Raises ImportFormatError if the file cannot be read.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        ) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")  # a file of someone else must not call functions
            columns = _columns(connection)
            for table, names in columns.items():
                if names >= _ITEMS:
                    with_branches = columns.get("message_structure", set()) >= _BRANCHES
                    yield from _sessions(connection, table, name, with_branches=with_branches)
    except sqlite3.Error as error:
        raise ImportFormatError(f"The database cannot be read: {error}. Close its program, or copy it.") from None


def _columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    statement = "SELECT name FROM pragma_table_info(?)"
    return {table: {row[0] for row in connection.execute(statement, (table,))} for table in tables}


def _sessions(
    connection: sqlite3.Connection, table: str, file: str, *, with_branches: bool
) -> Iterator[Item | ImportFailure]:
    quoted = '"' + table.replace('"', '""') + '"'
    ids = connection.execute(f"SELECT session_id FROM {quoted} GROUP BY session_id ORDER BY min(id)").fetchall()  # noqa: S608 - quoted
    statement = f"SELECT id, message_data, created_at FROM {quoted} WHERE session_id = ? ORDER BY id"  # noqa: S608 - quoted
    for number, (session_id,) in enumerate(ids, start=1):
        rows = connection.execute(statement, (session_id,)).fetchall()
        size = sum(len(str(row[1])) for row in rows)
        session: dict[str, Any] = {"session_id": session_id, "times": [_utc(row[2]) for row in rows]}
        if with_branches:
            session |= _branches(connection, session_id, [row[0] for row in rows])
        item = Item(file, None, session, number, size)
        try:
            session["items"] = [json.loads(row[1]) for row in rows]
        except (ValueError, TypeError, RecursionError):
            yield failure(item, "An item of this session is not JSON. Repair the database, or delete the row.")
        else:
            yield item


def _branches(connection: sqlite3.Connection, session_id: str, rows: list[int]) -> dict[str, Any]:
    """The row that each row follows in its branch. Branches share the rows before they part."""
    statement = (
        "SELECT branch_id, message_id FROM message_structure WHERE session_id = ? "
        "ORDER BY branch_id = 'main', branch_id, sequence_number"
    )
    before: dict[int, int] = {}
    branch, last = None, None
    for branch_id, row in connection.execute(statement, (session_id,)):
        if branch_id == branch and last is not None:
            before[row] = last
        branch, last = branch_id, row
    ids = [str(row) for row in rows]
    parents = [str(before[row]) if row in before else None for row in rows]
    return {"ids": ids, "parents": parents, "shown": None if last is None else str(last)}


def _utc(time: object) -> object:
    """A time of SQLite's, which is in UTC and does not say so."""
    return f"{time}+00:00" if isinstance(time, str) and "+" not in time and not time.endswith("Z") else time
