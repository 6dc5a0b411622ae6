"""The queue of a store with one writer at a time.

- **The thread that calls ``result()`` of the returned future writes the append itself**, with all others that wait, if
  no other thread is writing: handing it to another thread would cost more than a small append. The main thread, which
  receives Ctrl-C, writes only its own append.
- While a thread writes, new appends wait. If there are any when it has finished, the writer thread writes them.
- The writer thread also writes appends with a callback, as asyncio uses them, and those of callers that do not wait.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from operator import attrgetter

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Appended
from clew.infrastructure.recorder_ports import Append

BATCH_SIZE = 512

_INTERRUPTED = (
    "The thread that wrote this append together with its own was interrupted. Read the stream to see whether it was "
    "stored."
)

_log = logging.getLogger(__name__)


class _Job(Future[Appended]):
    """An append and its outcome. `result()` without a timeout writes the append in the calling thread if it can."""

    append: Append
    queue: AppendQueue
    appended: Appended | None = None
    begun = False
    """Whether a thread has begun to write it."""

    def result(self, timeout: float | None = None) -> Appended:
        """The outcome. Writes the append here, unless another thread writes or ``timeout`` is given."""
        if not self.begun:
            self.queue.write_here(self) if timeout is None else self.queue.write_soon()
        return self.appended or super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the append failed, None if it did not. Writes it like `result()`."""
        if not self.begun:
            self.queue.write_here(self) if timeout is None else self.queue.write_soon()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Appended]], object]) -> None:
        """Call ``fn`` with the outcome. The writer thread writes the append."""
        super().add_done_callback(fn)
        self.queue.write_soon()


