"""The writers of a store that takes many appends at once: those that share a stream keep their order."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

from clew.domain.errors import ClosedError
from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.recorder import Append, Appended

LINGER = 0.005
"""Seconds after which a thread of the pool writes what nobody waits for."""

LOOKS = 20
"""So often it is looked for that in vain before the next append has to wake who looks: to be woken costs more."""

_log = logging.getLogger(__name__)


class _Job(Future[Appended]):
    """An append and its outcome. Who waits for it without a limit writes it himself, if nobody has begun with it.

    So a thread that appends needs no other, which costs as much as a small append. Who wants to be told has it written
    by a thread of the pool, at once.
    """

    def __init__(self, pool: AppendPool, append: Append) -> None:
        super().__init__()
        self.append = append
        self.names = _names(append)
        self.number = 0
        """How many were submitted before it, and itself."""
        self.thread = 0
        """Which has begun with it, 0 if none has."""
        self.wanted = False
        """Whether a thread of the pool is to write it as soon as it may be written."""
        self._pool = pool

    def result(self, timeout: float | None = None) -> Appended:
        """What the append came to."""
        self._pool.want(self, here=timeout is None)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed, None if it did not."""
        self._pool.want(self, here=timeout is None)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Appended]], object]) -> None:
        """Call this once it is known."""
        super().add_done_callback(fn)
        self._pool.want(self, here=False)


