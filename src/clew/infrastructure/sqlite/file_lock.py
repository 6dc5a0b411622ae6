"""The lock of a store: one thread of one process at a time. Processes lock a file that is never read or deleted."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from clew.domain.errors import StoreError
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable
from clew.infrastructure.sqlite.file_access import open_lock

T = TypeVar("T")

ASK_SECONDS = 0.05
"""How often a waiting thread asks whether it still needs the lock."""


class LockHeldError(SQLiteUnavailableError):
    """Another process holds the lock."""


def _never() -> bool:
    return False


class FileLock:
    """An exclusive, reentrant lock between threads and processes; ``timeout`` in seconds is for the other processes.

    Only users who may write to ``database`` can take it; without one, only this user.

    It is released wherever Ctrl-C interrupts this thread: nothing but methods that are not written in Python take and
    release it, and the interpreter handles no signal between those and the start or end of a block.
    """

    def __init__(self, path: str, timeout: float, database: str | None = None) -> None:
        self.threads = threading.RLock()
        self._path = path
        self._database = database
        self._timeout = timeout
        self._held = False
        self._fd: int | None = None
        self._waiting: list[_Waiter] = []

    def hold(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which has the lock. Raises LockHeldError when another process keeps it too long."""
        with self.threads:
            if self._held:
                return work()
            try:
                self._held = True
                try:  # not in a method: each append would call it
                    if self._fd is None:
                        self._open()
                    if self._fd is not None:
                        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._wait(_never)
                except OSError as error:
                    raise unavailable(self._path, error) from error
                return work()
            finally:
                self._held = False
                if self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def held(self, unless: Callable[[], bool] | None = None) -> Iterator[None]:
        """Hold the lock in a block. Raises LockHeldError like ``hold()``.

        It also does so when ``unless`` returns True, which is called from time to time while the lock is not free. If
        Ctrl-C interrupts ``with`` itself, the lock is released with the traceback.
        """
        try:
            while not self.threads.acquire(timeout=-1 if unless is None else ASK_SECONDS):
                if unless is not None and unless():
                    raise self._refusal()
            if self._held:
                yield
                return
            try:
                self._held = True
                try:
                    if self._fd is None:
                        self._open()
                    if self._fd is not None:
                        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._wait(unless or _never)
                except OSError as error:
                    raise unavailable(self._path, error) from error
                yield
            finally:
                self._held = False
                if self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            try:  # noqa: SIM105 - Ctrl-C can interrupt suppress()
                self.threads.release()
            except RuntimeError:
                pass  # this thread did not get it

    def close(self) -> None:
        """Close the file. In the child of a fork this does not release the parent's lock."""
        # Not the other way round: after Ctrl-C between the two, the number could belong to another file.
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def forget(self) -> None:
        """Close every descriptor that the parent of a fork had, including those of threads that only wait there."""
        self.close()
        for waiter in self._waiting:
            waiter.close()
        self._waiting.clear()
        self.threads, self._held = threading.RLock(), False

    def _open(self) -> None:
        self._fd = open_lock(self._path, self._database)

    def _wait(self, unless: Callable[[], bool]) -> None:
        if unless():
            raise self._refusal()
        # Waiting in the kernel gives every process its turn; polling does not. It cannot have a timeout, so a thread
        # waits, with its own descriptor, which becomes the lock's.
        waiter = _Waiter(open_lock(self._path, self._database))
        self._waiting = [*filter(_Waiter.is_open, self._waiting), waiter]
        try:
            in_time = waiter.wait(self._timeout, unless)
            if in_time:
                self.close()
                self._fd, waiter.fd = waiter.fd, -1
        finally:
            # Also if the wait was interrupted, for example by Ctrl-C: a lock that arrives later must be released.
            waiter.undecided.release()
        if not in_time:
            raise self._refusal()

    def _refusal(self) -> StoreError:
        return LockHeldError(
            f"{self._path}: another process has held the lock for {self._timeout:g} s. "
            "Wait or end that process, then try again."
        )


class ThreadLock(FileLock):
    """Keeps out the other threads of this process only, and makes no file."""

    def __init__(self) -> None:
        super().__init__("", 0.0)

    def _open(self) -> None:
        """Nothing."""


class _Waiter:
    """One wait for the lock, in a thread. A lock that arrives after the wait was abandoned is released at once.

    ``fd`` is the descriptor while the waiter must close it itself, then -1.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.undecided = threading.Lock()
        """Locked until it is known whether the descriptor is used."""
        self.undecided.acquire()
        self._got = threading.Event()

    def wait(self, timeout: float, unless: Callable[[], bool]) -> bool:
        """Begin to wait. Returns whether the lock arrived in time, and before ``unless`` returned True."""
        threading.Thread(target=self._run, name="clew-lock", daemon=True).start()
        until = time.monotonic() + timeout
        while not self._got.wait(max(0.0, min(ASK_SECONDS, until - time.monotonic()))):
            if unless() or time.monotonic() >= until:
                return self._got.is_set()
        return True

    def is_open(self) -> bool:
        """Whether the waiter still has the descriptor."""
        return self.fd >= 0

    def close(self) -> None:
        """Close the descriptor once: its number may soon be reused."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _run(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self._got.set()
        with self.undecided:
            self.close()
