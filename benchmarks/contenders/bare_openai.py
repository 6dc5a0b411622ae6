"""The ``openai`` package and a list of messages: the cost of a conversation without any store.

``sdk`` uses ``chat.completions.create`` as the package's documentation does. ``post`` lets the same client send a
prepared body and reads the raw reply: the cheapest possible request with the package.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai

from benchmarks.contenders.conversation import INSTRUCTIONS, MODEL, Contender, Say, Shape, main, weather

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class BareOpenAI:
    """The loop that the package's documentation shows."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client: Any = client

    async def converse(self, shape: Shape) -> Say:
        """Start a conversation: a list of messages."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]
        body = {"model": MODEL, "messages": messages, **({"tools": [TOOL]} if shape == "with a tool" else {})}

        async def say(text: str) -> str:
            messages.append({"role": "user", "content": text})
            if shape == "streamed":
                answer = await self._streamed({**body, **STREAM})
                messages.append({"role": "assistant", "content": answer})
                return answer
            while True:
                message = await self._whole(body)
                messages.append(message)
                calls = message.get("tool_calls", ())
                for call in calls:
                    result = weather(**json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if not calls:
                    return str(message["content"])

        return say

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        completion = await self._client.chat.completions.create(**body)
        message = completion.choices[0].message
        return dict(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))

    async def _streamed(self, body: dict[str, Any]) -> str:
        chunks = await self._client.chat.completions.create(**body)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    def commits(self) -> int:
        """Return 0: there is no store."""
        return 0


class PostingOpenAI(BareOpenAI):
    """The same, without the package's request and response models."""

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body)
        message = json.loads(response.content)["choices"][0]["message"]
        return {name: value for name, value in message.items() if value is not None}

    async def _streamed(self, body: dict[str, Any]) -> str:
        response = await self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        pieces = []
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                pieces += [choice["delta"].get("content") or "" for choice in choices]
        return "".join(pieces)


@asynccontextmanager
async def bare_openai(address: str, rest: list[str]) -> AsyncIterator[Contender]:
    """A client of the server, used in one of the two ways."""
    async with openai.AsyncOpenAI(api_key="none", base_url=address, max_retries=0) as client:
        yield PostingOpenAI(client) if rest == ["post"] else BareOpenAI(client)


if __name__ == "__main__":
    main(bare_openai)
