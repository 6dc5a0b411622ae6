"""A text index in a database with row-level security: each tenant finds only its own texts, through an index."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.servers.postgres_server import Databases, ask
from tests.servers.row_level_security import Logins, ask_as_tenant, fill, isolate_tenants

from clew import Conversations, Message
from clew.domain.search_terms import tenant_scope
from clew.infrastructure.postgres import text_index
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.service.projection_worker import Runner


@pytest.fixture(scope="module", params=[1, text_index.STRETCH], ids=["listed", "growing"])
def searched(databases: Databases, request: pytest.FixtureRequest) -> Iterator[Logins]:
    """The threads of two tenants with their text index. The tests only read."""
    with databases.one() as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_index, "STRETCH", request.param)
        patch.setattr(text_index, "AT_ONCE", 3)
        logins = fill(isolate_tenants(url))
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        yield logins


def _find(url: str, tenant: str | None, index: str = "words", word: str = "") -> list[int]:
    """The positions that the SQL function returns on a direct call; by default all positions that it can return."""
    words = f"'{{{word}}}', '{{}}', '{{}}'" if word else f"'{{}}', '{{\"\"}}', '{{{chr(0x10FFFF)}}}'"
    call = (
        f"clew_find(id, '{index}', {words}, false, '{{\" {word}\"}}', '{{true}}', {2**63 - 1}, {2**63 - 1}, 100, 100) "
        "AS found WHERE name = 'search' AND live AND found.position IS NOT NULL"
    )
    rows = ask_as_tenant(url, f"SELECT found.position FROM clew_generation CROSS JOIN LATERAL {call}", tenant)  # noqa: S608 - built from constants
    return sorted(position for (position,) in rows)


def test_a_search_of_one_tenant_uses_the_index(searched: Logins) -> None:
    index_scans = "SELECT sum(idx_scan) FROM pg_stat_user_tables WHERE relname ~ '^clew_g[0-9]+_+words$'"
    before = ask(searched.owner, index_scans)
    for tenant in "ab":
        with Conversations.open(searched.app, tenant=tenant) as conversations:
            hits = conversations.search("from")
            assert ["".join(part.text for part in hit.snippet) for hit in hits] == [f"from {tenant}"]
            assert len(conversations.search('"from b" -more')) == (tenant == "b")
            assert len(conversations.search("mor*", thread="t")) == 1
    wait_until(lambda: ask(searched.owner, index_scans) > before)


def test_only_operators_see_the_words_of_all_tenants(searched: Logins) -> None:
    tables = "SELECT relname FROM pg_class WHERE relname ~ '^clew_g[0-9]+__words$' AND relkind = 'r'"
    ((postings,),) = ask(searched.owner, f"{tables} AND relrowsecurity AND relforcerowsecurity")
    count = f"SELECT count(*) FROM {postings}"  # noqa: S608 - our own name
    assert ask(searched.operator, count) == ask(searched.owner, count)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=postings):
        ask_as_tenant(searched.app, count, "a")
    ask(searched.owner, f"GRANT SELECT ON {postings} TO clew_app")
    assert ask_as_tenant(searched.app, count, "a") == [(0,)]
    ask(searched.owner, f"REVOKE ALL ON {postings} FROM clew_app")


def test_a_direct_call_finds_only_texts_of_the_tenant(searched: Logins) -> None:
    positions = "SELECT position FROM clew_event WHERE type = 'message-appended' AND tenant = {} ORDER BY position"
    own = {tenant: [each for (each,) in ask(searched.owner, positions.format(stream_id(tenant)))] for tenant in "ab"}
    assert _find(searched.app, "a") == own["a"]
    assert _find(searched.app, "b") == own["b"]
    others = f"/{sha256(tenant_scope('b').encode()).hexdigest()[:16]}"
    assert _find(searched.app, "b", word=others) == own["b"]
    assert _find(searched.app, "a", word=others) == []
    for tenant in (None, "", "missing", "a/thread"):
        assert _find(searched.app, tenant) == []


@pytest.mark.parametrize("index", ["none", "", "words AS there, clew_event", "words''; DROP TABLE clew_event; --"])
def test_refuses_a_text_index_that_was_not_declared(searched: Logins, index: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="no such text index"):
        _find(searched.app, "a", index)


def test_other_roles_cannot_search_a_text_index(searched: Logins) -> None:
    ask(searched.owner, "CREATE ROLE clew_other")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="clew_find"):
            ask(
                searched.owner,
                "SET ROLE clew_other; SELECT clew_find(1, '', '{}', '{}', '{}', true, '{}', '{}', 1, 1, 1, 1)",
            )
    finally:
        ask(searched.owner, "DROP ROLE clew_other")


def test_a_worker_purges_the_words_of_a_redacted_message(logins: Logins) -> None:
    with Conversations.open(logins.app, tenant="a", embedded=False) as conversations:
        thread = conversations.start_thread(messages=[Message.user("a secret"), Message.user("none")])
        update_projections(logins)
        thread.redact(2)
        update_projections(logins)
    # The server reports the number of dead rows late, when the deleting session has been idle for a while.
    assert ask(logins.owner, VACUUMS) == [(1,), (1,)]


def test_a_service_of_an_operator_purges_the_words_of_a_redacted_message(logins: Logins) -> None:
    with Conversations.open(logins.operator) as operator:
        with Conversations.open(logins.app, tenant="a") as conversations:
            thread = conversations.start_thread(messages=[Message.user("a secret"), Message.user("none")])
            operator.wait()
            thread.redact(2)
        operator.wait()
        wait_until(lambda: ask(logins.owner, VACUUMS) == [(1,), (1,)])


VACUUMS = "SELECT pg_stat_get_vacuum_count(oid) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'clew_g%words'"


def update_projections(logins: Logins) -> None:
    """Let a worker update all projections."""
    with Conversations.open(logins.operator, embedded=False) as operator:
        Runner(operator._core, [], lambda *_: None).run()


def test_a_tenant_can_wait_for_the_position_of_another_tenants_event(logins: Logins) -> None:
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            conversations.start_thread()
    update_projections(logins)
    with Conversations.open(logins.operator) as operator:
        newest = operator.position()
    with Conversations.open(logins.app, tenant="a") as conversations:
        conversations.wait(newest, timeout=PATIENCE)
