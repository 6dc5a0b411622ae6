from __future__ import annotations

import psycopg
import pytest
from tests.servers.postgres_server import GUARDED, PASSWORD, VERSIONS, PostgresServer, ask, end_sessions


@pytest.mark.parametrize("version", VERSIONS)
def test_serves_each_version_durably_and_keeps_what_it_holds_when_it_is_killed(version: int) -> None:
    with PostgresServer(version) as server, server.database() as url:
        assert ask(url, "SHOW fsync") == ask(url, "SHOW synchronous_commit") == [("on",)]
        assert ask(url, "SHOW server_version")[0][0].split(".")[0] == str(version)
        ask(url, "CREATE TABLE kept AS SELECT 7 AS number")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            ask(url, "SELECT 1")
        server.start()
        assert ask(url, "SELECT number FROM kept") == [(7,)]


def test_gives_each_test_an_empty_database(postgres: str) -> None:
    assert ask(postgres, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert ask(postgres, "SHOW server_encoding") == [("UTF8",)]


def test_takes_the_guarded_role_with_its_password_only(postgres_server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        ask(postgres_server.url(user=GUARDED, password="wrong"), "SELECT 1")  # noqa: S106 - that is the point
    assert ask(postgres_server.url(user=GUARDED, password=PASSWORD), "SELECT 1") == [(1,)]


def test_ends_the_other_sessions_of_a_database(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        end_sessions(postgres)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