class AppendQueue:
    """Appends in the order of their submission, in batches of all that wait.

    ``write`` gets a batch and returns one outcome for each append. ``after_batch`` is called when the futures of a
    batch are set. It returns after how many seconds it must be called again even if nothing is submitted. One thread at
    a time calls them. ``interruptible`` says whether Ctrl-C may interrupt them at any point: then the main thread may
    write, too.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Append]], Sequence[Appended | Exception]],
        after_batch: Callable[[], float | None],
        *,
        interruptible: bool,
    ) -> None:
        self._write = write
        self._after_batch = after_batch
        self._interruptible = interruptible
        self.restart()

    def restart(self) -> None:
        """Start empty and without a thread: for the child of a fork."""
        self._lock = lock = threading.RLock()  # Ctrl-C never interrupts a wait before it has this lock again
        # One condition for each kind of waiting thread: a notification must not wake another kind. Only the writer
        # thread waits for work. It is notified with notify_all: an interrupted notify can leave a thread in its list
        # that has its notification, and would then notify that one again instead.
        self._work = threading.Condition(lock)
        self._finished = threading.Condition(lock)
        self._waiting: deque[_Job] = deque()
        self._writing = 0
        """The id of the thread that writes, 0 for none."""
        self._pause: float | None = None
        """After how many seconds the work after a batch is due again."""
        self._thread: threading.Thread | None = None
        self._threadless = False
        """Whether no thread could be started: there are too many, or the interpreter is about to exit."""
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many appends no thread has begun to write."""
        return len(self._waiting)

    def enqueue(self, append: Append) -> Future[Appended]:
        """Queue an append for a caller that waits for it next, or adds a callback. Raises ClosedError after ``close``.

        Without either of these, it is written with the next append, or by ``close``.
        """
        job = _Job()
        job.append, job.queue = append, self
        with self._lock:
            if self._closed:
                raise ClosedError("The store is closed: nothing can be appended. Open it again.")
            self._waiting.append(job)
        return job

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append, which is written soon even if no caller waits for it. Raises ClosedError after ``close``."""
        job = self.enqueue(append)
        self.write_soon()
        return job

    def write_here(self, job: _Job) -> None:
        """Write the job in this thread, with the others that wait, unless another thread writes or has begun it."""
        batch: list[_Job] = []
        try:
            with self._lock:
                if self._writing or job.begun:
                    return
                size = BATCH_SIZE
                if threading.get_ident() == threading.main_thread().ident:
                    if self._interruptible and self._waiting[0] is job:
                        size = 1
                    else:
                        self._hand_over()
                        if not self._threadless:
                            return
                self._writing = threading.get_ident()
            self._write_batch(batch, size)
        except BaseException as error:  # this thread is interrupted, at any point
            self._abort(batch, job, error)
            raise
        if self._threadless:
            self._work_without_thread()

    def write_soon(self) -> None:
        """Have the writer thread write what waits."""
        with self._lock:
            if self._waiting and not self._writing:
                if self._thread is None:
                    self._start_thread()
                self._work.notify_all()
        if self._threadless:
            self._work_without_thread()

    def close(self) -> None:
        """Write everything that was submitted, then end the thread. Does nothing the second time."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        self.write_soon()
        with self._lock:
            while (self._waiting or self._writing) and self._writing != threading.get_ident():
                self._finished.wait()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # Called with the lock

    def _start_thread(self) -> None:
        # A daemon, so that a program that does not close its store still ends.
        thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._threadless = True
        else:
            self._thread, self._threadless = thread, False

    def _hand_over(self) -> None:
        """Have the writer thread do what is left to do."""
        if self._thread is None and (self._waiting or self._pause is not None):
            self._start_thread()
        self._work.notify_all()
        if self._closed:
            self._finished.notify_all()

    # Called without the lock, by the thread that writes

    def _write_batch(self, batch: list[_Job], size: int) -> None:
        """Take a batch of at most this size, write it, set its outcomes, and do the work after it."""
        while self._waiting and len(batch) < size:
            batch.append(self._waiting[0])
            batch[-1].begun = True
            self._waiting.popleft()
        jobs = list(filter(Future.set_running_or_notify_cancel, batch))
        outcomes: Sequence[Appended | Exception] = ()
        try:
            if jobs:
                outcomes = self._write(list(map(_append_of, jobs)))
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect, and no caller may wait for ever
            _log.exception("The writer of the store failed")
            outcomes = [error] * len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Appended):
                job.appended = outcome
                job.set_result(outcome)
            else:
                job.set_exception(outcome)
        pause: float | None = None
        try:
            pause = self._after_batch()
        except Exception:  # noqa: BLE001 - logged: the appends are written, and the next batch tries again
            _log.exception("The store's work after a commit failed")
        with self._lock:
            self._writing, self._pause = 0, pause
            if self._waiting or pause is not None or self._closed:
                self._hand_over()

    def _abort(self, batch: Sequence[_Job], mine: _Job | None, error: BaseException) -> None:
        """End a batch in an interrupted thread. Only ``mine`` gets the interruption, the others a StoreError."""
        with self._lock:
            if self._writing == threading.get_ident():
                for job in batch:
                    job.begun = True
                    with suppress(ValueError):
                        self._waiting.remove(job)
                self._writing, self._pause = 0, 0.0  # the writer thread does the work after it: perhaps it is stored
            if self._waiting or self._pause is not None or self._closed:
                self._hand_over()
        for job in batch:
            if not job.done():
                job.set_exception(error if job is mine else StoreUnavailableError(_INTERRUPTED))

    # Called without the lock

    def _run(self) -> None:
        batch: list[_Job] = []
        try:
            while True:
                batch.clear()
                with self._lock:
                    while self._writing or not self._waiting:
                        if self._closed and not self._writing:
                            return
                        if not self._work.wait(None if self._writing else self._pause) and not self._writing:
                            break  # the work after a batch is due again
                    self._writing = threading.get_ident()
                self._write_batch(batch, BATCH_SIZE)
        except BaseException as error:  # a callback has raised it, and another thread takes over
            self._thread = None
            self._abort(batch, None, error)
            raise

    def _work_without_thread(self) -> None:
        """Write everything here while the writer thread cannot be started."""
        while self._threadless:
            with self._lock:
                job = None if self._writing or not self._waiting else self._waiting[0]
            if job is None:
                return
            self.write_here(job)


_append_of = attrgetter("append")
