"""What a docstring says of a function and of its parameters: Google's sections, and reST's ``:param name:``."""

from __future__ import annotations

import inspect
import re

_OF_PARAMETERS = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters):\s*$")
_NOT_FOR_MODELS = re.compile(r"(Returns?|Yields?|Raises|Attributes|Todo|See Also|References):\s*$")
_PARAMETER = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*\S)\s*)?:\s*(.*)$")
_FIELDS_OF_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")


def read_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The description of a function, and those of its parameters by name.

    The description is all but what is said of parameters, results and errors. A parameter's description is one line,
    however many it was written on.
    """
    description: list[str] = []
    said: dict[str, list[str]] = {}
    within, indent, name = "text", 0, ""  # what is said where we are, how deep its entries stand, and of whom
    for line in inspect.cleandoc(docstring or "").splitlines():
        depth = len(line) - len(line.lstrip()) if line.strip() else 0
        if line.strip() and not depth:
            within, indent, name = _begun(line), 0, ""
            if (field := _FIELD.match(line)) and field[1] in _FIELDS_OF_PARAMETERS and field[2]:
                name = field[2].split()[-1].lstrip("*")
                said[name] = [field[3]]
        if within == "text":
            description.append(line)
        elif within == "parameters" and depth:
            indent = indent or depth
            entry = _PARAMETER.match(line.strip()) if depth <= indent else None
            if entry:
                name = entry[1]
                said[name] = [entry[2]]
            elif name:
                said[name].append(line)
        elif within == "field" and depth and name:
            said[name].append(line)
    one_line = {name: " ".join(" ".join(lines).split()) for name, lines in said.items()}
    text = re.sub(r"\n\s*\n+", "\n\n", "\n".join(description)).strip()
    return text, {name: words for name, words in one_line.items() if words}


def _begun(line: str) -> str:
    """What a line that is not indented begins."""
    if _OF_PARAMETERS.match(line):
        return "parameters"
    if _NOT_FOR_MODELS.match(line):
        return "nothing"
    return "field" if _FIELD.match(line) else "text"
