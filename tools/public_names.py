"""Writes the lists of the public modules from their imports: ``make generate``.

A public module imports its names, under TYPE_CHECKING where it resolves them lazily. From these imports this writes
``__all__`` and, for a lazy module, the table of where each name is defined, in place of what follows the mark.
In ``clew.events`` it also adds what its modules declare since: a new type of event needs no line there.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PUBLIC = ("__init__.py", "errors.py", "events.py", "types.py")
MARK = "# `make generate` writes what follows, from the imports above.\n"


def written(path: Path) -> str:
    """The text of a public module, with the lists that its imports make."""
    text = path.read_text(encoding="utf-8")
    kept = text[: text.index(MARK)] + MARK
    if path.name == "events.py":
        kept = with_declared(kept)
    names = imported(kept)
    listed = f"\n__all__ = {sorted(names)!r}\n"
    if "if TYPE_CHECKING:" in kept:
        listed += f"\n_HOMES = { {name: names[name] for name in sorted(names)}!r}\n"
        listed += "\nif not TYPE_CHECKING:\n    __getattr__, __dir__ = resolver(__name__, _HOMES)\n"
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=kept + listed, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def with_declared(text: str) -> str:
    """A module that imports from Clew, with all public classes of the modules that it imports from."""
    homes: dict[str, set[str]] = {}
    for name, home in imported(text).items():
        homes.setdefault(home, set()).add(name)
    for home, names in homes.items():
        tree = ast.parse((ROOT / "src" / f"{home.replace('.', '/')}.py").read_text(encoding="utf-8"))
        names |= {each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")}
    lines = [f"from {home} import {', '.join(sorted(homes[home]))}\n" for home in sorted(homes)]
    return "".join((text[: text.index("from clew.")], *lines, "\n", MARK))


def imported(text: str) -> dict[str, str]:
    """Where each name is defined that a module imports from Clew, for others to import from it."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("clew."):
            for each in node.names:
                name = each.asname or each.name
                found[name] = node.module if name == each.name else f"{node.module}:{each.name}"
    found.pop("resolver", None)
    return found


if __name__ == "__main__":
    for each in PUBLIC:
        path = ROOT / "src/clew" / each
        path.write_text(written(path), encoding="utf-8")
