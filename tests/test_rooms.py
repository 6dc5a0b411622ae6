"""Import rules that import-linter cannot check: of the domain, of the acceptance tests, and of root links."""

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
"""The public modules next to ``clew`` that acceptance tests import."""


@cache
def imported(folder: str) -> list[tuple[str, str]]:
    """Each import in a folder: its file and line, and the full name of the module."""
    return [each for file in sorted((ROOT / folder).rglob("*.py")) for each in imported_by(file)]


def imported_by(file: Path) -> Iterator[tuple[str, str]]:
    for node in statements(ast.parse(file.read_bytes())):
        where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from ((where, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where} imports relatively; name the module in full"
            assert node.module is not None
            yield where, node.module


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in a node, and in those. An import is in no expression, and most nodes are in expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_the_domain_imports_only_pydantic_and_eventsourcings_domain_of_third_parties() -> None:
    allowed = ("clew.domain", "eventsourcing.domain", "pydantic", "pydantic_core")
    imports = imported("src/clew/domain")
    assert imports
    for where, module in imports:
        is_allowed = module.startswith(tuple(f"{name}." for name in allowed)) or module in allowed
        assert is_allowed or module.split(".")[0] in sys.stdlib_module_names, f"{where} imports {module}"


def test_the_acceptance_tests_import_only_public_modules() -> None:
    imports = imported("tests/acceptance")
    assert imports
    for where, module in imports:
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
