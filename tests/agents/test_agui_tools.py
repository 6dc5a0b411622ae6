"""Tools that a client of AG-UI declares and carries out itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.agents.agui_served import JavaScript, Window, listening, the_history

from clew import Agent, Engine, FunctionCall, ScriptedChatClient, tool
from clew.agui import agui_app
from clew.testing import call

pytestmark = pytest.mark.anyio

COLOUR: Any = {
    "name": "colour",
    "description": "Change the colour of the page.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
PLACE: Any = {"name": "place", "description": "Say where the user is."}


@tool(approval="always")
def refund(order: int) -> str:
    """Pay money back."""
    return f"refunded {order}"


def script(body: Any) -> Any:
    """Answer like a model: call what the user says, then repeat the results."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
        return " | ".join(results)
    calls = {"colour": call("colour", name="red"), "place": call("place"), "refund": call("refund", order=7)}
    made = [calls[word] for word in str(last["content"]).split() if word in calls]
    # The ids of some models recur in each answer.
    return [each.model_copy(update={"call_id": f"call_{n}"}) for n, each in enumerate(made)] or "Nothing to do."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
async def window(engine: Engine, javascript: JavaScript) -> AsyncIterator[Window]:
    agent = Agent(ScriptedChatClient(script), engine=engine, tools=[refund])
    async with listening(agui_app(agent, authenticate=lambda _: "user:1")) as url:
        yield Window(javascript, url)


def results(reply: Any, *contents: Any, error: str | None = None) -> list[Any]:
    """The results of the calls that a reply leaves to the client."""
    pending = reply["events"][-1]["outcome"]["pendingToolCallIds"]
    more = {} if error is None else {"error": error}
    return [
        {"id": f"result of {id_}", "role": "tool", "toolCallId": id_, "content": content, **more}
        for id_, content in zip(pending, contents, strict=True)
    ]


def without_result_ids(messages: Sequence[Any]) -> list[Any]:
    """The messages; a client names the results that it makes itself."""
    return [{**each, "id": None} if each["role"] == "tool" else each for each in messages]


async def test_the_client_carries_out_its_tools(window: Window, engine: Engine) -> None:
    tools = [COLOUR, PLACE]
    for _ in range(2):
        asked = await window.run("colour and place", parameters={"tools": tools})
        assert [each["function"]["name"] for each in window.messages[-1]["toolCalls"]] == ["colour", "place"]
        given = results(asked, "It is red.", "Cork")
        await window.run(add=given, parameters={"tools": tools})
        assert window.contents[-1].endswith("It is red. | Cork")
        assert without_result_ids(window.messages) == without_result_ids(await the_history(engine))


async def test_an_error_of_the_client_is_one_for_the_model(window: Window) -> None:
    asked = await window.run("place", parameters={"tools": [PLACE]})
    await window.run(add=results(asked, "", error="no permission"), parameters={"tools": [PLACE]})
    assert "no permission" in window.contents[-1]


async def test_a_result_that_is_missing_is_an_error_for_the_model(window: Window) -> None:
    asked = await window.run("colour and place", parameters={"tools": [COLOUR, PLACE]})
    [first, _] = results(asked, "It is red.", "Cork")
    await window.run(add=[first], parameters={"tools": [COLOUR, PLACE]})
    assert "It is red." in window.contents[-1]
    assert "The client gave no result." in window.contents[-1]


async def test_a_new_message_instead_of_results_abandons_the_run(window: Window, engine: Engine) -> None:
    await window.run("place", parameters={"tools": [PLACE]})
    await window.run("Never mind", parameters={"tools": [PLACE]})
    assert window.contents[-1] == "Nothing to do."
    assert window.messages == await the_history(engine)


async def test_interrupts_and_results_are_given_together(window: Window, engine: Engine) -> None:
    asked = await window.run("place and refund", parameters={"tools": [PLACE]})
    [interrupt] = asked["pendingInterrupts"]
    place = window.messages[-1]["toolCalls"][0]["id"]
    result = {"id": "r1", "role": "tool", "toolCallId": place, "content": "Cork"}
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    await window.run(add=[result], parameters={"tools": [PLACE], "resume": resume})
    assert window.contents[-1] in {"Cork | refunded 7", "refunded 7 | Cork"}
    assert len(window.messages) == len(await the_history(engine))


async def test_an_invalid_tool_is_refused(window: Window) -> None:
    async def code(name: str) -> str:
        reply = await window.run("Hello", parameters={"tools": [{**PLACE, "name": name}]})
        return str(reply["events"][-1]["code"])

    assert await code("not a name") == "invalid-tool"
    assert await code("refund") == "invalid-tool"  # the agent has one of that name


async def test_a_picture_of_the_client_reaches_the_model(engine: Engine, javascript: JavaScript) -> None:
    client = ScriptedChatClient([FunctionCall(call_id="c", name="place", arguments="{}"), "I see."])
    agent = Agent(client, engine=engine)
    async with listening(agui_app(agent, authenticate=lambda _: "user:1")) as url:
        window = Window(javascript, url)
        asked = await window.run("Where?", parameters={"tools": [PLACE]})
        source = {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}
        parts = [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
        await window.run(add=results(asked, parts), parameters={"tools": [PLACE]})
    assert window.contents[-1] == "I see."
    assert without_result_ids(window.messages) == without_result_ids(await the_history(engine))
