"""The difference between two texts, word by word."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from clew.domain.differences.alignment import longest_common_subsequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Side: TypeAlias = Literal["same", "only-a", "only-b"]

Kind: TypeAlias = Side | Literal["changed"]

# Single signs: ASCII punctuation but the underscore, general punctuation, and letters of scripts without spaces.
_SIGN = "!-/:-@\\[-^`{-~\u2010-\u2027\u2030-\u205e\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff65"
# An apostrophe within a word, and a point, comma or colon within a number, belong to it.
_WORD = rf"[^\s{_SIGN}]+(?:(?:['\u2019]|(?<=\d)[.,:](?=\d))[^\s{_SIGN}]+)*"
_TOKEN = re.compile(rf"({_WORD}|[{_SIGN}])(\s*)")


class DiffPart(NamedTuple):
    """A piece of text that both sides have, or only one of them."""

    kind: Side
    text: str


class _Token(NamedTuple):
    """A word or a sign, with the space that follows it."""

    word: str
    space: str


class _Run(NamedTuple):
    """Tokens that both sides have, one after the other."""

    a: int
    b: int
    length: int


def words(text: str) -> list[str]:
    """The words and signs of a text."""
    return [match[1] for match in _TOKEN.finditer(text)]


def word_diff(a: str, b: str) -> tuple[DiffPart, ...]:
    """The common and the different parts of two texts, in order; parts only in ``a`` before parts only in ``b``.

    Whole words and single signs are compared. The parts that are not only in ``b`` make up ``a``, and vice versa. A few
    equal words between greater differences count as different: that is easier to read.
    """
    if a == b:
        return (DiffPart("same", a),) if a else ()
    ours, theirs = _tokens(a), _tokens(b)
    pairs = longest_common_subsequence([token.word for token in ours], [token.word for token in theirs])
    runs = _without_islands(_runs(pairs), _Run(len(ours), len(theirs), 0), ours, theirs)
    return tuple(_joined(_parts(runs, ours, theirs)))


def _tokens(text: str) -> list[_Token]:
    """The words and signs; the first token has no word, only the space before the first word."""
    start = len(text) - len(text.lstrip())
    return [_Token("", text[:start]), *(_Token(match[1], match[2]) for match in _TOKEN.finditer(text, start))]


def _runs(pairs: Sequence[tuple[int, int]]) -> list[_Run]:
    runs: list[_Run] = []
    for a, b in pairs:
        last = runs[-1] if runs else None
        if last is not None and (a, b) == (last.a + last.length, last.b + last.length):
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(_Run(a, b, 1))
    return runs


def _without_islands(runs: list[_Run], end: _Run, ours: Sequence[_Token], theirs: Sequence[_Token]) -> list[_Run]:
    """The runs without those that are shorter than the differences before and after them."""
    to_a = [0, *accumulate(len(token.word) for token in ours)]
    to_b = [0, *accumulate(len(token.word) for token in theirs)]

    def differing(run: _Run, after: _Run) -> int:
        return max(to_a[after.a] - to_a[run.a + run.length], to_b[after.b] - to_b[run.b + run.length])

    def is_island(before: _Run, run: _Run, after: _Run) -> bool:
        length = to_a[run.a + run.length] - to_a[run.a]
        return length <= differing(before, run) and length <= differing(run, after)

    remaining: list[_Run] = []
    for run in (*runs, end):
        remaining.append(run)
        while len(remaining) >= 3 and is_island(*remaining[-3:]):  # noqa: PLR2004  # a run and its neighbours
            del remaining[-2]
    return remaining


def _parts(runs: list[_Run], ours: Sequence[_Token], theirs: Sequence[_Token]) -> Iterator[DiffPart]:
    """The words of the runs, and the differences between them. Common space around a difference is the same."""
    a = b = 0
    own = their = ""
    for run in runs:
        own += "".join(token.word + token.space for token in ours[a : run.a])
        their += "".join(token.word + token.space for token in theirs[b : run.b])
        a, b = run.a + run.length, run.b + run.length
        for token, other in zip(ours[run.a : a], theirs[run.b : b], strict=True):
            yield from _difference(own, their)
            yield DiffPart("same", token.word)
            own, their = token.space, other.space
    yield from _difference(own, their)


def _difference(a: str, b: str) -> Iterator[DiffPart]:
    shorter = min(len(a), len(b))
    start = 0
    while start < shorter and a[start] == b[start] and a[start].isspace():
        start += 1
    end = 0
    while end < shorter - start and a[-1 - end] == b[-1 - end] and a[-1 - end].isspace():
        end += 1
    yield DiffPart("same", a[:start])
    yield DiffPart("only-a", a[start : len(a) - end])
    yield DiffPart("only-b", b[start : len(b) - end])
    yield DiffPart("same", a[len(a) - end :])


def _joined(parts: Iterator[DiffPart]) -> Iterator[DiffPart]:
    """The parts that are not empty; neighbours of one kind become one part."""
    waiting: dict[Side, str] = {}
    for kind, text in parts:
        if not text:
            continue
        if (kind == "same") == ("same" in waiting) or not waiting:
            waiting[kind] = waiting.get(kind, "") + text
        else:
            yield from _in_order(waiting)
            waiting = {kind: text}
    yield from _in_order(waiting)


def _in_order(waiting: dict[Side, str]) -> Iterator[DiffPart]:
    for kind in ("same", "only-a", "only-b"):
        if kind in waiting:
            yield DiffPart(kind, waiting[kind])
