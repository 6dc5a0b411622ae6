"""The lock of a store: one thread of one process at a time. Processes lock a file that is never read or deleted."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable

from clew.domain.errors import StoreError
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable
from clew.infrastructure.sqlite.file_access import open_lock

ASK_SECONDS = 0.05
"""How often a waiting thread asks whether it still needs the lock."""


class LockHeldError(SQLiteUnavailableError):
    """Another process holds the lock."""


class FileLock:
    """An exclusive, reentrant lock between threads and processes; ``timeout`` in seconds is for the other processes.

    Only users who may write to ``database`` can take it; without one, only this user.
    """

    def __init__(self, path: str, timeout: float, database: str | None = None) -> None:
        self.threads = threading.RLock()
        self._path = path
        self._database = database
        self._timeout = timeout
        self._depth = 0
        self._fd: int | None = None
        self._waiting: list[_Waiter] = []

    def acquire(self, unless: Callable[[], bool] | None = None) -> None:
        """Wait for the lock. Raises LockHeldError when another process does not release it in time.

        It also does so when ``unless`` returns True, which is called from time to time while another process has it.
        """
        if self.threads._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition does
            self._depth += 1
            return
        try:
            self.threads.acquire()
            self._depth = 1
            if self._fd is None:
                self._fd = open_lock(self._path, self._database)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait_or_release(unless)
        except OSError as error:
            self.release()
            raise unavailable(self._path, error) from error
        except BaseException:
            self.abandon()  # Ctrl-C can also arrive between taking the lock of the threads and counting it
            raise

    def release(self, *_: object) -> None:
        """Release the lock for the next thread or process."""
        self._depth -= 1
        if self._depth:
            return
        try:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self.threads.release()

    __enter__ = acquire
    __exit__ = release

    def abandon(self) -> None:
        """Release the lock if this thread still has it: Ctrl-C can interrupt the call that takes or releases it."""
        while self.threads._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as above
            self._depth = 1
            self.release()

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
        self.threads, self._depth = threading.RLock(), 0

    def _wait_or_release(self, unless: Callable[[], bool] | None) -> None:
        try:
            self._wait(unless or _never)
        except BaseException:
            self.release()
            raise

    def _wait(self, unless: Callable[[], bool]) -> None:
        if unless():
            raise self._refusal()
        # Waiting in the kernel gives every process its turn; polling does not. It cannot have a timeout, so a thread
        # waits, with its own descriptor, which becomes the lock's.
        waiter = _Waiter(open_lock(self._path, self._database))
        self._waiting.append(waiter)
        try:
            in_time = waiter.wait(self._timeout, unless)
            if in_time:
                self.close()
                self._fd, waiter.fd = waiter.fd, -1
        finally:
            # The wait was interrupted, for example by Ctrl-C: a lock that arrives later must be released.
            waiter.abandon()
            self._waiting = [other for other in self._waiting if other.fd >= 0]
        if not in_time:
            raise self._refusal()

    def _refusal(self) -> StoreError:
        return LockHeldError(
            f"{self._path}: another process has held the lock for {self._timeout:g} s. "
            "Wait or end that process, then try again."
        )


def _never() -> bool:
    return False


class _Waiter:
    """One wait for the lock, in a thread. A lock that arrives after the wait was abandoned is released at once.

    ``fd`` is the descriptor while the waiter must close it itself, then -1.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decided = threading.Lock()
        self._got = threading.Event()
        self._abandoned = False

    def wait(self, timeout: float, unless: Callable[[], bool]) -> bool:
        """Begin to wait. Returns whether the lock arrived in time, and before ``unless`` returned True."""
        threading.Thread(target=self._run, name="clew-lock", daemon=True).start()
        until = time.monotonic() + timeout
        while not self._got.wait(max(0.0, min(ASK_SECONDS, until - time.monotonic()))):
            if unless() or time.monotonic() >= until:
                return self._got.is_set()
        return True

    def abandon(self) -> None:
        """Release the lock, now or as soon as it arrives."""
        with self._decided:
            self._abandoned = True
            if self._got.is_set():
                self.close()

    def close(self) -> None:
        """Close the descriptor once: its number may soon be reused."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _run(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        with self._decided:
            if self._abandoned:
                self.close()
            else:
                self._got.set()
