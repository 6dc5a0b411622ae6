"""PostgreSQL databases that keep tenants apart, and users of the two roles who log in to them."""

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
    """The URLs of one database: of its owner, of who sees one tenant, and of who works for all."""

    owner: str
    app: str
    operator: str


def keep_apart(url: str) -> Logins:
    """Let a database that nobody else is connected to keep tenants apart by itself."""
    store_at(url).migrate(row_level_security=True)
    return Logins(url, _login(url, "clew_app"), _login(url, "clew_operator"))


def fill(logins: Logins) -> Logins:
    """Let two tenants, ``a`` and ``b``, say something in threads of the same name."""
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[Message.user(f"from {tenant}")])
            thread.append(Message.user("more"), idempotency_key="key")
    return logins


def asked(url: str, statement: str, tenant: str | None) -> list[tuple[Any, ...]]:
    """The answer to a statement on behalf of a tenant."""
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        if tenant is not None:
            connection.execute(SQL("SET LOCAL clew.tenant = {}").format(Literal(tenant)))
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _login(url: str, role: str) -> str:
    """A user who is a member of the role and nothing else: what a role is past is not inherited with it."""
    login = f"{role}_of_tests"
    if not ask(url, f"SELECT FROM pg_roles WHERE rolname = '{login}' AND pg_has_role(oid, '{role}', 'MEMBER')"):
        ask(url, _LOGIN.format(login=login, role=role, password=PASSWORD))
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
