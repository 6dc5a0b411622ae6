"""Who wants to know of commits: listeners, and the one poller that sees the commits of other processes for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

POLL_SECONDS = 0.02

_log = logging.getLogger(__name__)


class CommitListeners:
    """The listeners of one store. ``changed`` tells whether somebody committed since it was last asked."""

    def __init__(self, changed: Callable[[], bool] | None = None) -> None:
        self._changed = changed
        self.restart()

    def restart(self) -> None:
        """Begin without listeners: for the child of a fork, whose loops and threads are the parent's."""
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[], None]] = {}
        self._stop_polling: threading.Event | None = None
        self._closed = False

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after each commit until the function that is returned is called."""
        ticket = object()
        with self._lock:
            self._listeners[ticket] = wake
            if self._changed is not None and self._stop_polling is None and not self._closed:
                # Asked here, so that every commit from now on is a change to the poller.
                self._changed()
                self._stop_polling = stop = threading.Event()
                threading.Thread(target=self._poll, args=(stop,), name="clew-poller", daemon=True).start()
        return lambda: self._unlisten(ticket)

    def notify(self) -> None:
        """Wake every listener; one that raises stops neither the others nor the caller."""
        for wake in list(self._listeners.values()):
            try:
                wake()
            except Exception:  # noqa: BLE001 - logged, and it is neither the writer's nor the others' fault
                _log.exception("A listener of the store failed")

    def close(self) -> None:
        """End the poller and wake the listeners for the last time, so that they find the store closed."""
        with self._lock:
            self._closed = True
            self._end_polling()
        self.notify()

    def _unlisten(self, ticket: object) -> None:
        """Takes no lock: the garbage collector calls it too, at any moment, also while this thread holds the lock."""
        self._listeners.pop(ticket, None)

    def _nobody_listens(self, stop: threading.Event) -> bool:
        """Whether the poller is done; the next listener then begins another."""
        with self._lock:
            if not self._listeners and self._stop_polling is stop:
                self._stop_polling = None
            return not self._listeners

    def _end_polling(self) -> None:
        if self._stop_polling is not None:
            self._stop_polling.set()
            self._stop_polling = None

    def _poll(self, stop: threading.Event) -> None:
        if self._changed is None:
            return
        failing = False
        while not stop.wait(POLL_SECONDS) and not self._nobody_listens(stop):
            try:
                changed = self._changed()
                failing = False
            except Exception:  # noqa: BLE001 - a disk that fails may be back later; who reads meets the error
                changed = not failing
                failing = True
            if changed:
                # Also when it has been stopped meanwhile: a listener that came since will not be told of it again.
                self.notify()
