"""docs/cli.md documents exactly the commands and options that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.acceptance.clew_command import Clew
from tests.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent.parent
TOP = tuple(sorted({name.split()[0] for name in COMMANDS}))


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def options(help_text: str) -> set[str]:
    return set(re.findall(r"^  (?:-[a-z], )?(--[a-z-]+)", help_text, re.MULTILINE))


def section(page: str, heading: str) -> str:
    result = re.search(rf"^## {re.escape(heading)}[^\n]*\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert result is not None, f"docs/cli.md has no section {heading!r}"
    return result[1]


def test_the_page_documents_exactly_the_commands(page: str, clew: Clew) -> None:
    listed = re.findall(r"^  ([a-z]+)  ", clew.text("--help").split("--help")[1], re.MULTILINE)
    assert tuple(sorted(listed)) == TOP
    documented = re.findall(r"^## `clew ((?:memory |shards )?[a-z]+)", page, re.MULTILINE)
    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_page_documents_exactly_the_options_of_a_command(page: str, clew: Clew, command: str) -> None:
    accepted = options(clew.text(*command.split(), "--help")) - {"--help", "--json"}
    documented = section(page, f"`clew {command}")
    table = set(re.findall(r"^\| `(--[a-z-]+)", documented, re.MULTILINE))
    assert table == accepted


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_page_documents_short_names_and_values_of_options(page: str, command: str) -> None:
    rows = dict(re.findall(r"^\| `(--[a-z-]+)([^\n]+)", section(page, f"`clew {command}"), re.MULTILINE))
    for option in COMMANDS[command].params:
        names = [name for name in option.opts if option.param_type_name == "option"]
        for name in set(names) & set(rows):
            metavar = "" if option.is_flag or option.metavar is None else f" {option.metavar}"
            assert rows[name].startswith(f"{metavar}`") or option.metavar is None
            assert all(f"`{short}{metavar}`" in rows[name] for short in set(names) - {name})


def test_the_options_before_the_command_are_documented(page: str, clew: Clew) -> None:
    documented = section(page, "Before the command")
    assert set(re.findall(r"^\| `(--[a-z-]+)", documented, re.MULTILINE)) == options(clew.text("--help"))


def test_every_example_of_the_help_is_a_valid_command(clew: Clew) -> None:
    for command in COMMANDS:
        examples = clew.text(*command.split(), "--help").split("Examples:")[1]
        found = re.findall(r"clew (?:--[a-z-]+ \S+ )*([a-z]+.*)", examples)
        assert found, f"{command} has no example"
        for rest in found:
            assert rest.startswith(command)
            own = rest.split("|")[0]
            assert set(re.findall(r"--[a-z-]+", own)) <= options(clew.text(*command.split(), "--help"))


def test_the_samples_of_the_demo_are_also_in_examples() -> None:
    shipped = (ROOT / "src" / "clew" / "cli" / "demo.jsonl").read_bytes()
    assert (ROOT / "examples" / "demo.jsonl").read_bytes() == shipped
