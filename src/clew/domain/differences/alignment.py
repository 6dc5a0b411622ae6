"""Alignment: which items of two sequences belong together, independent of the order of the two.

If several alignments are equally good, the result must be one of them. The sequence that sorts first is always treated
as the first. So exchanging the two sequences exchanges the indexes in every pair, and changes nothing else.
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
        """Equal for equal items, and sortable."""


T = TypeVar("T", bound=Keyed)

Pairs: TypeAlias = list[tuple[int, int]]
"""Indexes in the first and in the second sequence that belong together, both ascending."""

Likeness: TypeAlias = Callable[[T, Sequence[T]], list[int]]
"""The likeness of an item to each of some others: 0 if they are not a pair. It must be symmetric."""

_Span: TypeAlias = tuple[int, int, int, int]

MOST_BITS = 100_000_000
"""Pairs of items in one search for a longest common subsequence: 12 megabytes of bits."""

MOST_CELLS = 1_000_000
"""Pairs of items in one comparison of likeness: two sequences of 1,000."""

BLOCK = 400
"""Items of the longer side in a block, if there are too many pairs for one comparison."""

_LEFT, _UP, _BOTH = 0, 1, 2


def longest_common(a: list[str], b: list[str]) -> Pairs:
    """The indexes of a longest common subsequence.

    For more than ``MOST_BITS`` pairs it first pairs the items that each side has once, and then the items between them.
    A gap between them that is still too large stays unpaired.
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
    """The alignment with the greatest sum of likeness; equal items at both ends are paired first.

    For more than ``MOST_CELLS`` pairs it first pairs the items that each side has once. A gap between them that is
    still too large is cut into blocks at equal shares of both sides, and each block is aligned separately.
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
    """The number of equal items at the beginning and, of the rest, at the end."""
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

    After H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004). An unset bit means that the longest
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
    """The pairs with the greatest sum of likeness: a global alignment by dynamic programming (Needleman and Wunsch)."""
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
    """The most of the pairs, which ascend in the first, that also ascend in the second (patience sorting)."""
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
    """The span itself if it is small enough to compare, otherwise blocks of it."""
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
