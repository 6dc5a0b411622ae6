"""Statements in the ``.sql`` files of a package, by their headings."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEADING = re.compile(r"^-- (.+)\n", re.MULTILINE)


@cache
def statements(file: str, package: str = "clew.infrastructure.postgres") -> dict[str, str]:
    """The statements of a file by name.

    A heading is a line with ``--`` and the name, after an empty line. Text before the first heading is for readers.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    by_name: dict[str, str] = {}
    for paragraph in re.split(r"\n\n(?=-- )", text)[1:]:
        heading = _HEADING.match(paragraph)
        if heading is not None:
            by_name[heading[1]] = paragraph[heading.end() :].strip()
    return by_name
