"""Alignment: which items of two sequences belong together, the same whichever of the two comes first.

Where several alignments are equally good one of them must be taken. Here the sequence that sorts first is always taken
as the first, so that exchanging the two exchanges the places in every pair and does nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar


class Keyed(Protocol):
    """An item of a sequence: two are equal when their keys are."""

    @property
    def key(self) -> str:
        """What is equal for equal items, and sorts them."""


T = TypeVar("T", bound=Keyed)

Pairs: TypeAlias = list[tuple[int, int]]
"""Places in the first and in the second sequence that belong together, both ascending."""

Likeness: TypeAlias = Callable[[T, Sequence[T]], list[int]]
"""How alike an item is to each of some others: 0 where they are no pair. It must not depend on who is asked first."""

_Span: TypeAlias = tuple[int, int, int, int]

MOST_BITS = 100_000_000
"""Pairs of items among which a longest common subsequence is looked for: 12 megabytes of bits."""

MOST_CELLS = 1_000_000
"""Pairs of items that are compared for likeness: two sequences of 1,000."""

BLOCK = 400
"""Items of the longer side in a block, where there are more pairs than are compared."""

_LEFT, _UP, _BOTH = 0, 1, 2


def longest_common(a: list[str], b: list[str]) -> Pairs:
    """The places of a longest subsequence that both have.

    Where there are more than ``MOST_BITS`` pairs, items that each side has once are paired first, then what is between
    them; what is between them and still too much stays unpaired.
    """
    if b < a:
        return _exchanged(longest_common(b, a))
    before, after = _equal_ends(a, b)
    found = [(place, place) for place in range(before)]
    rest = (before, len(a) - after, before, len(b) - after)
    if _pairs_in(rest) <= MOST_BITS:
        found += _common(a, b, rest)
    else:
        for gap, anchor in _between_anchors(a, b, rest):
            if _pairs_in(gap) <= MOST_BITS:
                found += _common(a, b, gap)
            found += anchor
    return found + [(len(a) - left, len(b) - left) for left in range(after, 0, -1)]


def aligned(a: Sequence[T], b: Sequence[T], likeness: Likeness[T]) -> Pairs:
    """The alignment whose pairs are the most alike in sum; equal items at both ends are paired first.

    Where there are more than ``MOST_CELLS`` pairs, items that each side has once are paired first; what is between them
    and still too much is cut into blocks at equal parts of both sides, and each block is aligned for itself.
    """
    keys, other_keys = [item.key for item in a], [item.key for item in b]
    if other_keys < keys:
        return _exchanged(aligned(b, a, likeness))
    before, after = _equal_ends(keys, other_keys)
    found = [(place, place) for place in range(before)]
    rest = (before, len(a) - after, before, len(b) - after)
    if _pairs_in(rest) <= MOST_CELLS:
        found += _most_alike(a, b, rest, likeness)
    else:
        for gap, anchor in _between_anchors(keys, other_keys, rest):
            for block in _blocks(gap):
                found += _most_alike(a, b, block, likeness)
            found += anchor
    return found + [(len(a) - left, len(b) - left) for left in range(after, 0, -1)]


def _exchanged(pairs: Pairs) -> Pairs:
    return [(there, here) for here, there in pairs]


def _pairs_in(span: _Span) -> int:
    first, last, other_first, other_last = span
    return (last - first) * (other_last - other_first)


def _equal_ends(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """How many items are equal at the beginning and, of the rest, at the end."""
    shorter = min(len(a), len(b))
    before = 0
    while before < shorter and a[before] == b[before]:
        before += 1
    after = 0
    while after < shorter - before and a[-1 - after] == b[-1 - after]:
        after += 1
    return before, after


def _common(a: Sequence[str], b: Sequence[str], span: _Span) -> Pairs:
    """A longest common subsequence, with the bits of big integers for the rows of the table.

    After H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004). A bit that is not set says that the longest
    subsequence grows with that item.
    """
    first, last, other_first, other_last = span
    if last - first > other_last - other_first:  # the bits stand for the shorter side
        return _exchanged(_common(b, a, (other_first, other_last, first, last)))
    places: dict[str, int] = {}
    for place in range(first, last):
        places[a[place]] = places.get(a[place], 0) | 1 << place - first
    every = (1 << last - first) - 1
    row, rows = every, []
    for place in range(other_first, other_last):
        grown = row & places.get(b[place], 0)
        row = (row + grown | row - grown) & every
        rows.append(row)
    found: Pairs = []
    here, there = last - first, other_last - other_first
    while here and there:
        bit = 1 << here - 1
        if rows[there - 1] & bit:
            here -= 1
        elif there > 1 and not rows[there - 2] & bit:
            there -= 1
        else:
            here, there = here - 1, there - 1
            found.append((first + here, other_first + there))
    found.reverse()
    return found


def _most_alike(a: Sequence[T], b: Sequence[T], span: _Span, likeness: Likeness[T]) -> Pairs:
    """The pairs of the greatest sum of likeness: a global alignment by dynamic programming (Needleman and Wunsch)."""
    first, last, other_first, other_last = span
    others = b[other_first:other_last]
    if not others:
        return []
    above = [0] * (len(others) + 1)
    moves: list[bytearray] = []
    for item in a[first:last]:
        best = 0
        row, move = [0], bytearray(len(others))
        for there, like in enumerate(likeness(item, others)):
            up = above[there + 1]
            if up >= best:
                best, move[there] = up, _UP
            if like and above[there] + like > best:
                best, move[there] = above[there] + like, _BOTH
            row.append(best)
        moves.append(move)
        above = row
    found: Pairs = []
    here, there = last - first, len(others)
    while here and there:
        step = moves[here - 1][there - 1]
        if step == _BOTH:
            found.append((first + here - 1, other_first + there - 1))
        here -= step != _LEFT
        there -= step != _UP
    found.reverse()
    return found


def _between_anchors(a: Sequence[str], b: Sequence[str], span: _Span) -> list[tuple[_Span, Pairs]]:
    """The gaps between items that each side has once and in the same order, each with the pair that ends it."""
    first, last, other_first, other_last = span
    counts, other_counts = Counter(a[first:last]), Counter(b[other_first:other_last])
    there = {b[place]: place for place in range(other_first, other_last) if other_counts[b[place]] == 1}
    once = [(place, there[a[place]]) for place in range(first, last) if counts[a[place]] == 1 and a[place] in there]
    found: list[tuple[_Span, Pairs]] = []
    for place, other in _ascending(once):
        found.append(((first, place, other_first, other), [(place, other)]))
        first, other_first = place + 1, other + 1
    return [*found, ((first, last, other_first, other_last), [])]


def _ascending(pairs: Pairs) -> Pairs:
    """The most of the pairs, ascending in the first, that ascend in the second too (patience sorting)."""
    ends: list[int] = []
    tops: list[int] = []
    before: list[int] = []
    for index, (_, other) in enumerate(pairs):
        pile = bisect_left(ends, other)
        ends[pile : pile + 1] = [other]
        tops[pile : pile + 1] = [index]
        before.append(tops[pile - 1] if pile else -1)
    found: Pairs = []
    index = tops[-1] if tops else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    found.reverse()
    return found


def _blocks(span: _Span) -> list[_Span]:
    """The span itself if it can be compared, else blocks of it."""
    if _pairs_in(span) <= MOST_CELLS:
        return [span]
    first, last, other_first, other_last = span
    here, there = last - first, other_last - other_first
    count = -(-max(here, there) // BLOCK)
    return [
        (
            first + here * block // count,
            first + here * (block + 1) // count,
            other_first + there * block // count,
            other_first + there * (block + 1) // count,
        )
        for block in range(count)
    ]
