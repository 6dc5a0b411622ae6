"""A long text in passages: what is embedded, found and quoted as one."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST = 1_200
"""Characters of a passage, at most."""

_BORDERS = tuple(
    re.compile(border)
    for border in (
        r"\n[^\S\n]*\n\s*",  # paragraphs
        r"\n\s*",  # lines
        "(?<=[.!?\u2026])\\s+|(?<=[.!?\u2026][\"'\u201d\u2019)\\]])\\s+|(?<=[\u3002\uff01\uff1f])",  # sentences
        r"\s+",  # words
    )
)


def passages(text: str) -> list[str]:
    """A text in passages of at most 1,200 characters, the same ones each time, in order.

    They are cut between paragraphs where that will do, else between lines, sentences or words, and within a word only
    when nothing else is left. White space at the borders is left out; a text of nothing else has no passages.
    """
    return list(_cut(text, 0))


def _cut(text: str, coarse: int) -> Iterator[str]:
    """The parts of a text between borders of one kind, as many together as fit; what is too long is cut finer."""
    text = text.strip()
    if len(text) <= MOST:
        if text:
            yield text
        return
    if coarse == len(_BORDERS):
        yield from (text[at : at + MOST] for at in range(0, len(text), MOST))
        return
    start = end = 0
    for first, last in _parts(text, _BORDERS[coarse]):
        if last - start > MOST and end > start:
            yield from _cut(text[start:end], coarse + 1)
            start = first
        end = last
    yield from _cut(text[start:end], coarse + 1)


def _parts(text: str, border: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Where the parts of a text begin and end that a border lies between."""
    start = 0
    for found in border.finditer(text):
        if found.start() > start:
            yield start, found.start()
        start = max(start, found.end())
    if start < len(text):
        yield start, len(text)
