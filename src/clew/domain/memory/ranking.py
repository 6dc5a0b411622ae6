"""Which texts have most to do with some words: an index of words that grows and shrinks, and the fusion of rankings.

Every score is between 0 and 1. Of words it is the share of the query that a text answers: each word weighs more the
fewer texts have it, and a text of usual length that has each word of the query once has 1. Of meaning it is the cosine,
and 0 where that is negative. Fused it is the mean of what each ranking gives, less the further down it stands there, so
that 1 means: first in all of them, with nothing to wish for.
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
"""BM25's k1 and b, as Robertson and Zaragoza give them (2009)."""

_MANY = 1_000
_COMMON = 0.05
"""Of how many texts on, and in what share of them, a word is so common that it only helps others to choose."""

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts that put no space between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


def words(text: str) -> list[str]:
    """The words of a text, in order, without case and accents; of scripts without spaces each pair of characters."""
    folded = text.casefold()
    if not folded.isascii():
        parts = unicodedata.normalize("NFKD", folded)
        folded = "".join(each for each in parts if not unicodedata.category(each).startswith("M"))
    found: list[str] = _WORD.findall(folded)
    return found if folded.isascii() else [each for word in found for each in _pairs(word)]


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
    """Texts by number, found by their words as BM25 ranks them. It changes with each text, and needs no rebuilding."""

    def __init__(self) -> None:
        self._texts: dict[int, Counter[str]] = {}
        self._lengths: dict[int, int] = {}
        self._having: dict[str, dict[int, int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, number: int, text: str) -> None:
        """Let a text be found by its number, in place of the one that was there."""
        self.remove(number)
        counted = Counter(words(text))
        self._texts[number] = counted
        self._lengths[number] = counted.total()
        self._length += counted.total()
        for word, times in counted.items():
            self._having.setdefault(word, {})[number] = times

    def remove(self, number: int) -> None:
        """Let a text be found no more; one that is not there is none."""
        counted = self._texts.pop(number, None)
        if counted is None:
            return
        self._length -= self._lengths.pop(number)
        for word in counted:
            having = self._having[word]
            del having[number]
            if not having:
                del self._having[word]

    def search(self, query: str, top: int, allowed: Collection[int] | None = None) -> Ranking:
        """The best texts that have a word of the query, at most ``top``; where it is given, only of those allowed.

        ``allowed`` should be a set or the keys of a dict. Texts that are equally good stand in the order of their
        numbers. From 1,000 texts on, a word that more than a twentieth of them have decides only between texts that
        have a rarer one, as long as those are enough: nobody asks for them by it, and to count them all takes time.
        """
        asked = dict.fromkeys(words(query))
        weighed = sorted(
            ((self._weight(word), self._having.get(word, {})) for word in asked),
            key=lambda each: (-each[0], len(each[1])),
        )
        total = left = sum(weight for weight, _ in weighed)
        if not total or not self._length or top < 1:
            return []
        least, longer = _SATURATION * (1 - _LENGTH), _SATURATION * _LENGTH * len(self._texts) / self._length
        lengths, found = self._lengths, dict[int, float]()
        common = _COMMON * len(self._texts) if len(self._texts) >= _MANY else len(self._texts)
        for weight, having in weighed:
            settled = len(found) >= top and (len(having) > common or _is_settled(found, top, having, left))
            left -= weight
            counted = having.items()
            if settled:
                counted = {number: having[number] for number in found if number in having}.items()
            elif allowed is not None:
                counted = {number: times for number, times in counted if number in allowed}.items()
            most, had = weight * (_SATURATION + 1), found.get
            for number, times in counted:
                found[number] = had(number, 0.0) + most * times / (times + least + longer * lengths[number])
        best = heapq.nsmallest(top, ((-score, number) for number, score in found.items()))
        return [(number, min(1.0, -score / total)) for score, number in best]

    def _weight(self, word: str) -> float:
        """How much a word says; one that no text has counts like one that a single text has."""
        having = max(1, len(self._having.get(word, ())))
        return math.log(1 + max(0.0, len(self._texts) - having + 0.5) / (having + 0.5))


def _is_settled(found: dict[int, float], top: int, having: Collection[int], left: float) -> bool:
    """Whether a text that has none but the words that are left could not come among the best any more (MaxScore)."""
    return len(having) > len(found) and heapq.nlargest(top, found.values())[-1] > left * (_SATURATION + 1)


def fuse(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of several, by reciprocal rank, weighted with the scores: rankings count alike.

    Of each, a text has its score there, times 61 by 60 and its place there, which is 1 for the first. Places alone
    would drag a good ranking down to a bad one: docs/benchmarks.md says how far.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (number, score) in enumerate(ranking, 1):
            share = score * (FUSION + 1) / (FUSION + place)
            fused[number] = fused.get(number, 0.0) + share / len(rankings)
    return sorted(fused.items(), key=lambda each: (-each[1], each[0]))
