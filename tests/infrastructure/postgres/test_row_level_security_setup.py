"""The set-up of row-level security: required rights, other sessions, and repetition."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.servers.postgres_server import GUARDED, PASSWORD, ask
from tests.servers.row_level_security import Logins, ask_as_tenant, fill, isolate_tenants

from clew import Conversations, Message
from clew.cli import main
from clew.domain.errors import StoreUnavailableError, StoreUrlError
from clew.infrastructure.postgres import row_level_security
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.stores import store_at

PRIVILEGES = """
SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname LIKE 'clew%' ORDER BY 1
"""
POLICIES = "SELECT * FROM pg_policies ORDER BY tablename, policyname"
FUNCTIONS = """
SELECT proname, proacl::text, prosecdef, proconfig, pg_get_userbyid(proowner) FROM pg_proc WHERE proname LIKE 'clew%'
ORDER BY proname
"""


def test_repeating_the_set_up_changes_nothing(shared_logins: Logins) -> None:
    before = [ask(shared_logins.owner, each) for each in (PRIVILEGES, POLICIES, FUNCTIONS)]
    store_at(shared_logins.owner).migrate(row_level_security=True)
    assert [ask(shared_logins.owner, each) for each in (PRIVILEGES, POLICIES, FUNCTIONS)] == before
    tables = ask(
        shared_logins.owner,
        "SELECT relname FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attname = 'tenant' "
        "WHERE relname LIKE 'clew%' AND (attname IS NOT NULL OR relname ~ '^clew_g[0-9]') AND relkind IN ('r', 'p') "
        "AND NOT (relrowsecurity AND relforcerowsecurity)",
    )
    assert tables == []


def test_explains_which_users_have_the_rights_for_the_set_up(postgres: str) -> None:
    store_at(postgres).migrate()
    parts = urlsplit(postgres)
    netloc = f"{GUARDED}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"
    ask(postgres, f"GRANT SELECT ON clew_meta TO {GUARDED}")
    with pytest.raises(StoreUnavailableError, match="only a superuser, or the owner") as error:
        store_at(urlunsplit(parts._replace(netloc=netloc))).migrate(row_level_security=True)
    assert PASSWORD not in str(error.value)
    assert ask(postgres, "SELECT count(*) FROM pg_policies") == [(0,)]


def test_an_owner_without_superuser_can_set_it_up(logins: Logins, postgres: str) -> None:
    owner = "clew_owner_of_tests"
    schema = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    ask(
        postgres,
        f"{schema}; DROP ROLE IF EXISTS {owner}; CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; "
        f"GRANT clew_app, clew_operator, clew_shredder TO {owner} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE; "
        f"ALTER SCHEMA public OWNER TO {owner}",
    )
    parts = urlsplit(postgres)
    url = urlunsplit(parts._replace(netloc=f"{owner}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
    try:
        store_at(url).migrate(row_level_security=True)
        store_at(url).migrate(row_level_security=True)
        with Conversations.open(logins.app, tenant="a") as conversations:
            thread = conversations.start_thread(messages=[Message.user("hello")])
            thread.redact(thread.history().messages[0])
            assert conversations.verify().first_bad is None
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask_as_tenant(logins.app, "DELETE FROM clew_event", "a")
    finally:
        ask(postgres, f"{schema}; GRANT USAGE ON SCHEMA public TO public; DROP ROLE {owner}")


def test_foreign_functions_in_the_schema_do_not_run_with_the_caller_s_rights(filled: Logins) -> None:
    trap = "RETURNS {} LANGUAGE sql AS 'UPDATE clew_event SET state = NULL; SELECT NULL::{}'"
    function = f"CREATE FUNCTION format(text, regclass) {trap.format('text', 'text')}; RESET ROLE"
    ask(filled.owner, f"GRANT USAGE, CREATE ON SCHEMA public TO {GUARDED}; SET ROLE {GUARDED}; {function}")
    with pytest.raises(StoreUnavailableError, match="made format: drop it first"):
        store_at(filled.owner).migrate(row_level_security=True)
    ask(filled.owner, "DROP FUNCTION format(text, regclass)")
    for name in ("clew_protect(oid)", "format(text, regclass)", "pg_advisory_xact_lock(integer)"):
        ask_as_tenant(filled.operator, f"CREATE FUNCTION {name} {trap.format('void', 'void')}", None)
        with pytest.raises(StoreUnavailableError, match="drop it first"):
            store_at(filled.owner).migrate(row_level_security=True)
        ask_as_tenant(filled.operator, f"DROP FUNCTION {name}", None)
    ask_as_tenant(filled.operator, f"CREATE FUNCTION same(oid, regclass) {trap.format('boolean', 'boolean')}", None)
    ask_as_tenant(filled.operator, "CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = same)", None)
    with pytest.raises(StoreUnavailableError, match="drop it first"):
        store_at(filled.owner).migrate(row_level_security=True)
    ask_as_tenant(filled.operator, "DROP OPERATOR = (oid, regclass); DROP FUNCTION same", None)
    store_at(filled.owner).migrate(row_level_security=True)
    with Conversations.open(filled.operator) as conversations:
        assert conversations.verify().first_bad is None


def test_works_for_tables_in_another_schema(postgres: str) -> None:
    ask(postgres, "CREATE SCHEMA elsewhere; CREATE TABLE public.clew_event (state bytea)")
    there = f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3Delsewhere"
    logins = fill(isolate_tenants(there))
    with Conversations.open(logins.app, tenant="a") as conversations:
        thread = conversations.thread("t")
        thread.redact(thread.history().messages[0])
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        assert conversations.usage()[0].threads == 1
        assert [hit.thread_id for hit in conversations.search("more")] == ["t"]
        assert conversations.verify().first_bad is None
    assert ask(postgres, "SELECT count(*) FROM public.clew_event") == [(0,)]
    ask(postgres, "DROP SCHEMA elsewhere CASCADE")


def test_row_level_security_needs_a_server() -> None:
    with pytest.raises(StoreUrlError, match="SQLite file"):
        store_at("sqlite:///clew.db").migrate(row_level_security=True)


# Other sessions


def test_cannot_be_set_up_while_a_service_is_open(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_level_security, "LEAVING", 0.0)
    with Conversations.open(postgres, projections=()) as service:
        thread = service.start_thread(messages=[Message.user("Hello")])
        with pytest.raises(StoreUnavailableError, match="connected to this database, and would find it empty"):
            store_at(postgres).migrate(row_level_security=True)
        assert ask(postgres, "SELECT count(*) FROM pg_policies") == [(0,)]
        assert [each.text for each in thread.history()] == ["Hello"]
    monkeypatch.undo()
    logins = isolate_tenants(postgres)
    with Conversations.open(logins.app, projections=()) as service:
        assert [each.text for each in service.thread(thread.id).history()] == ["Hello"]
        monkeypatch.setattr(row_level_security, "LEAVING", 0.0)
        store_at(postgres).migrate(row_level_security=True)
        assert [each.text for each in service.thread(thread.id).history()] == ["Hello"]


def test_counts_other_sessions_even_if_their_details_are_hidden(
    postgres: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(row_level_security, "LEAVING", 0.0)
    store_at(postgres).migrate()
    ask(postgres, f"GRANT SELECT ON clew_meta TO {GUARDED}")
    parts = urlsplit(postgres)
    guarded = urlunsplit(parts._replace(netloc=f"{GUARDED}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
    with psycopg.connect(guarded), psycopg.connect(postgres, application_name="other"):
        wait_until(lambda: _others(postgres) == 2)
        assert _others(guarded) == 2
        assert main(["--db", postgres, "migrate", "--row-level-security"]) == 1
        assert "2 other sessions are connected" in capsys.readouterr().err
    wait_until(lambda: not _others(postgres))
    assert main(["--db", postgres, "migrate", "--row-level-security"]) == 0


def _others(url: str) -> int:
    return int(ask(url, statements("row_level_security.sql")["sessions"])[0][0])


def test_a_session_that_connects_during_the_set_up_waits_and_is_bound(
    postgres: str, shared_logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_at(postgres).migrate()
    app = urlunsplit(urlsplit(shared_logins.app)._replace(path=urlsplit(postgres).path))
    pool = ConnectionPool(Address(app), 1, tenant="a")
    sessions: list[tuple[bool, str | None]] = []

    def connect() -> None:
        with pool.use() as session:
            sessions.append((session.secured, session.tenant))

    connecting = threading.Thread(target=connect)
    check_sessions = row_level_security._require_no_other_sessions

    def check_and_connect(connection: psycopg.Connection[Any], address: Address, *, timeout: float) -> None:
        check_sessions(connection, address, timeout=timeout)
        if not timeout:  # the last check, with locked tables
            connecting.start()
            wait_until(lambda: bool(ask(postgres, "SELECT pid FROM pg_locks WHERE NOT granted")))

    monkeypatch.setattr(row_level_security, "_require_no_other_sessions", check_and_connect)
    store_at(postgres).migrate(row_level_security=True)
    connecting.join(PATIENCE)
    pool.close()
    assert sessions == [(True, "a")]
