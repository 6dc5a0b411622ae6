"""Writers and readers of a PostgreSQL store. They run as threads of a test, or as a program with ``python -m``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

import psycopg
from tests.infrastructure.recorder_steps import append, event, failure, run_threads

from clew.domain.errors import StoreUnavailableError
from clew.domain.ports import Fork, Key
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id, tenant_id
from clew.infrastructure.recorder_ports import RecordedConflictError, Recorder

Seen: TypeAlias = tuple[int, str, int]
"""The position, the stream and the version of an event that was read."""

PAGE = 50


def write(recorder: Recorder, name: str, count: int, notify: Callable[[], object] = lambda: None) -> None:
    """Make ``count`` appends of one or two events each. The last digit of the name selects the kind of append."""
    kind = int(name[-1]) % 4
    for number in range(1, count + 1):
        if kind == 0:
            append(recorder, event(name, number))
        elif kind == 1:
            append(recorder, event(name, number), event(f"{name}-too", number))
        elif kind == 2:  # needs a transaction, because it has a key
            append(recorder, event(name, number), key=Key(name, str(number), b""))
        else:  # a stream that several writers share
            _contend(recorder, "shared")
        notify()


def events_of(names: Sequence[str], count: int) -> int:
    """The number of events that these writers write."""
    return sum(2 if int(name[-1]) % 4 == 1 else 1 for name in names) * count


def _contend(recorder: Recorder, stream: str) -> None:
    version = 1
    while (error := failure(recorder, event(stream, version))) is not None:
        if not isinstance(error, RecordedConflictError):
            raise error
        version = error.actual + 1


def page(recorder: Recorder, after: int) -> list[Seen]:
    """The next events that a reader sees after a position."""
    return [(row.position, row.stream, row.version) for row in recorder.rows(after=after, limit=PAGE)]


def follow(recorder: PostgresRecorder, total: int) -> list[Seen]:
    """Read this number of events through subscriptions."""
    return follow_until(recorder, lambda seen: len(seen) >= total)


def follow_until(recorder: PostgresRecorder, is_done: Callable[[Sequence[Seen]], bool]) -> list[Seen]:
    """Read events through subscriptions until the condition is true. If one is cut, the next continues at its end."""
    seen: list[Seen] = []
    while not is_done(seen):
        with suppress(StoreUnavailableError), recorder.subscribe(gt=seen[-1][0] if seen else 0) as subscription:
            for each in subscription:
                seen.append((each.id, str(each.originator_id), each.originator_version))
                if is_done(seen):
                    break
    return seen


@contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of another client that has its id from the start. It is rolled back unless the test commits it."""
    connection = psycopg.connect(url)
    try:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
    finally:
        with suppress(psycopg.Error):  # its connection may be closed
            connection.rollback()
        connection.close()


def insert(connection: psycopg.Connection[tuple[object, ...]], stream: str) -> None:
    """Start a stream with one event, at a position from the existing transaction id."""
    here = "(SELECT (base + pg_current_xact_id()::text::int8) << 20 FROM clew_meta)"
    ids = {"stream": stream_id(stream), "tenant": tenant_id(stream), "name": stream.encode()}
    connection.execute(
        "INSERT INTO clew_stream (id, tenant, name, began) "  # noqa: S608 - built from constants
        f"VALUES (%(stream)s, %(tenant)s, %(name)s, {here})",
        ids,
    )
    state = f"{stream} 1".encode()
    hashed = link(ROOT, stream, 1, "noted", digest(state))
    connection.execute(
        "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash) "  # noqa: S608 - as above
        f"VALUES ({here}, %(tenant)s, %(stream)s, 1, 'noted', %(state)s, %(hash)s)",
        {**ids, "state": state, "hash": hashed},
    )


def fork(recorder: Recorder, parent: str, cut: int, name: str) -> None:
    """Fork a stream, and append one event to the fork."""
    append(recorder, event(name, cut + 1), forks={name: Fork(parent, cut)})


def main(job: str, url: str, count: str, *names: str) -> None:
    """Write with these names; or print ``open``, follow this number of events, and print them."""
    recorder = PostgresRecorder.open(url)
    if job == "write":
        run_threads([lambda name=name: write(recorder, name, int(count)) for name in names])  # type: ignore[misc] # a bound loop variable
    else:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        json.dump(follow(recorder, int(count)), sys.stdout)
    recorder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
