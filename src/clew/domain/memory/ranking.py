"""Ranking of texts by relevance to a query: an index of words (BM25), and the fusion of rankings.

Every score is between 0 and 1. A score by words is the share of the query that a text matches: rare words weigh more,
and a text of average length that has each word of the query once scores 1. A score by meaning is the cosine similarity,
or 0 if that is negative. A fused score is the mean over the rankings, where lower places count less: 1 means first
place with a score of 1 in every ranking.
"""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

Ranking: TypeAlias = list[tuple[int, float]]
"""Numbers of texts with their scores, best first."""

FUSION = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""

_SATURATION = 1.2
_LENGTH = 0.75
"""BM25's k1 and b, with the values of Robertson and Zaragoza (2009)."""

_MANY = 1_000
_COMMON = 0.05
"""A word is common if more than this share of the texts has it, in an index of at least ``_MANY`` texts."""

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


def words(text: str) -> list[str]:
    """The words of a text, in order, without case and accents. In scripts without spaces, pairs of characters."""
    folded = text.casefold()
    if not folded.isascii():
        parts = unicodedata.normalize("NFKD", folded)
        folded = "".join(each for each in parts if not unicodedata.category(each).startswith("M"))
    matches: list[str] = _WORD.findall(folded)
    return matches if folded.isascii() else [each for word in matches for each in _pairs(word)]


def _pairs(word: str) -> Iterator[str]:
    start = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > start:
            yield word[start : run.start()]
        letters = run[0]
        yield from (letters[at : at + 2] for at in range(max(1, len(letters) - 1)))
        start = run.end()
    if start < len(word):
        yield word[start:]


class TextIndex:
    """An index of numbered texts: searched by words, ranked with BM25, and updated text by text."""

    def __init__(self) -> None:
        self._texts: dict[int, Counter[str]] = {}
        self._lengths: dict[int, int] = {}
        self._texts_of: dict[str, dict[int, int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, number: int, text: str) -> None:
        """Add a text under a number, or replace the text with that number."""
        self.remove(number)
        counted = Counter(words(text))
        self._texts[number] = counted
        self._lengths[number] = counted.total()
        self._length += counted.total()
        for word, times in counted.items():
            self._texts_of.setdefault(word, {})[number] = times

    def remove(self, number: int) -> None:
        """Remove a text; an unknown number is ignored."""
        counted = self._texts.pop(number, None)
        if counted is None:
            return
        self._length -= self._lengths.pop(number)
        for word in counted:
            texts = self._texts_of[word]
            del texts[number]
            if not texts:
                del self._texts_of[word]

    def search(self, query: str, top: int, allowed: Collection[int] | None = None) -> Ranking:
        """The best texts that have a word of the query, at most ``top``. With ``allowed``, only texts of these numbers.

        ``allowed`` should be a set or the keys of a dict. Texts with equal scores are in the order of their numbers.

        In an index of at least 1,000 texts, a word that more than 5 % of them contain is common. It says little about a
        text, and scoring all its texts is slow. So it only changes the scores of texts that also have a rarer word of
        the query, if there are enough of these.
        """
        terms = dict.fromkeys(words(query))
        weighted = sorted(
            ((self._weight(word), self._texts_of.get(word, {})) for word in terms),
            key=lambda each: (-each[0], len(each[1])),
        )
        total = left = sum(weight for weight, _ in weighted)
        if not total or not self._length or top < 1:
            return []
        least, longer = _SATURATION * (1 - _LENGTH), _SATURATION * _LENGTH * len(self._texts) / self._length
        lengths, scores = self._lengths, dict[int, float]()
        common = _COMMON * len(self._texts) if len(self._texts) >= _MANY else len(self._texts)
        for weight, texts in weighted:
            settled = len(scores) >= top and (len(texts) > common or _is_settled(scores, top, texts, left))
            left -= weight
            counted = texts.items()
            if settled:
                counted = {number: texts[number] for number in scores if number in texts}.items()
            elif allowed is not None:
                counted = {number: times for number, times in counted if number in allowed}.items()
            most, previous = weight * (_SATURATION + 1), scores.get
            for number, times in counted:
                scores[number] = previous(number, 0.0) + most * times / (times + least + longer * lengths[number])
        best = heapq.nsmallest(top, ((-score, number) for number, score in scores.items()))
        return [(number, min(1.0, -score / total)) for score, number in best]

    def _weight(self, word: str) -> float:
        """The weight (IDF) of a word; a word without a text weighs as much as a word with one text."""
        count = max(1, len(self._texts_of.get(word, ())))
        return math.log(1 + max(0.0, len(self._texts) - count + 0.5) / (count + 0.5))


def _is_settled(scores: dict[int, float], top: int, texts: Collection[int], left: float) -> bool:
    """Whether texts that have only the remaining words cannot be among the best ``top`` any more (MaxScore)."""
    return len(texts) > len(scores) and heapq.nlargest(top, scores.values())[-1] > left * (_SATURATION + 1)


def fuse(rankings: Sequence[Ranking]) -> Ranking:
    """Fuse several rankings into one, by reciprocal rank weighted with the scores. All rankings count equally.

    A ranking contributes its score times 61 / (60 + place), where the first place is 1. Fusion by places alone would
    let a bad ranking spoil a good one: docs/benchmarks.md shows how much.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (number, score) in enumerate(ranking, 1):
            share = score * (FUSION + 1) / (FUSION + place)
            fused[number] = fused.get(number, 0.0) + share / len(rankings)
    return sorted(fused.items(), key=lambda each: (-each[1], each[0]))
