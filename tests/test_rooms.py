"""What import-linter cannot say: whose modules the domain and the acceptance tests import, and that no link is used."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

FRONT = {"clew.errors", "clew.testing"}
"""What people import from beside ``clew`` itself."""


@cache
def imported(folder: str) -> list[tuple[str, str]]:
    """Each import under a folder: its file and line, and the module's full name."""
    return [found for file in sorted((ROOT / folder).rglob("*.py")) for found in imported_by(file)]


def imported_by(file: Path) -> Iterator[tuple[str, str]]:
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
    found = imported("src/clew/domain")
    assert found
    for where, module in found:
        own = module.startswith(tuple(f"{name}." for name in allowed)) or module in allowed
        assert own or module.split(".")[0] in sys.stdlib_module_names, f"{where} imports {module}"


def test_the_acceptance_tests_use_the_front_door_only() -> None:
    for where, module in imported("tests/acceptance"):
        assert module in FRONT or not module.startswith("clew."), (
            f"{where} imports {module}; take it from clew, or run the command"
        )


def test_nothing_imports_through_a_root_link() -> None:
    for folder in ("src", "tests", "benchmarks", "examples"):
        assert imported(folder)
        for where, module in imported(folder):
            room = module.split(".")[0]
            assert room not in {"domain", "infrastructure", "projections"}, (
                f"{where} imports {module}; name it clew.{module}"
            )
