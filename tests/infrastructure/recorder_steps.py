"""Steps that the tests of all stores share: append, wait, run threads, fork a child and interrupt."""

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

from clew.domain.ports import Appended, Row
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.sqlite.file_lock import FileLock

Opener = Callable[[], Any]
PATIENCE = 60.0
"""Seconds after which a test stops waiting. No test measures time with it."""


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
    """The version of a stream's newest own event; 0 if it has none."""
    events = recorder.select_events(stream, desc=True, limit=1)
    return events[0].originator_version if events else 0


def recomputed_hashes(rows: Sequence[Row]) -> list[bytes]:
    hashes, previous = [], ROOT
    for row in rows:
        previous = link(previous, row.stream, row.version, row.type, row.digest or digest(row.state))
        hashes.append(previous)
    return hashes


def is_waiting_for_a_lock() -> bool:
    return any(thread.name == "clew-lock" for thread in threading.enumerate())


@contextmanager
def interrupt_when(condition: Callable[[], bool] = is_waiting_for_a_lock) -> Iterator[None]:
    """Send Ctrl-C to the main thread, which runs the block, when the condition is true. It must end the block."""

    def interrupt() -> None:
        wait_until(condition)
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


@contextmanager
def interrupt_when_notified(waiting: Callable[[], threading.Condition | None]) -> Iterator[None]:
    """Send Ctrl-C to the main thread, which runs the block, while it waits for the lock of its condition again."""
    kept: list[bool] = []

    def interrupt() -> None:
        wait_until(lambda: bool(getattr(waiting(), "_waiters", ())))  # there is no other way to see that it waits
        condition = waiting()
        assert condition is not None
        with condition:
            condition.notify_all()
            time.sleep(0.05)  # until it waits for the lock
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        kept.append(True)  # no other thread has released it

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = in_thread(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert kept


def take(lock: FileLock) -> None:
    """Take the lock once, and release it."""
    lock.hold(lambda: None)


def in_thread(work: Callable[[], object], name: str = "worker") -> threading.Thread:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def in_forked_child(work: Callable[[], object]) -> int:
    """Do the work in a forked child and return its exit status: 0 if the work succeeded."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the child must never continue as a second pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class PausedWriter:
    """A writer thread that waits in a callback until the test resumes it."""

    def __init__(self, recorder: Recorder, first: StoredEvent) -> None:
        self._resumed = threading.Event()
        paused = threading.Event()

        def pause(_: Future[Appended]) -> None:
            paused.set()
            assert self._resumed.wait(PATIENCE)

        # A listener always runs in the writer thread. A callback of the future would run in this thread if the append
        # were already done, and would pause the test itself.
        self._unlisten = recorder.listen(lambda: pause(Future()))
        self.future = recorder.submit(Append([first]))
        assert paused.wait(PATIENCE)

    def resume(self) -> None:
        self._unlisten()
        self._resumed.set()


@contextmanager
def paused_writer(recorder: Recorder, first: StoredEvent) -> Iterator[PausedWriter]:
    """The writer thread writes ``first``, and then pauses until the block ends."""
    writer = PausedWriter(recorder, first)
    try:
        yield writer
    finally:
        writer.resume()


def submit_concurrently(recorder: Recorder, appends: Sequence[Append]) -> list[Future[Appended]]:
    """Submit all appends at the same time, each from its own thread."""
    barrier = threading.Barrier(len(appends))
    futures: list[Future[Appended]] = []

    def work(one: Append) -> None:
        barrier.wait()
        futures.append(recorder.submit(one))

    run_threads([lambda one=one: work(one) for one in appends])  # type: ignore[misc] # a bound loop variable
    return futures


def run_threads(works: Sequence[Callable[[], object]]) -> None:
    """Run all functions at the same time, each in its own thread, and raise the first error."""
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
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
