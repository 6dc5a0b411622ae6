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


def vectors(*embeddings: list[Any], **more: Any) -> Reply:
    return whole({"data": [{"index": place, "embedding": vector} for place, vector in enumerate(embeddings)], **more})


def embed_texts(
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
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_PAUSE", 0.0)


def test_gets_vectors_from_a_service_over_http(aimock: Aimock) -> None:
    async def embed() -> list[list[float]]:
        embedder = OpenAIEmbedder("text-embedding-3-small", api_key=CANARY, base_url=aimock.base_url)
        vectors = await embedder.embed(["a parcel", "a letter", "a parcel"])
        await embedder.aclose()
        return vectors

    one, two, three = asyncio.run(embed())
    assert len(one) == len(two) == 1_536
    assert one == three != two
    assert [request.path for request in aimock.journal()] == ["/v1/embeddings"]


@pytest.mark.parametrize(
    ("model", "dimensions", "more"),
    [
        ("local", 2, {}),
        ("text-embedding-3-small", 2, {"dimensions": 2}),
        ("text-embedding-3-small", None, {}),
        ("text-embedding-3-small", 1_536, {}),
    ],
)
def test_sends_the_size_only_to_models_with_variable_sizes(
    model: str, dimensions: int | None, more: dict[str, Any]
) -> None:
    with RawServer() as server:
        server.add_replies(vectors([1, 0]))
        embed_texts(server, ["a"], model=model, dimensions=dimensions)
        [request] = server.requests
        assert request.json() == {"model": model, "input": ["a"], "encoding_format": "float", **more}


def test_sends_many_texts_in_several_requests_and_keeps_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_TEXTS", 2)
    with RawServer() as server:
        shuffled = [{"index": 1, "embedding": [2, 0]}, {"index": 0, "embedding": [1, 0]}]
        server.add_replies(whole({"data": shuffled}), vectors([3, 0.5]))
        assert embed_texts(server, ["a", "b", "c"]) == [[1, 0], [2, 0], [3, 0.5]]
        assert [request.json()["input"] for request in server.requests] == [["a", "b"], ["c"]]


def test_sends_long_texts_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_embedder, "_CHARACTERS", 5)
    with RawServer() as server:
        server.add_replies(vectors([1, 0]), vectors([2, 0], [3, 0]))
        assert len(embed_texts(server, ["abcdefgh", "ab", "cd"])) == 3
        assert [request.json()["input"] for request in server.requests] == [["abcdefgh"], ["ab", "cd"]]


def test_sends_no_request_without_texts() -> None:
    with RawServer() as server:
        assert embed_texts(server, []) == []
        assert server.requests == []


@pytest.mark.parametrize(
    "first", [whole({"error": {"message": "busy"}}, status=503), Reply((CUT,))], ids=["503", "cut"]
)
def test_retries_a_temporary_failure(first: Reply) -> None:
    with RawServer() as server:
        server.add_replies(first, vectors([1, 0]))
        assert embed_texts(server, ["a"]) == [[1, 0]]
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("replies", "words"),
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
def test_explains_errors_without_the_key(replies: list[Reply], words: str) -> None:
    with RawServer() as server:
        server.add_replies(*replies)
        with pytest.raises(EmbeddingError, match=words) as caught:
            embed_texts(server, ["a", "b"], timeout=0.5 if STALL in replies[0].steps else 60)
        assert len(server.requests) == len(replies)
    assert CANARY not in str(caught.value)


def test_reports_a_service_that_cannot_be_reached() -> None:
    with RawServer() as server:
        pass
    with pytest.raises(EmbeddingError, match="could not be reached"):
        embed_texts(server, ["a"])


@pytest.mark.parametrize(("model", "dimensions"), [("local", None), ("local", 0), ("local", True), ("local", 1.5)])
def test_refuses_an_invalid_size(model: str, dimensions: Any) -> None:
    with pytest.raises(EmbeddingError, match="dimensions"):
        OpenAIEmbedder(model, dimensions, api_key=CANARY)


def test_needs_a_key_and_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AgentConfigurationError, match="OPENAI_API_KEY"):
        OpenAIEmbedder()
    assert repr(OpenAIEmbedder(api_key=CANARY)) == "OpenAIEmbedder('text-embedding-3-small', 1536)"
