from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.memory.ranking import Ranking, TextIndex, fuse, words

WORDS = ["a", "b", "c", "d", "e", "rare"]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
text_maps = st.dictionaries(st.integers(0, 30), texts, max_size=12)


def index_of(text_maps: dict[int, str]) -> TextIndex:
    index = TextIndex()
    for number, text in text_maps.items():
        index.add(number, text)
    return index


def naive(text_maps: dict[int, str], query: str, top: int) -> Ranking:
    """Return the BM25 ranking by its formula, over all texts."""
    query_words = set(words(query))
    counted = {number: Counter(words(text)) for number, text in text_maps.items()}
    frequencies = {word: max(1, sum(word in each for each in counted.values())) for word in query_words}
    weights = {word: math.log(1 + (len(text_maps) - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}
    average = sum(each.total() for each in counted.values()) / len(text_maps)
    ranking = []
    for number, each in counted.items():
        spread = 1.2 * (0.25 + 0.75 * each.total() / average) if average else 0
        score = sum(weights[word] * each[word] * 2.2 / (each[word] + spread) for word in query_words if each[word])
        if score:
            ranking.append((number, score / sum(weights.values())))
    ranking.sort(key=lambda pair: (-round(pair[1], 9), pair[0]))
    return [(number, min(1.0, score)) for number, score in ranking[:top]]


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_splits_a_text_into_words_without_case_and_accents(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(text_maps.filter(bool), texts, st.integers(1, 14))
def test_ranks_like_bm25_although_it_skips_common_words(text_maps: dict[int, str], query: str, top: int) -> None:
    ranked, expected = index_of(text_maps).search(query, top), naive(text_maps, query, top)
    assert [score for _, score in ranked] == pytest.approx([score for _, score in expected])
    scores = dict(naive(text_maps, query, len(text_maps)))
    assert all(score == pytest.approx(scores[number]) for number, score in ranked)
    assert all(0 < score <= 1 for _, score in ranked)


def test_skips_texts_with_only_common_words_without_missing_a_better_one() -> None:
    text_maps = (
        dict.fromkeys(range(500), "a b c d") | {500 + n: "a rare" for n in range(5)} | {600: "a b c d rare rare"}
    )
    ranked = index_of(text_maps).search("a b c d rare", 3)
    assert [number for number, _ in ranked] == [number for number, _ in naive(text_maps, "a b c d rare", 3)]


@given(text_maps, text_maps, texts)
def test_a_changed_index_equals_a_new_one(before: dict[int, str], after: dict[int, str], query: str) -> None:
    changed = index_of(before)
    for number in before.keys() - after.keys():
        changed.remove(number)
    for number, text in after.items():
        changed.add(number, text)
    changed.remove(999)
    assert changed.search(query, 5) == index_of(after).search(query, 5)
    assert len(changed) == len(after)


@given(text_maps, texts, st.sets(st.integers(0, 30)))
def test_finds_only_allowed_texts_in_the_overall_order(
    text_maps: dict[int, str], query: str, allowed: set[int]
) -> None:
    index = index_of(text_maps)
    every = [number for number, _ in index.search(query, 100) if number in allowed]
    assert [number for number, _ in index.search(query, 100, allowed)] == every


def test_a_text_with_all_words_of_the_query_has_score_1() -> None:
    index = index_of({1: "parcel lost", 2: "parcel found", 3: "other words"})
    (first, score), (second, half) = index.search("lost parcel", 2)
    assert (first, score) == (1, 1.0)
    assert second == 2
    assert 0 < half < 0.5, "a more common word counts less"


def test_an_unknown_word_counts_as_a_rare_one() -> None:
    index = index_of({1: "parcel", 2: "letter"})
    assert index.search("parcel", 1)[0][1] == 1.0
    assert index.search("parcel zeppelin", 1)[0][1] == pytest.approx(0.5)


def test_empty_indexes_queries_and_limits_find_nothing() -> None:
    assert TextIndex().search("parcel", 5) == []
    assert index_of({1: "parcel"}).search("…", 5) == []
    assert index_of({1: "parcel"}).search("parcel", 0) == []
    assert index_of({1: ""}).search("parcel", 5) == []


def test_fusing_gives_score_1_to_the_best_text_of_all_rankings() -> None:
    fused = fuse([[(1, 1.0), (2, 0.5)], [(1, 1.0), (3, 1.0)]])
    assert fused[0] == (1, 1.0)
    assert [number for number, _ in fused[1:]] == [3, 2]
    assert dict(fused[1:]) == pytest.approx({3: 61 / 62 / 2, 2: 61 / 62 / 4})
    assert fuse([[], []]) == []


@given(st.lists(text_maps.map(lambda each: [(number, 1 / (1 + number)) for number in each]), min_size=1, max_size=3))
def test_fused_scores_decrease_and_lie_between_0_and_1(rankings: list[Ranking]) -> None:
    scores = [score for _, score in fuse(rankings)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


def test_common_words_rank_among_texts_with_a_rarer_word_first() -> None:
    text_maps = dict.fromkeys(range(1_000), "the parcel") | {2_000: "rare thing", 2_001: "rare parcel"}
    index = index_of(text_maps)
    assert [number for number, _ in index.search("the rare parcel", 2)] == [2_001, 2_000]
    assert [number for number, _ in index.search("the rare parcel", 3)] == [2_001, 2_000, 0]
    assert [number for number, _ in index.search("the parcel", 2)] == [0, 1]
