"""The capacity plan: the calculated size of a number of threads in PostgreSQL, checked against real stores.

``python -m benchmarks.capacity_plan`` fills stores of three sizes and prints planned and measured sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from eventsourcing.persistence import StoredEvent
from tests.servers.postgres_server import PostgresServer, ask

from benchmarks.synthetic_data import MessageGenerator, thread_event, thread_id_of
from clew import Conversations
from clew.domain.events import MessageAppended, ThreadStarted
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.stores import store_at

THREADS = (1_000, 10_000, 100_000)
TURNS = 10
SCALE = 0.1
"""Default share of the threads of each size that is created."""

TOLERANCE = 0.15
"""Accepted relative difference between plan and measurement."""

LIVE_TURNS = 1_000

BATCH_SIZE = 200
"""Threads per append."""

PAGE = 8_192
USED = PAGE - 24
"""Bytes of a page without its header."""

SPLIT = 0.5
"""Fill factor of index leaves whose keys are ordered within a thread, with threads in random order."""

FIRST_PAGES = 14
"""Pages of empty indexes."""

FULL = 0.9
"""Fill factor of index leaves whose keys only grow."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows and bytes of a log: of its tables, and of their indexes."""

    streams: int
    events: int
    table: int
    indexes: int

    @property
    def bytes(self) -> int:
        """Both together."""
        return self.table + self.indexes


def plan(threads: int, turns: int, state: float, name: int) -> Sizes:
    """The size of that many threads with that many turns in PostgreSQL's layout.

    ``state`` is the mean length of a stored event, ``name`` the mean length of a stream's name, both in bytes.
    """
    events = threads * (1 + 2 * turns)
    # A row begins with 24 bytes and has a pointer of 4; numbers take 8, bytes their length and 1 or 4 for it.
    event = 4 + _aligned(24 + 4 * 8 + (1 + 16) + (4 + state) + (1 + 32))
    stream = 4 + _aligned(24 + 3 * 8 + (1 + name) + 8 + 4)
    # An entry of an index: 8 bytes, its key, and a pointer of 4. Equal keys of one tenant are stored once each page.
    of_event = (8 + 16 + 4) / SPLIT + (8 + 8 + 4) / FULL
    of_stream = (8 + 8 + 4) / 0.7 + (8 + 8 + 4) / FULL + (8 + 16 + 4) / FULL + (8 + _aligned(1 + name) + 4) / 0.7
    table = events * PAGE / (USED // event) + threads * PAGE / (USED // stream)
    indexes = events * of_event + threads * of_stream + FIRST_PAGES * PAGE
    return Sizes(threads, events, round(table), round(indexes))


def fill(url: str, threads: int, turns: int) -> tuple[float, float]:
    """Fill a database with turns of 200 + 200 characters. Returns the mean lengths of a state and of a name."""
    generator = MessageGenerator()
    states = names = 0
    with closing(store_at(url).open_log()) as log:
        recorder = cast("Recorder", log.recorder)
        for first in range(0, threads, BATCH_SIZE):
            events = [
                event
                for number in range(first, min(first + BATCH_SIZE, threads))
                for event in _thread(number, turns, generator)
            ]
            states += sum(len(event.state) for event in events)
            names += sum(len(str(event.originator_id)) for event in events if event.originator_version == 1)
            recorder.submit(Append(events)).result()
    return states / (threads * (1 + 2 * turns)), names / threads


def measure(url: str) -> Sizes:
    """The measured size of the log in a database."""
    ask(url, "VACUUM ANALYZE clew_event, clew_stream")
    [(streams, events)] = ask(url, "SELECT (SELECT count(*) FROM clew_stream), (SELECT count(*) FROM clew_event)")
    [(table, indexes)] = ask(
        url,
        "SELECT sum(pg_relation_size(oid))::int8, sum(pg_indexes_size(oid))::int8 FROM pg_class "
        "WHERE relname IN ('clew_event', 'clew_stream')",
    )
    return Sizes(streams, events, table, indexes)


def live(url: str, turns: int) -> tuple[float, float, float]:
    """Costs of a turn with two separate appends: bytes of WAL, milliseconds of server CPU, and commits."""
    with Conversations.open(url, embedded=False) as conversations:
        generator = MessageGenerator()
        threads = [conversations.start_thread() for _ in range(16)]
        before = _wal(url), _cpu(url), _commits(url)
        for turn in range(turns):
            for message in generator.turn():
                threads[turn % 16].append(message)
        after = _wal(url), _cpu(url), _commits(url)
    wal, cpu, commits = ((one - other) / turns for one, other in zip(after, before, strict=True))
    return wal, cpu, commits


def off(planned: Sizes, measured: Sizes) -> float:
    """The relative difference between the planned and the measured bytes."""
    return abs(measured.bytes - planned.bytes) / planned.bytes


def main() -> int:
    """Print plan and measurement for three sizes. Returns 1 if they differ by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity_plan", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help=f"share of the threads of each size ({SCALE})")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"turns of each thread ({TURNS})")
    options = parser.parse_args()
    print(f"{'threads':>9} {'rows':>10} {'planned':>14} {'measured':>14} {'off':>6} {'WAL a turn':>11}")
    wrong = False
    with PostgresServer(18) as server:
        for size in THREADS:
            threads = max(1, round(size * options.scale))
            with server.database() as url:
                store_at(url).open_log().close()
                before = _wal(url)
                state, name = fill(url, threads, options.turns)
                wal = (_wal(url) - before) / (threads * options.turns)
                planned, measured = plan(threads, options.turns, state, round(name)), measure(url)
            differs = off(planned, measured)
            agrees = differs <= TOLERANCE and planned.events == measured.events and planned.streams == measured.streams
            wrong = wrong or not agrees
            print(
                f"{threads:>9,} {measured.events:>10,} {planned.bytes:>12,} B {measured.bytes:>12,} B "
                f"{differs:>6.1%} {wal:>9,.0f} B{'' if agrees else '  does not agree'}"
            )
        with server.database() as url:
            wal, cpu, commits = live(url, LIVE_TURNS)
    print(f"A turn whose two messages are appended one by one: {commits:.1f} commits, {wal:,.0f} B of WAL,")
    print(f"{cpu:.2f} ms of the server's CPU.")
    print(f"The plan {'does not hold' if wrong else 'holds'}: rows as planned, bytes within {TOLERANCE:.0%} of it.")
    return int(wrong)


def _aligned(length: float) -> float:
    """A length, rounded up to a multiple of eight."""
    return -(-length // 8) * 8


def _wal(url: str) -> int:
    [(position,)] = ask(url, "SELECT pg_current_wal_insert_lsn() - '0/0'")
    return int(position)


def _cpu(url: str) -> float:
    """Milliseconds of CPU used by the sessions of a server on this machine."""
    ticks = 0
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    for (pid,) in ask(url, f"SELECT pid FROM pg_stat_activity WHERE {others}"):  # noqa: S608  # built from constants
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 1e3 / os.sysconf("SC_CLK_TCK")


def _commits(url: str) -> int:
    """Committed transactions that wrote something."""
    [(transaction,)] = ask(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")
    return int(transaction)


def _thread(number: int, turns: int, generator: MessageGenerator) -> Iterator[StoredEvent]:
    yield thread_event(thread_id_of(number), 1, ThreadStarted(), number, 0)
    for turn in range(turns):
        for place, message in enumerate(generator.turn()):
            version = 2 * turn + place + 1
            yield thread_event(thread_id_of(number), version + 1, MessageAppended(message=message), number, version)


if __name__ == "__main__":
    sys.exit(main())
