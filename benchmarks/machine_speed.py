"""The speed of the machine itself, without any code of Clew, as a reference for figures in seconds."""

from __future__ import annotations

import hashlib
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue

from benchmarks.measurement import Setting, cpu, interleaved
from benchmarks.raw_sqlite import insert, raw_store
from benchmarks.report import Figure

MANY = 2_000
MESSAGE = bytes(540)
"""As long as a stored message of the corpus."""


def run(setting: Setting) -> Iterator[Figure]:
    """CPU of four operations that any such store performs for each append."""
    with closing(raw_store(setting.fresh("machine"), "OFF")) as connection:
        numbers = iter(range(1, 10_000_000))
        contenders = {
            "a pure Python loop of 1,000 additions": lambda: _each(_loop),
            "SHA-256 of 540 bytes": lambda: _each(lambda: hashlib.sha256(MESSAGE).digest()),
            "a future from one thread to another and back": _handover,
            "a raw INSERT and COMMIT, synchronous=OFF": lambda: _each(lambda: insert(connection, 1, next(numbers))),
        }
        for name, measured in interleaved(setting.size(7, 3), contenders).items():
            yield Figure(name, statistics.median(measured), "µs")


def _each(work: Callable[[], object]) -> float:
    def repeat() -> None:
        for _ in range(MANY):
            work()

    return cpu(repeat) / MANY * 1e6


def _loop() -> int:
    total = 0
    for number in range(1_000):
        total += number
    return total


def _handover() -> float:
    waiting: SimpleQueue[Future[int] | None] = SimpleQueue()

    def answer() -> None:
        while (future := waiting.get()) is not None:
            future.set_result(1)

    def ask() -> None:
        future: Future[int] = Future()
        waiting.put(future)
        future.result()

    thread = threading.Thread(target=answer)
    thread.start()
    took = _each(ask)
    waiting.put(None)
    thread.join()
    return took
