"""Ways of appending to PostgreSQL: a plain INSERT, Clew's recorder, eventsourcing's recorder, and the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import cache
from itertools import count
from statistics import mean
from typing import Any, cast

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8

from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations
from clew.infrastructure.postgres.datastore import PostgresDatastore as ClewDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append

TYPE = "message-appended"
HASH = bytes(32)
TENANT = "default"

Save = Callable[[int], object]
"""Makes one save as the writer with that number, and returns when it is durable."""

COLUMNS = "position, tenant, stream, version, type, state, hash"


@cache
def state_size() -> int:
    """The mean number of stored bytes of a message of 200 characters."""
    with Conversations.open("memory:") as conversations:
        conversations.start_thread().append(MessageGenerator().messages(64))
        log = conversations._core.log  # noqa: SLF001  # needs the stored bytes
        return round(mean(len(row.state) for row in log.rows_after(0, 99, "") if row.type == TYPE))


@contextmanager
def raw(url: str, writers: int, events: int) -> Iterator[Save]:
    """One prepared INSERT with binary parameters per commit into Clew's table; one connection per writer."""
    row = "(%b, %b, %b, %b, %b, %b, %b)"
    sql = f"INSERT INTO clew_event ({COLUMNS}) VALUES {', '.join([row] * events)}".encode()  # noqa: S608  # constants
    with ExitStack() as stack:
        connections = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(writers)]
        cursors = [connection.cursor(binary=True) for connection in connections]
        streams, versions, positions = _numbers(writers), [count(1) for _ in range(writers)], count(1)
        state, type_ = os.urandom(state_size()), TYPE.encode()

        def save(writer: int) -> None:
            parameters: list[object] = []
            for _ in range(events):
                version = Int8(next(versions[writer]))
                parameters += (Int8(next(positions)), Int8(7), Int8(streams[writer]), version, type_, state, HASH)
            cursors[writer].execute(sql, parameters, prepare=True)

        yield save


@contextmanager
def recorder(url: str, writers: int, events: int) -> Iterator[Save]:
    """Clew's recorder: hash chain and contiguity, for stored bytes."""
    with closing(PostgresRecorder.open(url)) as opened:
        next_events = _events(writers, events)
        yield lambda writer: opened.submit(Append(next_events(writer))).result()


@contextmanager
def insert_events(url: str, writers: int, events: int) -> Iterator[Save]:
    """The same with the method that the library's applications call."""
    with closing(PostgresRecorder.open(url)) as opened:
        next_events = _events(writers, events)
        yield lambda writer: opened.insert_events(next_events(writer))


@contextmanager
def secured_recorder(url: str, writers: int, events: int) -> Iterator[Save]:
    """Clew's recorder on a database that isolates tenants by row-level security."""
    datastore = ClewDatastore(url, originator_id_type="text", tenant=TENANT)
    with closing(PostgresRecorder(datastore)) as opened:
        next_events = _events(writers, events)
        yield lambda writer: opened.submit(Append(next_events(writer))).result()


@contextmanager
def library(url: str, writers: int, events: int) -> Iterator[Save]:
    """Eventsourcing's recorder, with one connection per writer."""
    parameters = cast("dict[str, Any]", conninfo_to_dict(url))
    server = {name: parameters[name] for name in ("dbname", "host", "port", "user")}
    datastore = PostgresDatastore(
        **server, password="", pool_size=writers, pool_open_timeout=None, originator_id_type="text"
    )
    with datastore:
        datastore.pool.open(wait=True)  # several threads cannot open it at once
        opened = PostgresApplicationRecorder(datastore)
        with psycopg.connect(url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(1)")  # concurrent creation would fail
            opened.create_table()
        next_events = _events(writers, events)
        yield lambda writer: opened.insert_events(next_events(writer))


@contextmanager
def conversations(url: str, writers: int, events: int) -> Iterator[Save]:
    """The service: validates, decides and encodes messages. Without read models, like the others."""
    messages = MessageGenerator().messages(64)
    batches = [messages[number : number + events] for number in range(64 - events)]
    with Conversations.open(url, embedded=False) as opened:
        threads = [opened.start_thread() for _ in range(writers)]
        turns = [count() for _ in range(writers)]
        yield lambda writer: threads[writer].append(batches[next(turns[writer]) % len(batches)])


CONTENDERS: dict[str, Callable[[str, int, int], AbstractContextManager[Save]]] = {
    "raw": raw,
    "submit": recorder,
    "insert_events": insert_events,
    "library": library,
    "Conversations.append": conversations,
    "submit, row-level security": secured_recorder,
    "Conversations.append, row-level security": conversations,
}


def _numbers(writers: int) -> list[int]:
    """Random numbers of streams, unique across processes."""
    return [int.from_bytes(os.urandom(8)) >> 1 for _ in range(writers)]


def _events(writers: int, events: int) -> Callable[[int], list[StoredEvent]]:
    """Returns the next events of a writer's stream."""
    names = [f"{TENANT}/thread/{number}" for number in _numbers(writers)]
    versions = [count(1) for _ in range(writers)]
    state = os.urandom(state_size())
    return lambda writer: [StoredEvent(names[writer], next(versions[writer]), TYPE, state) for _ in range(events)]
