"""A thread that does requested work a little later, so that many requests are handled together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from clew.infrastructure import process_forks

QUIET_SECONDS = 0.1
"""The work starts after this long without a new request …"""

PATIENCE_SECONDS = 2.0
"""… or this long after the first one, whichever comes first."""

_log = logging.getLogger(__name__)


class BackgroundWorker:
    """After each ``notify``, calls ``work`` in a thread for as long as it returns True."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Request the work. This is cheap."""
        self._last_request = time.monotonic()
        if self._requested.is_set():
            return
        with self._lock:
            self._requested.set()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="clew-projector", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for the current step of the work, then end the thread. Does nothing the second time."""
        process_forks.unwatch(self)
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        # The thread ends when there is nothing to do: a waiting thread would keep an unclosed service alive.
        while not self._stopped.is_set():
            until = time.monotonic() + PATIENCE_SECONDS
            while (quiet := self._last_request + QUIET_SECONDS) > (now := time.monotonic()) and now < until:
                if self._stopped.wait(min(quiet, until) - now):
                    break
            self._requested.clear()
            try:
                while not self._stopped.is_set() and self._work():
                    pass
            except Exception:  # noqa: BLE001 - the next request tries again; readers meet the error themselves
                _log.exception("Work in the background failed")
            with self._lock:
                if not self._requested.is_set():
                    self._thread = None
                    return

    # Forking

    def before_fork(self) -> None:
        """Nothing to prepare: the stores that the work uses prepare themselves."""

    def after_fork_in_parent(self) -> None:
        """Nothing to restore."""

    def after_fork_in_child(self) -> None:
        """Start without a thread: the parent keeps its own."""
        self._start()
