"""Who may use the files of a store: only the user who made the database, and those to whom its owner gives it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from clew.infrastructure.sqlite.errors import SQLiteUnavailableError

PRIVATE = 0o600
READ_OR_WRITE = 0o666


def resolved(path: str) -> str:
    """The file that a symbolic link leads to: SQLite's files are next to that file, so Clew's must be there, too."""
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - False also where it cannot look


def create_database(path: str) -> None:
    """Create an empty database file for this user alone if it is missing; SQLite would let all users read it.

    The descriptor is closed before SQLite locks the new file: closing it later would release SQLite's locks.
    """
    with suppress(FileExistsError):
        os.close(_created(path, None, PRIVATE))


def create_next_to(database: str, path: str) -> None:
    """Create an empty file with the group and the mode of a database, if it is missing. Raises OSError.

    Raises StoreUnavailableError if another user put it there, who could then read what is written.
    """
    like = _status(database)
    try:
        os.close(_created(path, like, stat.S_IMODE(like.st_mode) & READ_OR_WRITE if like else PRIVATE))
    except FileExistsError:
        _check_owner(path, os.lstat(path), like)


def open_lock(path: str, database: str | None) -> int:
    """A descriptor of the lock file of a database, which is created if it is missing.

    A user who can open the file can keep the lock. So only those who may write to the database may open it, and an
    older Clew's lock file is closed to the others. Raises OSError, or StoreUnavailableError if another user made it.
    """
    like = _status(database) if database else None
    writers = stat.S_IMODE(like.st_mode) & 0o222 if like else 0
    mode = PRIVATE | writers | writers << 1
    try:
        return _created(path, like, mode)
    except FileExistsError:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        _check_owner(path, found, like)
        too_open = stat.S_IMODE(found.st_mode) & ~mode
        if too_open and found.st_uid == os.geteuid() and found.st_nlink == 1:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def refuse_foreign(path: str) -> None:
    """Raise StoreUnavailableError for a database that another user put into a folder where every user may write."""
    with suppress(FileNotFoundError):
        owner = os.lstat(path).st_uid
        folder = os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120 - paths stay as they were given
        if folder.st_mode & stat.S_IWOTH and owner not in {os.geteuid(), 0, folder.st_uid}:
            raise SQLiteUnavailableError(
                f"{path}: it belongs to another user, in a folder where every user may put files. "
                "Choose a folder that only its users may write to."
            )


def readable_by_all(paths: list[str]) -> list[str]:
    """The existing files that every user of the machine can read or write."""
    return [path for path in paths if (found := _status(path)) and found.st_mode & (stat.S_IROTH | stat.S_IWOTH)]


def _created(path: str, like: os.stat_result | None, mode: int) -> int:
    """A descriptor of a new file with a mode, whatever the umask is, and with the group of a file that it is like."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
    try:
        if like is not None:
            owner = like.st_uid if os.geteuid() == 0 else -1  # as SQLite does: root's files would shut the owner out
            try:
                os.fchown(fd, owner, like.st_gid)
            except PermissionError:
                mode &= ~stat.S_IRWXG  # this user is not in that group, and another group was not meant
        os.fchmod(fd, mode | PRIVATE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(path: str, found: os.stat_result, like: os.stat_result | None) -> None:
    """Raise StoreUnavailableError unless a file is this user's, root's, or one of the database's users'."""
    if found.st_uid in {os.geteuid(), 0} or (like is not None and found.st_uid == like.st_uid):
        return
    if like is not None and (
        like.st_mode & stat.S_IWOTH or (like.st_mode & stat.S_IWGRP and found.st_gid == like.st_gid)
    ):
        return
    raise SQLiteUnavailableError(
        f"{path}: it belongs to another user, who does not own the database. Delete it, or choose a folder that only "
        "the users of the database may write to."
    )


def _status(path: str) -> os.stat_result | None:
    """What the system knows about a file; None if there is none."""
    try:
        return os.stat(path)  # noqa: PTH116 - paths stay as they were given
    except FileNotFoundError:
        return None
