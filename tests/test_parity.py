"""The table of features of other frameworks: each row has a name in Clew and a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/parity.md"


def rows() -> list[list[str]]:
    """The rows of the first table, cell by cell."""
    table = PAGE.read_text(encoding="utf-8").split("\n\n")[2]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests/agents" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_is_complete_and_its_test_exists() -> None:
    found = rows()
    assert len(found) > 25
    for feature, *names, answer, test in found:
        assert len(names) == 3, feature
        assert all([feature, *names]), feature
        assert names[2] != "—", feature
        assert answer == "Y", feature
        place = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", test)
        assert place is not None, feature
        assert place[2] in names_in(place[1]), feature
    assert len({row[0] for row in found}) == len(found)
