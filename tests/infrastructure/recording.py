"""How the tests of the stores append, fork and wait: steps that every suite of theirs takes."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from eventsourcing.persistence import StoredEvent

from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder import Append, Appended, Recorder, Row

Opener = Callable[[], Any]
PATIENCE = 20.0
"""Seconds after which a test gives up waiting: nothing is measured with it."""


def event(stream: str, version: int, state: bytes | None = None, type_: str = "noted") -> StoredEvent:
    return StoredEvent(stream, version, type_, state if state is not None else f"{stream} {version}".encode())


def append(recorder: Recorder, *events: StoredEvent, **more: Any) -> Appended:
    return recorder.submit(Append(events, **more)).result(PATIENCE)


def fill(recorder: Recorder, stream: str, upto: int, start: int = 1) -> Appended:
    return append(recorder, *[event(stream, version) for version in range(start, upto + 1)])


def failure(recorder: Recorder, *events: StoredEvent, **more: Any) -> BaseException | None:
    return recorder.submit(Append(events, **more)).exception(PATIENCE)


def addresses(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return [(row.stream, row.version) for row in rows]


def last_version(recorder: Any, stream: str) -> int:
    """The version of the last of a stream's own events, 0 when it has none."""
    found = recorder.select_events(stream, desc=True, limit=1)
    return found[0].originator_version if found else 0


def recomputed(rows: Sequence[Row]) -> list[bytes]:
    found, previous = [], ROOT
    for row in rows:
        previous = link(previous, row.stream, row.version, row.type, row.digest or digest(row.state))
        found.append(previous)
    return found


def waits_for_a_lock() -> bool:
    return any(thread.name == "clew-lock" for thread in threading.enumerate())


@contextmanager
def interrupted(when: Callable[[], bool] = waits_for_a_lock) -> Iterator[None]:
    """Ctrl-C in this thread, the main one, as soon as this is so: the block is to end with it."""

    def interrupt() -> None:
        wait_until(when)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does the work: 0 when it was done."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Held:
    """A writer thread that is held inside a future's callback until the test lets it go."""

    def __init__(self, recorder: Recorder, first: StoredEvent) -> None:
        self._go = threading.Event()
        inside = threading.Event()

        def hold(_: Future[Appended]) -> None:
            inside.set()
            assert self._go.wait(PATIENCE)

        # A callback that is added while the append is pending runs in the writer thread; one that comes too late
        # would run here and hold the test itself, so the listener holds the writer instead.
        self._unlisten = recorder.listen(lambda: hold(Future()))
        self.future = recorder.submit(Append([first]))
        assert inside.wait(PATIENCE)

    def let_go(self) -> None:
        self._unlisten()
        self._go.set()


@contextmanager
def held(recorder: Recorder, first: StoredEvent) -> Iterator[Held]:
    """The writer thread has written ``first`` and takes nothing more until the end of the block."""
    writer = Held(recorder, first)
    try:
        yield writer
    finally:
        writer.let_go()


def together(recorder: Recorder, appends: Sequence[Append]) -> list[Future[Appended]]:
    """Submit from as many threads at the same moment."""
    barrier = threading.Barrier(len(appends))
    futures: list[Future[Appended]] = []

    def work(one: Append) -> None:
        barrier.wait()
        futures.append(recorder.submit(one))

    run_threads([lambda one=one: work(one) for one in appends])  # type: ignore[misc] # a bound loop variable
    return futures


def run_threads(works: Sequence[Callable[[], object]]) -> None:
    """Run all at once and raise the first error of any."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)
    if errors:
        raise errors[0]
