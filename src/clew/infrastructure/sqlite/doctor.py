"""Checks of a SQLite store for ``clew doctor``: the library, the files and the disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from clew.domain.diagnostics import Finding, binary_size, runs_finding
from clew.domain.errors import StoreError
from clew.domain.json_values import one_line
from clew.infrastructure.sqlite import immutable_reads
from clew.infrastructure.sqlite.file_access import readable_by_all
from clew.infrastructure.sqlite.schema import may_be_written
from clew.infrastructure.sqlite.wal_checkpoints import PENDING, REDACTED_AFTER, log_size

FIRST_WITH_BUG, FIRST_WITHOUT_BUG = (3, 7, 0), (3, 51, 3)

LONG_LOG = 64 * 1024 * 1024
FREE_LEAST = 16 * 1024 * 1024
FREE_GOOD = 256 * 1024 * 1024
"""Bytes."""

MOST_LISTED = 5

LONGEST_NAME = 120


def of_library(version: tuple[int, ...] | None = None) -> Iterator[Finding]:
    """SQLite's version, by default that of this Python, and the features that it was built with."""
    version = version or sqlite3.sqlite_version_info
    name = ".".join(map(str, version))
    yield Finding(
        "sqlite",
        "ok",
        f"SQLite {name}."
        # https://sqlite.org/wal.html, "The WAL-Reset Bug": Clew's processes take turns by a lock of their own
        if not FIRST_WITH_BUG <= version < FIRST_WITHOUT_BUG
        else f"SQLite {name} is safe with Clew. It matters only if another program writes to the same file while Clew "
        "has it open: before 3.51.3, SQLite can then damage the database.",
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        yield _has(connection, "fts5", "CREATE VIRTUAL TABLE temp.t USING fts5(words)", "search cannot index words")
        yield _has(connection, "json", "SELECT value FROM json_each('[1]')", "lists cannot be read")


def _has(connection: sqlite3.Connection, name: str, sql: str, without: str) -> Finding:
    try:
        connection.execute(sql).fetchall()
    except sqlite3.OperationalError as error:
        advice = "Use a Python whose SQLite has it, such as those of python.org and of Linux distributions."
        return Finding(name, "failed", f"SQLite was built without {name}, so {without}: {error}.", advice)
    return Finding(name, "ok", f"SQLite has {name}.")


def of_file(path: str) -> Iterator[Finding]:
    """The files of a database, seen from outside."""
    yield _permissions(path)
    folder = str(Path(path).parent)
    yield of_disk(folder, shutil.disk_usage(folder).free)
    for name, each in (("wal", path), ("projections-wal", path + ".projections")):
        yield of_write_ahead_log(name, each, log_size(each))


def _permissions(path: str) -> Finding:
    folder = str(Path(path).parent)
    if not may_be_written(path):
        advice = "To write, change the owner or the permissions of the file and its folder."
        return Finding("permissions", "warning", f"This user can only read {path}.", advice)
    files = [path + end for end in ("", "-wal", "-shm", ".lock", ".projections", ".projections.lock", ".vectors")]
    closed = [each for each in (folder, *files) if Path(each).exists() and not os.access(each, os.R_OK | os.W_OK)]
    if closed:
        advice = "Change their owner or permissions: every process with the database open writes to them."
        return Finding("permissions", "failed", f"This user cannot read and write {', '.join(closed)}.", advice)
    if open_to_all := readable_by_all(files):
        advice = "Close them to others: `chmod o= FILE…`. Clew itself makes files for their owner alone."
        return Finding(
            "permissions", "warning", f"Every user of this machine can read {', '.join(open_to_all)}.", advice
        )
    return Finding("permissions", "ok", f"{path} and the files next to it can be read and written.")


def of_disk(folder: str, free: int) -> Finding:
    """The free space for the database to grow, in bytes."""
    summary = f"{binary_size(free)} free on the disk of {os.path.realpath(folder)}."
    if free >= FREE_GOOD:
        return Finding("disk", "ok", summary)
    advice = "Free some space. On a full disk appends fail; committed events are not lost."
    return Finding("disk", "warning" if free >= FREE_LEAST else "failed", summary, advice)


def of_write_ahead_log(name: str, path: str, size: int) -> Finding:
    """The size of the write-ahead log of a file, in bytes."""
    summary = f"{path}-wal has {binary_size(size)}."
    if size <= LONG_LOG:
        return Finding(name, "ok", summary)
    advice = "A program reads for a very long time, or was killed. End it: the next writer empties the log."
    return Finding(name, "warning", summary, advice)


def of_runs(path: str, now: int) -> Finding:
    """What runs store next to the events; ``now`` is in microseconds since 1970."""
    try:
        return runs_finding(*immutable_reads.read(path, partial(_of_runs, now)))
    except (sqlite3.Error, OSError, StoreError) as error:
        return Finding("runs", "failed", f"{path}: {error}.", "Check its pages: `clew doctor --verify`.")


def of_redactions(path: str) -> Finding:
    """Redactions whose content is still in the files of the log or of the read models."""
    tables = path + ".projections"
    examined = path
    try:
        found: list[tuple[str, int]] = immutable_reads.read(path, _pending) if log_size(path) else []
        if found:
            return _pending_finding(f"{path}-wal", found, _END_READER)
        examined = tables
        reached, marked = immutable_reads.read(tables, _removed_text) if Path(tables).exists() else (None, None)
        examined = path
        if reached is not None and (found := immutable_reads.read(path, partial(_redacted_after, reached))):
            return _pending_finding(tables, found, _FILL)
        if marked is not None and log_size(tables):
            found = immutable_reads.read(path, partial(_redacted_after, marked))
            return _pending_finding(f"{tables}-wal", found, _END_READER)
    except (sqlite3.Error, OSError, StoreError) as error:
        advice = "Check its pages: `clew doctor --verify`." if examined == path else "Delete it: Clew rebuilds it."
        return Finding("redactions", "failed", f"{examined}: {error}.", advice)
    return Finding("redactions", "ok", f"No redacted content is left in {path}-wal and in {tables}.")


_FILL = (
    "Its tables are behind the log. Fill them: `clew project run --once`. If no program has their projection any more, "
    "delete the file: Clew rebuilds the others."
)
_END_READER = (
    "A program reads an older state of the store. End it: then the next writer, or `clew redact --wait`, empties the "
    "log."
)


def _pending_finding(file: str, found: Sequence[tuple[str, int]], advice: str) -> Finding:
    named = [f"{one_line(name, LONGEST_NAME)} version {version}" for name, version in found[:MOST_LISTED]]
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    summary = f"{file} still has content that was redacted by {', '.join(named)}{more}."
    return Finding("redactions", "warning", summary, advice)


def _pending(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Stream and version of the redactions since the log was last empty."""
    return connection.execute(PENDING).fetchall()


def _redacted_after(position: int, connection: sqlite3.Connection) -> list[tuple[str, int]]:
    return connection.execute(REDACTED_AFTER, (position,)).fetchall()


def _removed_text(connection: sqlite3.Connection) -> tuple[int | None, int | None]:
    """The position that all tables of projections have reached, and that after which events have removed text.

    None without tables, and without text that may still be in the write-ahead log. An empty file has no tables, and one
    of an older Clew has no mark.
    """
    found = []
    for table, sql in (
        ("generation", "SELECT min(position) FROM generation"),
        ("unerased", "SELECT after FROM unerased"),
    ):
        exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        row = connection.execute(sql).fetchone() if exists else None
        found.append(None if row is None else row[0])
    return found[0], found[1]


def _of_runs(now: int, connection: sqlite3.Connection) -> tuple[int, int, int, int, list[tuple[str, str]]]:
    """Leases, drafts, definitions with their size, and the threads of crashed runs with the holders of their leases."""
    leases, drafts = connection.execute(
        "SELECT (SELECT count(*) FROM lease WHERE until > ?), (SELECT count(*) FROM draft)", (now,)
    ).fetchone()
    crashed = connection.execute(
        "SELECT name, holder FROM lease JOIN stream ON id = stream WHERE until <= ? ORDER BY until",
        (now,),
    ).fetchall()
    definitions, size = connection.execute("SELECT count(*), total(length(data)) FROM blob").fetchone()
    return leases, drafts, definitions, size, crashed


def of_pages(name: str, path: str) -> Iterator[Finding]:
    """Whether the pages of a file are intact, if it exists. Takes as long as reading the file."""
    if not Path(path).exists():
        return
    try:
        problems = immutable_reads.read(
            path, lambda file: [str(line) for (line,) in file.execute("PRAGMA quick_check(3)")]
        )
    except (sqlite3.Error, OSError, StoreError) as error:
        problems = [str(error)]
    if problems == ["ok"]:
        yield Finding(name, "ok", f"The pages of {path} are intact.")
        return
    advice = "Restore a backup." if name == "pages" else "Delete it: Clew rebuilds it from the log."
    yield Finding(name, "failed", f"{path} is damaged: {'; '.join(problems)}.", advice)
