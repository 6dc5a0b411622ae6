from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.differences import alignment
from clew.domain.differences.alignment import Pairs, aligned, longest_common_subsequence

letters = st.lists(st.sampled_from("abcd"), max_size=12)
many = st.lists(st.sampled_from("abcdefghijklm"), max_size=25)


class Item(NamedTuple):
    key: str


def items(keys: Sequence[str]) -> list[Item]:
    return [Item(key) for key in keys]


def likeness(item: Item, others: Sequence[Item]) -> list[int]:
    """Return the likeness to each item: the highest for equal keys, less with the distance in the alphabet."""
    return [max(0, 10 - 3 * abs(ord(item.key) - ord(other.key))) for other in others]


def swapped(pairs: Pairs) -> Pairs:
    return [(there, here) for here, there in pairs]


def is_ascending(pairs: Pairs) -> bool:
    return all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(pairs))


def best_sum(a: str, b: str, *, equal_only: bool) -> int:
    """Return the greatest sum of likeness, by brute force."""

    @cache
    def best(here: int, there: int) -> int:
        if not here or not there:
            return 0
        like = likeness(Item(a[here - 1]), [Item(b[there - 1])])[0]
        if equal_only:
            like = int(a[here - 1] == b[there - 1])
        both = best(here - 1, there - 1) + like if like else 0
        return max(best(here - 1, there), best(here, there - 1), both)

    return best(len(a), len(b))


@given(letters, letters)
def test_a_common_subsequence_is_the_longest_one(a: list[str], b: list[str]) -> None:
    pairs = longest_common_subsequence(a, b)
    assert is_ascending(pairs)
    assert all(a[here] == b[there] for here, there in pairs)
    assert len(pairs) == best_sum("".join(a), "".join(b), equal_only=True)
    assert longest_common_subsequence(b, a) == swapped(pairs)


@given(letters, letters)
def test_an_alignment_has_the_greatest_sum_of_likeness(a: list[str], b: list[str]) -> None:
    pairs = aligned(items(a), items(b), likeness)
    assert is_ascending(pairs)
    assert sum(likeness(Item(a[here]), [Item(b[there])])[0] for here, there in pairs) == best_sum(
        "".join(a), "".join(b), equal_only=False
    )
    assert aligned(items(b), items(a), likeness) == swapped(pairs)


@given(many, many, st.integers(min_value=0, max_value=40))
def test_beyond_the_limits_the_alignment_is_coarser_and_still_symmetric(a: list[str], b: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "MOST_BITS", most)
        patch.setattr(alignment, "MOST_CELLS", most)
        patch.setattr(alignment, "BLOCK", 3)
        common, alike = longest_common_subsequence(a, b), aligned(items(a), items(b), likeness)
        assert longest_common_subsequence(b, a) == swapped(common)
        assert aligned(items(b), items(a), likeness) == swapped(alike)
    assert is_ascending(common)
    assert is_ascending(alike)
    assert all(a[here] == b[there] for here, there in common)
    assert all(likeness(Item(a[here]), [Item(b[there])])[0] for here, there in alike)


def test_beyond_the_limits_unique_items_are_paired_first(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = "xamabnby", "yabmbanz"
    monkeypatch.setattr(alignment, "MOST_BITS", 6)
    pairs = longest_common_subsequence([*a], [*b])
    assert {(1, 1), (2, 3), (5, 6)} <= set(pairs)
    assert len(pairs) == 4
    monkeypatch.setattr(alignment, "MOST_CELLS", 6)
    assert {(2, 3), (5, 6)} <= set(aligned(items(a), items(b), likeness))


def test_aligns_in_blocks_along_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MOST_CELLS", 20)
    monkeypatch.setattr(alignment, "BLOCK", 4)
    a, b = items("acegikmoqsuw"), items("bdfhjlnprtvx")
    assert aligned(a, b, likeness) == [(place, place) for place in range(12)]
