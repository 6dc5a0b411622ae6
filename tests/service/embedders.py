"""Embedders for tests: one that counts what it is asked, and many that do what none should."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from clew.infrastructure.hashing_embedder import HashingEmbedder


class CountingEmbedder(HashingEmbedder):
    """Keeps the texts that it embedded."""

    def __init__(self, dimensions: int = 64) -> None:
        super().__init__(dimensions)
        self.texts: list[str] = []
        self.then: Callable[[], None] = lambda: None

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        await asyncio.sleep(0)
        self.then()
        return await super().embed(texts)


class Broken(CountingEmbedder):
    """Gives what ``spoil`` makes of the right vectors, once it is told to."""

    def __init__(self, spoil: Callable[[Any], Any]) -> None:
        super().__init__(4)
        self.spoil = spoil
        self.broken = False

    async def embed(self, texts: Sequence[str]) -> Any:
        found = await super().embed(texts)
        return self.spoil(found) if self.broken else found


def _raise(_: Any) -> Any:
    raise RuntimeError("secret")


SPOILT: dict[str, Callable[[Any], Any]] = {
    "raises": _raise,
    "too few": lambda found: found[1:],
    "too many": lambda found: [*found, found[0]],
    "none": lambda _: None,
    "no numbers": lambda found: [["x"] * 4 for _ in found],
    "no list": lambda found: [7 for _ in found],
    "of another size": lambda found: [vector[:3] for vector in found],
    "one of another size": lambda found: [*found[:-1], [1.0]],
    "NaN": lambda found: [*found[:-1], [math.nan] * 4],
    "infinite": lambda found: [[math.inf, 0, 0, 0] for _ in found],
    "more than float32 holds": lambda found: [*found[:-1], [1e39, 0, 0, 0]],
    "longer than float32 can tell": lambda found: [[3e19] * 4 for _ in found],
}
