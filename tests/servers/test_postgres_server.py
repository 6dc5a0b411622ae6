from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from tests.servers import unprivileged
from tests.servers.installation import postgres as programs
from tests.servers.postgres_server import (
    GUARDED,
    PASSWORD,
    UNPRIVILEGED,
    VERSIONS,
    PostgresServer,
    ask,
    end_sessions,
    reachable,
)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_durable_and_keeps_its_data_after_a_kill(version: int) -> None:
    with PostgresServer(version) as server, server.database() as url:
        assert ask(url, "SHOW fsync") == ask(url, "SHOW synchronous_commit") == [("on",)]
        assert ask(url, "SHOW server_version")[0][0].split(".")[0] == str(version)
        ask(url, "CREATE TABLE data AS SELECT 7 AS number")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            ask(url, "SELECT 1")
        server.start()
        assert ask(url, "SELECT number FROM data") == [(7,)]


def test_gives_each_test_an_empty_database(postgres: str) -> None:
    assert ask(postgres, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert ask(postgres, "SHOW server_encoding") == [("UTF8",)]


def test_the_guarded_role_needs_its_password(postgres_server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        ask(postgres_server.url(user=GUARDED, password="wrong"), "SELECT 1")  # noqa: S106 - a wrong password
    assert ask(postgres_server.url(user=GUARDED, password=PASSWORD), "SELECT 1") == [(1,)]


def test_closes_the_other_sessions_of_a_database(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        end_sessions(postgres)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_runs_programs_from_a_folder_that_other_users_cannot_enter(tmp_path: Path) -> None:
    installed = programs(VERSIONS[-1])
    package = installed.parent.parent
    closed = tmp_path / "closed"
    for folder in (installed.parent, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, closed / folder.relative_to(package.parent), symlinks=True, copy_function=os.link)
    closed.chmod(0o700)
    program = reachable(closed / installed.relative_to(package.parent)) / "initdb"
    done = subprocess.run([*UNPRIVILEGED, str(program), "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("initdb (PostgreSQL)"), done.stderr


def test_uses_another_folder_if_the_temporary_one_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / ("a long name " * 12)
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with PostgresServer(VERSIONS[-1]) as server:
        assert server.ask("SELECT 1") == [(1,)]


def test_another_user_runs_the_programs_if_the_user_nobody_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    users = [user for user in pwd.getpwall() if user.pw_name in {"root", "daemon"}]
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    assert unprivileged.user().pw_name == "daemon"
    users.pop()
    with pytest.raises(LookupError, match="useradd"):
        unprivileged.user()
