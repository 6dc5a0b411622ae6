"""Alignment: which items of two sequences belong together, independent of the order of the two sequences.

Several alignments can be equally good. To always choose the same one, the sequence that sorts first is treated as the
first. So exchanging the two sequences exchanges the indexes in every pair, and changes nothing else.
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


def longest_common_subsequence(a: list[str], b: list[str]) -> Pairs:
    """The indexes of a longest common subsequence.

    For more than ``MOST_BITS`` pairs it first pairs the items that each side has once, and then the items between them.
    A gap between them that is still too large stays unpaired.
    """
    if b < a:
        return _swap(longest_common_subsequence(b, a))
    before, after = _equal_ends(a, b)
    pairs = [(index, index) for index in range(before)]
    rest = (before, len(a) - after, before, len(b) - after)
    if _pair_count(rest) <= MOST_BITS:
        pairs += _common_subsequence(a, b, rest)
    else:
        for gap, anchor in _between_anchors(a, b, rest):
            if _pair_count(gap) <= MOST_BITS:
                pairs += _common_subsequence(a, b, gap)
            pairs += anchor
    return pairs + [(len(a) - distance, len(b) - distance) for distance in range(after, 0, -1)]


def aligned(a: Sequence[T], b: Sequence[T], likeness: Likeness[T]) -> Pairs:
    """The alignment with the greatest sum of likeness; equal items at both ends are paired first.

    For more than ``MOST_CELLS`` pairs it first pairs the items that each side has once. A gap between them that is
    still too large is cut into blocks at equal shares of both sides, and each block is aligned separately.
    """
    keys, other_keys = [item.key for item in a], [item.key for item in b]
    if other_keys < keys:
        return _swap(aligned(b, a, likeness))
    before, after = _equal_ends(keys, other_keys)
    pairs = [(index, index) for index in range(before)]
    rest = (before, len(a) - after, before, len(b) - after)
    if _pair_count(rest) <= MOST_CELLS:
        pairs += _best_pairs(a, b, rest, likeness)
    else:
        for gap, anchor in _between_anchors(keys, other_keys, rest):
            for block in _blocks(gap):
                pairs += _best_pairs(a, b, block, likeness)
            pairs += anchor
    return pairs + [(len(a) - distance, len(b) - distance) for distance in range(after, 0, -1)]


def _swap(pairs: Pairs) -> Pairs:
    return [(other, index) for index, other in pairs]


def _pair_count(span: _Span) -> int:
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


def _common_subsequence(a: Sequence[str], b: Sequence[str], span: _Span) -> Pairs:
    """A longest common subsequence, with the bits of big integers for the rows of the table.

    After H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004). An unset bit means that the longest
    subsequence grows with that item.
    """
    first, last, other_first, other_last = span
    if last - first > other_last - other_first:  # the bits stand for the shorter side
        return _swap(_common_subsequence(b, a, (other_first, other_last, first, last)))
    item_bits: dict[str, int] = {}
    for index in range(first, last):
        item_bits[a[index]] = item_bits.get(a[index], 0) | 1 << index - first
    all_bits = (1 << last - first) - 1
    row, rows = all_bits, []
    for index in range(other_first, other_last):
        matches = row & item_bits.get(b[index], 0)
        row = (row + matches | row - matches) & all_bits
        rows.append(row)
    pairs: Pairs = []
    column, line = last - first, other_last - other_first
    while column and line:
        bit = 1 << column - 1
        if rows[line - 1] & bit:
            column -= 1
        elif line > 1 and not rows[line - 2] & bit:
            line -= 1
        else:
            column, line = column - 1, line - 1
            pairs.append((first + column, other_first + line))
    pairs.reverse()
    return pairs


def _best_pairs(a: Sequence[T], b: Sequence[T], span: _Span, likeness: Likeness[T]) -> Pairs:
    """The pairs with the greatest sum of likeness: a global alignment by dynamic programming (Needleman and Wunsch)."""
    first, last, other_first, other_last = span
    others = b[other_first:other_last]
    if not others:
        return []
    above = [0] * (len(others) + 1)
    moves: list[bytearray] = []
    for item in a[first:last]:
        best = 0
        row, row_moves = [0], bytearray(len(others))
        for column, score in enumerate(likeness(item, others)):
            up = above[column + 1]
            if up >= best:
                best, row_moves[column] = up, _UP
            if score and above[column] + score > best:
                best, row_moves[column] = above[column] + score, _BOTH
            row.append(best)
        moves.append(row_moves)
        above = row
    pairs: Pairs = []
    line, column = last - first, len(others)
    while line and column:
        move = moves[line - 1][column - 1]
        if move == _BOTH:
            pairs.append((first + line - 1, other_first + column - 1))
        line -= move != _LEFT
        column -= move != _UP
    pairs.reverse()
    return pairs


def _between_anchors(a: Sequence[str], b: Sequence[str], span: _Span) -> list[tuple[_Span, Pairs]]:
    """The gaps between items that each side has once and in the same order, each with the pair that ends it."""
    first, last, other_first, other_last = span
    counts, other_counts = Counter(a[first:last]), Counter(b[other_first:other_last])
    indexes = {b[index]: index for index in range(other_first, other_last) if other_counts[b[index]] == 1}
    unique = [
        (index, indexes[a[index]]) for index in range(first, last) if counts[a[index]] == 1 and a[index] in indexes
    ]
    gaps: list[tuple[_Span, Pairs]] = []
    for index, other in _ascending(unique):
        gaps.append(((first, index, other_first, other), [(index, other)]))
        first, other_first = index + 1, other + 1
    return [*gaps, ((first, last, other_first, other_last), [])]


def _ascending(pairs: Pairs) -> Pairs:
    """The longest subsequence of pairs whose second indexes ascend, as the first ones do (patience sorting)."""
    ends: list[int] = []
    tops: list[int] = []
    previous: list[int] = []
    for index, (_, other) in enumerate(pairs):
        pile = bisect_left(ends, other)
        ends[pile : pile + 1] = [other]
        tops[pile : pile + 1] = [index]
        previous.append(tops[pile - 1] if pile else -1)
    ascending: Pairs = []
    index = tops[-1] if tops else -1
    while index >= 0:
        ascending.append(pairs[index])
        index = previous[index]
    ascending.reverse()
    return ascending


def _blocks(span: _Span) -> list[_Span]:
    """The span itself if it is small enough to compare, otherwise blocks of it."""
    if _pair_count(span) <= MOST_CELLS:
        return [span]
    first, last, other_first, other_last = span
    length, other_length = last - first, other_last - other_first
    count = -(-max(length, other_length) // BLOCK)
    return [
        (
            first + length * block // count,
            first + length * (block + 1) // count,
            other_first + other_length * block // count,
            other_first + other_length * (block + 1) // count,
        )
        for block in range(count)
    ]
