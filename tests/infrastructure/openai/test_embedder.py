from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.servers.aimock_server import Aimock
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, whole

from clew.domain.errors import EmbeddingError
from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.openai import embedder as openai_embedder
from clew.infrastructure.openai.embedder import OpenAIEmbedder

CANARY = "sk-canary-12345678"


def vectors(*given: list[Any], **more: Any) -> Reply:
    return whole({"data": [{"index": place, "embedding": vector} for place, vector in enumerate(given)], **more})


def embedded(
    server: RawServer, texts: list[str], *, model: str = "local", dimensions: int | None = 2, timeout: float = 60
) -> list[list[float]]:
    async def embed() -> list[list[float]]:
        embedder = OpenAIEmbedder(
            model, dimensions, api_key=CANARY, base_url=f"http://127.0.0.1:{server.port}/v1", timeout=timeout
        )
        try:
            return await embedder.embed(texts)
        finally:
            await embedder.aclose()

    return asyncio.run(embed())


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_PAUSE", 0.0)


def test_has_its_vectors_from_a_service_over_http(aimock: Aimock) -> None:
    async def embed() -> list[list[float]]:
        embedder = OpenAIEmbedder("text-embedding-3-small", api_key=CANARY, base_url=aimock.base_url)
        found = await embedder.embed(["a parcel", "a letter", "a parcel"])
        await embedder.aclose()
        return found

    one, two, three = asyncio.run(embed())
    assert len(one) == len(two) == 1_536
    assert one == three != two
    assert [asked.path for asked in aimock.journal()] == ["/v1/embeddings"]


@pytest.mark.parametrize(
    ("model", "dimensions", "more"),
    [
        ("local", 2, {}),
        ("text-embedding-3-small", 2, {"dimensions": 2}),
        ("text-embedding-3-small", None, {}),
        ("text-embedding-3-small", 1_536, {}),
    ],
)
def test_names_the_size_only_where_the_model_is_known_to_make_others(
    model: str, dimensions: int | None, more: dict[str, Any]
) -> None:
    with RawServer() as server:
        server.add_replies(vectors([1, 0]))
        embedded(server, ["a"], model=model, dimensions=dimensions)
        [asked] = server.requests
        assert asked.json() == {"model": model, "input": ["a"], "encoding_format": "float", **more}


def test_many_texts_go_in_several_requests_and_come_back_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_TEXTS", 2)
    with RawServer() as server:
        shuffled = [{"index": 1, "embedding": [2, 0]}, {"index": 0, "embedding": [1, 0]}]
        server.add_replies(whole({"data": shuffled}), vectors([3, 0.5]))
        assert embedded(server, ["a", "b", "c"]) == [[1, 0], [2, 0], [3, 0.5]]
        assert [request.json()["input"] for request in server.requests] == [["a", "b"], ["c"]]


def test_long_texts_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_CHARACTERS", 5)
    with RawServer() as server:
        server.add_replies(vectors([1, 0]), vectors([2, 0], [3, 0]))
        assert len(embedded(server, ["abcdefgh", "ab", "cd"])) == 3
        assert [request.json()["input"] for request in server.requests] == [["abcdefgh"], ["ab", "cd"]]


def test_nothing_is_asked_for_no_texts() -> None:
    with RawServer() as server:
        assert embedded(server, []) == []
        assert server.requests == []


@pytest.mark.parametrize(
    "first", [whole({"error": {"message": "busy"}}, status=503), Reply((CUT,))], ids=["503", "cut"]
)
def test_tries_again_what_may_pass(first: Reply) -> None:
    with RawServer() as server:
        server.add_replies(first, vectors([1, 0]))
        assert embedded(server, ["a"]) == [[1, 0]]
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([whole({"error": {"message": f"bad key {CANARY}"}}, status=401)], "401"),
        ([whole({"error": {"message": "busy"}}, status=500)] * 3, "500"),
        ([whole({"error": {"message": "later"}}, status=429, headers={"retry-after": "900"})], "429"),
        ([Reply((STALL,))] * 3, "sent nothing"),
        ([whole(b"<html>")], "not JSON"),
        ([whole({"object": "list"})], "in its reply is 0"),
        ([vectors([1, 0])], "in its reply is 1"),
        ([vectors([1, 0], ["x", 0])], "in its reply is 1"),
        ([vectors([1, 0], [True, 0])], "in its reply is 1"),
        ([vectors([1, 0], [1, 0], [1, 0])], "in its reply is 3"),
        ([whole({"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]})], "in its reply is 1"),
        ([whole({"data": [7, None]})], "in its reply is 0"),
    ],
)
def test_says_what_is_wrong_without_the_key(replies: list[Reply], said: str) -> None:
    with RawServer() as server:
        server.add_replies(*replies)
        with pytest.raises(EmbeddingError, match=said) as caught:
            embedded(server, ["a", "b"], timeout=0.1 if STALL in replies[0].steps else 60)
        assert len(server.requests) == len(replies)
    assert CANARY not in str(caught.value)


def test_says_so_when_nobody_is_there() -> None:
    with RawServer() as server:
        pass
    with pytest.raises(EmbeddingError, match="could not be reached"):
        embedded(server, ["a"])


@pytest.mark.parametrize(("model", "dimensions"), [("local", None), ("local", 0), ("local", True), ("local", 1.5)])
def test_refuses_a_size_that_is_none(model: str, dimensions: Any) -> None:
    with pytest.raises(EmbeddingError, match="dimensions"):
        OpenAIEmbedder(model, dimensions, api_key=CANARY)


def test_refuses_to_be_without_a_key_and_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AgentConfigurationError, match="OPENAI_API_KEY"):
        OpenAIEmbedder()
    assert repr(OpenAIEmbedder(api_key=CANARY)) == "OpenAIEmbedder('text-embedding-3-small', 1536)"
