"""PostgreSQL databases with row-level security, and login users for its two roles."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.sql import SQL, Literal
from tests.servers.postgres_server import PASSWORD, ask

from clew import Conversations, Message
from clew.infrastructure.stores import store_at

_LOGIN = """
DO $$
BEGIN
    CREATE ROLE {login} LOGIN PASSWORD '{password}';
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END $$;
GRANT {role} TO {login}
"""


class Logins(NamedTuple):
    """The URLs of a database: for its owner, for an app user (sees one tenant) and for an operator (sees all)."""

    owner: str
    app: str
    operator: str


def isolate_tenants(url: str) -> Logins:
    """Enable row-level security in a database without other connections."""
    store_at(url).migrate(row_level_security=True)
    return Logins(url, login(url, "clew_app"), login(url, "clew_operator"))


def fill(logins: Logins) -> Logins:
    """Append messages of two tenants, ``a`` and ``b``, in threads with the same id."""
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[Message.user(f"from {tenant}")])
            thread.append(Message.user("more"), idempotency_key="key")
    return logins


def ask_as_tenant(url: str, statement: str, tenant: str | None) -> list[tuple[Any, ...]]:
    """Run a statement on behalf of a tenant and return its rows."""
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        if tenant is not None:
            connection.execute(SQL("SET LOCAL clew.tenant = {}").format(Literal(tenant)))
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def login(url: str, role: str) -> str:
    """Create a user who is only a member of the role: members do not inherit attributes such as BYPASSRLS."""
    name = f"tests_of_{role}"
    if not ask(url, f"SELECT FROM pg_roles WHERE rolname = '{name}' AND pg_has_role(oid, '{role}', 'MEMBER')"):
        ask(url, _LOGIN.format(login=name, role=role, password=PASSWORD))
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
