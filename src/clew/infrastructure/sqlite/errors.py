"""Errors of SQLite and the file system as Clew's errors: what failed, where, and what to do."""

from __future__ import annotations

import errno
import sqlite3

from eventsourcing.persistence import OperationalError

from clew.domain.errors import StoreError, StoreSchemaError, StoreUnavailableError

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full. Free some space, then try again.",
    sqlite3.SQLITE_BUSY: "another program keeps it locked. Wait or end that program, then try again.",
    sqlite3.SQLITE_LOCKED: "another program keeps it locked. Wait or end that program, then try again.",
    sqlite3.SQLITE_READONLY: "it is read-only. Make the file and its folder writable, or open it with read_only=True.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Check that its folder is there and that both may be written to.",
    sqlite3.SQLITE_PERM: "it may not be written to. Check the permissions of the file and its folder.",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write. Check the disk, then try again.",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore a copy of it.",
}

_FILE_ADVICE = {
    errno.ENOENT: "its folder does not exist. Make the folder, or choose another path.",
    errno.ENOTDIR: "its folder is not a folder. Choose another path.",
    errno.EISDIR: "it is a folder. Name a file in it.",
    errno.EACCES: "it may not be opened. Check the permissions of the file and its folder.",
    errno.EPERM: "it may not be opened. Check the permissions of the file and its folder.",
    errno.EROFS: "it is on a read-only disk. Choose another path, or open it with read_only=True.",
    errno.ELOOP: "it is a symbolic link, which Clew does not follow there. Delete the link, then try again.",
    errno.ENOSPC: "the disk is full. Free some space, then try again.",
    errno.ENAMETOOLONG: "its name is too long. Choose a shorter path.",
}


class SQLiteUnavailableError(StoreUnavailableError, OperationalError):
    """The store cannot be opened, read or written: Clew's error, and the library's for the library's applications."""


def unavailable(path: str, error: Exception) -> StoreError:
    """Clew's error for an error of SQLite or of the file system."""
    if isinstance(error, OSError):
        why = _FILE_ADVICE.get(error.errno or 0) or f"{error.strerror or error}. Check the file and its folder."
        return SQLiteUnavailableError(f"{path}: {why}")
    # Only errors that come from SQLite itself have a code; the low byte is the kind.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return StoreSchemaError(f"{path}: this is not an SQLite database. Choose another path.")
    why = _ADVICE.get(code) or "SQLite refuses the statement. Check that the file is a database of this Clew."
    return SQLiteUnavailableError(f"{path}: {why} (SQLite says: {error})")


def is_of_the_store(error: BaseException) -> bool:
    """Whether SQLite could not carry out a statement at all; False when it only refuses the values."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, or not a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def says_what_to_do(error: sqlite3.Error) -> bool:
    """Whether it is the file or the disk that fails, rather than a statement."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in _ADVICE or code == sqlite3.SQLITE_NOTADB
