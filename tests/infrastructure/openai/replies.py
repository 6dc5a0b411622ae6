"""Sample replies of both OpenAI APIs, and functions that read a client's updates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.servers.raw_server import RawServer

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import Answer, ModelClient, Question, Update
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient

CANARY = "sk-canary0123456789"
CONTENT = "the secret recipe of grandmother's plum cake"


@dataclass(frozen=True)
class Service:
    """One of the two APIs, with the answer "Hello": the whole reply, and the events at its start and at its end."""

    kind: str
    whole: Any
    start: tuple[Any, ...]
    end: tuple[Any, ...]
    path: str

    def client(self, server: RawServer | str, **more: Any) -> Any:
        url = server if isinstance(server, str) else server.url
        client_class = OpenAIChatClient if self.kind == "chat" else OpenAIResponsesClient
        return client_class("m-1", **{"api_key": CANARY, "base_url": url, "timeout": 60, **more})

    def body(self, client: ModelClient, text: str = CONTENT) -> JsonObject:
        local = client.wire.options_on
        options = client.options if local is None else local("local", client.options)
        return client.wire.make_body(Question("m-1", (Message.user(text),), options=options))


def _chunk(delta: Any, finish_reason: str | None = None) -> Any:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


_MESSAGE = {"role": "assistant", "content": "Hello"}
_CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 4}
CHAT = Service(
    "chat",
    {
        "id": "c1",
        "model": "m-1",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _CHAT_USAGE,
    },
    (_chunk({"role": "assistant", "content": ""}), _chunk({"content": "Hel"})),
    (_chunk({"content": "lo"}), _chunk({}, "stop"), {"id": "c1", "choices": [], "usage": _CHAT_USAGE}),
    "/v1/chat/completions",
)

_ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}
_RESPONSE: Any = {
    "id": "resp_1",
    "object": "response",
    "model": "m-1",
    "status": "completed",
    "output": [_ITEM],
    "usage": {"input_tokens": 9, "output_tokens": 4},
}
RESPONSES = Service(
    "responses",
    _RESPONSE,
    (
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"},
    ),
    (
        {"type": "response.output_text.delta", "output_index": 0, "delta": "lo"},
        {"type": "response.completed", "response": _RESPONSE},
    ),
    "/v1/responses",
)
SERVICES = (CHAT, RESPONSES)


async def updates_of(updates: AsyncIterator[Update]) -> list[Update]:
    return [update async for update in updates]


async def answer_of(updates: AsyncIterator[Update]) -> Answer:
    *_, last = await updates_of(updates)
    assert isinstance(last, Answer)
    return last
