"""Answers and results that cannot be recorded unchanged: the run and the thread stay usable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.agents.run_checks import check_requests, short_history
from tests.agents.turns import PATIENCE, SECOND, check_runs, events_of, types_of, watch_drafts

from clew import Agent, Engine, Message, Middleware, ScriptedChatClient, tool
from clew.agents.tools import ToolOutcome
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import MAX_BYTES, JsonObject
from clew.domain.messages import FunctionCall, Raw, Text
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, ModelRequest, TextDelta, ThreadKind, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelRequestError, ModelStreamError
from clew.domain.runs.events import Failure, RunFailed
from clew.domain.runs.ports import LEASE_SECONDS
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import call

pytestmark = pytest.mark.anyio


class ScriptedUpdates:
    """A client that sends these updates or raises these errors once, and then answers shortly."""

    kind = "scripted-updates"
    wire = OPENAI_CHAT
    model = "m"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed

    def __init__(self, *updates: Update | Exception) -> None:
        self._updates = updates

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        del request
        updates, self._updates = self._updates, (Answer(Message.assistant("fine"), "stop"),)
        for each in updates:
            if isinstance(each, Exception):
                raise each
            yield each


class HalfCharacterClient:
    """A client whose answer stops between the two halves of a character; it fails or stalls there."""

    kind = "half"
    wire = OPENAI_CHAT
    model = "m"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed

    def __init__(self, *, stalls: bool) -> None:
        self._stalls = stalls

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        del request
        yield TextDelta("Good morning \ud83d")
        if self._stalls:
            await asyncio.sleep(PATIENCE)
        raise ModelStreamError("It broke off.")


async def test_a_partial_answer_with_half_a_character_is_recorded(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(ModelStreamError):
            await Agent(client=HalfCharacterClient(stalls=False), engine=engine, name="early").run("Hi", thread=thread)
        assert await short_history(thread) == [("user", "Hi"), ("assistant", "Good morning \ufffd")]
        assert types_of(await events_of(thread))[-2:] == ["answer-interrupted", "run-failed"]
        await check_runs(thread)


async def test_a_thread_is_usable_after_a_process_ended_in_half_a_character(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted = watch_drafts(monkeypatch)
    later = int(2 * LEASE_SECONDS) * SECOND
    async with (
        asyncio.timeout(PATIENCE),
        Engine.open(url) as engine,
        Engine.open(url, now=lambda: clock.now() + later) as other,
    ):
        thread = await engine.start_thread()
        agent = Agent(client=HalfCharacterClient(stalls=True), engine=engine, name="early")
        lost = asyncio.create_task(agent.run("Hi", thread=thread))
        await drafted.wait()
        elsewhere = await other.thread(thread.id)
        next_one = Agent(client=ScriptedChatClient("Yes?"), engine=other, name="late")
        assert (await next_one.run("Are you there?", thread=elsewhere)).text == "Yes?"
        history = (await elsewhere.history()).messages
        half = Message.assistant("Good morning \ufffd", author="early")
        assert history[1].message == half.model_copy(update={"cut": True})
        assert [each.message.author for each in history if each.message is not None] == [None, "early", None, "late"]
        await check_runs(elsewhere)
        lost.cancel()
        await asyncio.wait([lost])


async def test_a_result_too_large_for_an_event_is_a_tool_failure(url: str) -> None:
    @tool
    async def small() -> str:
        """Give little."""
        return "small"

    @tool
    async def big() -> list[str]:
        """Give too much."""
        return ["x" * MAX_BYTES]

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        client = ScriptedChatClient([[call("small"), call("big")], "done"])
        response = await Agent(client=client, engine=engine, tools=[small, big]).run("Hi", thread=thread)
        assert response.text == "done"
        results = [each[1] for each in await short_history(thread) if each[0] == "tool"]
        assert results[0] == "small"
        assert results[1].startswith("Error: the result of big is too large to record")
        await check_requests(thread, await events_of(thread))
        await check_runs(thread)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_large_for_an_event_fails_the_run(url: str, stream: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        agent = Agent(client=ScriptedChatClient(["y" * MAX_BYTES, "fine"]), engine=engine)
        running: Any = agent.run("Hi", thread=thread, stream=stream)  # type: ignore[call-overload]  # one or the other
        with pytest.raises(InvalidContentError, match="an event holds at most"):
            await (running.get_final_response() if stream else running)
        assert await short_history(thread) == [("user", "Hi")]
        assert types_of(await events_of(thread))[-2:] == ["answer-interrupted", "run-failed"]
        await check_runs(thread)
        assert (await agent.run("Again", thread=thread)).text == "fine"


@pytest.mark.parametrize(
    "options",
    [
        {"model": "other"},
        {"messages": []},
        {"stream": True},
        {"conversation": "conv_1"},
        {"extra_headers": {"Authorization": "Bearer canary"}},
        {"api_key": "canary"},
    ],
)
async def test_refuses_reserved_and_secret_options(options: Any) -> None:
    client = ScriptedChatClient("never", loop=True)
    with pytest.raises(AgentConfigurationError, match=next(iter(options))) as refused:
        Agent(client=client, options=options)
    assert "canary" not in str(refused.value)
    with pytest.raises(AgentConfigurationError, match=next(iter(options))):
        await Agent(client=client).run("Hi", options=options)
    assert client.requests == []


async def test_refuses_an_unknown_option() -> None:
    client: Any = ScriptedChatClient("never", loop=True)
    agent: Any = Agent(client=client)
    thread = await agent.get_local_thread()
    with pytest.raises(AgentConfigurationError, match=r"run: there is no option thred\. There are: thread, "):
        await agent.run("Hi", thred=thread)
    with pytest.raises(AgentConfigurationError, match="no option max_rounds"):
        await agent.continue_run(thread, max_rounds=3)
    assert client.requests == []


NOT_A_NUMBER = Message(role="assistant", contents=(Text(text="words"), Raw(value={"logprob": float("nan")})))
HALF_A_NAME = Message(role="assistant", contents=(FunctionCall(call_id="\ud83d", name="a\ud83d", arguments="{}"),))
TOO_DEEP = Message(role="assistant", contents=(Raw(value=json.loads("[" * 101 + "]" * 101)),))


@pytest.mark.parametrize("message", [NOT_A_NUMBER, HALF_A_NAME, TOO_DEEP], ids=["number", "name", "depth"])
async def test_the_text_of_an_unrecordable_answer_is_recorded(url: str, message: Message) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        agent = Agent(client=ScriptedUpdates(TextDelta("wor"), TextDelta("ds"), Answer(message, "stop")), engine=engine)
        with pytest.raises(InvalidContentError):
            await agent.run("Hi", thread=thread)
        assert await short_history(thread) == [("user", "Hi"), ("assistant", "words")]
        assert types_of(await events_of(thread))[-2:] == ["answer-interrupted", "run-failed"]
        await check_runs(thread)
        assert (await agent.run("Again", thread=thread)).text == "fine"


async def test_an_error_with_invalid_characters_is_recorded_with_replacements(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        refused = ModelRequestError("No \ud83d.", status=400, code="bad\ud83d")
        agent = Agent(client=ScriptedUpdates(refused), engine=engine)
        with pytest.raises(ModelRequestError):
            await agent.run("Hi", thread=thread)
        last = (await events_of(thread))[-1].data
        assert isinstance(last, RunFailed)
        assert last.error == Failure(kind="ModelRequestError", message="No \ufffd.", status=400, code="bad\ufffd")
        await check_runs(thread)


async def test_an_unrecordable_result_of_middleware_is_a_tool_failure(url: str) -> None:
    class Lossy(Middleware):
        async def tool_call(self, context: Any, proceed: Any) -> ToolOutcome:
            del context
            await proceed()
            return ToolOutcome(float("inf"))

    @tool
    async def small() -> str:
        """Give little."""
        return "small"

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        client = ScriptedChatClient([call("small"), "done"])
        agent = Agent(client=client, engine=engine, tools=[small], middleware=[Lossy()])
        assert (await agent.run("Hi", thread=thread)).text == "done"
        assert (await short_history(thread))[2][1].startswith(
            "Error: InvalidContentError: contents[0].result: inf is not a JSON number"
        )
        await check_runs(thread)
