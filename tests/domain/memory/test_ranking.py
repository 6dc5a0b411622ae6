from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.memory.ranking import Ranking, TextIndex, fuse, words

WORDS = ["a", "b", "c", "d", "e", "rare"]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
held = st.dictionaries(st.integers(0, 30), texts, max_size=12)


def index_of(held: dict[int, str]) -> TextIndex:
    index = TextIndex()
    for number, text in held.items():
        index.add(number, text)
    return index


def naive(held: dict[int, str], query: str, top: int) -> Ranking:
    """BM25 by its formula, over every text."""
    asked = set(words(query))
    counted = {number: Counter(words(text)) for number, text in held.items()}
    having = {word: max(1, sum(word in each for each in counted.values())) for word in asked}
    weights = {word: math.log(1 + (len(held) - n + 0.5) / (n + 0.5)) for word, n in having.items()}
    usual = sum(each.total() for each in counted.values()) / len(held)
    found = []
    for number, each in counted.items():
        spread = 1.2 * (0.25 + 0.75 * each.total() / usual) if usual else 0
        score = sum(weights[word] * each[word] * 2.2 / (each[word] + spread) for word in asked if each[word])
        if score:
            found.append((number, score / sum(weights.values())))
    found.sort(key=lambda pair: (-round(pair[1], 9), pair[0]))
    return [(number, min(1.0, score)) for number, score in found[:top]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Don't PANIC, Straße 42!", ["don", "t", "panic", "strasse", "42"]),
        ("naïve Ångström Ça", ["naive", "angstrom", "ca"]),
        ("東京都に住む", ["東京", "京都", "都に", "に住", "住む"]),
        ("本", ["本"]),
        ("abc東京def", ["abc", "東京", "def"]),
        ("\u0928\u092e\u0938\u094d\u0924\u0947", ["\u0928\u092e\u0938\u0924"]),
        ("…  — !", []),
    ],
)
def test_takes_a_text_apart_into_words_without_case_and_accents(text: str, found: list[str]) -> None:
    assert words(text) == found


@given(held.filter(bool), texts, st.integers(1, 14))
def test_ranks_as_bm25_does_also_where_it_leaves_common_words_out(held: dict[int, str], query: str, top: int) -> None:
    found, expected = index_of(held).search(query, top), naive(held, query, top)
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])
    scores = dict(naive(held, query, len(held)))
    assert all(score == pytest.approx(scores[number]) for number, score in found)
    assert all(0 < score <= 1 for _, score in found)


def test_the_many_texts_of_common_words_are_left_out_and_no_better_one_is_missed() -> None:
    held = dict.fromkeys(range(500), "a b c d") | {500 + n: "a rare" for n in range(5)} | {600: "a b c d rare rare"}
    found = index_of(held).search("a b c d rare", 3)
    assert [number for number, _ in found] == [number for number, _ in naive(held, "a b c d rare", 3)]


@given(held, held, texts)
def test_an_index_that_grew_and_shrank_is_as_one_made_anew(
    before: dict[int, str], after: dict[int, str], query: str
) -> None:
    changed = index_of(before)
    for number in before.keys() - after.keys():
        changed.remove(number)
    for number, text in after.items():
        changed.add(number, text)
    changed.remove(999)
    assert changed.search(query, 5) == index_of(after).search(query, 5)
    assert len(changed) == len(after)


@given(held, texts, st.sets(st.integers(0, 30)))
def test_finds_only_what_is_allowed_in_the_order_that_it_has_among_all(
    held: dict[int, str], query: str, allowed: set[int]
) -> None:
    index = index_of(held)
    every = [number for number, _ in index.search(query, 100) if number in allowed]
    assert [number for number, _ in index.search(query, 100, allowed)] == every


def test_one_text_with_each_word_of_the_query_has_the_score_1_and_one_with_half_has_half() -> None:
    index = index_of({1: "parcel lost", 2: "parcel found", 3: "other words"})
    (first, score), (second, half) = index.search("lost parcel", 2)
    assert (first, score) == (1, 1.0)
    assert second == 2
    assert 0 < half < 0.5, "the word that more texts have says less"


def test_a_word_that_no_text_has_counts_as_a_rare_one() -> None:
    index = index_of({1: "parcel", 2: "letter"})
    assert index.search("parcel", 1)[0][1] == 1.0
    assert index.search("parcel zeppelin", 1)[0][1] == pytest.approx(0.5)


def test_nothing_is_found_in_nothing_and_with_nothing() -> None:
    assert TextIndex().search("parcel", 5) == []
    assert index_of({1: "parcel"}).search("…", 5) == []
    assert index_of({1: "parcel"}).search("parcel", 0) == []
    assert index_of({1: ""}).search("parcel", 5) == []


def test_what_is_first_everywhere_with_nothing_to_wish_for_has_1_and_what_one_ranking_has_at_most_half() -> None:
    fused = fuse([[(1, 1.0), (2, 0.5)], [(1, 1.0), (3, 1.0)]])
    assert fused[0] == (1, 1.0)
    assert [number for number, _ in fused[1:]] == [3, 2]
    assert dict(fused[1:]) == pytest.approx({3: 61 / 62 / 2, 2: 61 / 62 / 4})
    assert fuse([[], []]) == []


@given(st.lists(held.map(lambda each: [(number, 1 / (1 + number)) for number in each]), min_size=1, max_size=3))
def test_fused_scores_fall_and_lie_between_0_and_1(rankings: list[Ranking]) -> None:
    scores = [score for _, score in fuse(rankings)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


def test_of_many_texts_common_words_choose_among_those_that_have_a_rarer_one_as_long_as_they_are_enough() -> None:
    held = dict.fromkeys(range(1_000), "the parcel") | {2_000: "rare thing", 2_001: "rare parcel"}
    index = index_of(held)
    assert [number for number, _ in index.search("the rare parcel", 2)] == [2_001, 2_000]
    assert [number for number, _ in index.search("the rare parcel", 3)] == [2_001, 2_000, 0]
    assert [number for number, _ in index.search("the parcel", 2)] == [0, 1]
