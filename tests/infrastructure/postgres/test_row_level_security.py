"""Row-level security: what each of the two roles can see and do. The tests log in and query the database directly."""

from __future__ import annotations

import re
from contextlib import closing
from hashlib import sha256

import psycopg
import pytest
from tests.infrastructure.recorder_steps import append, event
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import Logins, ask_as_tenant

from clew import Conversations, Message, Record
from clew.domain.ports import Fork
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.infrastructure.stores import store_at

A, B = stream_id("a"), stream_id("b")
EVENT = "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash)"


@pytest.mark.parametrize("tenant", [None, "", "missing", "a/b"])
def test_without_a_tenant_no_row_is_visible(shared_logins: Logins, tenant: str | None) -> None:
    for table in ("clew_event", "clew_stream", "clew_key", "clew_snapshot", "clew_entry", "clew_fold_state"):
        assert ask_as_tenant(shared_logins.app, f"SELECT count(*) FROM {table}", tenant) == [(0,)]  # noqa: S608 - built from constants
    assert ask_as_tenant(shared_logins.app, "SELECT count(*), min(tenant), max(tenant) FROM clew_stream", "a") == [
        (1, A, A)
    ]
    assert ask(shared_logins.operator, "SELECT count(*) FROM clew_stream") == [(2,)]


@pytest.mark.parametrize("role", ["app", "operator"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE clew_event SET state = ''",
        "UPDATE clew_event SET digest = NULL WHERE version = 2",
        "DELETE FROM clew_event",
        "TRUNCATE clew_event",
        "UPDATE clew_stream SET began = 0",
        "UPDATE clew_stream SET name = ''",
        "DELETE FROM clew_stream",
        "DROP TABLE clew_event",
        "ALTER TABLE clew_event DISABLE ROW LEVEL SECURITY",
        "DROP POLICY clew_tenant ON clew_event",
        "MERGE INTO clew_event USING (SELECT 1) AS one ON true WHEN MATCHED THEN DELETE",
        "INSERT INTO clew_event SELECT * FROM clew_event ON CONFLICT (stream, version) DO UPDATE SET state = ''",
    ],
)
def test_neither_role_can_change_or_delete_events(shared_logins: Logins, role: str, statement: str) -> None:
    before = ask(shared_logins.owner, "SELECT * FROM clew_event ORDER BY position")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask_as_tenant(getattr(shared_logins, role), statement, "a")
    assert ask(shared_logins.owner, "SELECT * FROM clew_event ORDER BY position") == before


@pytest.mark.parametrize(
    "statement",
    [
        "{event} VALUES (1, {b}, {theirs}, 9, '', '', '')",
        "{event} VALUES (1, {a}, {theirs}, 9, '', '', '')",
        "{event} VALUES (1, {a}, {mine}, 9, '', '', '')",
        "{event} VALUES (1::bigint << 62, {a}, {mine}, 9, '', '', '')",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({own}, {a}, 'a/thread/new', 1)",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({new}, {a}, 'b/thread/new', 1)",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({new}, {a}, 'a/thread/new', 1)",
        "INSERT INTO clew_lease (tenant, stream, holder, until) VALUES ({a}, {theirs}, '', 9)",
        "INSERT INTO clew_draft (tenant, stream, run, data) VALUES ({a}, {theirs}, '', '')",
        "INSERT INTO clew_key (tenant, stream, key, salt, first, last) VALUES ({a}, {theirs}, '', '', 1, 1)",
        "INSERT INTO clew_snapshot (tenant, stream, version, state) VALUES ({a}, {theirs}, 9, '')",
        "INSERT INTO clew_entry (tenant, stream, number, version) VALUES ({a}, {theirs}, 1, 9)",
        "INSERT INTO clew_fold_state (tenant, stream, name, slot, version, state) VALUES ({a}, {theirs}, '', 1, 1, '')",
        "INSERT INTO clew_blob (tenant, digest, kind, data, came) VALUES ({b}, '', '', '', 1)",
        "UPDATE clew_meta SET base = 0",
        "UPDATE clew_generation SET position = 0",
        "DELETE FROM clew_key",
    ],
)
def test_no_row_can_be_inserted_for_another_tenant(shared_logins: Logins, statement: str) -> None:
    numbers = {"a": A, "b": B, "theirs": stream_id("b/thread/t"), "new": stream_id("b/thread/new")}
    numbers |= {"mine": stream_id("a/thread/t"), "own": stream_id("a/thread/new")}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask_as_tenant(shared_logins.app, statement.format(event=EVENT, **numbers), "a")


def test_no_row_can_be_inserted_below_the_position_of_readers(filled: Logins) -> None:
    ask(filled.owner, "UPDATE clew_meta SET base = base + 100000")
    above = "((SELECT pg_current_xact_id()::text::bigint) + {} + (SELECT base FROM clew_meta)) << 20"
    for off in (-100_000, -1, 1):
        row = f"{above.format(off)}, {A}, {stream_id('a/thread/t')}, 9, '', '', ''"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask_as_tenant(filled.app, f"{EVENT} VALUES ({row})", "a")
    with Conversations.open(filled.app, tenant="a") as conversations:
        conversations.thread("t").append(Message.user("next"))


STUB = b"\x02stub"


def shred(url: str, tenant: str | None, stream: str, version: int, state: bytes, stub: bytes = STUB) -> int | None:
    digest = sha256(state).hexdigest()
    call = f"SELECT clew_shred({stream_id(stream)}, {version}, '\\x{digest}', '\\x{stub.hex()}')"
    (position,) = ask_as_tenant(url, call, tenant)[0]
    return None if position is None else int(position)


def test_a_tenant_can_purge_its_threads(filled: Logins) -> None:
    with Conversations.open(filled.app, tenant="a") as conversations:
        thread = conversations.thread("t")
        thread.append(Message.user("secret"), idempotency_key="k")
        thread.purge(forks=True)
        assert "secret" not in str(list(thread.events()))
        assert thread.verify().first_bad is None
    number = stream_id("a/thread/t")
    keys = f"SELECT count(*) FROM clew_key WHERE stream = {number}"  # noqa: S608 - a number
    assert ask(filled.owner, keys) == [(0,)]


def test_only_messages_of_the_tenant_can_be_shredded(filled: Logins) -> None:
    own = f"SELECT version, state, position FROM clew_event WHERE tenant = {A} ORDER BY version"  # noqa: S608 - a number
    theirs = f"SELECT * FROM clew_event WHERE tenant = {B} ORDER BY version"  # noqa: S608 - a number
    rows = ask(filled.owner, own)
    states = {version: state for version, state, _ in rows}
    others = ask(filled.owner, theirs)
    stream = "a/thread/t"
    for url in (filled.app, filled.operator):
        for tenant in (None, "", "b"):
            assert shred(url, tenant, stream, 2, states[2]) is None
        assert shred(url, "a", stream, 2, b"other bytes") is None
        assert shred(url, "a", stream, 9, states[2]) is None
    assert ask(filled.owner, own) == rows
    assert shred(filled.app, "a", stream, 3, states[3]) == rows[2][2]
    assert shred(filled.app, "a", stream, 3, states[3]) is None, "it is already shredded"
    shredded = "SELECT version, state, digest FROM clew_event WHERE digest IS NOT NULL"
    assert ask(filled.owner, shredded) == [(3, STUB, sha256(states[3]).digest())]
    assert ask(filled.owner, "SELECT tenant FROM clew_key WHERE digest IS NULL") == [(A,)]
    assert shred(filled.operator, "a", stream, 2, states[2]) == rows[1][2]
    assert ask(filled.owner, theirs) == others


def test_a_message_cannot_be_replaced_by_another_one(filled: Logins) -> None:
    own = f"SELECT state FROM clew_event WHERE tenant = {A} AND version = 2"  # noqa: S608 - a number
    ((state,),) = ask(filled.owner, own)
    for forged in (state.replace(b"from a", b"from b"), b"", b"\x01 not to be read"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            shred(filled.app, "a", "a/thread/t", 2, state, forged)
    assert ask(filled.owner, own) == [(state,)]


def test_no_tenant_can_overflow_the_shared_counter(filled: Logins) -> None:
    for _ in range(2):
        ask_as_tenant(filled.app, f"SELECT clew_count_shreds({2**63 - 1})", "a")
    with Conversations.open(filled.app, tenant="b") as conversations:
        thread = conversations.thread("t")
        thread.redact(thread.history().messages[0])
        assert thread.history().messages[0].redacted


def test_a_tenant_can_redact_a_record(filled: Logins) -> None:
    with Conversations.open(filled.app, tenant="b") as conversations:
        thread = conversations.thread("t")
        thread.redact(thread.append(Record("state", "secret")))
        assert thread.records()[0].redacted


def test_a_part_of_a_name_is_not_a_tenant(shared_logins: Logins) -> None:
    assert ask_as_tenant(shared_logins.app, "SELECT clew_tenant(), clew_tenant_name()", "a/thread") == [(None, None)]
    names = "clew_number('a/thread/new'), clew_number('a/thread'), 'a/thread/new'"
    statement = f"INSERT INTO clew_stream (id, tenant, name, began) VALUES ({names}, {PLACE})"  # noqa: S608 - built from constants
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask_as_tenant(shared_logins.app, statement, "a/thread")


def test_the_number_of_a_tenant_is_the_same_in_sql(shared_logins: Logins) -> None:
    for name in ("a", "default", "a%2Fb", "%C3%A4 -._:@"):
        number, plain = ask_as_tenant(shared_logins.app, "SELECT clew_tenant(), clew_tenant_name()", name)[0]
        assert number == stream_id(name)
        assert plain.decode() == re.sub("%2F", "/", name).replace("%C3%A4", "ä")


PLACE = "((SELECT base FROM clew_meta) + pg_current_xact_id()::text::bigint) << 20"
FORK = (
    "INSERT INTO clew_stream (id, tenant, name, parent, cut, began) "
    "SELECT clew_number('{0}'), clew_number('a'), '{0}', clew_number('{1}'), 3, " + PLACE
)


def test_a_parent_is_a_stream_of_the_same_tenant(shared_logins: Logins) -> None:
    messages = set()
    for parent in ("b/thread/t", "b/thread/none", "a/thread/none"):
        for login in (shared_logins.app, shared_logins.operator):
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
                ask_as_tenant(login, FORK.format("a/thread/forged", parent), "a")
            messages.add(str(error.value))
    assert len(messages) == 1, "the error does not reveal whether another tenant's stream exists"
    assert ask(shared_logins.operator, "SELECT count(*) FROM clew_stream WHERE parent IS NOT NULL") == [(0,)]


def test_an_append_can_begin_a_fork_together_with_its_parent(filled: Logins) -> None:
    """The statement sorts the streams by number, so either of them can come first."""
    store = PostgresDatastore(filled.app, tenant="a", originator_id_type="text")
    try:
        recorder = PostgresRecorder(store)
        for parent, fork in (("a/thread/p", "a/thread/f"), ("a/thread/g", "a/thread/q")):
            append(recorder, event(parent, 1), event(fork, 2), forks={fork: Fork(parent, 1)})
            assert [row.version for row in recorder.lineage(fork)] == [1, 2]
    finally:
        store.close()


def test_a_forged_parent_of_another_tenant_shows_nothing_even_to_operators(filled: Logins) -> None:
    forged = FORK.format("a/thread/forged", "b/thread/t")
    ask(filled.owner, f"SET session_replication_role = replica; {forged}")  # bypasses the check
    store = PostgresDatastore(filled.operator, tenant="a", originator_id_type="text")
    try:
        recorder = PostgresRecorder(store)
        assert recorder.lineage("b/thread/t") != []
        assert recorder.lineage("a/thread/forged") == []
    finally:
        store.close()
    with closing(store_at(filled.operator).list_names("a")) as names:
        ((key, _),) = names.streams("a/thread/forged", "a/thread/forged~", 1)
        assert names.events(key, "message-appended") == []
