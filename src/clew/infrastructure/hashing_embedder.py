"""Vectors made of the words of a text by hashing: the same ones everywhere, without a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from clew.domain.errors import EmbeddingError
from clew.domain.memory.ranking import words

_PART = 3
_PART_WEIGHT = 0.3
"""Letters of the parts of words that count as well, and how much they do: ``invoice`` is near ``invoices``."""


class HashingEmbedder:
    """Embeds texts by their words and the parts of those, hashed into ``dimensions`` numbers: for tests, and offline.

    It knows no meaning. Texts that share no words are near each other by chance only.
    """

    def __init__(self, dimensions: int = 256) -> None:
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
            raise EmbeddingError(f"HashingEmbedder: dimensions={dimensions!r}. Give an int from 1, such as 256.")
        self.model = "hashing-1"
        self.dimensions = dimensions

    def __repr__(self) -> str:
        return f"HashingEmbedder({self.dimensions})"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text, or of length 0 for one without words."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word, times in Counter(words(text)).items():
            weight = 1 + math.log(times)
            for part in _parts(word):
                place, sign = _hashed(part)
                vector[place % self.dimensions] += sign * (weight if part == word else weight * _PART_WEIGHT)
        length = math.hypot(*vector)
        return [number / length for number in vector] if length else vector


def _parts(word: str) -> Iterator[str]:
    """A word, and what it is put together of."""
    yield word
    closed = f"^{word}$"
    yield from (closed[at : at + _PART] for at in range(len(closed) - _PART + 1))


@lru_cache(maxsize=65_536)
def _hashed(part: str) -> tuple[int, int]:
    """The place of a part, and whether it adds there or takes away, so that those that meet do not add up."""
    found = int.from_bytes(blake2b(part.encode(), digest_size=8).digest(), "big")
    return found >> 1, 1 if found & 1 else -1
