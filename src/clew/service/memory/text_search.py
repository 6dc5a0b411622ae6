"""Texts that can be searched: by their words, and with an embedder by their meaning too."""

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
"""How far down the rankings by words and by meaning are looked at, at least, before they become one."""

LONGEST = 1e18
"""The length that a vector must be below: the squares of float32 numbers, in which it is kept, end at 3.4e38."""

BATCH = 256
"""Texts that are embedded before their vectors are kept: what is lost when it breaks off."""


class Texts(NamedTuple):
    """What can be found, by number. With the same ``stamp`` they are the same; a number always means the same text."""

    stamp: int
    by_number: Mapping[int, str]


class _Asked(NamedTuple):
    """A query with its vector, how many texts each ranking is to have, and which may be in it."""

    query: str
    vector: Sequence[float]
    depth: int
    allowed: Collection[int] | None


class Meaning:
    """An embedder and the index that keeps its vectors: what it takes to search by meaning."""

    def __init__(self, embedder: Embedder, index: VectorIndex) -> None:
        self.embedder = embedder
        self.index = index
        self.model, self.dimensions = _shape(embedder)

    @property
    def space(self) -> str:
        """Where its vectors are kept: those of another model, or of another size, are kept elsewhere."""
        return f"{self.model}/{self.dimensions}"

    async def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, each of as many finite numbers as the embedder says.

        Raises EmbeddingError for anything else, and EmbeddingMismatchError for an embedder that is not what it was.
        """
        if not texts:
            return []
        self._check_shape()
        try:
            given = await self.embedder.embed(texts)
            found = [[float(number) for number in vector] for vector in given]
        except ClewError:
            raise
        except Exception as error:
            raise EmbeddingError(
                f"The embedder {self.model!r} failed on {len(texts)} texts: {type(error).__name__}. Nothing was stored."
            ) from error
        self._check_shape()
        if len(found) != len(texts):
            raise EmbeddingError(
                f"The embedder {self.model!r} gave {len(found)} vectors for {len(texts)} texts. Nothing was stored."
            )
        for vector in found:
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
        return found

    async def embedded(self, texts: Iterable[str]) -> dict[bytes, list[float]]:
        """The vectors of those texts that the index has none of, by digest. Keep them with keep()."""
        by_digest = {digest(text): text for text in texts}
        missing = await asyncio.to_thread(self.index.missing, self.space, by_digest)
        wanted = {each: text for each, text in by_digest.items() if each in missing}
        return dict(zip(wanted, await self.vectors(list(wanted.values())), strict=True))

    async def keep(self, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Put vectors into the index."""
        if vectors:
            await asyncio.to_thread(self.index.put, self.space, vectors)

    async def learn(self, texts: Iterable[str]) -> None:
        """Have the index hold the vectors of all these texts."""
        left = iter(texts)
        while batch := list(islice(left, BATCH)):
            await self.keep(await self.embedded(batch))

    def _check_shape(self) -> None:
        model, dimensions = _shape(self.embedder)
        if (model, dimensions) != (self.model, self.dimensions):
            raise EmbeddingMismatchError(
                f"The embedder was {self.model!r} with {self.dimensions} dimensions, and is {model!r} with {dimensions}"
                " now. Open the store again with the one that it was opened with. Nothing was stored."
            )


class Searchable:
    """A collection of texts that can be searched. What was made of them is kept, and gone on with when they change.

    ``collection`` names it in the index of vectors. Give it the texts as they are with each search. It serves many
    threads; what awaits must be of one event loop.
    """

    def __init__(self, collection: str, meaning: Meaning | None = None) -> None:
        self.collection = collection
        self.meaning = meaning
        self._index = TextIndex()
        self._held: Mapping[int, str] = {}
        self._digests: Mapping[int, bytes] = {}
        self._unsure: dict[int, str] = {}
        self._stamp: int | None = None
        self._lock = threading.Lock()
        self._learning = asyncio.Lock()

    async def search(
        self,
        texts: Texts,
        query: str,
        *,
        top: int = 5,
        min_score: float = 0.0,
        allowed: Collection[int] | None = None,
        meaning: Meaning | None = None,
    ) -> Ranking:
        """The best of the texts, by words and, where there is an embedder, by meaning: numbers and scores, best first.

        ``allowed``, a set or the keys of a dict, narrows them down. ``meaning`` is who is asked this time, of the same
        space. domain/memory/ranking.py says what a score is; none is below ``min_score``, and none is 0. Raises
        InvalidContentError or EmbeddingError.
        """
        _check_search(query, top, min_score)
        meaning = meaning or self.meaning
        if not query.strip() or not texts.by_number:
            return []
        if meaning is None:
            return await asyncio.to_thread(self.by_words, texts, query, top=top, min_score=min_score, allowed=allowed)
        depth = max(DEPTH, 2 * top)
        [vector] = await meaning.vectors([query])
        await self._learn(meaning, texts)
        asked = _Asked(query, vector, depth, allowed)
        found = await asyncio.to_thread(self._both, meaning, texts, asked)
        if found is None:  # the index was dropped since
            async with self._learning:
                await meaning.learn(texts.by_number.values())
            found = await asyncio.to_thread(self._both, meaning, texts, asked)
        if found is None:
            raise EmbeddingError("The index of vectors was emptied while it was searched. Search again.")
        return _cut(fuse(found), top, min_score)

    def by_words(
        self, texts: Texts, query: str, *, top: int = 5, min_score: float = 0.0, allowed: Collection[int] | None = None
    ) -> Ranking:
        """The same by words only, in the calling thread."""
        _check_search(query, top, min_score)
        return _cut(self._worded(texts, query, top, allowed), top, min_score)

    def _worded(self, texts: Texts, query: str, top: int, allowed: Collection[int] | None) -> Ranking:
        with self._lock:
            self._hold(texts)
            return self._index.search(query, top, allowed)

    async def _learn(self, meaning: Meaning, texts: Texts) -> None:
        """Have the vectors of those texts that came since the last search, if they have none."""
        if not self._unsure and self._stamp == texts.stamp:
            return
        unsure = await asyncio.to_thread(self._new, texts)
        async with self._learning:
            await meaning.learn(unsure.values())
        self._sure(unsure)

    def _both(self, meaning: Meaning, texts: Texts, asked: _Asked) -> list[Ranking] | None:
        """The rankings by words and by meaning; None when the index lacks vectors.

        One after the other: two threads that take turns in computing would only hold each other up.
        """
        query, vector, depth, allowed = asked
        worded = self._worded(texts, query, depth, allowed)
        with self._lock:
            self._hold(texts)
            entries = self._digests
        # However good those are that are not allowed: behind all of them are as many as are asked for.
        wanted = min(len(entries), depth + (0 if allowed is None else max(0, len(entries) - len(allowed))))
        found = meaning.index.nearest(meaning.space, self.collection, entries, texts.stamp, vector, wanted)
        if len(found) < wanted:
            return None
        near = [(number, min(1.0, score)) for number, score in found if score > 0]
        return [worded, near if allowed is None else [each for each in near if each[0] in allowed][:depth]]

    def _new(self, texts: Texts) -> dict[int, str]:
        with self._lock:
            self._hold(texts)
            return dict(self._unsure)

    def _sure(self, learned: Collection[int]) -> None:
        with self._lock:
            for number in learned:
                self._unsure.pop(number, None)

    def _hold(self, texts: Texts) -> None:
        """Hold these texts and no others."""
        if self._stamp == texts.stamp:
            return
        there, wanted = self._held, texts.by_number
        gone, new = there.keys() - wanted.keys(), sorted(wanted.keys() - there.keys())
        for number in gone:
            self._index.remove(number)
            self._unsure.pop(number, None)
        for number in new:
            self._index.add(number, wanted[number])
        if self.meaning is not None and (gone or new):
            digests = {number: each for number, each in self._digests.items() if number in wanted}
            digests.update((number, digest(wanted[number])) for number in new)
            self._digests = digests
            self._unsure.update((number, wanted[number]) for number in new)
        self._held = wanted
        self._stamp = texts.stamp


def digest(text: str) -> bytes:
    """What a text is known by in an index of vectors."""
    return sha256(text.encode()).digest()


def _cut(ranking: Ranking, top: int, min_score: float) -> Ranking:
    return [each for each in ranking[:top] if each[1] > 0 and each[1] >= min_score]


def _check_search(query: str, top: int, min_score: float) -> None:
    check_text(query, "search")
    if type(top) is not int or top < 1:
        raise InvalidContentError(f"search: top={top!r} is not a number of results. Give an int from 1.")
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or not 0 <= min_score <= 1:
        raise InvalidContentError(f"search: min_score={min_score!r} is not a score. Give a number from 0 to 1.")


def _shape(embedder: Embedder) -> tuple[str, int]:
    """The model and the size of an embedder's vectors. Raises EmbeddingError for what is no embedder."""
    model, dimensions = getattr(embedder, "model", None), getattr(embedder, "dimensions", None)
    if not isinstance(model, str) or not model or type(dimensions) is not int or dimensions < 1:
        raise EmbeddingError(
            f"{type(embedder).__name__} is no embedder: it needs a model (its name), dimensions (an int from 1) and "
            "embed()."
        )
    return model, dimensions
