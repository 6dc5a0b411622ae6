from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CalledClew

from clew.conversations import Conversations
from clew.domain.diagnostics import Finding, binary_size
from clew.domain.errors import StoreUrlError
from clew.domain.ports import IntegrityFault, Verdict
from clew.domain.projection import Parked
from clew.infrastructure.sqlite import doctor as sqlite_doctor
from clew.infrastructure.sqlite.doctor import of_disk, of_library, of_write_ahead_log
from clew.infrastructure.sqlite.schema import SCHEMA_VERSION
from clew.projections import SHIPPED
from clew.service.doctor import examine, of_projection, of_verdict
from clew.service.projection_status import ProjectionStatus

ALWAYS = ["sqlite", "fts5", "json"]
OF_A_FILE = ["permissions", "disk", "wal", "projections-wal", "schema", "database", "runs", "redactions"]
PROJECTIONS = [f"projection {each.name}" for each in SHIPPED]


def findings(clew: CalledClew, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = clew.run("doctor", "--json", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    result = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(each) == ["name", "state", "found", "advice"] for each in result)
    assert all((each["advice"] is None) == (each["state"] == "ok") for each in result)
    return {each["name"]: each for each in result}


def test_checks_everything(filled: CalledClew) -> None:
    result = findings(filled)
    assert list(result) == [*ALWAYS, *OF_A_FILE, *PROJECTIONS, "verified"]
    assert result["schema"] == {
        "name": "schema",
        "state": "ok",
        "found": f"clew.db has schema {SCHEMA_VERSION}, which this Clew needs.",
        "advice": None,
    }
    assert result["verified"]["found"].endswith("the newest ones; `clew doctor --verify` checks all.")


def test_verify_reads_the_whole_database(filled: CalledClew) -> None:
    filled.text("project", "run", "--once")
    result = findings(filled, "--verify")
    assert list(result)[-3:] == ["verified", "pages", "projections-pages"]
    assert result["verified"]["found"].endswith("the whole store.")


def test_counts_the_events_that_forks_share_once(filled: CalledClew, tmp_path: Path) -> None:
    with Conversations.open(f"sqlite:///{tmp_path / 'clew.db'}") as conversations:
        for thread in list(conversations.threads()):
            conversations.thread(thread.id).fork().fork()
        verdict, last = conversations.verify(), conversations.position()
    counts = f"{verdict.threads} threads, {last} events verified: "
    assert (verdict.threads, verdict.events) == (6, last)
    assert findings(filled)["verified"]["found"].startswith(counts)
    assert findings(filled, "--verify")["verified"]["found"].startswith(counts)


def test_the_findings_for_people_are_lines(filled: CalledClew) -> None:
    lines = filled.text("doctor").splitlines()
    assert f"ok       schema: clew.db has schema {SCHEMA_VERSION}, which this Clew needs." in lines


def test_reports_what_runs_store_next_to_the_events(filled: CalledClew, tmp_path: Path) -> None:
    assert (
        findings(filled)["runs"]["found"]
        == "0 in progress, 0 with a partial answer; 0 definitions of agents and tools (0 B)."
    )
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("INSERT INTO lease VALUES (1, 'me', 9000000000000000), (2, 'you', 1)")
        connection.execute("INSERT INTO draft VALUES (1, 'run', x'', x'00')")
        connection.execute("INSERT INTO blob VALUES (x'00', 'definition', zeroblob(3072)), (x'01', 'content', x'')")
    connection.close()
    result = findings(filled)["runs"]
    assert result["state"] == "warning"
    assert result["found"].startswith(
        "1 in progress, 1 with a partial answer; 2 definitions of agents and tools (3.0 KiB). 1 run left open: "
    )
    assert any(result["found"].endswith(f"1 run left open: run you on thread {id_}.") for id_ in filled.ids())
    assert "agent.continue_run" in result["advice"]


def test_verify_finds_a_changed_blob(filled: CalledClew, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("INSERT INTO blob VALUES (x'00', 'definition', x'00')")
    connection.close()
    assert findings(filled)["verified"]["state"] == "ok"
    assert "Thread #blob:00, version 0: its bytes" in findings(filled, "--verify", code=1)["verified"]["found"]


def test_finds_tables_of_runs_that_cannot_be_read(filled: CalledClew, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("DROP TABLE lease")
    connection.close()
    assert "no such table" in findings(filled, code=1)["runs"]["found"]


def test_finds_a_changed_thread(filled: CalledClew, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("UPDATE event SET type = 'message-redacted' WHERE position = 3")
    connection.close()
    for more in ((), ("--verify",)):
        result = findings(filled, *more, code=1)["verified"]
        assert result["state"] == "failed"
        assert "version 3: its hash does not match" in result["found"]


def test_finds_damaged_pages(filled: CalledClew, tmp_path: Path) -> None:
    filled.text("project", "run", "--once")
    path = tmp_path / "clew.db.projections"
    content = bytearray(path.read_bytes())
    content[8192:] = b"\x7f" * (len(content) - 8192)
    path.write_bytes(content)
    filled.text("verify")  # the log is whole
    assert findings(filled, "--verify", code=1)["projections-pages"]["advice"].startswith("Delete it")


@pytest.mark.usefixtures("filled")
def test_a_damaged_log_has_to_be_restored(tmp_path: Path) -> None:
    path, url = tmp_path / "clew.db", f"sqlite:///{tmp_path}/clew.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content, damaged = path.read_bytes(), 0
    for start in range(4096, len(content), 4096):
        path.write_bytes(content[:start] + b"\x7f" * 4096 + content[start + 4096 :])
        reported = [each for each in examine(url, tenant="default") if each.state == "failed"]
        damaged += any(each.name == "projections" for each in reported)
        assert not [each for each in reported if "delete" in f"{each.found} {each.advice}".lower()]
    assert damaged


def test_finds_events_that_were_parked(filled: CalledClew, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("UPDATE event SET state = x'0001' WHERE position = 2")
    connection.close()
    for built in tmp_path.glob("clew.db.projections*"):  # a slow import has built them already
        built.unlink()
    filled.text("project", "run", "--once")
    result = findings(filled, code=1)["projection audit"]
    assert result["state"] == "warning"
    assert "skipped 1 event, the first at position 2: " in result["found"]
    assert result["advice"].endswith("then run `clew rebuild audit`.")


def test_reports_a_missing_database(clew: CalledClew, tmp_path: Path) -> None:
    assert list(findings(clew, code=1)) == [*ALWAYS, "database"]
    assert list(tmp_path.iterdir()) == []


def test_reports_the_database_of_another_program(clew: CalledClew, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("CREATE TABLE accounts (name)")
    connection.close()
    assert "another program's" in findings(clew, code=1)["schema"]["found"]


def test_reports_lost_projections_and_a_wrong_schema(filled: CalledClew, tmp_path: Path) -> None:
    (tmp_path / "clew.db.projections").write_bytes(b"")
    assert findings(filled)["projection search"]["found"].startswith(
        "It is 8 events behind and catches up at its next read: waiting"
    )
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    assert findings(filled, code=1)["schema"]["state"] == "failed"


def test_refuses_a_url_that_names_no_store(clew: CalledClew) -> None:
    for url in ("gopher://x", "postgres+shards://x", "sqllite:///clew.db", "postgres", "my:clew.db", ""):
        for command in ("doctor", "threads", "migrate"):
            message = clew.refused(2, "--db", url, command)
            for scheme in ("sqlite:///", "postgresql://", "postgresql+shards://", "memory:"):
                assert scheme in message
        with pytest.raises(StoreUrlError):
            list(examine(url, tenant="default"))


def test_a_store_in_memory_has_few_findings() -> None:
    assert [each.name for each in examine("memory:", tenant="default")] == [*ALWAYS, "database"]


# Findings by themselves


@pytest.mark.parametrize(
    ("version", "reported"),
    [((3, 6, 23), False), ((3, 7, 0), True), ((3, 51, 2), True), ((3, 51, 3), False), ((4, 0, 0), False)],
)
def test_reports_an_old_sqlite_without_alarm(version: tuple[int, ...], *, reported: bool) -> None:
    result = next(of_library(version))
    assert result.state == "ok"
    assert ("It matters only if another program writes to the same file" in result.found) == reported


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1_023, "1,023 B"),
        (1_536, "1.5 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (77_393_000_000, "72.1 GiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_sizes_have_units_for_people(size: int, text: str) -> None:
    assert binary_size(size) == text


def test_names_the_missing_features_of_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    result = sqlite_doctor._has(connection, "fts9", "CREATE VIRTUAL TABLE t USING fts9(words)", "search cannot be")
    assert (result.state, result.advice is None) == ("failed", False)
    assert "no such module: fts9" in result.found
    connection.close()


@pytest.mark.parametrize(("free", "state"), [(2**34, "ok"), (2**27, "warning"), (2**20, "failed")])
def test_reports_the_free_space(free: int, state: str) -> None:
    assert of_disk(".", free).state == state


def test_reports_a_long_write_ahead_log() -> None:
    assert of_write_ahead_log("wal", "clew.db", 2**20).state == "ok"
    assert of_write_ahead_log("wal", "clew.db", 2**30).state == "warning"


def test_reports_missing_write_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Conversations.open(f"sqlite:///{tmp_path}/clew.db").close()
    monkeypatch.setattr("os.access", lambda path, _: not str(path).endswith(".lock"))
    result = sqlite_doctor._permissions(str(tmp_path / "clew.db"))
    assert (result.state, result.found.endswith("clew.db.lock.")) == ("failed", True)


def status(**given: Any) -> ProjectionStatus:
    values = {"state": "live", "lag": 0, "parked": 0, "parked_events": (), **given}
    return ProjectionStatus(
        *("search", 1, values["state"], 5, 5, values["lag"], True, 0.0, None, values["parked"]),
        parked_events=values["parked_events"],
        worker=None,
    )


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, "ok"),
        ({"state": "building"}, "ok"),
        ({"state": "waiting"}, "ok"),
        ({"state": "other"}, "ok"),
        ({"state": "changed"}, "warning"),
        ({"state": "newer"}, "warning"),
        ({"lag": 99}, "ok"),
        ({"lag": 1_000_000}, "warning"),
        ({"parked": 1, "parked_events": (Parked(1, "s", 1, "t", "ValueError"),)}, "warning"),
    ],
    ids=str,
)
def test_gives_each_status_of_a_projection_a_state(given: dict[str, Any], state: str) -> None:
    result = of_projection(status(**given))
    assert (result.state, result.advice is None) == (state, state == "ok")


def test_a_projection_that_is_behind_is_ok() -> None:
    result = of_projection(status(lag=45))
    assert result.found == (
        "It is 45 events behind and catches up at its next read: live, version 1, at position 5 of 5."
    )
    assert (result.state, result.advice) == ("ok", None)


def test_gives_each_verification_a_state() -> None:
    expected = Finding("verified", "ok", "1 thread, 2 events verified: all.")
    assert of_verdict(Verdict(1, 2, None), "all") == expected
    assert of_verdict(Verdict(1, 2, IntegrityFault("t", 2, "it is missing")), "all").state == "failed"
