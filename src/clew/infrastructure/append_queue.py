"""The one writer thread of a store: takes all appends that wait, has them written together, answers their futures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from clew.domain.errors import ClosedError
from clew.infrastructure.recorder import Append, Appended

MOST_AT_ONCE = 512

Job = tuple[Append, "Future[Appended]"]

_log = logging.getLogger(__name__)


class AppendQueue:
    """Appends in the order in which they were submitted, in batches of whatever waits.

    ``write`` gets a batch and returns one outcome for each append of it. ``rest`` is called after each batch, when
    the futures have their answers; the seconds that it returns are when it wants to be called again though nothing
    was submitted.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Append]], Sequence[Appended | Exception]],
        rest: Callable[[], float | None],
    ) -> None:
        self._write = write
        self._rest = rest
        self.restart()

    def restart(self) -> None:
        """Begin empty and without a thread: for the child of a fork, which has a copy of what the parent will do."""
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        future: Future[Appended] = Future()
        with self._lock:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            if self._thread is None:
                # A daemon, so that a program that forgets to close its store still ends.
                self._thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
                self._thread.start()
            self._waiting.put((append, future))
        return future

    def close(self) -> None:
        """Have everything written that was submitted, then end the thread. Does nothing the second time."""
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
            try:
                batch, ended = self._take(pause)
            except Empty:
                batch = []
            if batch:
                self._answer(batch)
            pause = self._after()

    def _take(self, pause: float | None) -> tuple[list[Job], bool]:
        jobs: list[Job] = []
        job = self._waiting.get(timeout=pause)
        try:
            while job is not None:
                if job[1].set_running_or_notify_cancel():
                    jobs.append(job)
                if len(jobs) == MOST_AT_ONCE:
                    return jobs, False
                job = self._waiting.get_nowait()
        except Empty:
            return jobs, False
        return jobs, True

    def _answer(self, batch: list[Job]) -> None:
        try:
            outcomes = self._write([append for append, _ in batch])
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect: nobody is left waiting for it
            _log.exception("The writer of the store failed")
            outcomes = [error] * len(batch)
        if any(append.shreds for append, _ in batch):
            self._after()  # what was shredded is gone when its redaction is answered, unless a reader holds on to it
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Appended):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

    def _after(self) -> float | None:
        try:
            return self._rest()
        except Exception:  # noqa: BLE001 - logged, and no reason to end the thread that all appends need
            _log.exception("The store's work after a commit failed")
            return None
