"""Worker processes: each is restarted when it dies, and all are ended together."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

AGAIN_SECONDS = 1.0
"""The delay before a failed worker is restarted."""

TICK_SECONDS = 0.5

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Workers:
    """A process for each of ``arguments``, which calls ``target`` with them.

    ``warn`` is called with a sentence when one dies. With ``again`` a process that ends is replaced until ``stop``, and
    more can be added meanwhile; otherwise each runs once.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
        warn: Callable[[str], None],
        *,
        again: bool,
    ) -> None:
        self._target = target
        self._arguments = list(arguments)
        self._more: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._warn = warn
        self._again = again
        # Not forked: a child must not inherit connections and locks.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[int, BaseProcess] = {}
        self._due: dict[int, float] = {}
        self._stops = 0
        self._ended = 0
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def stop(self) -> None:
        """End each process after its current batch; the second call ends them at once. A signal handler may call it."""
        self._stops += 1
        try:
            os.write(self._wake, b"x")
        except OSError:  # the pipe is full of such calls, or closed
            return

    def add(self, arguments: tuple[Any, ...]) -> None:
        """Start one more process with these arguments. Another thread may call it."""
        self._more.put(arguments)

    def run(self, tick: Callable[[], object] = lambda: None) -> bool:
        """Run until all processes have ended; whether each of those that run once succeeded.

        ``tick`` is called from time to time.
        """
        self._due = dict.fromkeys(range(len(self._arguments)), 0.0)
        fine = True
        try:
            while self._running or ((self._due or self._again) and not self._stops):
                self._add_waiting()
                self._start()
                self._wait()
                tick()
                for number, process in list(self._running.items()):
                    if process.exitcode is not None:
                        del self._running[number]
                        fine = self._report_end(number, process) and fine
                self._end()
        finally:
            for process in self._running.values():
                process.kill()
            for process in self._running.values():
                process.join()
            os.close(self._woken)
            # A signal handler must not use the file descriptor, which may belong to another file by then.
            wake, self._wake = self._wake, -1
            os.close(wake)
        return fine

    def _add_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._arguments.append(self._more.get_nowait())
                self._due[len(self._arguments) - 1] = 0.0

    def _start(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now and not self._stops]:
            del self._due[number]
            process = self._context.Process(target=self._target, args=self._arguments[number], daemon=True)
            # It handles them as soon as its handlers are installed.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._running[number] = process

    def _wait(self) -> None:
        if self._woken in wait([self._woken, *(each.sentinel for each in self._running.values())], TICK_SECONDS):
            os.read(self._woken, 100)

    def _report_end(self, number: int, process: BaseProcess) -> bool:
        """Report a process that has ended, and restart it; otherwise return whether it succeeded."""
        code = process.exitcode or 0
        if self._stops:
            return True
        if self._again:
            self._due[number] = time.monotonic() + AGAIN_SECONDS
        if self._again or code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            then = ", and is restarted" if self._again else ""
            self._warn(f"Worker {number + 1} (process {process.pid}) {how}{then}.")
        return self._again or not code

    def _end(self) -> None:
        """Forward the signals that this process has received since."""
        stops = self._stops
        if stops > self._ended:
            for process in self._running.values():
                if stops > 1:
                    process.kill()
                else:
                    process.terminate()
            self._ended = stops


@contextmanager
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` when a signal ends the service; in a worker also when its parent process ends."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in _ENDING if _is_heeded(number)}
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_after, args=(parent, stop), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        yield
    finally:
        if parent is None:  # otherwise it is about to end anyway
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_heeded(number: signal.Signals) -> bool:
    """Whether this signal ends the process: one that was started with nohup ignores the end of its terminal."""
    return number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def _after(parent: BaseProcess, stop: Callable[[], None]) -> None:
    parent.join()
    stop()
