"""Embeddings from OpenAI's API, and from the many services and servers that offer the same API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clew.domain.errors import EmbeddingError
from clew.domain.json_values import Json, JsonObject
from clew.domain.runs.errors import ModelError
from clew.infrastructure.openai.connection import OpenAIConnection

if TYPE_CHECKING:
    import openai

_SIZES = {"text-embedding-3-small": 1_536, "text-embedding-3-large": 3_072, "text-embedding-ada-002": 1_536}
"""The default dimensions of known models."""

_TEXTS = 256
_CHARACTERS = 200_000
"""The most texts and characters in one request. The API accepts 2,048 texts and 300,000 tokens."""

_TRIES = 3
_PAUSE = 0.25
_LONGEST_PAUSE = 30.0
"""The most attempts for a request that can be retried, and the seconds between them, which double each time."""


class OpenAIEmbedder:
    """Embeds texts with a model over OpenAI's API, many in one request.

    ``dimensions`` is the length of a vector. It is required for models that Clew does not know; OpenAI's larger models
    can return shorter vectors. ``api_key`` and ``base_url`` default to OPENAI_API_KEY and OPENAI_BASE_URL. To use your
    own ``AsyncOpenAI`` or ``AsyncAzureOpenAI``, pass it as ``client`` instead. ``timeout`` is the number of seconds in
    which the service must send something, by default 600.

    Raises EmbeddingError for invalid dimensions, AgentConfigurationError without a key.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        dimensions: int | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        timeout: float | None = None,
    ) -> None:
        self._connection = OpenAIConnection(model, api_key=api_key, base_url=base_url, client=client, timeout=timeout)
        size = _SIZES.get(model) if dimensions is None else dimensions
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise EmbeddingError(
                f"OpenAIEmbedder: dimensions={dimensions!r} for the model {model!r}. Give the length of its vectors, "
                "such as dimensions=1536."
            )
        self.model = model
        self.dimensions = size

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self.model!r}, {self.dimensions})"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text. Raises EmbeddingError if the service refuses, or sends an invalid reply."""
        embedded: list[list[float]] = []
        for batch in _batches(texts):
            embedded += self._read(await self._ask(batch), len(batch))
        return embedded

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()

    async def _ask(self, texts: list[str]) -> JsonObject:
        body: JsonObject = {"model": self.model, "input": [*texts], "encoding_format": "float"}
        if self.dimensions != _SIZES.get(self.model, self.dimensions):  # other services may not know this option
            body["dimensions"] = self.dimensions
        attempts, pause = 0, _PAUSE
        while True:
            try:
                return await self._connection.call("post", "/embeddings", body)
            except ModelError as error:
                attempts, pause = attempts + 1, pause * 2 if error.retry_after is None else error.retry_after
                if not error.retryable or attempts == _TRIES or pause > _LONGEST_PAUSE:
                    raise EmbeddingError(f"The texts could not be embedded. {error}") from error
            await asyncio.sleep(pause)

    def _read(self, reply: JsonObject, count: int) -> list[list[float]]:
        """The vectors of a reply, in the order of the texts."""
        data = reply.get("data")
        vectors: dict[int, list[float]] = {}
        for place, item in enumerate(data if isinstance(data, list) else []):
            vector = _vector(item.get("embedding")) if isinstance(item, dict) else None
            index = item.get("index", place) if isinstance(item, dict) else None
            if vector is not None and isinstance(index, int):
                vectors[index] = vector
        if sorted(vectors) != list(range(count)):
            raise EmbeddingError(
                f"The service of {self.model!r} was sent {count} texts, but the number of valid vectors in its reply "
                f"is {len(vectors)}. Check that base_url is the address of an embedding service."
            )
        return [vectors[index] for index in range(count)]


def _vector(value: Json) -> list[float] | None:
    if not isinstance(value, list):
        return None
    numbers = [float(each) for each in value if isinstance(each, int | float) and not isinstance(each, bool)]
    return numbers if len(numbers) == len(value) else None


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == _TEXTS or characters + len(text) > _CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch
