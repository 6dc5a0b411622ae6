"""Embedders for tests: one that records the texts that it embeds, and many that break the contract."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from clew.infrastructure.hashing_embedder import HashingEmbedder


class CountingEmbedder(HashingEmbedder):
    """Records the texts that it embeds."""

    def __init__(self, dimensions: int = 64) -> None:
        super().__init__(dimensions)
        self.texts: list[str] = []
        self.then: Callable[[], None] = lambda: None

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        await asyncio.sleep(0)
        self.then()
        return await super().embed(texts)


class BrokenEmbedder(CountingEmbedder):
    """Returns the right vectors, changed by ``spoil`` once ``broken`` is set."""

    def __init__(self, spoil: Callable[[Any], Any]) -> None:
        super().__init__(4)
        self.spoil = spoil
        self.broken = False

    async def embed(self, texts: Sequence[str]) -> Any:
        vectors = await super().embed(texts)
        return self.spoil(vectors) if self.broken else vectors


def _raise(_: Any) -> Any:
    raise RuntimeError("secret")


SPOILT: dict[str, Callable[[Any], Any]] = {
    "raises": _raise,
    "too few": lambda vectors: vectors[1:],
    "too many": lambda vectors: [*vectors, vectors[0]],
    "none": lambda _: None,
    "not numbers": lambda vectors: [["x"] * 4 for _ in vectors],
    "not lists": lambda vectors: [7 for _ in vectors],
    "of another size": lambda vectors: [vector[:3] for vector in vectors],
    "one of another size": lambda vectors: [*vectors[:-1], [1.0]],
    "NaN": lambda vectors: [*vectors[:-1], [math.nan] * 4],
    "infinite": lambda vectors: [[math.inf, 0, 0, 0] for _ in vectors],
    "more than float32 holds": lambda vectors: [*vectors[:-1], [1e39, 0, 0, 0]],
    "a length beyond float32": lambda vectors: [[3e19] * 4 for _ in vectors],
}
