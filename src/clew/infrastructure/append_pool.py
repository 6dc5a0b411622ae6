"""The writers of a store that takes many appends at once: those that share a stream keep their order."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
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
        self.names = frozenset(streams_of(append))
        self.number = 0
        """How many were submitted before it, and itself."""
        self.behind = 0
        """Streams of which an earlier append has not been answered."""
        self.begun = False
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
    """Appends that are written by the threads that wait for them, and by ``workers`` threads more, each by itself.

    An append waits for those before it that touch a stream of its own, as if there were one writer; others run beside
    it. ``write`` answers one append; ``rest`` is called after each, before what waits for it begins.
    """

    def __init__(
        self, write: Callable[[Append], Appended | Exception], rest: Callable[[], object], *, workers: int
    ) -> None:
        self._write = write
        self._rest = rest
        self._workers = workers
        self._lines: dict[str, deque[_Job]] = {}
        self.restart()

    def restart(self) -> None:
        """Begin empty and without threads: for the child of a fork, which has a copy of what the parent will do."""
        for line in self._lines.values():
            for job in line:
                job.begun = True
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._came = threading.Condition(lock)
        self._new: OrderedDict[_Job, None] = OrderedDict()
        """What may be written, and is left for a while to who waits for it."""
        self._ready: deque[_Job] = deque()
        self._lines = {}
        self._threads: list[threading.Thread] = []
        self._watcher: threading.Thread | None = None
        self._watching = False
        self._idle = 0
        self._submitted = 0
        self._undone = 0
        self._taken = 0
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        job = _Job(self, append)
        with self._changed:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            for name in job.names:
                line = self._lines.setdefault(name, deque())
                job.behind += bool(line)
                line.append(job)
            self._submitted = job.number = self._submitted + 1
            self._undone += 1
            if not job.behind:
                self._make_ready(job)
        return job

    def want(self, job: _Job, *, here: bool) -> None:
        """Write an append that nobody has begun with, in this thread or in one of the pool, as soon as it may be."""
        if job.begun:
            return
        with self._changed:
            if job.begun or job.wanted:
                return
            if job.behind or not here:
                job.wanted = True
                if job in self._new:
                    del self._new[job]
                    self._hand_over(job)
                return
            del self._new[job]
            self._begin(job)
        self._run(job)

    @property
    def waiting(self) -> int:
        """How many appends no thread has taken yet."""
        return self._undone - self._taken

    def close(self) -> None:
        """Have everything written that was submitted, then end the threads. Does nothing the second time."""
        with self._changed:
            self._closed = True
            while self._new:
                self._hand_over(self._new.popitem(last=False)[0])
            self._changed.notify_all()
            self._came.notify()
            threads = [*self._threads, *([self._watcher] if self._watcher else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._changed:
            while self._undone:
                self._changed.wait()

    # With the lock

    def _make_ready(self, job: _Job) -> None:
        if job.wanted or self._closed:
            self._hand_over(job)
            return
        self._new[job] = None
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="clew-writers", daemon=True)
            self._watching = True
            self._watcher.start()
        elif not self._watching:
            self._watching = True
            self._came.notify()

    def _hand_over(self, job: _Job) -> None:
        job.wanted = True
        self._ready.append(job)
        if self._idle >= len(self._ready):
            self._changed.notify()
        elif len(self._threads) < self._workers:
            # A daemon, so that a program that forgets to close its store still ends.
            thread = threading.Thread(target=self._work, name=f"clew-writer-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _begin(self, job: _Job) -> None:
        job.begun = True
        self._taken += 1

    # The threads

    def _watch(self) -> None:
        """Hand over what nobody has begun with for a while."""
        with self._changed:
            looks = 0
            while not self._closed:
                seen = self._submitted
                self._came.wait(LINGER)
                while self._new and next(iter(self._new)).number <= seen:
                    self._hand_over(self._new.popitem(last=False)[0])
                looks = looks + 1 if seen == self._submitted and not self._new else 0
                if looks == LOOKS and not self._closed:
                    self._watching = False
                    self._came.wait()
                    looks = 0

    def _work(self) -> None:
        while (job := self._take()) is not None:
            self._run(job)

    def _take(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            while not self._ready:
                if self._closed and not self._undone:
                    return None
                self._changed.wait()
            self._idle -= 1
            job = self._ready.popleft()
            self._begin(job)
            return job

    def _run(self, job: _Job) -> None:
        try:
            if job.set_running_or_notify_cancel():
                self._answer(job)
        finally:
            self._done(job)

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

    def _done(self, job: _Job) -> None:
        with self._changed:
            self._undone -= 1
            self._taken -= 1
            for name in job.names:
                line = self._lines[name]
                line.popleft()
                if line:
                    line[0].behind -= 1
                    if not line[0].behind:
                        self._make_ready(line[0])
                else:
                    del self._lines[name]
            if self._closed and not self._undone:
                self._changed.notify_all()


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
