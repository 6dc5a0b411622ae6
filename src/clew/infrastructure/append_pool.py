"""The writer threads of a store that takes many appends at once: those that share a stream keep their order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from clew.domain.errors import ClosedError
from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.recorder import Append, Appended

_log = logging.getLogger(__name__)


class _Job:
    __slots__ = ("append", "behind", "future", "names")

    def __init__(self, append: Append, names: frozenset[str]) -> None:
        self.append = append
        self.names = names
        self.future: Future[Appended] = Future()
        self.behind = 0
        """Streams of which an earlier append has not been answered."""


class AppendPool:
    """Appends that are written by several threads, each by itself.

    An append waits for those before it that touch a stream of its own, as if there were one writer; others run beside
    it. ``write`` answers one append; ``rest`` is called after each, before what waits for it begins.
    """

    def __init__(
        self, write: Callable[[Append], Appended | Exception], rest: Callable[[], object], *, workers: int
    ) -> None:
        self._write = write
        self._rest = rest
        self._workers = workers
        self.restart()

    def restart(self) -> None:
        """Begin empty and without threads: for the child of a fork, which has a copy of what the parent will do."""
        self._changed = threading.Condition(threading.Lock())
        self._ready: deque[_Job] = deque()
        self._lines: dict[str, deque[_Job]] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._undone = 0
        self._taken = 0
        self._closed = False

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. Raises ClosedError after ``close``."""
        job = _Job(append, frozenset(streams_of(append)))
        with self._changed:
            if self._closed:
                msg = "The store is closed: nothing can be appended. Open it again."
                raise ClosedError(msg)
            for name in job.names:
                line = self._lines.setdefault(name, deque())
                job.behind += bool(line)
                line.append(job)
            self._undone += 1
            if not job.behind:
                self._make_ready(job)
        return job.future

    @property
    def waiting(self) -> int:
        """How many appends no thread has taken yet."""
        return self._undone - self._taken

    def close(self) -> None:
        """Have everything written that was submitted, then end the threads. Does nothing the second time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _make_ready(self, job: _Job) -> None:
        self._ready.append(job)
        if self._idle >= len(self._ready):
            self._changed.notify()
        elif len(self._threads) < self._workers:
            # A daemon, so that a program that forgets to close its store still ends.
            thread = threading.Thread(target=self._run, name=f"clew-writer-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (job := self._take()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._answer(job)
            self._done(job)

    def _take(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            while not self._ready:
                if self._closed and not self._undone:
                    return None
                self._changed.wait()
            self._idle -= 1
            self._taken += 1
            return self._ready.popleft()

    def _answer(self, job: _Job) -> None:
        try:
            outcome = self._write(job.append)
        except Exception as error:  # noqa: BLE001 - a writer that raises is a defect: nobody is left waiting for it
            _log.exception("A writer of the store failed")
            outcome = error
        if isinstance(outcome, Appended):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)
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