class AppendPool:
    """Appends that are written by the threads that wait for them, and by threads of the pool: ``workers`` at a time.

    An append waits for those before it that touch a stream of its own, as if there were one writer; others run beside
    it. ``write`` answers one append; ``rest`` is called after each, before what waits for it begins.
    """

    def __init__(
        self, write: Callable[[Append], Appended | Exception], rest: Callable[[], object], *, workers: int
    ) -> None:
        self._write = write
        self._rest = rest
        self._workers = workers
        self._pending: set[_Job] = set()
        self.restart()

    def restart(self) -> None:
        """Begin empty and without threads: for the child of a fork, which has a copy of what the parent will do."""
        for job in self._pending:
            job.thread = -1
        self._lock = lock = threading.Lock()
        # One condition for each who waits: to wake one of them must not wake another.
        self._work = threading.Condition(lock)
        self._came = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        self._pending = set()
        """What was submitted and is not done; of it what somebody has begun with:"""
        self._running: set[_Job] = set()
        self._lines: dict[str, deque[_Job]] = {}
        """By stream, in the order in which they may be written."""
        self._new: OrderedDict[_Job, None] = OrderedDict()
        """What may be written, and is left for a while to who waits for it."""
        self._ready: OrderedDict[_Job, None] = OrderedDict()
        """What may be written, by the next thread of the pool."""
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        """Threads of the pool that wait, or have been called and have not come yet."""
        self._watcher: threading.Thread | None = None
        self._watching = False
        self._looks = 0
        self._submitted = 0
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        job = _Job(self, append)
        with self._lock:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            try:
                self._line_up(job)
            except BaseException:  # interrupted: nobody has the future, so that nobody would wait for it
                self._remove(job)
                raise
        self._stand_in()
        return job

    def want(self, job: _Job, *, here: bool) -> None:
        """Write an append that nobody has begun with, in this thread or in one of the pool, as soon as it may be."""
        if job.thread:
            return
        try:
            if self._is_begun(job, here=here):
                self._run(job)
        except BaseException as error:  # this thread is interrupted, wherever it was
            self._break_off(error)
            raise
        self._stand_in()

    @property
    def waiting(self) -> int:
        """How many appends no thread has taken yet."""
        return len(self._pending) - len(self._running)

    def close(self) -> None:
        """Have everything written that was submitted, then end the threads. Does nothing the second time."""
        with self._lock:
            self._closed = True
            self._let_go()
            for job in list(self._new):
                self._hand_over(job)
            self._work.notify_all()
            self._came.notify_all()
        self._stand_in()
        with self._lock:
            while self._pending:
                self._ended.wait()
            threads = [*self._threads, *([self._watcher] if self._watcher else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # With the lock

    def _line_up(self, job: _Job) -> None:
        self._submitted = job.number = self._submitted + 1
        self._pending.add(job)
        first = True
        for name in job.names:
            line = self._lines.get(name)
            if line is None:
                self._lines[name] = deque((job,))
            else:
                first = False
                line.append(job)
        if first:
            self._make_ready(job)

    def _make_ready(self, job: _Job) -> None:
        if job.wanted or self._closed:
            self._hand_over(job)
            return
        if self._watcher is None:
            watcher = threading.Thread(target=self._watch, name="clew-writers", daemon=True)
            if not _is_started(watcher):
                self._hand_over(job)
                return
            self._watcher = watcher
            self._watching = True
        elif not self._watching:
            self._came.notify()
            self._watching = True
        self._new[job] = None

    def _hand_over(self, job: _Job) -> None:
        job.wanted = True
        self._ready[job] = None
        self._new.pop(job, None)
        self._call()

    def _call(self) -> None:
        """Have one more thread of the pool look at what is ready."""
        if not self._ready or len(self._running) >= self._workers:
            return
        self._work.notify()
        if self._idle < len(self._ready) and len(self._threads) < self._workers:
            # A daemon, so that a program that forgets to close its store still ends.
            thread = threading.Thread(target=self._worker, name=f"clew-writer-{len(self._threads) + 1}", daemon=True)
            if _is_started(thread):
                self._threads.add(thread)

    def _begin(self, job: _Job) -> None:
        job.thread = threading.get_ident()
        self._running.add(job)
        self._new.pop(job, None)
        self._ready.pop(job, None)

    def _next(self) -> _Job | None:
        """Begin with what is ready, None if nothing is or as many are written as can be at a time."""
        if not self._ready or len(self._running) >= self._workers:
            return None
        job = next(iter(self._ready))
        self._begin(job)
        return job

    def _let_go(self) -> None:
        """Let the appends that this thread has answered block no other: their callbacks wait for one."""
        mine = threading.get_ident()
        for job in [each for each in self._running if each.thread == mine and each.done()]:
            self._remove(job)

    def _remove(self, job: _Job) -> None:
        """It is done. Does nothing the second time, and the rest of it where the first was interrupted."""
        if job not in self._pending and job not in self._running:
            return
        self._new.pop(job, None)
        for name in job.names:
            line = self._lines.get(name)
            if line is None:
                continue
            if job in line:
                line.remove(job)
            if not line:
                del self._lines[name]
            elif self._is_first(line[0]):
                self._make_ready(line[0])
        self._pending.discard(job)
        self._running.discard(job)
        self._call()
        if self._closed:
            self._work.notify_all()
            self._ended.notify_all()

    def _is_first(self, job: _Job) -> bool:
        """Whether it may be written now, and has not been made ready."""
        placed = job.thread or job in self._new or job in self._ready
        return not placed and all(self._lines[name][0] is job for name in job.names)

    # Without

    def _is_begun(self, job: _Job, *, here: bool) -> bool:
        """Whether this thread is to write the append; else one of the pool will."""
        with self._lock:
            if job.thread or job.wanted:
                return False
            if job not in self._new:
                self._let_go()
            # Those that are ready come first: they wait for one of the writers to end.
            if here and job in self._new and len(self._running) + len(self._ready) < self._workers:
                self._begin(job)
                return True
            if job in self._new:
                self._hand_over(job)
            job.wanted = True
            return False

    def _watch(self) -> None:
        while self._is_looking():
            self._stand_in()

    def _is_looking(self) -> bool:
        """Hand over what nobody has begun with for a while; False at the end."""
        with self._lock:
            if self._closed:
                return False
            if self._looks == LOOKS:
                self._looks = 0
                self._watching = False
                self._came.wait()
                return True
            seen = self._submitted
            self._came.wait(LINGER)
            while self._new and next(iter(self._new)).number <= seen:
                self._hand_over(next(iter(self._new)))
            self._looks = self._looks + 1 if seen == self._submitted and not self._new else 0
            return True

    def _worker(self) -> None:
        try:
            while (job := self._take()) is not None:
                self._run(job)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._call()

    def _take(self) -> _Job | None:
        with self._lock:
            while (job := self._next()) is None:
                if self._closed and not self._ready:
                    return None
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            return job

    def _stand_in(self) -> None:
        """Write what is ready where no thread of the pool could be started."""
        while self._ready and not self._threads:
            with self._lock:
                job = None if self._threads else self._next()
            if job is None:
                return
            try:
                self._run(job)
            except BaseException as error:
                self._break_off(error)
                raise

    def _run(self, job: _Job) -> None:
        try:
            if job.set_running_or_notify_cancel():
                self._answer(job)
        finally:
            with self._lock:
                self._remove(job)

    def _answer(self, job: _Job) -> None:
        try:
            outcome = self._write(job.append)
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect: nobody is left waiting for it
            _log.exception("A writer of the store failed")
            outcome = error
        except BaseException as error:  # the program is to end: who waits beside is told so
            job.set_exception(error)
            raise
        if isinstance(outcome, Appended):
            job.set_result(outcome)
        else:
            job.set_exception(outcome)
        try:
            self._rest()
        except Exception:  # noqa: BLE001 - logged, and no reason to end a thread that the appends need
            _log.exception("The store's work after a commit failed")

    def _break_off(self, error: BaseException) -> None:
        """End what this thread has begun with, if it has not come to its end."""
        mine = threading.get_ident()
        begun = [job for job in list(self._running) if job.thread == mine]
        for job in begun:
            if not job.done():
                job.set_exception(error)
        with self._lock:
            for job in begun:
                self._remove(job)
            self._call()


def _is_started(thread: threading.Thread) -> bool:
    """Whether a thread could be started: there may be too many, or the interpreter may be about to end."""
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def _names(append: Append) -> Collection[str]:
    """Each name of its streams once."""
    if len(append.events) == 1 and not (any(append[1:6]) or append.claims or append.drafts):
        return (stream_name(append.events[0].originator_id),)
    return frozenset(streams_of(append))


def streams_of(append: Append) -> Iterable[str]:
    """The names of all streams that an append writes to, reads or stands beside."""
    for event in append.events:
        yield stream_name(event.originator_id)
    for fork in append.forks.values():
        yield fork.parent
    yield from (shred.stream for shred in append.shreds)
    yield from (snapshot.stream for snapshot in append.snapshots)
    yield from (claim.stream for claim in append.claims)
    yield from (draft.stream for draft in append.drafts)
    if append.key is not None:
        yield append.key.stream
