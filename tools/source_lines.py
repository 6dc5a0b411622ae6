"""Prints how many lines of which kind each room of the source has: ``python tools/source_lines.py [CHECKOUT]``."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

KINDS = ("code", "signature", "docstring", "import", "blank", "comment")


def count_kinds(text: str) -> Counter[str]:
    """The number of lines of each kind. A line of an expression, also of a list or a text, is code."""
    kinds = [
        "blank" if not line.strip() else "comment" if line.strip()[0] == "#" else "code" for line in text.split("\n")
    ]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kinds, node.lineno, node.end_lineno, "import")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _mark(kinds, node.lineno, node.body[0].lineno - 1, "signature")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            _mark(kinds, node.lineno, node.end_lineno, "docstring")
    return Counter(kinds[:-1])


def _mark(kinds: list[str], first: int, last: int | None, kind: str) -> None:
    for number in range(first - 1, last or first):
        if kinds[number] == "code" or kind == "docstring":
            kinds[number] = kind


def main() -> None:
    """Print the table."""
    source = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src/clew"
    rooms: dict[str, Counter[str]] = {}
    files: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        for room in (parts[0] if len(parts) > 1 else "(top)", "all"):
            rooms.setdefault(room, Counter()).update(count_kinds(path.read_text(encoding="utf-8")))
            files[room] += 1
    sys.stdout.write(f"{'room':16}{'files':>8}{'lines':>8}" + "".join(f"{kind:>11}" for kind in KINDS) + "\n")
    for room in sorted(rooms, key=lambda name: (name == "all", name)):
        counts = rooms[room]
        row = "".join(f"{counts[kind]:>11,}" for kind in KINDS)
        sys.stdout.write(f"{room:16}{files[room]:>8,}{counts.total():>8,}{row}\n")


if __name__ == "__main__":
    main()
