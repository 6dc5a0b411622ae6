from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.cli.conftest import CalledClew
from tests.servers.postgres_server import GUARDED, PASSWORD, PostgresServer, ask

from clew.conversations import Conversations
from clew.domain.diagnostics import Finding
from clew.domain.messages import Message
from clew.infrastructure.postgres import doctor
from clew.infrastructure.postgres.sql_files import statements
from clew.projections import SHIPPED

AROUND = ["server", "rights", "tenants", "durability", "readers", "connections", "replication", "pgvector"]
INSIDE = ["schema", "database", "size", "vacuum", "runs"]
PROJECTIONS = [f"projection {each.name}" for each in SHIPPED]


def findings(clew: CalledClew, url: str, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = clew.run("--db", url, "doctor", "--json", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    assert PASSWORD not in done.stdout
    result = [json.loads(line) for line in done.stdout.splitlines()]
    assert all((each["advice"] is None) == (each["state"] == "ok") for each in result)
    assert len({each["name"] for each in result}) == len(result)
    return {each["name"]: each for each in result}


@pytest.fixture
def url(postgres_server: PostgresServer) -> Any:
    """The URL of a database with a thread, on a server of this process."""
    with postgres_server.database() as url:
        with Conversations.open(url) as conversations:
            conversations.start_thread(thread_id="t", messages=[Message.user("Hello")])
        yield url


@pytest.fixture
def guarded(url: str) -> str:
    """The same database for a user without rights."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{GUARDED}:{PASSWORD}@{parts.hostname}:{parts.port}"))


def test_checks_the_server_the_tables_and_the_projections(clew: CalledClew, url: str) -> None:
    result = findings(clew, url)
    assert list(result) == [*AROUND, *INSIDE, *PROJECTIONS, "verified"]
    # The server of the tests leaves its statistics alone.
    assert {name for name, each in result.items() if each["state"] != "ok"} == {"vacuum"}
    assert "PostgreSQL 18" in result["server"]["found"]
    assert result["durability"]["found"].startswith("fsync on, full_page_writes on, synchronous_commit on; read comm")
    assert result["runs"]["found"] == "0 in progress, 0 with a partial answer; 0 definitions of agents and tools (0 B)."
    assert findings(clew, url, "--verify")["verified"]["found"].endswith("the whole store.")


def test_reports_missing_rights(clew: CalledClew, url: str, guarded: str) -> None:
    result = findings(clew, guarded, code=1)
    assert (result["rights"]["state"], list(result)[-1]) == ("failed", "database")
    assert "cannot read clew_blob, clew_draft, clew_entry, clew_event" in result["rights"]["found"]
    ask(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    result = findings(clew, guarded)
    assert result["rights"]["state"] == "warning"
    assert "cannot write clew_event, clew_stream." in result["rights"]["found"]
    assert result["verified"]["state"] == "ok"


def test_reports_missing_tables_and_whether_they_can_be_created(
    clew: CalledClew, postgres_server: PostgresServer
) -> None:
    with postgres_server.database() as empty:
        result = findings(clew, empty, code=1)
        assert result["rights"]["found"].endswith("can create tables.")
        assert (list(result)[-1], result["schema"]["advice"]) == ("schema", "Make them with `clew migrate`.")
        parts = urlsplit(empty)
        as_guarded = urlunsplit(parts._replace(netloc=f"{GUARDED}:{PASSWORD}@{parts.hostname}:{parts.port}"))
        assert findings(clew, as_guarded, code=1)["rights"]["state"] == "failed"


def test_reports_once_that_the_server_refuses_or_does_not_answer(clew: CalledClew, guarded: str) -> None:
    assert list(findings(clew, "postgresql://nobody@127.0.0.1:1/none", code=1)) == ["database"]
    result = findings(clew, guarded.replace(PASSWORD, "wrong"), code=1)
    assert "Check the user, the password" in result["database"]["found"]


def test_reports_transactions_that_delay_readers(
    clew: CalledClew, url: str, guarded: str, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
) -> None:
    monkeypatch.setattr(doctor, "LONG_OPEN", 0.0)
    monkeypatch.setattr(doctor, "MANY_SINCE", 0)
    ask(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    with psycopg.connect(postgres_server.url()) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        result = findings(clew, url)["readers"]
        assert result["state"] == "warning"
        who = f"Process {connection.info.backend_pid} in the database postgres writes"
        assert re.fullmatch(rf"{who}: for \d+ s, and is idle in transaction\.", result["found"])
        assert "idle_in_transaction_session_timeout" in result["advice"]
        result = findings(clew, guarded)["readers"]
        assert (result["state"], "its age is unknown" in result["found"]) == ("warning", True)


def test_reports_settings_that_can_lose_events(clew: CalledClew, url: str) -> None:
    result = findings(clew, f"{url}?options=-csynchronous_commit%3Doff")["durability"]
    assert (result["state"], "synchronous_commit off" in result["found"]) == ("warning", True)
    assert result["advice"].startswith("Turn synchronous_commit on")


def test_finds_a_changed_thread(clew: CalledClew, url: str) -> None:
    ask(url, "UPDATE clew_event SET type = 'message-redacted' WHERE version = 2")
    result = findings(clew, url, code=1)["verified"]
    assert (result["state"], "version 2: its hash does not match" in result["found"]) == ("failed", True)


def test_continues_after_a_check_that_fails(clew: CalledClew, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(statements("doctor.sql"), "connections", "SELECT * FROM clew_nothing")
    result = findings(clew, url)
    assert result["connections"]["state"] == "warning"
    assert result["connections"]["found"].startswith("This check failed: postgresql://127.0.0.1")
    assert result["verified"]["state"] == "ok"


def test_continues_when_a_check_of_the_server_times_out(
    clew: CalledClew, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(statements("doctor.sql"), "server", "SELECT pg_sleep(60), '', false")
    result = findings(clew, f"{url}?options=-cstatement_timeout%3D3000")
    assert list(result)[:2] == ["server", "schema"]
    assert "raise statement_timeout" in result["server"]["found"]
    assert result["verified"]["state"] == "ok"


# Findings by themselves

LARGE = doctor.LARGE_LOG


@pytest.mark.parametrize(
    ("look", "given", "state"),
    [
        ("of_durability", ("on", "on", "local", "serializable"), "ok"),
        ("of_durability", ("off", "off", "on", "read committed"), "warning"),
        ("of_oldest_writer", (None, 0), "ok"),
        ("of_oldest_writer", (("d", "process 1", "active", 1.0), 5_000), "ok"),
        ("of_oldest_writer", (("d", "process 1", "idle in transaction", 31.0), 1), "warning"),
        ("of_connections", (79, 100), "ok"),
        ("of_connections", (81, 100), "warning"),
        ("of_standby", (None, False), "ok"),
        ("of_standby", (2.0, False), "ok"),
        ("of_standby", (7_200.0, False), "warning"),
        ("of_standby", (2.0, True), "warning"),
        ("of_replication", (1, None), "ok"),
        ("of_replication", (1, ("slot", LARGE - 1)), "ok"),
        ("of_replication", (1, ("slot", LARGE)), "warning"),
        ("of_dead_rows", ("on", 100, 9_999, 0), "ok"),
        ("of_dead_rows", ("on", 100, 10_001, 3), "warning"),
        ("of_dead_rows", ("on", 1_000_000, 10_001, 3), "ok"),
        ("of_dead_rows", ("off", 100, 0, 0), "warning"),
    ],
    ids=str,
)
def test_gives_the_figures_of_the_server_a_state(look: str, given: tuple[Any, ...], state: str) -> None:
    result: Finding = getattr(doctor, look)(*given)
    assert (result.state, result.advice is None) == (state, state == "ok")
