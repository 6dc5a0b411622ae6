"""An embedder that hashes the words of a text: the same vectors everywhere, without a model."""

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
"""Parts of words also count, with this length and weight, so that ``invoice`` is near ``invoices``."""


class HashingEmbedder:
    """Embeds texts by their words and parts of words, hashed into ``dimensions`` numbers: for tests and offline use.

    It does not know meanings: texts without common words are near each other only by chance.
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
    """A word, and all its parts of ``_PART`` letters."""
    yield word
    closed = f"^{word}$"
    yield from (closed[at : at + _PART] for at in range(len(closed) - _PART + 1))


@lru_cache(maxsize=65_536)
def _hashed(part: str) -> tuple[int, int]:
    """The place and the sign of a part. With random signs, parts in the same place cancel out on average."""
    number = int.from_bytes(blake2b(part.encode(), digest_size=8).digest(), "big")
    return number >> 1, 1 if number & 1 else -1
