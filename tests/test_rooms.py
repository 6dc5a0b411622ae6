"""What import-linter cannot say: whose modules the domain and the acceptance tests import, and that no link is used."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

FRONT = {"clew.errors", "clew.testing"}
"""What people import from beside ``clew`` itself."""


def imported(*folders: str) -> Iterator[tuple[str, str]]:
    """Each import under the folders: its file and line, and the module's full name."""
    for file in (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_bytes())):
            where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                yield from ((where, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{where} imports relatively; name the module in full"
                assert node.module is not None
                yield where, node.module


def test_the_domain_imports_no_third_party_but_pydantic_and_the_domain_of_eventsourcing() -> None:
    allowed = ("clew.domain", "eventsourcing.domain", "pydantic", "pydantic_core")
    found = list(imported("src/clew/domain"))
    assert found
    for where, module in found:
        own = module.startswith(tuple(f"{name}." for name in allowed)) or module in allowed
        assert own or module.split(".")[0] in sys.stdlib_module_names, f"{where} imports {module}"


def test_the_acceptance_tests_use_the_front_door_only() -> None:
    for where, module in imported("tests/acceptance"):
        assert module in FRONT or not module.startswith("clew."), (
            f"{where} imports {module}; take it from clew, or run the command"
        )


@pytest.mark.parametrize("room", ["domain", "infrastructure", "projections"])
def test_nothing_imports_through_a_root_link(room: str) -> None:
    for where, module in imported("src", "tests", "benchmarks", "examples"):
        assert module.split(".")[0] != room, f"{where} imports {module}; name it clew.{module}"
