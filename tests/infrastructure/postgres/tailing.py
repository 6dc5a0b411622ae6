"""Writers and readers of a PostgreSQL store, as threads of a test or as a program: ``python -m`` this, with a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

import psycopg
from tests.infrastructure.recording import append, event, failure, run_threads

from clew.domain.errors import StoreUnavailableError
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id, tenant_id
from clew.infrastructure.recorder import Fork, Key, RecordedConflictError, Recorder

Seen: TypeAlias = tuple[int, str, int]
"""Position, stream and version of an event that was read."""

PAGE = 50


def write(recorder: Recorder, name: str, count: int, told: Callable[[], object] = lambda: None) -> None:
    """So many appends of one or two events each, in a manner that hangs on the name: they end with a digit."""
    manner = int(name[-1]) % 4
    for number in range(1, count + 1):
        if manner == 0:
            append(recorder, event(name, number))
        elif manner == 1:
            append(recorder, event(name, number), event(f"{name}-too", number))
        elif manner == 2:  # a transaction: it has a key
            append(recorder, event(name, number), key=Key(name, str(number), b""))
        else:  # a stream that others write to as well
            _contend(recorder, "shared")
        told()


def events_of(names: Sequence[str], count: int) -> int:
    """How many events these writers write."""
    return sum(2 if int(name[-1]) % 4 == 1 else 1 for name in names) * count


def _contend(recorder: Recorder, stream: str) -> None:
    version = 1
    while (error := failure(recorder, event(stream, version))) is not None:
        if not isinstance(error, RecordedConflictError):
            raise error
        version = error.actual + 1


def page(recorder: Recorder, after: int) -> list[Seen]:
    """What a reader finds above a position."""
    return [(row.position, row.stream, row.version) for row in recorder.rows(after=after, limit=PAGE)]


def follow(recorder: PostgresRecorder, total: int) -> list[Seen]:
    """The first so many events, by subscriptions."""
    return follow_until(recorder, lambda seen: len(seen) >= total)


def follow_until(recorder: PostgresRecorder, is_over: Callable[[Sequence[Seen]], bool]) -> list[Seen]:
    """Events by subscriptions, until it is over with one of them: the next subscription goes on where one was cut."""
    seen: list[Seen] = []
    while not is_over(seen):
        with suppress(StoreUnavailableError), recorder.subscribe(gt=seen[-1][0] if seen else 0) as subscription:
            for each in subscription:
                seen.append((each.id, str(each.originator_id), each.originator_version))
                if is_over(seen):
                    break
    return seen


@contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of somebody else's that has an id from the beginning; it is rolled back unless it was committed."""
    connection = psycopg.connect(url)
    try:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
    finally:
        with suppress(psycopg.Error):  # it may have been cut
            connection.rollback()
        connection.close()


def insert(connection: psycopg.Connection[tuple[object, ...]], stream: str) -> None:
    """Begin a stream with one event, under the id that the transaction has had for long."""
    here = "(SELECT (base + pg_current_xact_id()::text::int8) << 20 FROM clew_meta)"
    ids = {"stream": stream_id(stream), "tenant": tenant_id(stream), "name": stream.encode()}
    connection.execute(
        "INSERT INTO clew_stream (id, tenant, name, began) "  # noqa: S608 - made of constants
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
    """Fork a stream, with an event of the fork's own."""
    append(recorder, event(name, cut + 1), forks={name: Fork(parent, cut)})


def main(job: str, url: str, count: str, *names: str) -> None:
    """Write under these names, or say that the store is open, follow so many events, and print them."""
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
