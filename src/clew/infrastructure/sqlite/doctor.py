"""What can go wrong around a SQLite store: the library, the file and its folder, the disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from clew.domain.views.diagnostics import Finding
from clew.infrastructure.sqlite.checkpoints import log_size

FIRST_WITH_BUG, FIRST_WITHOUT_BUG = (3, 7, 0), (3, 51, 3)

LONG_LOG = 64 * 1024 * 1024
FREE_LEAST = 16 * 1024 * 1024
FREE_GOOD = 256 * 1024 * 1024
"""Bytes."""


def of_library(version: tuple[int, ...] | None = None) -> Iterator[Finding]:
    """The SQLite that Python has: its version, by default the one that is there, and what it was built with."""
    found = sqlite3.sqlite_version_info if version is None else version
    shown = ".".join(map(str, found))
    if FIRST_WITH_BUG <= found < FIRST_WITHOUT_BUG:
        yield Finding(
            "sqlite",
            "warning",
            f"SQLite {shown} can damage a database when two connections write or checkpoint at the same moment. "
            "Clew's processes take turns by a lock and are safe; other programs do not know of that lock.",
            "Let no other program write to the database while Clew has it open, or use a Python with SQLite 3.51.3.",
        )
    else:
        yield Finding("sqlite", "ok", f"SQLite {shown}.")
    with closing(sqlite3.connect(":memory:")) as connection:
        yield _has(connection, "fts5", "CREATE VIRTUAL TABLE temp.t USING fts5(words)", "search cannot index words")
        yield _has(connection, "json", "SELECT value FROM json_each('[1]')", "lists cannot be read")


def _has(connection: sqlite3.Connection, name: str, sql: str, without: str) -> Finding:
    try:
        connection.execute(sql).fetchall()
    except sqlite3.OperationalError as error:
        advice = "Use a Python whose SQLite has it, as those of python.org and of Linux distributions do."
        return Finding(name, "failed", f"SQLite was built without {name}, so {without}: {error}.", advice)
    return Finding(name, "ok", f"SQLite has {name}.")


def of_file(path: str) -> Iterator[Finding]:
    """The database in a file, as it can be seen from outside."""
    yield _permissions(path)
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - paths stay as given
    yield of_disk(folder, shutil.disk_usage(folder).free)
    for name, each in (("wal", path), ("projections-wal", path + ".projections")):
        yield of_write_ahead_log(name, each, log_size(each))


def _permissions(path: str) -> Finding:
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - as above
    beside = [path, *(path + end for end in ("-wal", "-shm", ".lock", ".projections", ".projections.lock"))]
    closed = [each for each in (folder, *beside) if Path(each).exists() and not os.access(each, os.R_OK | os.W_OK)]
    if closed:
        advice = "Change their owner or permissions, so that every process that opens the database may write to them."
        return Finding("permissions", "failed", f"Not to be written by this user: {', '.join(closed)}.", advice)
    return Finding("permissions", "ok", f"{path} and what lies beside it can be read and written.")


def of_disk(folder: str, free: int) -> Finding:
    """How much room there is for the database to grow, in bytes."""
    found = f"{_mebibytes(free)} free on the disk of {os.path.realpath(folder)}."
    if free >= FREE_GOOD:
        return Finding("disk", "ok", found)
    advice = "Free some space: appends fail when there is none, and nothing that was answered is lost."
    return Finding("disk", "warning" if free >= FREE_LEAST else "failed", found, advice)


def of_write_ahead_log(name: str, path: str, size: int) -> Finding:
    """How long the write-ahead log of a file is, in bytes."""
    found = f"{path}-wal has {_mebibytes(size)}."
    if size <= LONG_LOG:
        return Finding(name, "ok", found)
    advice = "A program reads without an end, or was killed. End that program; the next one that writes empties it."
    return Finding(name, "warning", found, advice)


def of_runs(path: str, now: int) -> Finding:
    """What runs keep beside the events of a store; ``now`` is in microseconds since 1970."""
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            leases, drafts = connection.execute(
                "SELECT (SELECT count(*) FROM lease WHERE until > ?), (SELECT count(*) FROM draft)", (now,)
            ).fetchone()
            blobs, size = connection.execute("SELECT count(*), total(length(data)) FROM blob").fetchone()
    except sqlite3.Error as error:
        return Finding("runs", "failed", f"{path}: {error}.", "Look at its pages: `clew doctor --verify`.")
    found = f"{leases:,} under way, {drafts:,} with an answer that was arriving; {blobs:,} blobs of {_kibibytes(size)}."
    return Finding("runs", "ok", found)


def of_pages(name: str, path: str) -> Iterator[Finding]:
    """Whether the pages of a file are whole, if it is there: it takes as long as reading the file."""
    if not Path(path).exists():
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            said = [str(line) for (line,) in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as error:
        said = [str(error)]
    if said == ["ok"]:
        yield Finding(name, "ok", f"The pages of {path} are whole.")
        return
    advice = "Restore a copy of it." if name == "pages" else "Delete it: it is made anew from the log."
    yield Finding(name, "failed", f"{path} is damaged: {'; '.join(said)}.", advice)


def _kibibytes(size: float) -> str:
    return f"{size / 1024:,.1f} KiB"


def _mebibytes(size: int) -> str:
    return f"{size / (1024 * 1024):,.1f} MiB"
