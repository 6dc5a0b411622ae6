"""pydantic-ai's message history in Clew: it comes back equal, byte for byte, and the model is asked the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from examples.integrations.pydantic_ai_history import load, save
from pydantic_ai import Agent, BinaryContent, ModelMessagesTypeAdapter, ModelRetry
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from clew import Engine
from clew.errors import ConflictError

QUESTIONS: list[Any] = ["Where is 70?", ["And this?", BinaryContent(b"\0\1", media_type="image/png")], "Thanks."]


def depot() -> tuple[Any, list[bytes]]:
    """An agent with a tool that wants a retry, and what its model was asked."""
    asked: list[bytes] = []
    answers = [
        [ThinkingPart("A parcel."), ToolCallPart("track", {"parcel": 70}, "c1")],
        [ToolCallPart("track", {"parcel": 7}, "c2")],
        [TextPart("In Cork.")],
        [TextPart("A picture.")],
        [TextPart("Good bye.")],
    ]

    def answer(messages: Any, info: Any) -> ModelResponse:
        del info
        asked.append(plain(messages))
        return ModelResponse(answers[len(asked) - 1])

    agent = Agent(FunctionModel(answer), instructions="Be brief.", system_prompt="You know parcels.")

    @agent.tool_plain(retries=1)
    def track(parcel: int) -> str:
        """Say where a parcel is."""
        if parcel > 9:
            raise ModelRetry("There is no such parcel.")
        return f"Parcel {parcel} is in Cork."

    return agent, asked


def plain(messages: Any) -> bytes:
    """Messages as JSON, without the times and ids of a run."""
    items = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    for item in items:
        for each in (item, *item["parts"]):
            for name in ("timestamp", "run_id", "conversation_id"):
                each.pop(name, None)
    return repr(items).encode()


def test_a_history_comes_back_equal_and_the_model_is_asked_the_same(tmp_path: Path) -> None:
    async def with_clew() -> Any:
        agent, asked = depot()
        async with Engine.open(tmp_path / "clew.db") as engine:
            thread = await engine.start_thread()
            for question in QUESTIONS:
                result = await agent.run(question, message_history=await load(thread))
                await save(thread, result)
                dumped = ModelMessagesTypeAdapter.dump_json(await load(thread))
                assert dumped == ModelMessagesTypeAdapter.dump_json(result.all_messages())
            history = await thread.history()
            return asked, [(each.role, each.text) for each in history], (await engine.verify()).first_bad

    async def without() -> list[bytes]:
        agent, asked = depot()
        history: Any = []
        for question in QUESTIONS:
            history = (await agent.run(question, message_history=history)).all_messages()
        return asked

    asked, history, first_bad = asyncio.run(with_clew())
    assert asked == asyncio.run(without())
    assert [(role, text) for role, text in history if role in {"user", "tool"}] == [
        ("user", "You know parcels.Where is 70?"),
        ("tool", "There is no such parcel."),
        ("tool", "Parcel 7 is in Cork."),
        ("user", ""),
        ("user", "Thanks."),
    ]
    assert first_bad is None


def test_of_two_turns_at_once_one_is_refused(tmp_path: Path) -> None:
    async def race() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            thread = await engine.start_thread()
            version = await thread.version
            runs = [await Agent(FunctionModel(lambda *_: ModelResponse([TextPart("Yes.")]))).run("?") for _ in range(2)]
            await save(thread, runs[0], expected_version=version)
            with pytest.raises(ConflictError):
                await save(thread, runs[1], expected_version=version)
            return len(await load(thread))

    assert asyncio.run(race()) == 2


def test_an_agent_continues_a_fork_and_a_past_version(tmp_path: Path) -> None:
    async def fork() -> Any:
        agent, _ = depot()
        async with Engine.open(tmp_path / "clew.db") as engine:
            thread = await engine.start_thread()
            for question in QUESTIONS[:2]:
                await save(thread, await agent.run(question, message_history=await load(thread)))
            early = (await thread.history()).messages[5].version
            branch = await thread.fork(at=early)
            result = await agent.run("Thanks.", message_history=await load(branch))
            await save(branch, result)
            return len(await load(thread)), len(await load(thread, at=early)), len(await load(branch))

    assert asyncio.run(fork()) == (8, 6, 8)
