from __future__ import annotations

import asyncio

import pytest
from tests.service.embedders import CountingEmbedder

from clew.domain.errors import EmbeddingError
from clew.domain.memory.ranking import Ranking
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.service.memory.text_search import EmbeddingIndex, SearchIndex, Texts

TEXTS = {1: "the lost parcel", 2: "a lost letter", 3: "bananas are yellow", 4: "the parcel was found"}


def numbers(ranking: Ranking) -> list[int]:
    return [number for number, _ in ranking]


@pytest.mark.parametrize("embedded", [False, True])
def test_finds_only_allowed_texts(embedded: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    async def check() -> None:
        meaning = EmbeddingIndex(CountingEmbedder(), InMemoryVectors()) if embedded else None
        searchable = SearchIndex("c", meaning)
        every = numbers(await searchable.search(Texts(1, TEXTS), "lost parcel", top=9))
        assert every[0] == 1
        assert {1, 2, 4} <= set(every)
        assert numbers(await searchable.search(Texts(1, TEXTS), "lost parcel", top=9, allowed={2, 4})) == [
            number for number in every if number in {2, 4}
        ]
        assert await searchable.search(Texts(1, TEXTS), "lost parcel", allowed=set()) == []
        assert await searchable.search(Texts(0, {}), "lost parcel") == []

    asyncio.run(check())


def test_finds_allowed_texts_behind_many_others() -> None:
    async def check() -> None:
        texts = {
            number: f"lost parcel {number}" if number < 200 else f"a found letter {number}" for number in range(203)
        }
        searchable = SearchIndex("c", EmbeddingIndex(CountingEmbedder(), InMemoryVectors()))
        results = await searchable.search(Texts(1, texts), "found lost parcel", top=9, allowed={200, 201, 202})
        assert set(numbers(results)) == {200, 201, 202}

    asyncio.run(check())


def test_follows_changes_of_its_texts_and_embeds_each_once() -> None:
    async def check() -> None:
        embedder = CountingEmbedder()
        searchable = SearchIndex("c", EmbeddingIndex(embedder, InMemoryVectors()))
        first, second = dict(list(TEXTS.items())[:2]), dict(list(TEXTS.items())[1:])
        for stamp, texts in ((1, first), (2, second), (3, TEXTS), (1, first), (3, TEXTS)):
            results = numbers(await searchable.search(Texts(stamp, texts), "lost parcel", top=9))
            assert set(results) <= texts.keys()
            assert {number for number in texts if number != 3} <= set(results)
        assert sorted(text for text in embedder.texts if text != "lost parcel") == sorted(TEXTS.values())

    asyncio.run(check())


def test_concurrent_searches_embed_missing_texts_once() -> None:
    async def check() -> None:
        embedder = CountingEmbedder()
        searchable = SearchIndex("c", EmbeddingIndex(embedder, InMemoryVectors()))
        results = await asyncio.gather(*(searchable.search(Texts(1, TEXTS), "lost parcel") for _ in range(8)))
        assert all(each == results[0] for each in results)
        assert len(embedder.texts) == len(TEXTS) + 8

    asyncio.run(check())


def test_raises_an_error_when_the_index_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index = InMemoryVectors()
    monkeypatch.setattr(index, "put", lambda *_: None)
    with pytest.raises(EmbeddingError, match="Search again"):
        asyncio.run(SearchIndex("c", EmbeddingIndex(CountingEmbedder(), index)).search(Texts(1, TEXTS), "lost parcel"))


def test_a_search_by_words_needs_no_event_loop() -> None:
    searchable = SearchIndex("c")
    assert numbers(searchable.by_words(Texts(1, TEXTS), "lost parcel", top=1)) == [1]
    assert searchable.by_words(Texts(1, TEXTS), "lost parcel", min_score=1) == [(1, 1.0)]
