"""Durable appends to PostgreSQL from threads and processes: Clew, a plain INSERT, and eventsourcing's recorder."""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection

from tests.servers.postgres_server import PostgresServer
from tests.servers.row_level_security import isolate_tenants

from benchmarks.contenders.postgres_writers import CONTENDERS, Save
from benchmarks.measurement import Setting, interleaved, median_ratio, run_concurrently
from benchmarks.report import Budget, Figure, at_least_times
from clew.infrastructure.stores import store_at

VERSION = 18

# The library's recorder is slower, so its rounds are shorter by this factor.
SHARE = {"library": 0.15}

SECURED = "row-level security"
"""Suffix of the contenders that write as a user who sees one tenant."""

Round = Callable[[int], float]
"""Lets every writer make that many saves. Returns the total saves per second."""


def run(setting: Setting) -> Iterator[Figure]:
    """Saves per second of one event and of ten, each save in its own commit."""
    with PostgresServer(VERSION) as server:
        for events in (1, 10):
            for writers in (1, 4, 16):
                yield from _measured(setting, server, f"{writers} thread{'s'[: writers > 1]}", writers, events)
            yield from _measured(setting, server, "4 processes", 4, events)


def _measured(setting: Setting, server: PostgresServer, label: str, writers: int, events: int) -> Iterator[Figure]:
    start_writers = _processes if label.endswith("processes") else _threads
    saves = max(setting.size(1_600, 240) // events, setting.size(640, 160)) // writers
    with ExitStack() as stack:
        urls = {name: stack.enter_context(server.database()) for name in CONTENDERS}
        for name, url in list(urls.items()):
            if name.endswith(SECURED):
                urls[name] = isolate_tenants(url).app
            elif name != "library":
                store_at(url).migrate()
        rounds = stack.enter_context(start_writers(urls, writers, events))
        for name, one in rounds.items():
            one(max(int(saves * SHARE.get(name, 1) / 2), 8))  # prepares statements and fills the disk cache
        measured = interleaved(
            setting.size(7, 3),
            {name: partial(one, max(int(saves * SHARE.get(name, 1)), 8)) for name, one in rounds.items()},
        )
    for name in [name for name in CONTENDERS if name not in ("raw", "library")]:
        yield Figure(
            f"{name}, {label}, {events} event{'s'[: events > 1]} per save, against a plain INSERT",
            statistics.median(measured[name]),
            "/s",
            baseline=statistics.median(measured["raw"]),
            ratio=median_ratio(measured[name], measured["raw"]),
            budget=None if name.endswith(SECURED) else _budget(name, writers),
        )
    yield Figure(
        f"insert_events, {label}, {events} event{'s'[: events > 1]} per save, against eventsourcing's recorder",
        statistics.median(measured["insert_events"]),
        "/s",
        baseline=statistics.median(measured["library"]),
        ratio=median_ratio(measured["insert_events"], measured["library"]),
        budget=at_least_times(5) if writers == 16 else None,
    )


def _budget(name: str, writers: int) -> Budget | None:
    if name == "Conversations.append":
        return at_least_times(0.5)
    return at_least_times(0.8) if writers == 16 else None


@contextmanager
def _threads(urls: Mapping[str, str], writers: int, events: int) -> Iterator[dict[str, Round]]:
    """Writers as threads of this process."""
    with ExitStack() as stack:
        saves = {name: stack.enter_context(CONTENDERS[name](url, writers, events)) for name, url in urls.items()}
        yield {name: partial(_in_threads, save, writers) for name, save in saves.items()}


def _in_threads(save: Save, writers: int, each: int) -> float:
    def work(writer: int) -> None:
        for _ in range(each):
            save(writer)

    return writers * each / run_concurrently([partial(work, writer) for writer in range(writers)])


@contextmanager
def _processes(urls: Mapping[str, str], writers: int, events: int) -> Iterator[dict[str, Round]]:
    """Writers as processes, each with its own open stores."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    for _ in range(writers):
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, dict(urls), events), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        yield {name: partial(_in_processes, pipes, name) for name in urls}
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


def _in_processes(pipes: list[Connection], name: str, each: int) -> float:
    for pipe in pipes:
        pipe.send((name, each))
    took: list[tuple[float, float]] = [pipe.recv() for pipe in pipes]
    return len(pipes) * each / (max(end for _, end in took) - min(begin for begin, _ in took))


def _serve(pipe: Connection, urls: dict[str, str], events: int) -> None:
    """One writer process: makes the requested saves until it receives None."""
    with ExitStack() as stack:
        saves = {name: stack.enter_context(CONTENDERS[name](url, 1, events)) for name, url in urls.items()}
        pipe.send(None)
        while (request := pipe.recv()) is not None:
            name, each = request
            begin = time.monotonic()
            for _ in range(each):
                saves[name](0)
            pipe.send((begin, time.monotonic()))
    sys.exit()
