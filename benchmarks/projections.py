"""Read models: catching up with a log, their cost for appends, and reads during a rebuild."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from eventsourcing.persistence import StoredEvent, Tracking
from eventsourcing.sqlite import SQLiteDatastore, SQLiteTrackingRecorder
from tests.servers.postgres_server import PostgresServer

from benchmarks.measurement import (
    Setting,
    cpu,
    interleaved,
    median_ratio,
    percentile,
    run_concurrently,
    store_url,
    wall,
)
from benchmarks.report import Budget, Figure, at_least
from benchmarks.synthetic_data import BATCH_SIZE, MessageGenerator, many_threads, repeated_conversations
from clew import Conversations
from clew.domain.ports import EventLog
from clew.domain.projection import Projection, Query, Where
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure import code_digest
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.stores import store_at
from clew.projections import SHIPPED, Directory, Search, Usage
from clew.service.projector import BATCH, Projector

VERSION = 18
"""Version of PostgreSQL."""

MESSAGES = MessageGenerator().messages(64)
PAGE = Query("thread", [Where("tenant", "=", "default")], order=("-updated_at", "-begun"), limit=100)
SETS: dict[str, tuple[tuple[Projection, ...], Budget | None]] = {
    "directory and usage": ((Directory(), Usage()), at_least(50_000)),
    "directory, usage and search": ((Directory(), Usage(), Search()), at_least(25_000)),
    "all shipped projections": (SHIPPED, None),
}


def run(setting: Setting) -> Iterator[Figure]:
    """The figures of catching up, then of concurrent appends and of concurrent reads."""
    yield from _catching_up(setting)
    yield from _appending(setting)
    yield from _rebuilding(setting)


# Catching up


def _catching_up(setting: Setting) -> Iterator[Figure]:
    path = setting.fresh("log")
    events = repeated_conversations(path, setting.data_size(200_000))
    with closing(store_at(store_url(path)).open_log()) as log:
        clocks: dict[str, list[float]] = {name: [] for name in SETS}
        measured = interleaved(
            setting.size(3, 1),
            {
                "decoding": lambda: events / cpu(lambda: _decode(log)),
                **{name: _catch_up(setting, log, events, each[0], clocks[name]) for name, each in SETS.items()},
            },
        )
        yield from _catching_up_on_postgres(setting, log, events)
        few = min(events, 5_000)
        library = few / cpu(lambda: _one_by_one(setting.fresh("library"), log, few))
    for name, (_, budget) in SETS.items():
        yield Figure(
            f"{name}, {events:,} events, against reading and decoding them",
            statistics.median(measured[name]),
            "/s",
            baseline=statistics.median(measured["decoding"]),
            ratio=median_ratio(measured[name], measured["decoding"]),
            budget=budget,
            note=f"wall clock: {statistics.median(clocks[name]):,.0f} /s",
        )
    yield Figure("for comparison: one table and one transaction per event, as in eventsourcing", library, "/s")


def _catching_up_on_postgres(setting: Setting, log: EventLog, events: int) -> Iterator[Figure]:
    """The same log and its tables in PostgreSQL, against SQLite by the wall clock, in turns."""
    clocks: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with PostgresServer(VERSION) as server, server.database() as url, closing(store_at(url).open_log()) as copy:
        _copy(log, copy)
        with closing(PostgresProjections(url)) as store:
            for _ in range(setting.size(3, 1)):
                for name, (projections, _) in SETS.items():
                    with store.session(0) as session:
                        for built in session.generations():
                            session.drop(built)
                    begin = time.perf_counter()
                    took = cpu(_projector(copy, store, projections).drain)
                    clocks.setdefault(name, []).append(events / (time.perf_counter() - begin))
                    rates.setdefault(name, []).append(events / took)
                    _catch_up(setting, log, events, projections, clocks.setdefault(f"{name} on SQLite", []))()
    for name, (_, budget) in SETS.items():
        yield Figure(
            f"{name}, on PostgreSQL by the wall clock, against SQLite",
            statistics.median(clocks[name]),
            "/s",
            baseline=statistics.median(clocks[f"{name} on SQLite"]),
            ratio=median_ratio(clocks[name], clocks[f"{name} on SQLite"]),
            budget=budget,
        )
        yield Figure(
            f"{name}, on PostgreSQL, CPU of the worker process without the server",
            statistics.median(rates[name]),
            "/s",
        )


def _copy(log: EventLog, to: EventLog) -> None:
    """Append the rows of a log to another log unchanged."""
    source, target = cast("Recorder", cast("Any", log).recorder), cast("Recorder", cast("Any", to).recorder)
    after = 0
    while rows := source.rows(after=after, limit=BATCH_SIZE):
        after = rows[-1].position
        target.submit(Append([StoredEvent(row.stream, row.version, row.type, row.state) for row in rows])).result()


def _catch_up(
    setting: Setting, log: EventLog, events: int, projections: Sequence[Projection], clock: list[float]
) -> Callable[[], float]:
    def once() -> float:
        path = setting.fresh("filled")
        with closing(SQLiteProjections(str(path))) as store:
            begin = time.perf_counter()
            took = cpu(_projector(log, store, projections).drain)
            clock.append(events / (time.perf_counter() - begin))
        path.unlink()  # all rounds together would need a gigabyte
        return events / took

    return once


def _projector(log: EventLog, store: ProjectionStore, projections: Sequence[Projection]) -> Projector:
    return Projector(log, store, projections, code_digest.code)


def _decode(log: EventLog) -> None:
    position = 0
    while events := log.events_after(position, BATCH, ""):
        position = events[-1].position or 0


def _one_by_one(path: Path, log: EventLog, events: int) -> None:
    """Count each thread's events in a table, in the transaction that tracks the position."""
    with closing(SQLiteDatastore(str(path), originator_id_type="text")) as datastore:
        recorder = SQLiteTrackingRecorder(datastore)
        recorder.create_table()
        with datastore.transaction(commit=True) as cursor:
            cursor.execute("CREATE TABLE counted (stream TEXT PRIMARY KEY, events INTEGER NOT NULL)")
        position = 0
        while position < events:
            for event in log.events_after(position, BATCH, ""):
                position = event.position or 0
                with datastore.transaction(commit=True) as cursor:
                    recorder._insert_tracking(cursor, Tracking("log", position))  # noqa: SLF001 - the library calls it, too
                    cursor.execute(
                        "INSERT INTO counted VALUES (?, 1) ON CONFLICT (stream) DO UPDATE SET events = events + 1",
                        (event.stream,),
                    )


# Appending


def _appending(setting: Setting) -> Iterator[Figure]:
    for writers in (1, 16):
        each = setting.size(8_000, 1_600) // writers
        latencies: dict[bool, list[float]] = {True: [], False: []}
        measured = interleaved(
            setting.size(5, 3),
            {
                "embedded": lambda: _rate(setting, writers, each, latencies[True], embedded=True),  # noqa: B023 - called at once
                "alone": lambda: _rate(setting, writers, each, latencies[False], embedded=False),  # noqa: B023 - called at once
            },
        )
        many = "1 thread" if writers == 1 else f"{writers} threads"
        yield Figure(
            f"appends while read models are updated, {many}, against without",
            statistics.median(measured["embedded"]),
            "/s",
            baseline=statistics.median(measured["alone"]),
            ratio=median_ratio(measured["embedded"], measured["alone"]),
        )
        yield Figure(
            f"their p99, {many}",
            percentile(latencies[True], 99) * 1e3,
            "ms",
            baseline=percentile(latencies[False], 99) * 1e3,
            ratio=percentile(latencies[True], 99) / percentile(latencies[False], 99),
        )


def _rate(setting: Setting, writers: int, each: int, latencies: list[float], *, embedded: bool) -> float:
    with Conversations.open(setting.url("appends", durable=True), embedded=embedded) as conversations:
        threads = [conversations.start_thread() for _ in range(writers)]

        def work(number: int) -> Callable[[], None]:
            def appends() -> None:
                for turn in range(each):
                    begin = time.perf_counter()
                    threads[number].append(MESSAGES[turn % 64])
                    latencies.append(time.perf_counter() - begin)

            return appends

        return writers * each / run_concurrently([work(number) for number in range(writers)])


# Rebuilding


def _rebuilding(setting: Setting) -> Iterator[Figure]:
    path = setting.fresh("rebuilt")
    events = many_threads(path, setting.size(25_000, 5_000))
    with (
        closing(store_at(store_url(path)).open_log()) as log,
        closing(SQLiteProjections(f"{path}.projections")) as store,
    ):
        projector = _projector(log, store, [Directory()])
        projector.drain()
        before = [wall(lambda: _page(store)) for _ in range(200)]
        rebuilding = threading.Thread(target=lambda: list(projector.rebuild("directory")))
        rebuilding.start()
        during: list[float] = []
        while rebuilding.is_alive():
            during.append(wall(lambda: _page(store)))
        rebuilding.join()
    for name, of in (("median", 50), ("p99", 99)):
        yield Figure(
            f"a page of 100 threads during a rebuild of {events:,} events, against before, {name}",
            percentile(during, of) * 1e3,
            "ms",
            baseline=percentile(before, of) * 1e3,
            ratio=percentile(during, of) / percentile(before, of),
            note=f"{len(during)} pages, none of them short" if name == "median" else "",
        )


def _page(store: SQLiteProjections) -> None:
    count = len(store.select("directory", PAGE))
    if count != 100:
        message = f"A page has {count} threads instead of 100: the rebuild is visible."
        raise RuntimeError(message)
