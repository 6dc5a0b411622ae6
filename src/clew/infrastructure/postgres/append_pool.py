"""The writers of a store that commits several transactions at once, in order within each stream.

- An append waits in the queue of each stream that it touches. It is *ready* when it is the first in all of them.
- **The thread that calls `result()` of the returned future writes the append itself**, if no other thread has started
  it: handing it to another thread would cost as much as a small append. An append with a callback, as asyncio uses
  them, is written by a thread of the pool.
- Appends of one stream each, with nothing but events, are *batchable*. The store is *crowded* while CONCURRENT_BATCHES
  batches with BATCH_THRESHOLD appends are running. Then batchable appends wait and form the next batch.
- A flusher thread polls every FLUSH_DELAY seconds. It has a pool thread write the appends that no thread waits for, and
  those that wait for more than one poll because the running batches are slow.
- A batch is written *patiently* (it may wait for another client's lock) only if that delays no other one: one stream,
  and a thread that waits for that stream. From an impatient batch the writer may defer appends: these are written
  alone, patiently.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import count, islice
from typing import Protocol, TypeAlias

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Appended
from clew.infrastructure.postgres.stream_ids import only_stream, streams_of
from clew.infrastructure.recorder_ports import Append

CONCURRENT_BATCHES = 2
BATCH_THRESHOLD = 8

FLUSH_DELAY = 0.005
"""Seconds between two polls of the flusher."""

IDLE_POLLS = 20
"""Polls without work before the flusher sleeps. To notify it then costs a submitter more than a poll."""

_INTERRUPTED = (
    "The thread that wrote this append together with its own was interrupted. Read the stream to see whether it was "
    "stored."
)

_log = logging.getLogger(__name__)


class _Job(Future[Appended]):
    """An append and its outcome. `result()` without a timeout writes the append in the calling thread if it can."""

    def __init__(self, pool: AppendPool, append: Append) -> None:
        super().__init__()
        stream = only_stream(append)
        self.append = append
        self.batchable = stream is not None and len(append.events) <= pool.batch_size
        self.streams: Collection[str] = frozenset(streams_of(append)) if stream is None else (stream,)
        self.appended: Appended | None = None
        self.order = self.poll = 0
        """Its place among the ready jobs, and the poll after which it became ready."""
        self.thread = 0
        """The id of the thread that has started it, 0 for none."""
        self.deferred = False
        self._pool = pool

    def result(self, timeout: float | None = None) -> Appended:
        """The outcome. Writes the append here, unless a thread has started it or ``timeout`` is given."""
        if timeout is None:
            self._pool.write_here(self)
        else:
            self._pool.write_soon(self)
        return self.appended or super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the append failed, None if it did not. Writes it like `result()`."""
        if timeout is None:
            self._pool.write_here(self)
        else:
            self._pool.write_soon(self)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Appended]], object]) -> None:
        """Call ``fn`` with the outcome. A thread of the pool writes the append."""
        super().add_done_callback(fn)
        self._pool.write_soon(self)


class Write(Protocol):
    """Writes a batch and returns one outcome for each append of it."""

    def __call__(self, appends: Sequence[Append], *, patient: bool) -> Sequence[Appended | Exception | None]:
        """Without ``patient`` it waits for no lock, but defers: the outcome is None, also later in the same stream."""
        ...


AfterBatch: TypeAlias = Callable[[Sequence[tuple[Append, Appended]]], object]


