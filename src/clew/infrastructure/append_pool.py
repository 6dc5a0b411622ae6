"""The writers of a store that takes many appends at once: what waits is written together, and in order in a stream."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import count, islice
from typing import Protocol

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.infrastructure.append_streams import only_stream, streams_of
from clew.infrastructure.recorder import Append, Appended

CONCURRENT_BATCHES = 2
BATCH_THRESHOLD = 8
"""While so many batches with so many appends are written the next comes together, instead of being begun with."""

FLUSH_DELAY = 0.005
"""Seconds after which a thread of the pool writes what nobody waits for, and what the others take too long for."""

IDLE_POLLS = 20
"""So often it is looked for that in vain before the next append has to wake who looks: to be woken costs more."""

_BROKEN_OFF = (
    "The thread that wrote this append together with its own was interrupted: whether it was stored is not known. "
    "Read what is there."
)

_log = logging.getLogger(__name__)


class _Job(Future[Appended]):
    """An append and its outcome. Who waits for it without a limit writes it himself, if nobody has begun with it.

    So a thread that appends needs no other, which costs as much as a small append. Who wants to be told has it written
    by a thread of the pool.
    """

    def __init__(self, pool: AppendPool, append: Append) -> None:
        super().__init__()
        self.append = append
        only = only_stream(append)
        self.together = only is not None and len(append.events) <= pool.together
        """Whether it can be written with others, in one batch."""
        self.streams: Collection[str] = frozenset(streams_of(append)) if only is None else (only,)
        self.appended: Appended | None = None
        self.number = self.look = 0
        """In which place, and after which look of the watcher's, it could be begun with."""
        self.by = 0
        """The thread that has begun with it, 0 for none."""
        self.left = False
        """Whether it was begun with before, and left."""
        self._pool = pool

    def result(self, timeout: float | None = None) -> Appended:
        """What the append came to."""
        self._pool.see_to(self, here=timeout is None)
        return self.appended or super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed, None if it did not."""
        self._pool.see_to(self, here=timeout is None)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Appended]], object]) -> None:
        """Call this once it is known."""
        super().add_done_callback(fn)
        self._pool.see_to(self, here=False)


class Write(Protocol):
    """Writes a batch and returns one outcome for each append of it."""

    def __call__(self, appends: Sequence[Append], *, patient: bool) -> Sequence[Appended | Exception | None]:
        """Without patience nobody else is waited for: what is left so, and all behind it in its stream, has None."""
        ...


class AppendPool:
    """Appends that are written by the threads that wait for them, and by threads of the pool: ``workers`` at a time.

    Those with one stream each and nothing beside their events are written together, whatever of them waits; any other
    is written alone. An append waits for those before it that touch a stream of its own, as if there were one writer.
    There is patience for an append where it holds up only its stream and who waits for it; what was left without is
    written alone. ``rest`` is called after each batch.
    """

    def __init__(
        self,
        write: Write,
        rest: Callable[[], object],
        *,
        workers: int,
        together: int,
    ) -> None:
        self._write = write
        self._rest = rest
        self._workers = workers
        self.together = together
        """How many events a batch may have."""
        self.restart()

    def restart(self) -> None:
        """Begin empty and without threads: for the child of a fork, which has a copy of what the parent will do."""
        self._lock = lock = threading.Lock()
        # One condition for each who waits: to wake one of them must not wake another.
        self._work = threading.Condition(lock)
        self._came = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        self._queues: dict[str, deque[_Job]] = {}
        """What has not ended of each stream, in the order in which it was submitted."""
        self._ready: dict[_Job, None] = {}
        """What can be begun with, as it is the first of its stream, and written together."""
        self._alone: dict[_Job, None] = {}
        """What can be begun with and is written alone."""
        self._places = count(1)
        self._begun: list[list[_Job]] = []
        """What is being written, each batch by one thread."""
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        """Of them those that wait and have not been called."""
        self._watcher: threading.Thread | None = None
        self._lonely = False
        """Whether no thread could be started: there may be too many, or the interpreter may be about to end."""
        self._asleep = False
        self._looks = 0
        self._last = 0
        """After which look something was submitted last."""
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        job = _Job(self, append)
        with self._lock:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            if self._watcher is None:
                self._watcher = self._start(self._watch, "clew-writers")
            try:
                for name in job.streams:
                    self._queues.setdefault(name, deque()).append(job)
                self._offer(job)
            except BaseException:  # interrupted: nothing may wait for what nobody will begin with
                self._let_go(job)
                raise
        if self._lonely:
            self._stand_in()
        return job

    def see_to(self, job: _Job, *, here: bool) -> None:
        """Have an append written that nobody has begun with: in this thread, or by one of the pool."""
        # In a crowd it is left to who ends a batch next: he sees that there is more.
        while here and not job.by and not (job.together and self._is_crowded()) and self._lead(job):
            pass
        if not here:
            with self._lock:
                if job in self._ready or job in self._alone:
                    self._call()
        if self._lonely:
            self._stand_in()

    @property
    def waiting(self) -> int:
        """How many appends no thread has taken yet."""
        with self._lock:
            return len({job for queue in self._queues.values() for job in queue if not job.by} | set(self._alone))

    def close(self) -> None:
        """Have everything written that was submitted, then end the threads. Does nothing the second time."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._came.notify_all()
        # In the main thread Ctrl-C may come, and would break off the appends of others: they have theirs written.
        while (not _is_main() and self._lead()) or self._is_left():
            self._stand_in()
        with self._lock:
            threads = [*self._threads, *([self._watcher] if self._watcher else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # With the lock

    def _offer(self, job: _Job) -> None:
        """Let it be begun with, if nothing before it touches a stream of its own."""
        for name in job.streams:
            if self._queues[name][0] is not job:
                return
        job.number = next(self._places)
        job.look = self._last = self._looks
        (self._ready if job.together else self._alone)[job] = None
        if self._asleep:
            self._came.notify()

    def _let_go(self, job: _Job) -> None:
        """Have nothing wait for it any more."""
        self._ready.pop(job, None)
        self._alone.pop(job, None)
        for name in job.streams:
            queue = self._queues.get(name)
            if queue and queue[0] is job:
                queue.popleft()
            elif queue and job in queue:  # interrupted, or cancelled behind one that was left
                queue.remove(job)
            if not queue:
                self._queues.pop(name, None)
            elif not queue[0].by:
                self._offer(queue[0])

    def _take(self, batch: list[_Job], mine: _Job | None) -> bool:
        """Begin with a batch in which ``mine`` may be, or with whatever there is; False if there is nothing."""
        if len(self._begun) < self._workers and not (mine and mine.by):
            batch += self._chosen(mine)
        if batch:
            self._begun.append(batch)
            for job in batch:
                job.by = threading.get_ident()
                self._ready.pop(job, None)
                self._alone.pop(job, None)
        return bool(batch)

    def _chosen(self, mine: _Job | None) -> list[_Job]:
        # Ctrl-C comes to the main thread: it writes what is its own, so that no other append is broken off by it.
        if mine and (not mine.together or _is_main()):
            return [mine] if mine in self._ready or mine in self._alone else []
        first, alone = next(iter(self._ready), None), next(iter(self._alone), None)
        if first and self._is_crowded() and not self._lingers(first):
            first = None
        if alone and not mine and (not first or alone.number < first.number):
            return [alone]
        return self._together() if first else []

    def _together(self) -> list[_Job]:
        """As much of what can be written together as a batch may have: of each stream what comes next."""
        room = self.together
        chosen: list[_Job] = []
        for first in islice(self._ready, room):
            for job in self._queues[next(iter(first.streams))]:
                if not job.together or len(job.append.events) > room:
                    break
                chosen.append(job)
                room -= len(job.append.events)
        return chosen

    def _is_more(self) -> bool:
        return bool(self._ready or self._alone)

    def _is_crowded(self) -> bool:
        crowd = (
            [len(batch) for batch in self._begun if batch[0].together] if len(self._begun) >= CONCURRENT_BATCHES else []
        )
        return len(crowd) >= CONCURRENT_BATCHES and sum(crowd) >= BATCH_THRESHOLD

    def _lingers(self, job: _Job) -> bool:
        return self._looks - job.look > 1

    def _call(self) -> None:
        """Have one more thread of the pool look at what waits."""
        if self._idle:
            self._idle -= 1
            self._work.notify()
        elif len(self._threads) < self._workers:
            thread = self._start(self._serve, f"clew-writer-{len(self._threads) + 1}")
            if thread is not None:
                self._threads.add(thread)

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread | None:
        # A daemon, so that a program that forgets to close its store still ends.
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._lonely = True
            return None
        self._lonely = False
        return thread

    def _end(self, batch: list[_Job], *, more: bool, left: Collection[_Job] = ()) -> None:
        """It is done, but for those that are left to be written alone. Does nothing the second time."""
        if batch in self._begun:
            self._begun.remove(batch)
        for job in batch:
            if job.by != threading.get_ident():
                continue  # it was left before, and another may have begun with it
            if job in left:
                job.left, job.together = True, False
                self._offer(job)
                job.by = 0
            else:
                self._let_go(job)
        if self._is_more() and not more:
            self._call()
        if self._closed:
            self._work.notify_all()
            self._ended.notify_all()

    # Without

    def _lead(self, mine: _Job | None = None, *, stays: bool = False) -> bool:
        """Write a batch of what waits; False if there is nothing that this thread could begin with.

        One of the pool stays until there is, or until the end.
        """
        batch: list[_Job] = []
        try:
            with self._lock:
                while not self._take(batch, mine) and stays and not self._closed:
                    self._idle += 1
                    self._work.wait()
                if stays and batch and not batch[0].together and self._is_more():
                    self._call()  # there may be more of these, each for a thread of its own
            if batch:
                self._answer(batch, mine, more=stays)
        except BaseException as error:  # this thread is interrupted, wherever it was
            self._break_off(batch, mine, error)
            raise
        return bool(batch)

    def _answer(self, batch: list[_Job], mine: _Job | None, *, more: bool) -> None:
        """Write a batch and answer it; ``more`` says that this thread will look at what waits by itself."""
        running = [job for job in batch if job.left or job.set_running_or_notify_cancel()]
        # Who waits for an append has to have patience for it and for its stream, and for nothing else.
        patient = (mine is None or mine in batch) and all(job.streams == batch[0].streams for job in batch)
        outcomes: Sequence[Appended | Exception | None] = ()
        try:
            if running:
                outcomes = self._write([job.append for job in running], patient=patient)
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect: nobody is left waiting for it
            _log.exception("A writer of the store failed")
            outcomes = [error] * len(running)
        left = [job for job, outcome in zip(running, outcomes, strict=True) if outcome is None]
        with self._lock:
            # Before it is answered: what is called then may append to the same streams, and wait.
            self._end(batch, more=more, left=left)
        for job, outcome in zip(running, outcomes, strict=True):
            if isinstance(outcome, Appended):
                job.appended = outcome
                job.set_result(outcome)
            elif outcome is not None:
                job.set_exception(outcome)
        try:
            self._rest()
        except Exception:  # noqa: BLE001 - logged, and no reason to end a thread that the appends need
            _log.exception("The store's work after a commit failed")

    def _break_off(self, batch: list[_Job], mine: _Job | None, error: BaseException) -> None:
        """End what this thread has begun with. The interruption is its own; who waits beside is told what is known."""
        with self._lock:
            self._end(batch, more=False)
        for job in batch:
            if job.by == threading.get_ident() and not job.done():
                job.set_exception(error if job is mine else StoreUnavailableError(_BROKEN_OFF))

    def _serve(self) -> None:
        try:
            while self._lead(stays=True):
                pass
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                if self._is_more() and not self._closed:
                    self._call()

    def _watch(self) -> None:
        """Have written what nobody begins with for a while."""
        while True:
            with self._lock:
                if self._closed:
                    return
                if self._is_more() or self._looks - self._last <= IDLE_POLLS:
                    self._came.wait(FLUSH_DELAY)
                else:
                    self._asleep = True
                    self._came.wait()
                    self._asleep = False
                self._looks += 1
                if any(map(self._lingers, [*islice(self._ready, 1), *islice(self._alone, 1)])):
                    self._call()

    def _stand_in(self) -> None:
        """Write what waits where no thread of the pool can be started."""
        while self._lonely and self._lead():
            pass

    def _is_left(self) -> bool:
        """Have what is left written by a thread of the pool, and wait for a while; whether there is more."""
        with self._lock:
            if self._is_more():
                self._call()
            if self._is_more() or self._begun:
                self._ended.wait(FLUSH_DELAY)
            return self._is_more() or bool(self._begun)


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident
