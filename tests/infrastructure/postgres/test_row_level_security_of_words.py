"""An index of words in a database that keeps tenants apart: each finds its own texts, and fast."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import psycopg
import pytest
from tests.infrastructure.recording import PATIENCE, wait_until
from tests.servers.postgres_server import Databases, ask
from tests.servers.tenant_databases import Logins, ask_as_tenant, fill, isolate_tenants

from clew import Conversations, Message
from clew.domain.search_terms import tenant_scope
from clew.infrastructure.postgres import text_index
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.service.projection_runner import Runner


@pytest.fixture(scope="module", params=[1, text_index.STRETCH], ids=["listed", "growing"])
def searched(databases: Databases, request: pytest.FixtureRequest) -> Iterator[Logins]:
    """Two tenants' threads with an index of their words; tests change nothing."""
    with databases.one() as url, pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_index, "STRETCH", request.param)
        patched.setattr(text_index, "AT_ONCE", 3)
        logins = fill(isolate_tenants(url))
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        yield logins


def _found(url: str, tenant: str | None, index: str = "words", word: str = "") -> list[int]:
    """The positions that the function finds for who asks it directly, by default all that it would ever show."""
    words = f"'{{{word}}}', '{{}}', '{{}}'" if word else f"'{{}}', '{{\"\"}}', '{{{chr(0x10FFFF)}}}'"
    asked_for = (
        f"clew_find(id, '{index}', {words}, false, '{{\" {word}\"}}', '{{true}}', {2**63 - 1}, {2**63 - 1}, 100, 100) "
        "AS found WHERE name = 'search' AND live AND found.position IS NOT NULL"
    )
    rows = ask_as_tenant(url, f"SELECT found.position FROM clew_generation CROSS JOIN LATERAL {asked_for}", tenant)  # noqa: S608 - of constants
    return sorted(position for (position,) in rows)


def test_a_tenant_s_words_are_found_by_their_index(searched: Logins) -> None:
    looked = "SELECT sum(idx_scan) FROM pg_stat_user_tables WHERE relname ~ '^clew_g[0-9]+_+words$'"
    before = ask(searched.owner, looked)
    for tenant in "ab":
        with Conversations.open(searched.app, tenant=tenant) as conversations:
            hits = conversations.search("from")
            assert ["".join(part.text for part in hit.snippet) for hit in hits] == [f"from {tenant}"]
            assert len(conversations.search('"from b" -more')) == (tenant == "b")
            assert len(conversations.search("mor*", thread="t")) == 1
    wait_until(lambda: ask(searched.owner, looked) > before)


def test_the_words_of_all_tenants_are_the_operators_alone(searched: Logins) -> None:
    tables = "SELECT relname FROM pg_class WHERE relname ~ '^clew_g[0-9]+__words$' AND relkind = 'r'"
    ((postings,),) = ask(searched.owner, f"{tables} AND relrowsecurity AND relforcerowsecurity")
    count = f"SELECT count(*) FROM {postings}"  # noqa: S608 - a name of ours
    assert ask(searched.operator, count) == ask(searched.owner, count)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=postings):
        ask_as_tenant(searched.app, count, "a")
    ask(searched.owner, f"GRANT SELECT ON {postings} TO clew_app")
    assert ask_as_tenant(searched.app, count, "a") == [(0,)]
    ask(searched.owner, f"REVOKE ALL ON {postings} FROM clew_app")


def test_whatever_is_asked_of_an_index_of_words_it_shows_the_tenant_s_texts_alone(searched: Logins) -> None:
    positions = "SELECT position FROM clew_event WHERE type = 'message-appended' AND tenant = {} ORDER BY position"
    own = {tenant: [each for (each,) in ask(searched.owner, positions.format(stream_id(tenant)))] for tenant in "ab"}
    assert _found(searched.app, "a") == own["a"]
    assert _found(searched.app, "b") == own["b"]
    others = f"/{sha256(tenant_scope('b').encode()).hexdigest()[:16]}"
    assert _found(searched.app, "b", word=others) == own["b"]
    assert _found(searched.app, "a", word=others) == []
    for tenant in (None, "", "nobody", "a/thread"):
        assert _found(searched.app, tenant) == []


@pytest.mark.parametrize("index", ["none", "", "words AS there, clew_event", "words''; DROP TABLE clew_event; --"])
def test_an_index_of_words_is_one_that_was_declared(searched: Logins, index: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="no such text index"):
        _found(searched.app, "a", index)


def test_nobody_else_looks_into_an_index_of_words(searched: Logins) -> None:
    ask(searched.owner, "CREATE ROLE clew_nobody")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="clew_find"):
            ask(
                searched.owner,
                "SET ROLE clew_nobody; SELECT clew_find(1, '', '{}', '{}', '{}', true, '{}', '{}', 1, 1, 1, 1)",
            )
    finally:
        ask(searched.owner, "DROP ROLE clew_nobody")


def test_a_worker_cleans_away_the_words_that_a_tenant_redacted(logins: Logins) -> None:
    with Conversations.open(logins.app, tenant="a", embedded=False) as conversations:
        thread = conversations.start_thread(messages=[Message.user("a secret"), Message.user("none")])
        filled(logins)
        thread.redact(2)
        filled(logins)
    # How many rows are left is told late: by who has deleted them, once he has been idle for a while.
    assert ask(logins.owner, VACUUMS) == [(1,), (1,)]


def test_a_service_of_the_operators_cleans_away_what_a_tenant_redacted(logins: Logins) -> None:
    with Conversations.open(logins.operator) as operator:
        with Conversations.open(logins.app, tenant="a") as conversations:
            thread = conversations.start_thread(messages=[Message.user("a secret"), Message.user("none")])
            operator.wait()
            thread.redact(2)
        operator.wait()
        wait_until(lambda: ask(logins.owner, VACUUMS) == [(1,), (1,)])


VACUUMS = "SELECT pg_stat_get_vacuum_count(oid) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'clew_g%words'"


def filled(logins: Logins) -> None:
    """Let a worker fill all projections."""
    with Conversations.open(logins.operator, embedded=False) as operator:
        Runner(operator._core, [], lambda *_: None).run()


def test_who_sees_one_tenant_waits_for_the_position_of_another_s_event(logins: Logins) -> None:
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            conversations.start_thread()
    filled(logins)
    with Conversations.open(logins.operator) as operator:
        newest = operator.position()
    with Conversations.open(logins.app, tenant="a") as conversations:
        conversations.wait(newest, timeout=PATIENCE)
