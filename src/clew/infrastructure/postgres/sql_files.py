"""Statements out of the ``.sql`` files that lie beside the modules, by their headings."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEADING = re.compile(r"^-- (.+)\n", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, str]:
    """The statements of a file by name.

    A heading is a line with ``--`` and the name, after an empty line; what stands before the first is for readers.
    """
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\n(?=-- )", text)[1:]:
        heading = _HEADING.match(paragraph)
        if heading is not None:
            found[heading[1]] = paragraph[heading.end() :].strip()
    return found
