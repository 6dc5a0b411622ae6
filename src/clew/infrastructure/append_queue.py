"""The writer thread of a store: it writes all waiting appends together and sets their futures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from clew.domain.errors import ClosedError
from clew.domain.ports import Appended
from clew.infrastructure.recorder_ports import Append

BATCH_SIZE = 512

Job = tuple[Append, "Future[Appended]"]

_log = logging.getLogger(__name__)


class AppendQueue:
    """Appends in the order of their submission, in batches of all that wait.

    ``write`` gets a batch and returns one outcome for each append. ``after_batch`` is called when the futures of a
    batch are set. It returns after how many seconds it must be called again even if nothing is submitted.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Append]], Sequence[Appended | Exception]],
        after_batch: Callable[[], float | None],
    ) -> None:
        self._write = write
        self._after_batch = after_batch
        self.restart()

    def restart(self) -> None:
        """Start empty and without a thread: for the child of a fork."""
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        future: Future[Appended] = Future()
        with self._lock:
            if self._closed:
                raise ClosedError("The store is closed: nothing can be appended. Open it again.")
            if self._thread is None:
                # A daemon, so that a program that does not close its store still ends.
                self._thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
                self._thread.start()
            self._waiting.put((append, future))
        return future

    def close(self) -> None:
        """Write everything that was submitted, then end the thread. Does nothing the second time."""
        with self._lock:
            thread = self._thread
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause: float | None = None
        ended = False
        while not ended:
            with suppress(Empty):
                ended = self._write_batch(self._waiting.get(timeout=pause))
            try:
                pause = self._after_batch()
            except Exception:  # noqa: BLE001 - logged: it must not end the thread that all appends need
                _log.exception("The store's work after a commit failed")
                pause = None

    def _write_batch(self, job: Job | None) -> bool:
        """Write a job and those that wait after it. Returns whether the queue was closed."""
        appends: list[Append] = []
        futures: list[Future[Appended]] = []
        with suppress(Empty):
            while job is not None:
                append, future = job
                if future.set_running_or_notify_cancel():
                    appends.append(append)
                    futures.append(future)
                if len(appends) == BATCH_SIZE:
                    break
                job = self._waiting.get_nowait()
        if not appends:
            return job is None
        try:
            outcomes = self._write(appends)
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect, and no caller may wait for ever
            _log.exception("The writer of the store failed")
            outcomes = [error] * len(appends)
        for future, outcome in zip(futures, outcomes, strict=True):
            if isinstance(outcome, Appended):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
        return job is None
