"""The listeners of a store, which are notified of commits, and the poller that sees the commits of other processes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

POLL_SECONDS = 0.02

FAILURE_SECONDS = 0.5
"""How often listeners are notified while polls fail, so that each of them reads and meets the error."""

_log = logging.getLogger(__name__)


class CommitListeners:
    """The listeners of one store. ``changed`` tells whether another process committed since the last call."""

    def __init__(self, changed: Callable[[], bool] | None = None) -> None:
        self._changed = changed
        self.restart()

    def restart(self) -> None:
        """Start without listeners: the child of a fork does not inherit the parent's event loops and threads."""
        self._lock = threading.Lock()
        self.callbacks: dict[object, Callable[[], None]] = {}
        """The listeners, by their tickets."""
        self._stop_polling: threading.Event | None = None
        self._closed = False

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after each commit, until the returned function is called."""
        ticket = object()
        with self._lock:
            self.callbacks[ticket] = wake
            if self._changed is not None and self._stop_polling is None and not self._closed:
                # Called here, so that the poller sees every later commit as a change.
                self._changed()
                self._stop_polling = stop = threading.Event()
                threading.Thread(target=self._poll, args=(self._changed, stop), name="clew-poller", daemon=True).start()

        def stop_listening() -> None:
            # Takes no lock: the garbage collector may call it at any moment, even while this thread holds the lock.
            self.callbacks.pop(ticket, None)

        return stop_listening

    def notify(self) -> None:
        """Wake every listener. One that raises stops neither the others nor the caller."""
        for wake in list(self.callbacks.values()):
            try:
                wake()
            except Exception:  # noqa: BLE001 - logged: neither the writer nor the other listeners are at fault
                _log.exception("A listener of the store failed")

    def close(self) -> None:
        """End the poller, and wake the listeners a last time, so that they find the store closed."""
        with self._lock:
            self._closed = True
            if self._stop_polling is not None:
                self._stop_polling.set()
                self._stop_polling = None
        self.notify()

    def _is_idle(self, stop: threading.Event) -> bool:
        """Whether the poller may end because there are no listeners; the next listener starts another one."""
        with self._lock:
            if not self.callbacks and self._stop_polling is stop:
                self._stop_polling = None
            return not self.callbacks

    def _poll(self, changed: Callable[[], bool], stop: threading.Event) -> None:
        failing = False
        notified = 0.0
        while not stop.wait(POLL_SECONDS) and not self._is_idle(stop):
            try:
                wakes = changed() or failing
                failing = False
            except Exception:  # noqa: BLE001 - the store may be back later; its readers meet the error
                # Repeated, because a read may still succeed, and find nothing new, after the first failed poll.
                wakes = not failing or time.monotonic() - notified >= FAILURE_SECONDS
                failing = True
            if wakes:
                # Even if polling was stopped meanwhile: this change is not reported to newer listeners again.
                notified = time.monotonic()
                self.notify()
