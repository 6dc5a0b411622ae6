"""Processes that share work: each is started again when it dies, and all are ended together."""

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
"""How long after the death of a worker another is started in its place."""

TICK_SECONDS = 0.5

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Workers:
    """As many processes as there are ``arguments``, each of which calls ``target`` with its own.

    ``said`` is told when one died. With ``again`` another takes the place of one that failed or was killed, and of one
    that is done, until ``stop``, and more may be added meanwhile; otherwise each is there once.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
        said: Callable[[str], None],
        *,
        again: bool,
    ) -> None:
        self._target = target
        self._arguments = list(arguments)
        self._more: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._said = said
        self._again = again
        # Not a copy of this process: its connections and locks are its own.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[int, BaseProcess] = {}
        self._due: dict[int, float] = {}
        self._stops = 0
        self._ended = 0
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def stop(self) -> None:
        """Let each end with what it is at; the second time, at once. May be called by a handler of signals."""
        self._stops += 1
        try:
            os.write(self._wake, b"x")
        except OSError:  # it is told often enough, or has come to its end
            return

    def add(self, arguments: tuple[Any, ...]) -> None:
        """Let there be one more process, with these arguments. May be called by another thread."""
        self._more.put(arguments)

    def run(self, tick: Callable[[], object] = lambda: None) -> bool:
        """Return when all have ended; whether each of those that are there once did what it was to do.

        ``tick`` is called every now and then.
        """
        self._due = dict.fromkeys(range(len(self._arguments)), 0.0)
        fine = True
        try:
            while self._running or ((self._due or self._again) and not self._stops):
                self._take_in()
                self._start()
                self._wait()
                tick()
                for number, process in list(self._running.items()):
                    if process.exitcode is not None:
                        del self._running[number]
                        fine = self._bury(number, process) and fine
                self._end()
        finally:
            for process in self._running.values():
                process.kill()
            for process in self._running.values():
                process.join()
            os.close(self._woken)
            # A handler of signals must not find the number, which may be another file's by then.
            wake, self._wake = self._wake, -1
            os.close(wake)
        return fine

    def _take_in(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._arguments.append(self._more.get_nowait())
                self._due[len(self._arguments) - 1] = 0.0

    def _start(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now and not self._stops]:
            del self._due[number]
            process = self._context.Process(target=self._target, args=self._arguments[number], daemon=True)
            # It meets them when it has said what is to be done then.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._running[number] = process

    def _wait(self) -> None:
        if self._woken in wait([self._woken, *(each.sentinel for each in self._running.values())], TICK_SECONDS):
            os.read(self._woken, 100)

    def _bury(self, number: int, process: BaseProcess) -> bool:
        """Say what became of one that has ended, and begin again or tell whether it did what it was to do."""
        code = process.exitcode or 0
        if self._stops:
            return True
        if self._again:
            self._due[number] = time.monotonic() + AGAIN_SECONDS
        if self._again or code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            then = ", and is started again" if self._again else ""
            self._said(f"Worker {number + 1} (process {process.pid}) {how}{then}.")
        return self._again or not code

    def _end(self) -> None:
        """Hand on what this process was told since."""
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
    """Let the signals that end a service call ``stop``; in a worker also the end of the process that started it."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in _ENDING if _is_heeded(number)}
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_after, args=(parent, stop), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        yield
    finally:
        if parent is None:  # else it is about to end itself
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_heeded(number: signal.Signals) -> bool:
    """Whether a signal ends it: who started it with nohup wants it to outlive the terminal."""
    return number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def _after(parent: BaseProcess, stop: Callable[[], None]) -> None:
    parent.join()
    stop()
