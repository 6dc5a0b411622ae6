"""Several agents over AG-UI: handoffs, agents as tools, and group chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui import core
from ag_ui.encoder import EventEncoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.agents.agui_served import JavaScript, Window, listening, the_history, types

from clew import Agent, Engine, ScriptedChatClient, Together, tool
from clew.agui import agui_app, agui_events, agui_messages
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


def answering(engine: Engine, name: str, script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name=name, **options)


async def test_a_handoff_continues_the_stream(engine: Engine, javascript: JavaScript) -> None:
    refunds = answering(engine, "Refunds", ["I refund it.", "Yes."])
    desk = answering(engine, "Desk", [call("transfer_to_refunds", reason="money")], handoffs=[refunds])
    async with listening(agui_app(desk, authenticate=lambda _: "user:1")) as url:
        window = Window(javascript, url)
        reply = await window.run("My money!", parameters={"runId": "r1"})
        [handoff] = [event["value"] for event in reply["events"] if event["type"] == "CUSTOM"]
        assert handoff == {"agent": "Refunds", "reason": "money"}
        assert window.contents[-1] == "I refund it."
        assert window.messages == await the_history(engine)
        assert types(await window.run(parameters={"runId": "r1"})) == ["RUN_STARTED", "RUN_FINISHED"]


async def test_an_agent_that_is_a_tool_asks_for_approval(engine: Engine, javascript: JavaScript) -> None:
    @tool(approval="always")
    def refund(order: int) -> str:
        """Pay money back."""
        return f"refunded {order}"

    refunds = answering(engine, "Refunds", [call("refund", order=7), "It is done."], tools=[refund])
    desk = answering(engine, "Desk", [call("Refunds", input="Refund 7."), "All done."], tools=[refunds])
    async with listening(agui_app(desk, authenticate=lambda _: "user:1")) as url:
        window = Window(javascript, url)
        asked = await window.run("My money!")
        [interrupt] = asked["pendingInterrupts"]
        assert (interrupt["reason"], "toolCallId" in interrupt) == ("confirmation", False)
        assert interrupt["metadata"]["clew"] == {"name": "refund", "arguments": '{"order": 7}'}
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        await window.run(parameters={"resume": resume})
        assert window.contents[-1] == "All done."
        await window.run(parameters={"resume": resume})
        assert window.contents.count("All done.") == 1


async def test_the_speakers_of_a_group_chat_stream_at_the_same_time(engine: Engine, javascript: JavaScript) -> None:
    agents = [answering(engine, name, f"{name} has a long opinion.") for name in ("Ann", "Ben")]
    chat = await engine.start_chat(agents, selection=Together(), max_turns=2)

    async def stream(request: Request) -> Response:
        given = core.RunAgentInput.model_validate(await request.json())
        updates = chat.run(str(given.messages[-1].content), stream=True)
        events = agui_events(updates, thread_id=given.thread_id, run_id=given.run_id)
        encoded = (EventEncoder().encode(event) async for event in events)
        return StreamingResponse(encoded, media_type="text/event-stream")

    async with listening(Starlette(routes=[Route("/", stream, methods=["POST"])])) as url:
        window = Window(javascript, url)
        await window.run("Tea or coffee?")
    said = {message.get("name"): message["content"] for message in window.messages}
    assert said == {None: "Tea or coffee?", "Ann": "Ann has a long opinion.", "Ben": "Ben has a long opinion."}
    history = await agui_messages(chat.thread)
    assert [(getattr(each, "name", None), each.content) for each in history] == list(said.items())
