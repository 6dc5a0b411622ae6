"""Words that several renderings are made of: numbers of things, what went wrong, and parts in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.domain.runs.events import Failure


def counted(number: int, word: str) -> str:
    """A number of things, empty for none."""
    return f"{number:,} {word}{'' if number == 1 else 's'}" if number else ""


def joined(*parts: str) -> str:
    """The parts that there are, in a row."""
    return " · ".join(part for part in parts if part)


def failure(error: Failure, *, said: bool = True) -> str:
    """What went wrong, on one line: the class, what a service said of it, and, if it is to be ``said``, the words."""
    told = " ".join(str(each) for each in (error.kind, error.status, error.code) if each is not None)
    return f"{told}: {error.message}" if said and error.message is not None else told
