"""`clew migrate`: its output, questions, copies and errors. Tests of the stores cover the migration itself."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from clew.infrastructure.postgres import schema as postgres_schema
from clew.infrastructure.sqlite import schema as sqlite_schema

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


NOW = sqlite_schema.SCHEMA_VERSION
OF_POSTGRES = postgres_schema.SCHEMA_VERSION
NEXT = NOW + 1


class Terminal(io.StringIO):
    """A terminal as stdin, with a user who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def old(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> Clew:
    """A database with the current schema, and a Clew that has the next one."""
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", NEXT)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {NOW: ("CREATE TABLE extra (a INTEGER)",)})
    return filled


def test_a_current_database_has_nothing_to_migrate(filled: Clew) -> None:
    assert filled.text("migrate", "--backup", "copy.db") == (
        f"clew.db already has schema {NOW}. There is nothing to migrate.\n"
    )
    result = filled.object("migrate", "--backup", "copy.db", "--json")
    assert result == {"database": "clew.db", "from": NOW, "to": NOW, "backup": None}
    assert not (filled.folder / "copy.db").exists()


def test_a_migration_has_the_documented_shape_and_makes_the_copy(old: Clew) -> None:
    result = old.object("migrate", "--yes", "--backup", "copy.db", "--json")
    assert result == {"database": "clew.db", "from": NOW, "to": NEXT, "backup": "copy.db"}
    assert len(old.ids()) == 2
    assert old.object("--db", "sqlite:///copy.db", "migrate", "-y", "--json") == {
        "database": "copy.db",
        "from": NOW,
        "to": NEXT,
        "backup": None,
    }


def test_reports_what_it_did(old: Clew) -> None:
    assert old.text("migrate", "--yes", "--backup", "copy.db") == (
        f"Migrated clew.db from schema {NOW} to {NEXT}. copy.db is a copy from before.\n"
    )
    assert "nothing to migrate" in old.text("migrate")


def test_other_commands_report_that_a_migration_is_needed(old: Clew) -> None:
    for command in (["threads"], ["import", "two.jsonl"], ["verify"], ["label", "x", "a=1"]):
        assert "bring it up to date with `clew migrate`" in old.refused(1, *command)


def test_without_a_terminal_it_needs_yes(old: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "Add --yes" in old.refused(2, "migrate")
    assert f"has schema {NOW}" in old.refused(1, "threads")


def test_on_a_terminal_it_asks_and_suggests_a_copy(old: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    done = old.run("migrate")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"clew.db has schema {NOW}, and this Clew needs schema {NEXT}. Copy clew.db and clew.db-wal first, "
        "or answer no and give --backup PATH. Migrate it now? [y/N] Nothing was changed.\n"
    )
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = old.run("migrate", "--backup", "copy.db")
    assert done.returncode == 0
    assert "Copy" not in done.stderr
    assert len(old.ids()) == 2


def test_a_copy_does_not_replace_a_file(old: Clew) -> None:
    assert "there is a file already" in old.refused(1, "migrate", "--yes", "--backup", "two.jsonl")
    assert "there is a file already" in old.refused(1, "migrate", "--yes", "--backup", "clew.db")
    assert f"has schema {NOW}" in old.refused(1, "threads")


def test_a_store_without_a_file_is_wrong_usage(clew: Clew) -> None:
    assert "The store 'memory:' has no tables to migrate" in clew.refused(2, "--db", "memory:", "migrate")


def test_row_level_security_needs_a_server(filled: Clew, postgres: str) -> None:
    assert "Only a PostgreSQL database" in filled.refused(2, "migrate", "--row-level-security")
    for first in ("Made Clew's tables in postgresql://", "postgresql://"):  # without a question
        output = filled.text("--db", postgres, "migrate", "--row-level-security")
        assert output.startswith(first)
        assert output.endswith("It keeps tenants apart from now on: clew_app sees one of them, clew_operator all.\n")
    result = filled.object("--db", postgres, "migrate", "--row-level-security", "--json")
    assert (result["from"], result["to"]) == (OF_POSTGRES, OF_POSTGRES)
