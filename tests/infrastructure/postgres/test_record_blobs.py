"""The bytes of records in PostgreSQL: while clients append and redact at once, and with row-level security."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.infrastructure.postgres.test_append_transaction import commit_meanwhile, has_lock_wait
from tests.infrastructure.recorder_steps import PATIENCE, append, event, run_threads, wait_until
from tests.infrastructure.side_tables_contract import record_blob, shredding, used
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import isolate_tenants

from clew import Conversations, Record
from clew.domain.event_index import number_of_blob
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id, tenant_id
from clew.infrastructure.recorder_ports import Append

LARGE = record_blob(b"large" * 1_000)
LOCK = 1131177328
"""The number of the lock that a redaction has alone, and an append of bytes with others."""


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    with closing(PostgresRecorder.open(postgres, workers=1)) as recorder:
        append(recorder, event("a", 1), entries=used(LARGE, ("a", 1)), record_blobs=[LARGE])
        yield recorder


@pytest.fixture
def other_client(postgres: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres) as connection:
        yield connection


def test_a_redaction_waits_for_an_append_of_the_same_bytes(
    recorder: PostgresRecorder, other_client: psycopg.Connection[Any], postgres: str
) -> None:
    """The append found the bytes, and its record cannot be seen before it is committed."""
    other_client.execute("SELECT pg_advisory_xact_lock_shared(%s)", (LOCK,))
    other_client.execute(
        "INSERT INTO clew_entry (tenant, stream, number, version) VALUES (%s, %s, %s, 1)",
        (tenant_id("b"), stream_id("b"), number_of_blob(LARGE.digest)),
    )
    future = recorder.submit(Append([event("a", 2)], shreds=[shredding(LARGE, 1)]))
    commit_meanwhile(other_client, postgres, future)
    assert future.result(PATIENCE).versions == (2,)
    assert recorder.record_blobs("a", [LARGE.digest]) == {LARGE.digest: LARGE.data}


def test_an_append_waits_for_a_redaction_that_destroys_the_same_bytes(
    recorder: PostgresRecorder, other_client: psycopg.Connection[Any], postgres: str
) -> None:
    other_client.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    future = recorder.submit(Append([event("b", 1)], entries=used(LARGE, ("b", 1)), record_blobs=[LARGE]))
    thread = threading.Thread(target=future.exception)
    thread.start()
    wait_until(lambda: has_lock_wait(postgres))
    other_client.execute("DELETE FROM clew_entry")
    other_client.execute("DELETE FROM clew_record_blob")
    other_client.commit()
    thread.join(PATIENCE)
    assert future.result(PATIENCE).versions == (1,)
    assert recorder.record_blobs("b", [LARGE.digest]) == {LARGE.digest: LARGE.data}


def test_clients_append_and_redact_the_same_bytes_at_once(postgres: str) -> None:
    blobs = [bytes([number]) * 2_000 for number in range(2)]
    with Conversations.open(postgres, projections=[]) as conversations:
        for number in range(3):
            conversations.start_thread(thread_id=f"t{number}")

    def work(number: int) -> None:
        with Conversations.open(postgres, projections=[]) as conversations:
            thread = conversations.thread(f"t{number}")
            for turn in range(12):
                one, two = thread.append([Record("a", blob=blobs[(turn + each) % 2]) for each in range(2)])
                assert [each.blob for each in thread.records(last=2)] == [one.blob, two.blob]
                thread.redact(one)
                thread.redact(two)
            if number:
                thread.append(Record("a", blob=blobs[number % 2]))

    run_threads([partial(work, number) for number in range(3)])
    with Conversations.open(postgres, projections=[]) as conversations:
        assert conversations.verify().first_bad is None
        assert [conversations.thread(f"t{number}").records(last=1)[0].blob for number in (1, 2)] == blobs[::-1]
        for number in (1, 2):
            conversations.thread(f"t{number}").redact(conversations.thread(f"t{number}").version)
    assert ask(postgres, "SELECT count(*) FROM clew_record_blob") == [(0,)]


def test_a_tenant_has_its_own_bytes(postgres: str) -> None:
    logins = isolate_tenants(postgres)
    data = b"of both" * 1_000
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            conversations.start_thread(thread_id="t").append([Record("x", blob=data), Record("x", blob=data)])
            assert [record.blob for record in conversations.thread("t").records()] == [data, data]
            assert conversations.thread("t").verify().first_bad is None
    count = "SELECT count(*) FROM clew_record_blob"
    assert ask(logins.owner, count) == [(2,)]
    with Conversations.open(logins.app, tenant="a") as conversations:
        thread = conversations.thread("t")
        thread.redact(2)
        assert ask(logins.owner, count) == [(2,)]
        thread.redact(3)
        assert [record.blob for record in thread.records()] == [None, None]
    assert ask(logins.owner, count) == [(1,)]
    with Conversations.open(logins.operator, tenant="b") as conversations:
        assert [record.blob for record in conversations.thread("t").records()] == [data, data]
        conversations.thread("t").purge()
        assert conversations.verify().first_bad is None
    assert ask(logins.owner, count) == [(0,)]


def test_verification_finds_bytes_that_are_missing_damaged_or_unused(postgres: str) -> None:
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(thread_id="t").append([Record("x", blob=LARGE.data)])
        assert conversations.verify().first_bad is None
        for change, fault in (
            ("UPDATE clew_record_blob SET data = data || 'x'", ("t", 2)),
            ("DELETE FROM clew_record_blob", ("t", 2)),
        ):
            ask(postgres, change)
            found = conversations.verify().first_bad
            assert found is not None
            assert found[:2] == fault
        ask(postgres, "INSERT INTO clew_record_blob VALUES (1, sha256('x'), 7, 'x')")
        conversations.thread("t").redact(2)
        found = conversations.verify().first_bad
        assert found is not None
        assert found.reason == "no event has these bytes"
