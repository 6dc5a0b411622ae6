"""What a docstring says of a function and of its parameters: Google's sections, and reST's ``:param name:``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|"
    r"Returns?|Yields?|Raises|Attributes|Examples?|Notes?|See Also|Warnings?|Warns|References|Todo):\s*$"
)
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params", "Keyword Args", "Keyword Arguments", "Other Parameters")
_PARAMETER = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)$")
_FIELDS_OF_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")


def read_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The description of a function, and those of its parameters by name.

    The description is what stands before the first section or field. A parameter's description is one line, however
    many it was written on.
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    end = next((at for at, line in enumerate(lines) if _SECTION.match(line) or _FIELD.match(line)), len(lines))
    parameters = _google(lines[end:])
    parameters.update(_rest(lines[end:]))
    return "\n".join(lines[:end]).strip(), parameters


def _google(lines: Iterable[str]) -> dict[str, str]:
    """The entries of the sections of parameters: those are indented alike, and what goes on below one, deeper."""
    said: dict[str, list[str]] = {}
    inside, indent, name = False, 0, ""
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.strip() and not depth:
            section = _SECTION.match(line)
            inside, indent, name = section is not None and section[1] in _OF_PARAMETERS, 0, ""
        elif inside and line.strip():
            indent = indent or depth
            entry = _PARAMETER.match(line.strip()) if depth <= indent else None
            if entry:
                name = entry[1]
                said[name] = [entry[2]]
            elif name:
                said[name].append(line)
    return _joined(said)


def _rest(lines: Iterable[str]) -> dict[str, str]:
    """The fields of parameters: ``:param name:`` or ``:param type name:``, and the indented lines below."""
    said: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if field := _FIELD.match(line):
            words = (field[2] or "").split()
            name = words[-1].lstrip("*") if words and field[1] in _FIELDS_OF_PARAMETERS else ""
            if name:
                said[name] = [field[3]]
        elif name and line.startswith(" "):
            said[name].append(line)
        elif line.strip():
            name = ""
    return _joined(said)


def _joined(said: dict[str, list[str]]) -> dict[str, str]:
    one_line = {name: " ".join(" ".join(lines).split()) for name, lines in said.items()}
    return {name: text for name, text in one_line.items() if text}
