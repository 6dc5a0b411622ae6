"""The lock that the processes of a store take in turn: a file that is locked, never read, never deleted."""

from __future__ import annotations

import fcntl
import os
import threading

from clew.domain.errors import StoreError
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable


class FileLock:
    """An exclusive lock between processes, not between threads; ``timeout`` in seconds."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._fd: int | None = None
        self._waiting: list[_Waiter] = []

    def acquire(self) -> None:
        """Wait for the lock. Raises StoreUnavailableError when it cannot be had within the timeout."""
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()
        except OSError as error:
            raise unavailable(self._path, error) from error

    def release(self) -> None:
        """Let the next process have it."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file; in the child of a fork this leaves the parent's lock alone."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def forget(self) -> None:
        """Close every descriptor that the parent of a fork had, also of threads that wait only there."""
        self.close()
        for waiter in self._waiting:
            waiter.close()
        self._waiting.clear()

    def _wait(self) -> None:
        # Waiting in the kernel gives every process its turn, which asking again and again does not. It cannot be
        # given a timeout, so a thread waits, with a descriptor of its own that becomes the lock's.
        waiter = _Waiter(self._path)
        self._waiting.append(waiter)
        try:
            in_time = waiter.wait(self._timeout)
            if in_time:
                self.close()
                self._fd, waiter.fd = waiter.fd, -1
        finally:
            # Whatever ended the wait, Ctrl-C for one: nobody would ever release what comes now.
            waiter.abandon()
            self._waiting = [other for other in self._waiting if other.fd >= 0]
        if not in_time:
            raise self._refusal()

    def _refusal(self) -> StoreError:
        return SQLiteUnavailableError(
            f"{self._path}: another process has held the lock for {self._timeout:g} s. "
            "Wait or end that process, then try again."
        )


class _Waiter:
    """One wait for the lock, in a thread: what comes after the wait was abandoned is given back at once.

    ``fd`` is the descriptor for as long as it is the waiter's own to close, then -1.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._decided = threading.Lock()
        self._got = threading.Event()
        self._abandoned = False

    def wait(self, timeout: float) -> bool:
        """Begin to wait: whether the lock was had in time."""
        threading.Thread(target=self._run, name="clew-lock", daemon=True).start()
        return self._got.wait(timeout)

    def abandon(self) -> None:
        """Give the lock back, now or as soon as it comes."""
        with self._decided:
            self._abandoned = True
            if self._got.is_set():
                self.close()

    def close(self) -> None:
        """Close the descriptor, once: its number may soon be somebody else's."""
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
