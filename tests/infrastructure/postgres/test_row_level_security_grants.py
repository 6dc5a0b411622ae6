"""Row-level security revokes all other rights on Clew's tables."""

from __future__ import annotations

import psycopg
import pytest
from tests.servers.postgres_server import GUARDED, ask
from tests.servers.row_level_security import Logins, ask_as_tenant, fill, isolate_tenants

from clew import Conversations, Message
from clew.infrastructure.stores import store_at


def test_no_role_has_rights_on_a_partition(postgres: str) -> None:
    store_at(postgres).migrate(partitions=2)
    logins = isolate_tenants(postgres)
    with Conversations.open(logins.app, tenant="a") as conversations:
        conversations.start_thread(messages=[Message.user("hello")])
        assert conversations.verify().threads == 1
    for login in (logins.app, logins.operator):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask_as_tenant(login, "SELECT * FROM clew_event_0", "a")


def test_default_privileges_open_no_new_table(postgres: str) -> None:
    ask(postgres, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC")
    ask(postgres, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO PUBLIC")
    store_at(postgres).migrate(partitions=2)
    with Conversations.open(postgres, tenant="a") as before:
        before.start_thread(messages=[Message.user("hello")])
        before.usage()
    logins = isolate_tenants(postgres)
    [(usage,)] = ask(postgres, r"SELECT relname FROM pg_class WHERE relname ~ '^clew_g\d+_usage$'")
    tables = ("clew_event", "clew_event_0", "clew_key_1", "clew_stream", "clew_meta", usage)
    refused = ["TRUNCATE {}", "DELETE FROM {}", "CREATE TRIGGER mine AFTER INSERT ON {} EXECUTE FUNCTION suppress()"]
    for table in tables:
        for statement in refused:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask_as_tenant(logins.app, statement.format(table), "a")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask_as_tenant(logins.app, "SELECT setval('clew_generation_id_seq', 1)", "a")
    for statement in ("UPDATE clew_event_0 SET state = ''", "DELETE FROM clew_event_1"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask_as_tenant(logins.operator, statement, "a")
    with Conversations.open(logins.operator) as operator:
        operator.wait()
    with Conversations.open(logins.app, tenant="a") as conversations:
        assert conversations.usage()[0].threads == 1


def test_rights_of_other_users_are_revoked(postgres: str) -> None:
    for what in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        ask(postgres, f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON {what} TO {GUARDED} WITH GRANT OPTION")
    store_at(postgres).migrate()
    ask(postgres, f"GRANT UPDATE (state) ON clew_event TO {GUARDED}")
    with Conversations.open(postgres, tenant="a") as before:
        before.start_thread(messages=[Message.user("hello")])
        before.usage()
    isolate_tenants(postgres)
    tables = "SELECT relname FROM pg_class WHERE relname LIKE 'clew%' AND relacl::text || {} LIKE '%{}%'"
    columns = "coalesce((SELECT string_agg(attacl::text, '') FROM pg_attribute WHERE attrelid = pg_class.oid), '')"
    assert ask(postgres, tables.format(columns, GUARDED)) == []
    functions = "SELECT proname FROM pg_proc WHERE proname LIKE 'clew%' AND prosecdef AND proacl::text LIKE '%{}%'"
    assert ask(postgres, functions.format(GUARDED)) == []


def test_a_role_without_default_privileges_can_call_the_functions_that_it_needs(postgres: str) -> None:
    ask(postgres, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    try:
        logins = fill(isolate_tenants(postgres))
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        with Conversations.open(logins.app, tenant="a") as conversations:
            assert [hit.thread_id for hit in conversations.search("more")] == ["t"]
            thread = conversations.thread("t")
            thread.redact(thread.history().messages[0])
    finally:
        ask(postgres, "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")


def test_only_operators_can_call_the_functions_that_change_owners(filled: Logins) -> None:
    functions = ("clew_publish(regclass)", "clew_protect(regclass)", "clew_take_back(regclass)")
    privilege = "SELECT has_function_privilege('{}', '{}', 'EXECUTE')"
    for _ in range(2):
        for function in functions:
            for user, expected in (("clew_app", False), ("clew_shredder", False), ("clew_operator", True)):
                assert ask(filled.owner, privilege.format(user, function)) == [(expected,)]
            ask(filled.owner, f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC, clew_app")  # as in older versions
        store_at(filled.owner).migrate(row_level_security=True)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="clew_take_back"):
        ask_as_tenant(filled.app, "SELECT clew_take_back('clew_event')", "a")
    with Conversations.open(filled.operator, tenant="a") as operator:
        operator.wait()
        assert operator.usage()[0].threads == 1


def test_tables_without_a_policy_reveal_no_tenant(filled: Logins) -> None:
    with Conversations.open(filled.operator) as operator:
        operator.wait()
    visible = ask(
        filled.owner,
        "SELECT relname FROM pg_class WHERE relname LIKE 'clew%' AND relkind IN ('r', 'p', 'v', 'm', 'S') "
        "AND NOT relrowsecurity AND (has_table_privilege('clew_app', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') "
        "OR has_any_column_privilege('clew_app', oid, 'SELECT, INSERT, UPDATE')) ORDER BY 1",
    )
    assert [name for (name,) in visible] == ["clew_generation", "clew_meta", "clew_stretch", "clew_worker"]
