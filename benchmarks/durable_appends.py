"""Durable appends to SQLite by 1, 4 and 16 threads: Clew, a raw loop, and eventsourcing's recorder."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import cast
from unittest.mock import patch

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.measurement import Setting, interleaved, median_fdatasync, median_ratio, run_concurrently
from benchmarks.raw_sqlite import STATE, TYPE, insert, raw_store
from benchmarks.report import Budget, Figure, at_least, at_least_times, at_most
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.sqlite.writer import Outcomes, SQLiteWriter
from clew.infrastructure.stores import store_at

SLOW_DISK_MS = 2.0
SYNCS = 20


@dataclass(slots=True)
class Commits:
    """The commits of all SQLite stores in this process, and the CPU seconds of the threads that wrote them."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Contender:
    """One way of appending. ``append`` appends one event to the thread with that number.

    ``commits`` and ``writer_seconds`` are measured per round.
    """

    append: Callable[[int], object]
    commits: list[int] = field(default_factory=list)
    writer_seconds: list[float] = field(default_factory=list)


def run(setting: Setting) -> Iterator[Figure]:
    """Appends per second, appends per commit, and the CPU of the threads that write."""
    with counted_commits() as commits:
        for threads in (1, 4, 16):
            yield from _with_threads(setting, threads, commits)


def _with_threads(setting: Setting, threads: int, commits: Commits) -> Iterator[Figure]:
    each = setting.size(800, 160) // threads
    with ExitStack() as stack:
        raw = stack.enter_context(_raw(setting))
        ours = {
            "recorder": stack.enter_context(_recorder(setting)),
            "Conversations": stack.enter_context(_conversations(setting, threads)),
        }
        library = stack.enter_context(_library(setting))
        raw_seconds: list[float] = []

        def raw_round() -> float:
            begin = time.process_time()
            rate = _rate(raw, 1, each * threads)
            raw_seconds.append(time.process_time() - begin)
            return rate

        measured = interleaved(
            setting.size(7, 3),
            {
                "disk": lambda: median_fdatasync(setting.folder, SYNCS),
                "raw": raw_round,
                "library": lambda: _rate(library, threads, each),
                **{name: _counting(contender, threads, each, commits) for name, contender in ours.items()},
            },
        )
    writers = "1 thread" if threads == 1 else f"{threads} threads"
    yield Figure(f"fdatasync in these rounds, {writers}", statistics.median(measured["disk"]), "ms")
    for name, contender in ours.items():
        yield Figure(
            f"{name}, {writers}, against a raw loop of one thread",
            statistics.median(measured[name]),
            "/s",
            baseline=statistics.median(measured["raw"]),
            ratio=median_ratio(measured[name], measured["raw"]),
            budget=_budget(name, statistics.median(measured["disk"]), threads),
        )
        yield Figure(
            f"{name}, {writers}, against eventsourcing's recorder",
            statistics.median(measured[name]),
            "/s",
            baseline=statistics.median(measured["library"]),
            ratio=median_ratio(measured[name], measured["library"]),
        )
        many = each * threads
        yield Figure(
            f"{name}, {writers}, appends per commit",
            statistics.median(many / count for count in contender.commits),
            "",
            budget=at_least(6) if threads == 16 else None,
        )
        yield Figure(
            f"{name}, {writers}, CPU of writing per append, against the raw loop",
            statistics.median(contender.writer_seconds) / many * 1e6,
            "µs",
            baseline=statistics.median(raw_seconds) / many * 1e6,
            ratio=median_ratio(contender.writer_seconds, raw_seconds),
            budget=at_most(35) if threads == 16 else None,
        )


def _budget(name: str, fdatasync_ms: float, threads: int) -> Budget | None:
    if threads == 1:
        return at_least_times(0.7 if name == "Conversations" else 0.5)
    if threads == 16:
        return at_least_times(8 if fdatasync_ms >= SLOW_DISK_MS else 1.5)
    return None


def _rate(contender: Contender, threads: int, each: int) -> float:
    def work(number: int) -> Callable[[], None]:
        def appends() -> None:
            for _ in range(each):
                contender.append(number)

        return appends

    return threads * each / run_concurrently([work(number) for number in range(threads)])


def _counting(contender: Contender, threads: int, each: int, commits: Commits) -> Callable[[], float]:
    def one_round() -> float:
        before, seconds_before = commits.count, commits.seconds
        rate = _rate(contender, threads, each)
        contender.commits.append(commits.count - before)
        contender.writer_seconds.append(commits.seconds - seconds_before)
        return rate

    return one_round


@contextmanager
def counted_commits() -> Iterator[Commits]:
    """Count the commits of all SQLite stores in this context, and the CPU of the threads that write."""
    commits = Commits()
    commit, write = SQLiteWriter.commit, SQLiteWriter.write

    def measure_write(writer: SQLiteWriter, appends: Sequence[Append]) -> Outcomes:
        begin = time.thread_time()
        try:
            return write(writer, appends)
        finally:
            commits.seconds += time.thread_time() - begin

    def count_commit(writer: SQLiteWriter, connection: sqlite3.Connection) -> None:
        commits.count += 1
        commit(writer, connection)

    with patch.object(SQLiteWriter, "commit", count_commit), patch.object(SQLiteWriter, "write", measure_write):
        yield commits


@contextmanager
def _raw(setting: Setting) -> Iterator[Contender]:
    """One INSERT per commit on one connection: SQLite's own speed with such rows."""
    connection = raw_store(setting.fresh("raw"), "FULL")
    versions = _versions()
    with closing(connection):
        yield Contender(lambda stream: insert(connection, stream, next(versions[stream])))


@contextmanager
def _library(setting: Setting) -> Iterator[Contender]:
    """Eventsourcing's recorder. Its SQLite connections use ``synchronous=FULL``, Python's default."""
    datastore = SQLiteDatastore(str(setting.fresh("library")), lock_timeout=60, pool_size=16, originator_id_type="text")
    recorder = SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    versions = _versions()
    try:
        yield Contender(lambda stream: recorder.insert_events([_stored(stream, next(versions[stream]))]))
    finally:
        datastore.close()


@contextmanager
def _recorder(setting: Setting) -> Iterator[Contender]:
    """Clew's recorder: hash chain, contiguity and group commit, for stored bytes."""
    log = store_at(setting.url("recorder", durable=True)).open_log()
    recorder = cast("Recorder", log.recorder)
    versions = _versions()

    def append(stream: int) -> None:
        recorder.submit(Append([_stored(stream, next(versions[stream]))])).result()

    with closing(log):
        yield Contender(append)


@contextmanager
def _conversations(setting: Setting, threads: int) -> Iterator[Contender]:
    """The service: validates, decides and encodes messages."""
    messages = MessageGenerator().messages(64)
    with Conversations.open(setting.url("conversations", durable=True)) as conversations:
        lines = [conversations.start_thread() for _ in range(threads)]
        counts = _versions()
        yield Contender(lambda number: lines[number].append(messages[next(counts[number]) % 64]))


def _versions() -> list[Iterator[int]]:
    return [iter(range(1, 10_000_000)) for _ in range(100)]


def _stored(stream: int, version: int) -> StoredEvent:
    return StoredEvent(f"default/thread/{stream}", version, TYPE, STATE)
