"""Work that a thread does a while after it was asked for, so that what is asked for often is done together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from clew.infrastructure import process_forks

QUIET_SECONDS = 0.1
"""How long nothing must have been asked for before the work begins …"""

PATIENCE_SECONDS = 2.0
"""… unless it was asked for that long ago."""

_log = logging.getLogger(__name__)


class BackgroundWorker:
    """Calls ``work`` in a thread of its own for as long as it returns True, after each ``notify``."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._begin()
        process_forks.watch(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Ask for the work to be done. It costs next to nothing."""
        self._last = time.monotonic()
        if self._asked.is_set():
            return
        with self._lock:
            self._asked.set()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="clew-projector", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread when it is through with what it is doing. Does nothing the second time."""
        process_forks.unwatch(self)
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        # It ends when there is nothing to do: a thread that waits would keep a service alive that nobody closed.
        while not self._stopped.is_set():
            until = time.monotonic() + PATIENCE_SECONDS
            while (quiet := self._last + QUIET_SECONDS) > (now := time.monotonic()) and now < until:
                if self._stopped.wait(min(quiet, until) - now):
                    break
            self._asked.clear()
            try:
                while not self._stopped.is_set() and self._work():
                    pass
            except Exception:  # noqa: BLE001 - it is tried again when it is asked for again; who reads meets the error
                _log.exception("Work in the background failed")
            with self._lock:
                if not self._asked.is_set():
                    self._thread = None
                    return

    # Forking

    def before_fork(self) -> None:
        """Nothing is to be brought to rest: the stores that it works on are."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Start afresh: the thread is the parent's."""
        self._begin()