class AppendPool:
    """Writes at most ``workers`` batches at once, each with at most ``batch_size`` events.

    ``write`` writes a batch; ``after_batch`` is called after each, with the appends that succeeded and their outcomes.
    The module's docstring describes the algorithm.
    """

    def __init__(self, write: Write, after_batch: AfterBatch, *, workers: int, batch_size: int) -> None:
        self._write = write
        self._after_batch = after_batch
        self._workers = workers
        self.batch_size = batch_size
        self.restart()

    def restart(self) -> None:
        """Start empty and without threads: for the child of a fork, whose parent writes what was submitted there."""
        self._lock = lock = threading.RLock()  # Ctrl-C never interrupts a wait before it has this lock again
        # One condition for each kind of waiting thread: a notification must not wake another kind.
        self._work = threading.Condition(lock)
        self._submitted = threading.Condition(lock)
        self._finished = threading.Condition(lock)
        self._queues: dict[str, deque[_Job]] = {}
        """The unfinished jobs of each stream, in the order of submission."""
        self._ready: dict[_Job, None] = {}
        """Ready jobs that are batchable."""
        self._ready_alone: dict[_Job, None] = {}
        """Ready jobs that are written alone."""
        self._orders = count(1)
        self._running: list[list[_Job]] = []
        """The batches that are being written, each by one thread."""
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        """How many of the threads wait and have not been notified."""
        self._flusher: threading.Thread | None = None
        self._flusher_sleeps = False
        self._polls = 0
        self._last_ready = 0
        """After which poll a job became ready last."""
        self._threadless = False
        """Whether no thread could be started: there are too many, or the interpreter is about to exit."""
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        job = _Job(self, append)
        with self._lock:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            if self._flusher is None:
                self._flusher = self._start_thread(self._flush, "clew-writers")
            try:
                for name in job.streams:
                    self._queues.setdefault(name, deque()).append(job)
                self._set_ready(job)
            except BaseException:  # interrupted: no later job may wait for this one
                self._remove(job)
                raise
        if self._threadless:
            self._work_without_threads()
        return job

    def write_here(self, job: _Job) -> None:
        """Write batches in this thread until some thread has started the job."""
        # While the store is crowded, the thread that finishes a batch next starts the job.
        while not job.thread and not (self._running and job.batchable and self._is_crowded()):
            if not self._write_batch(job):
                break
        if self._threadless:
            self._work_without_threads()

    def write_soon(self, job: _Job) -> None:
        """Have a thread of the pool write the job."""
        with self._lock:
            if job in self._ready or job in self._ready_alone:
                self._wake_thread()
        if self._threadless:
            self._work_without_threads()

    @property
    def waiting(self) -> int:
        """How many appends no thread has started yet."""
        with self._lock:
            return len(
                {job for queue in self._queues.values() for job in queue if not job.thread} | {*self._ready_alone}
            )

    def close(self) -> None:
        """Write everything that was submitted, then end the threads. Does nothing the second time."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._submitted.notify_all()
        # Not in the main thread, where Ctrl-C would interrupt the appends of other threads.
        is_main = threading.current_thread() is threading.main_thread()
        while (not is_main and self._write_batch()) or self._drain():
            self._work_without_threads()
        with self._lock:
            threads = [*self._threads, *([self._flusher] if self._flusher else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # Called with the lock

    def _set_ready(self, job: _Job) -> None:
        """Let threads start the job, if it is the first in the queues of its streams."""
        for name in job.streams:
            if self._queues[name][0] is not job:
                return
        job.order = next(self._orders)
        job.poll = self._last_ready = self._polls
        (self._ready if job.batchable else self._ready_alone)[job] = None
        if self._flusher_sleeps:
            self._submitted.notify_all()  # one thread waits; once interrupted, notify can notify none

    def _remove(self, job: _Job) -> None:
        """Take a job out of its queues, so that the next one gets ready."""
        self._ready.pop(job, None)
        self._ready_alone.pop(job, None)
        for name in job.streams:
            queue = self._queues.get(name)
            if queue and queue[0] is job:
                queue.popleft()
            elif queue and job in queue:  # interrupted, or cancelled behind a deferred one
                queue.remove(job)
            if not queue:
                self._queues.pop(name, None)
            elif not queue[0].thread:
                self._set_ready(queue[0])

    def _start_batch(self, batch: list[_Job], mine: _Job | None) -> bool:
        """Fill and start a batch, which contains ``mine`` if possible; False if there is nothing to start."""
        if len(self._running) < self._workers and not (mine and mine.thread):
            batch += self._choose(mine)
        if batch:
            self._running.append(batch)
            for job in batch:
                job.thread = threading.get_ident()
                self._ready.pop(job, None)
                self._ready_alone.pop(job, None)
        return bool(batch)

    def _choose(self, mine: _Job | None) -> list[_Job]:
        # Ctrl-C arrives in the main thread. It writes only its own append, so that it interrupts no other.
        if mine and (not mine.batchable or threading.current_thread() is threading.main_thread()):
            return [mine] if mine in self._ready or mine in self._ready_alone else []
        first, alone = next(iter(self._ready), None), next(iter(self._ready_alone), None)
        if first and self._is_crowded() and not self._is_overdue(first):
            first = None
        if alone and not mine and (not first or alone.order < first.order):
            return [alone]
        if not first:
            return []
        room = self.batch_size
        batch: list[_Job] = []
        for ready in islice(self._ready, room):
            for job in self._queues[next(iter(ready.streams))]:
                if not job.batchable or len(job.append.events) > room:
                    break
                batch.append(job)
                room -= len(job.append.events)
        return batch

    def _is_crowded(self) -> bool:
        if len(self._running) < CONCURRENT_BATCHES:
            return False
        sizes = [len(batch) for batch in self._running if batch[0].batchable]
        return len(sizes) >= CONCURRENT_BATCHES and sum(sizes) >= BATCH_THRESHOLD

    def _is_overdue(self, job: _Job) -> bool:
        return self._polls - job.poll > 1

    def _wake_thread(self) -> None:
        """Have one more thread of the pool look for work."""
        if self._idle:
            self._idle -= 1
            try:
                self._work.notify()
            except BaseException:  # interrupted: the next notification could go to a thread that has it already
                self._idle = 0
                self._work.notify_all()
                raise
        elif len(self._threads) < self._workers:
            thread = self._start_thread(self._work_loop, f"clew-writer-{len(self._threads) + 1}")
            if thread is not None:
                self._threads.add(thread)

    def _start_thread(self, target: Callable[[], None], name: str) -> threading.Thread | None:
        # A daemon, so that a program that does not close its store can exit.
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._threadless = True
            return None
        self._threadless = False
        return thread

    def _finish(self, batch: list[_Job], *, more: bool, deferred: Collection[_Job] = ()) -> None:
        """Remove the jobs of a batch, except the deferred ones. Does nothing the second time."""
        if batch in self._running:
            self._running.remove(batch)
        for job in batch:
            if job.thread != threading.get_ident():
                continue  # it was deferred before, and another thread may have started it
            if job in deferred:
                job.deferred, job.batchable = True, False
                self._set_ready(job)
                job.thread = 0
            else:
                self._remove(job)
        if not more and (self._ready or self._ready_alone):
            self._wake_thread()
        if self._closed:
            self._work.notify_all()
            self._finished.notify_all()

    # Called without the lock

    def _write_batch(self, mine: _Job | None = None, *, waits: bool = False) -> bool:
        """Write one batch; False if this thread can start nothing. With ``waits`` it waits for work until ``close``."""
        batch: list[_Job] = []
        try:
            with self._lock:
                while not self._start_batch(batch, mine) and waits and not self._closed:
                    self._idle += 1
                    self._work.wait()
                if waits and batch and not batch[0].batchable and (self._ready or self._ready_alone):
                    self._wake_thread()  # there may be more to write alone, each by another thread
            if batch:
                self._execute(batch, mine, more=waits)
        except BaseException as error:  # this thread is interrupted, at any point
            self._abort(batch, mine, error)
            raise
        return bool(batch)

    def _execute(self, batch: list[_Job], mine: _Job | None, *, more: bool) -> None:
        """Write a batch and set its outcomes. With ``more`` this thread looks for more work itself."""
        jobs: list[_Job] = []
        appends: list[Append] = []
        for job in batch:
            if job.deferred or job.set_running_or_notify_cancel():
                jobs.append(job)
                appends.append(job.append)
        # A thread that waits for an append has patience for that append and its stream, and for nothing else.
        patient = (mine is None or mine in batch) and (
            len(batch) == 1 or all(job.streams == batch[0].streams for job in batch)
        )
        outcomes: Sequence[Appended | Exception | None] = ()
        try:
            if jobs:
                outcomes = self._write(appends, patient=patient)
        except Exception as error:  # noqa: BLE001 - a writer must not raise, but if it does, no thread may wait forever
            _log.exception("A writer of the store failed")
            outcomes = [error] * len(jobs)
        deferred = [job for job, outcome in zip(jobs, outcomes, strict=True) if outcome is None]
        with self._lock:
            # Before the outcomes are set: a callback may append to the same streams and wait.
            self._finish(batch, more=more, deferred=deferred)
        written: list[tuple[Append, Appended]] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Appended):
                written.append((job.append, outcome))
                job.appended = outcome
                job.set_result(outcome)
            elif outcome is not None:
                job.set_exception(outcome)
        try:
            self._after_batch(written)
        except Exception:  # noqa: BLE001 - logged: the appends need this thread
            _log.exception("The store's work after a commit failed")

    def _abort(self, batch: list[_Job], mine: _Job | None, error: BaseException) -> None:
        """End a batch in an interrupted thread. Only ``mine`` gets the interruption, the others a StoreError."""
        with self._lock:
            self._finish(batch, more=False)
        for job in batch:
            if job.thread == threading.get_ident() and not job.done():
                job.set_exception(error if job is mine else StoreUnavailableError(_INTERRUPTED))

    def _work_loop(self) -> None:
        try:
            while self._write_batch(waits=True):
                pass
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                if (self._ready or self._ready_alone) and not self._closed:
                    self._wake_thread()

    def _flush(self) -> None:
        """Have overdue jobs written."""
        while True:
            with self._lock:
                if self._closed:
                    return
                if self._ready or self._ready_alone or self._polls - self._last_ready <= IDLE_POLLS:
                    self._submitted.wait(FLUSH_DELAY)
                else:
                    self._flusher_sleeps = True
                    self._submitted.wait()
                    self._flusher_sleeps = False
                self._polls += 1
                if any(map(self._is_overdue, [*islice(self._ready, 1), *islice(self._ready_alone, 1)])):
                    self._wake_thread()

    def _work_without_threads(self) -> None:
        """Write everything here while no thread of the pool can be started."""
        while self._threadless and self._write_batch():
            pass

    def _drain(self) -> bool:
        """Have a thread of the pool write what is ready, and wait a moment; whether there is more to wait for."""
        with self._lock:
            if self._ready or self._ready_alone:
                self._wake_thread()
            if self._ready or self._ready_alone or self._running:
                self._finished.wait(FLUSH_DELAY)
            return bool(self._ready or self._ready_alone or self._running)
