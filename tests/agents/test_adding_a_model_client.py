"""Follows the recipe in CONTRIBUTING.md: a class with five properties and one method is a model client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew import Agent, Engine, Message
from clew.domain.json_values import JsonObject
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import (
    Answer,
    ModelClient,
    ModelRequest,
    TextDelta,
    ThreadKind,
    TokenUsage,
    Update,
)
from clew.domain.runs.errors import ModelUnavailableError
from clew.domain.runs.events import ModelCalled, RunFailed

pytestmark = pytest.mark.anyio


class Parrot:
    """Repeats the last message, word by word."""

    kind = "parrot"
    wire = OPENAI_CHAT
    model = "parrot-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed

    def __init__(self, *, mute: bool = False) -> None:
        self.mute = mute

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        if self.mute:
            raise ModelUnavailableError("The parrot is asleep. Wait until it wakes up.")
        messages: Any = request.body["messages"]
        words = str(messages[-1]["content"]).split(" ")
        for number, word in enumerate(words if request.streams else ()):
            yield TextDelta(word if number == 0 else f" {word}")
        usage = TokenUsage(input_tokens=len(messages), output_tokens=len(words))
        yield Answer(Message.assistant(" ".join(words)), finish_reason="stop", usage=usage)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


async def test_an_agent_runs_with_the_client_and_the_log_names_it(engine: Engine) -> None:
    client: ModelClient = Parrot()
    thread = await engine.start_thread()
    response = await Agent(client, engine=engine, name="Polly").run("Hello there", thread=thread)
    assert response.text == "Hello there"
    (called,) = [event.data async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert (called.client, called.model, called.wire) == ("parrot", "parrot-1", "openai-chat")
    assert (await engine.verify()).first_bad is None


async def test_answers_of_the_client_stream(engine: Engine) -> None:
    agent = Agent(Parrot(), engine=engine, name="Polly")
    stream = agent.run("Hello there", stream=True)
    assert [update.text async for update in stream if update.text] == ["Hello", " there"]


async def test_errors_of_the_client_end_the_run(engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = Agent(Parrot(mute=True), engine=engine, name="Polly", retries=0)
    with pytest.raises(ModelUnavailableError, match="asleep"):
        await agent.run("Hello", thread=thread)
    assert any([isinstance(event.data, RunFailed) async for event in thread.events()])
