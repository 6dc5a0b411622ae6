"""Search in texts: by words and, with an embedder, also by meaning."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

from clew.domain.errors import ClewError, EmbeddingError, EmbeddingMismatchError, InvalidContentError
from clew.domain.json_values import check_text
from clew.domain.memory.ports import Embedder, VectorIndex
from clew.domain.memory.ranking import Ranking, TextIndex, fuse

DEPTH = 50
"""The fewest results of each ranking, by words and by meaning, before the rankings are fused."""

LONGEST = 1e18
"""The length of every vector is below this: its square must stay below 3.4e38, because vectors are float32."""

BATCH = 256
"""Texts that are embedded before their vectors are stored. An interruption loses at most one such batch."""


class Texts(NamedTuple):
    """The texts of a collection, by number. Equal stamps mean equal texts. A number always stands for the same text."""

    stamp: int
    by_number: Mapping[int, str]


class _Query(NamedTuple):
    """A query with its vector, the length of each ranking, and the numbers of the texts that it may find."""

    query: str
    vector: Sequence[float]
    depth: int
    allowed: Collection[int] | None


class EmbeddingIndex:
    """An embedder and the index that stores its vectors, for search by meaning."""

    def __init__(self, embedder: Embedder, index: VectorIndex) -> None:
        self.embedder = embedder
        self.index = index
        self.model, self.dimensions = _shape(embedder)

    @property
    def space(self) -> str:
        """The name under which its vectors are stored. Other models and sizes have other names."""
        return f"{self.model}/{self.dimensions}"

    async def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, with as many finite numbers as the embedder declares.

        Raises EmbeddingError for an invalid result, and EmbeddingMismatchError if the embedder has changed.
        """
        if not texts:
            return []
        self._check_shape()
        try:
            vectors = [[float(number) for number in vector] for vector in await self.embedder.embed(texts)]
        except ClewError:
            raise
        except Exception as error:
            raise EmbeddingError(
                f"The embedder {self.model!r} failed on {len(texts)} texts: {type(error).__name__}. Nothing was stored."
            ) from error
        self._check_shape()
        if len(vectors) != len(texts):
            raise EmbeddingError(
                f"The embedder {self.model!r} gave {len(vectors)} vectors for {len(texts)} texts. Nothing was stored."
            )
        for vector in vectors:
            if len(vector) != self.dimensions:
                raise EmbeddingMismatchError(
                    f"The embedder {self.model!r} gave a vector of {len(vector)} numbers, and says that its vectors "
                    f"have {self.dimensions}. Nothing was stored."
                )
            if not math.hypot(*vector) < LONGEST:
                raise EmbeddingError(
                    f"The embedder {self.model!r} gave a vector that holds NaN, infinity or numbers too large to be "
                    "compared. Nothing was stored."
                )
        return vectors

    async def missing_vectors(self, texts: Iterable[str]) -> dict[bytes, list[float]]:
        """The vectors, by digest, of the texts that have no vector in the index. Store them with store()."""
        by_digest = {digest(text): text for text in texts}
        missing = await asyncio.to_thread(self.index.missing, self.space, by_digest)
        to_embed = {each: text for each, text in by_digest.items() if each in missing}
        return dict(zip(to_embed, await self.vectors(list(to_embed.values())), strict=True))

    async def store(self, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Put vectors into the index."""
        if vectors:
            await asyncio.to_thread(self.index.put, self.space, vectors)

    async def add(self, texts: Iterable[str]) -> None:
        """Add the missing vectors of these texts to the index."""
        remaining = iter(texts)
        while batch := list(islice(remaining, BATCH)):
            await self.store(await self.missing_vectors(batch))

    def _check_shape(self) -> None:
        model, dimensions = _shape(self.embedder)
        if (model, dimensions) != (self.model, self.dimensions):
            raise EmbeddingMismatchError(
                f"The embedder was {self.model!r} with {self.dimensions} dimensions, and is {model!r} with {dimensions}"
                " now. Open the store again with the one that it was opened with. Nothing was stored."
            )


class SearchIndex:
    """The search index of a collection of texts. It is updated when the texts change.

    ``collection`` is its name in the vector index. Each search passes the current texts. Its methods are thread-safe;
    its coroutines must run in one event loop.
    """

    def __init__(self, collection: str, embeddings: EmbeddingIndex | None = None) -> None:
        self.collection = collection
        self.embeddings = embeddings
        self._index = TextIndex()
        self._texts: Mapping[int, str] = {}
        self._digests: Mapping[int, bytes] = {}
        self._not_embedded: dict[int, str] = {}
        self._stamp: int | None = None
        self._lock = threading.Lock()
        self._embedding = asyncio.Lock()

    async def search(
        self,
        texts: Texts,
        query: str,
        *,
        top: int = 5,
        min_score: float = 0.0,
        allowed: Collection[int] | None = None,
        embeddings: EmbeddingIndex | None = None,
    ) -> Ranking:
        """The best texts by words and, with an embedder, also by meaning: their numbers and scores, best first.

        ``allowed``, a set or the keys of a dict, limits the results. ``embeddings`` are those for this search, of the
        same space as the index's own. domain/memory/ranking.py defines the scores. All scores are above 0, and at least
        ``min_score``. Raises InvalidContentError or EmbeddingError.
        """
        _check_search(query, top, min_score)
        embeddings = embeddings or self.embeddings
        if not query.strip() or not texts.by_number:
            return []
        if embeddings is None:
            return await asyncio.to_thread(self.by_words, texts, query, top=top, min_score=min_score, allowed=allowed)
        depth = max(DEPTH, 2 * top)
        [vector] = await embeddings.vectors([query])
        await self._embed_new(embeddings, texts)
        request = _Query(query, vector, depth, allowed)
        rankings = await asyncio.to_thread(self._rank_by_both, embeddings, texts, request)
        if rankings is None:  # the index was dropped meanwhile
            async with self._embedding:
                await embeddings.add(texts.by_number.values())
            rankings = await asyncio.to_thread(self._rank_by_both, embeddings, texts, request)
        if rankings is None:
            raise EmbeddingError("The index of vectors was emptied while it was searched. Search again.")
        return _best(fuse(rankings), top, min_score)

    def by_words(
        self, texts: Texts, query: str, *, top: int = 5, min_score: float = 0.0, allowed: Collection[int] | None = None
    ) -> Ranking:
        """The same search, but by words only and in the calling thread."""
        _check_search(query, top, min_score)
        return _best(self._rank_by_words(texts, query, top, allowed), top, min_score)

    def _rank_by_words(self, texts: Texts, query: str, top: int, allowed: Collection[int] | None) -> Ranking:
        with self._lock:
            self._update(texts)
            return self._index.search(query, top, allowed)

    async def _embed_new(self, embeddings: EmbeddingIndex, texts: Texts) -> None:
        """Embed the texts that were added since the last search."""
        if not self._not_embedded and self._stamp == texts.stamp:
            return
        pending = await asyncio.to_thread(self._unembedded, texts)
        async with self._embedding:
            await embeddings.add(pending.values())
        self._mark_embedded(pending)

    def _rank_by_both(self, embeddings: EmbeddingIndex, texts: Texts, request: _Query) -> list[Ranking] | None:
        """The rankings by words and by meaning; None if the index lacks vectors.

        They run one after the other: in parallel they would compete for the interpreter lock.
        """
        query, vector, depth, allowed = request
        by_words = self._rank_by_words(texts, query, depth, allowed)
        with self._lock:
            self._update(texts)
            entries = self._digests
        # Enough for ``depth`` allowed texts, even if all others are nearer.
        count = min(len(entries), depth + (0 if allowed is None else max(0, len(entries) - len(allowed))))
        nearest = embeddings.index.nearest(embeddings.space, self.collection, entries, texts.stamp, vector, count)
        if len(nearest) < count:
            return None
        by_meaning = [(number, min(1.0, score)) for number, score in nearest if score > 0]
        if allowed is not None:
            by_meaning = [each for each in by_meaning if each[0] in allowed][:depth]
        return [by_words, by_meaning]

    def _unembedded(self, texts: Texts) -> dict[int, str]:
        with self._lock:
            self._update(texts)
            return dict(self._not_embedded)

    def _mark_embedded(self, numbers: Collection[int]) -> None:
        with self._lock:
            for number in numbers:
                self._not_embedded.pop(number, None)

    def _update(self, texts: Texts) -> None:
        """Update the index to these texts."""
        if self._stamp == texts.stamp:
            return
        old, current = self._texts, texts.by_number
        removed, added = old.keys() - current.keys(), sorted(current.keys() - old.keys())
        for number in removed:
            self._index.remove(number)
            self._not_embedded.pop(number, None)
        for number in added:
            self._index.add(number, current[number])
        if self.embeddings is not None and (removed or added):
            digests = {number: each for number, each in self._digests.items() if number in current}
            digests.update((number, digest(current[number])) for number in added)
            self._digests = digests
            self._not_embedded.update((number, current[number]) for number in added)
        self._texts = current
        self._stamp = texts.stamp


def digest(text: str) -> bytes:
    """The key of a text in a vector index."""
    return sha256(text.encode()).digest()


def _best(ranking: Ranking, top: int, min_score: float) -> Ranking:
    return [each for each in ranking[:top] if each[1] > 0 and each[1] >= min_score]


def _check_search(query: str, top: int, min_score: float) -> None:
    check_text(query, "search")
    if type(top) is not int or top < 1:
        raise InvalidContentError(f"search: top={top!r} is not a number of results. Give an int from 1.")
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or not 0 <= min_score <= 1:
        raise InvalidContentError(f"search: min_score={min_score!r} is not a score. Give a number from 0 to 1.")


def _shape(embedder: Embedder) -> tuple[str, int]:
    """The model and the length of an embedder's vectors. Raises EmbeddingError for another object."""
    model, dimensions = getattr(embedder, "model", None), getattr(embedder, "dimensions", None)
    if not isinstance(model, str) or not model or type(dimensions) is not int or dimensions < 1:
        raise EmbeddingError(
            f"{type(embedder).__name__} is not an embedder. It needs a model (its name), dimensions (an int from 1) "
            "and embed()."
        )
    return model, dimensions
