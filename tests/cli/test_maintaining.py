"""migrate: what it says, asks, copies and refuses. How it migrates is tested where it does."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from clew.infrastructure.sqlite import schema as sqlite_schema

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


NOW = sqlite_schema.SCHEMA_VERSION
NEXT = NOW + 1


class Terminal(io.StringIO):
    """A stdin with somebody at it, who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def old(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> Clew:
    """A database with the present schema, and a Clew that knows the next."""
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", NEXT)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {NOW: ("CREATE TABLE extra (a INTEGER)",)})
    return filled


def test_a_present_database_has_nothing_to_migrate(filled: Clew) -> None:
    assert filled.text("migrate", "--backup", "copy.db") == (
        f"clew.db already has schema {NOW}. There is nothing to migrate.\n"
    )
    found = filled.object("migrate", "--backup", "copy.db", "--json")
    assert found == {"database": "clew.db", "from": NOW, "to": NOW, "backup": None}
    assert not (filled.folder / "copy.db").exists()


def test_a_migration_has_the_documented_shape_and_the_copy_is_there(old: Clew) -> None:
    found = old.object("migrate", "--yes", "--backup", "copy.db", "--json")
    assert found == {"database": "clew.db", "from": NOW, "to": NEXT, "backup": "copy.db"}
    assert len(old.ids()) == 2
    assert old.object("--db", "sqlite:///copy.db", "migrate", "-y", "--json") == {
        "database": "copy.db",
        "from": NOW,
        "to": NEXT,
        "backup": None,
    }


def test_says_what_it_did(old: Clew) -> None:
    assert old.text("migrate", "--yes", "--backup", "copy.db") == (
        f"Migrated clew.db from schema {NOW} to {NEXT}. copy.db is a copy from before.\n"
    )
    assert "nothing to migrate" in old.text("migrate")


def test_other_commands_say_that_it_is_to_be_migrated(old: Clew) -> None:
    for command in (["threads"], ["import", "two.jsonl"], ["verify"], ["label", "x", "a=1"]):
        assert "bring it up to date with `clew migrate`" in old.refused(1, *command)


def test_without_a_terminal_it_needs_yes(old: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "Add --yes" in old.refused(2, "migrate")
    assert f"has schema {NOW}" in old.refused(1, "threads")


def test_on_a_terminal_it_asks_with_a_hint_at_a_copy(old: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_no_file_is_wrong_usage(clew: Clew) -> None:
    assert "The store 'memory:' has no tables to migrate" in clew.refused(2, "--db", "memory:", "migrate")


def test_a_file_keeps_no_tenants_apart_and_a_server_does(filled: Clew, postgres: str) -> None:
    assert "Only a PostgreSQL database" in filled.refused(2, "migrate", "--row-level-security")
    for first in ("Made Clew's tables in postgresql://", "postgresql://"):  # nobody need be asked
        said = filled.text("--db", postgres, "migrate", "--row-level-security")
        assert said.startswith(first)
        assert said.endswith("It keeps tenants apart from now on: clew_app sees one of them, clew_operator all.\n")
    found = filled.object("--db", postgres, "migrate", "--row-level-security", "--json")
    assert (found["from"], found["to"]) == (1, 1)
