"""An agent that is served over AG-UI: streams, tools, approvals, errors, lost connections. The client judges."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.requests import Request
from tests.agents.agui_served import JavaScript, Window, listening, the_history, types
from tests.servers.server_process import ServerProcess

from clew import Agent, Engine, FunctionCall, Image, ScriptedChatClient, ToolContext, tool
from clew.agui import agui_app
from clew.domain.messages import Message, Reasoning, Text
from clew.testing import call, fault

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
LONG = "many words " * 20


@tool(approval="always")
def refund(order: int) -> str:
    """Pay money back."""
    return f"refunded {order}"


@tool
async def track(parcel: int, context: ToolContext) -> Any:
    """Say where a parcel is."""
    await context.progress("looking", fraction=0.5)
    return ["In Cork:", Image(b"\x89PNG", media_type="image/png")] if parcel > 1 else f"parcel {parcel} is in Cork"


def script(body: Any) -> Any:
    """Answer like a model."""
    messages = body["messages"]
    last = messages[-1]
    asked = str(last["content"])
    if last["role"] == "tool":
        return f"Done: {asked}"
    if "fail" in asked:
        return fault("cut", after="Half a sentence")
    if "think" in asked:
        return Message(role="assistant", contents=(Reasoning(text="Let me see. Yes."), Text(text="I think so.")))
    if "refund twice" in asked:
        return [call("refund", order=7), call("refund", order=8)]
    if "refund" in asked:
        return ["One moment.", call("refund", order=7)]
    if "both" in asked:
        return [call("refund", order=1), call("track", parcel=1)]
    if "track twice" in asked:  # with the same id: some models give such
        return [FunctionCall(call_id="c", name="track", arguments='{"parcel": 1}') for _ in range(2)]
    if "track" in asked:
        return call("track", parcel=2 if "picture" in asked else 1)
    if "say nothing" in asked:
        return ""
    return f"You said: {asked} ({len(messages)})"


class Served(NamedTuple):
    """An agent and its address."""

    engine: Engine
    agent: Agent
    url: str


def actor_of(request: Request) -> str | None:
    return request.headers.get("x-user")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        agent = Agent(ScriptedChatClient(script, delay=0.015), engine=engine, id="desk", tools=[refund, track])
        async with listening(agui_app(agent, authenticate=actor_of)) as url:
            yield Served(engine, agent, url)


@pytest.fixture
def window(javascript: JavaScript, served: Served) -> Window:
    return Window(javascript, served.url)


async def test_a_text_is_streamed_and_the_messages_are_the_history(window: Window, served: Served) -> None:
    first = await window.run("Hello 🧶")
    text = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    assert types(first) == ["RUN_STARTED", *text, "RUN_FINISHED"]
    [usage] = first["events"][-1]["usage"]
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (3, 5, 8)
    await window.run("And now?")
    assert window.contents == ["Hello 🧶", "You said: Hello 🧶 (1)", "And now?", "You said: And now? (3)"]
    assert window.messages == await the_history(served.engine)


@pytest.mark.parametrize("asked", ["track it", "track twice", "track it with a picture", "think", "say nothing"])
async def test_what_a_run_adds_streams_as_the_history_has_it(window: Window, served: Served, asked: str) -> None:
    await window.run(asked)
    reply = await window.run(asked)
    assert window.messages == await the_history(served.engine)
    roles = {message["role"] for message in window.messages}
    assert roles >= {"tool"} if "track" in asked else {"user", "assistant"}
    if "track" in asked:
        reported = [event["value"] for event in reply["events"] if event["type"] == "CUSTOM"]
        assert {each["text"] for each in reported} == {"looking"}
        assert reported[-1]["toolCallId"] in {each.get("toolCallId") for each in window.messages}


async def test_parts_of_a_message_reach_the_model(window: Window, served: Served) -> None:
    picture = {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}
    parts = [{"type": "text", "text": "Look:"}, {"type": "image", "source": picture}]
    await window.run(add=[{"id": "u1", "role": "user", "content": parts}])
    client: Any = served.agent.client
    assert client.requests[0]["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert window.messages == await the_history(served.engine)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "refunded 7"),
        ({"status": "resolved", "payload": {"approved": False, "reason": "too late"}}, "too late"),
        ({"status": "cancelled"}, "The user gave no answer."),
    ],
)
async def test_an_approval_is_an_interrupt(
    javascript: JavaScript, window: Window, served: Served, answer: Any, result: str
) -> None:
    asked = await window.run("refund, please")
    [interrupt] = asked["pendingInterrupts"]
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", window.messages[-1]["toolCalls"][0]["id"])
    assert 'refund {"order": 7}' in interrupt["message"]
    resume = [{"interruptId": interrupt["id"], **answer}]
    done = await window.run(parameters={"runId": "r2", "resume": resume})
    assert done["pendingInterrupts"] == []
    assert result in window.contents[-1]
    assert "TOOL_CALL_START" not in types(done)
    assert "usage" not in done["events"][-1]  # it would count the tokens of the first request again
    assert window.messages == await the_history(served.engine)
    repeated = await window.run(parameters={"runId": "r3", "resume": resume})
    assert types(repeated) == ["RUN_STARTED", "RUN_FINISHED"]  # the client has all of it
    reloaded = Window(javascript, served.url)
    await reloaded.run(parameters={"runId": "r2", "resume": resume})
    assert reloaded.messages == window.messages[1:]  # all that the run added


async def test_a_run_waits_only_when_the_other_calls_are_over(window: Window, served: Served) -> None:
    reply = await window.run("both")
    assert "TOOL_CALL_RESULT" in types(reply)
    resume = [{"interruptId": each["id"], "status": "cancelled"} for each in reply["pendingInterrupts"]]
    await window.run(parameters={"resume": resume})
    assert window.messages == await the_history(served.engine)


async def test_a_thread_that_waits_refuses_anything_but_all_answers(javascript: JavaScript, served: Served) -> None:
    await Window(javascript, served.url).run("refund")
    reloaded = await Window(javascript, served.url).run()
    [interrupt] = reloaded["pendingInterrupts"]

    async def code(*texts: str, **parameters: Any) -> str:
        window = Window(javascript, served.url)
        reply = await window.run(*texts, parameters=parameters)
        assert types(reply) == ["RUN_STARTED", "RUN_ERROR"]
        return str(reply["events"][-1]["code"])

    own = {"interruptId": interrupt["id"], "status": "resolved"}
    unknown = {"interruptId": "r:t:1", "status": "cancelled"}
    assert await code("Something else") == "interrupts-pending"
    assert await code(resume=[unknown]) == "interrupts-pending"
    assert await code(resume=[{**own, "payload": "yes"}]) == "invalid-answer"
    assert await code(resume=[{**own, "payload": True}, unknown]) == "unknown-interrupt"
    assert len((await Window(javascript, served.url).run())["pendingInterrupts"]) == 1


async def test_an_answer_that_was_given_elsewhere_is_no_error(window: Window, served: Served) -> None:
    asked = await window.run("refund twice")
    first, second = asked["pendingInterrupts"]
    [thread] = [each async for each in served.engine.threads()]
    approvals = await (await served.engine.thread(thread.id)).approvals()
    await approvals[0].approve(actor="user:2")
    payload = {"approved": True}
    resume = [{"interruptId": each["id"], "status": "resolved", "payload": payload} for each in (first, second)]
    await window.run(parameters={"resume": resume})
    assert window.contents[-1] == "Done: refunded 8"


async def test_an_error_in_the_middle_of_a_text_keeps_the_text(window: Window, served: Served) -> None:
    reply = await window.run("fail")
    assert types(reply)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    assert reply["events"][-1]["message"] == "The agent failed."
    assert window.contents == ["fail", "Half a sentence"]
    await window.run("Hello")
    assert window.contents[-1].startswith("You said: Hello")
    assert window.messages == await the_history(served.engine)


async def test_a_client_that_reconnects_gets_the_rest(javascript: JavaScript, served: Served) -> None:
    window = Window(javascript, served.url)
    await window.run(LONG, parameters={"runId": "r1"}, leaveAfter=3)
    part = window.contents[-1]
    assert 0 < len(part) < len(LONG)
    await window.run(parameters={"runId": "r1"})
    assert window.contents[-1] == f"You said: {LONG} (1)"
    assert window.messages == await the_history(served.engine)


async def test_a_client_that_left_sees_the_run_that_continued(javascript: JavaScript, served: Served) -> None:
    window = Window(javascript, served.url)
    await window.run(LONG, leaveAfter=3)
    await window.run("And now?")  # it never got the end of the first answer
    assert window.contents[-2:] == ["And now?", "You said: And now? (3)"]
    reloaded = Window(javascript, served.url)
    reply = await reloaded.run()
    assert types(reply) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert reloaded.messages == await the_history(served.engine)
    assert reloaded.contents[1] == f"You said: {LONG} (1)"


async def test_a_page_that_is_loaded_during_a_run_follows_it(javascript: JavaScript, served: Served) -> None:
    window, reloaded = Window(javascript, served.url), Window(javascript, served.url)
    await window.run(LONG, leaveAfter=3)
    reply = await reloaded.run()
    assert types(reply)[:4] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"]
    assert reloaded.messages == await the_history(served.engine)
    assert reloaded.contents[-1] == f"You said: {LONG} (1)"


async def test_a_stopped_run_is_cancelled(window: Window, served: Served) -> None:
    await window.run(LONG * 3, parameters={"runId": "r1"}, leaveAfter=3)
    [thread] = [each async for each in served.engine.threads()]
    assert await (await served.engine.thread(thread.id)).stop_run()
    reply = await window.run(parameters={"runId": "r1"})
    assert reply["events"][-1]["outcome"] == {"type": "cancelled"}
    assert window.messages == await the_history(served.engine)


async def test_two_equal_requests_at_once_begin_one_run(served: Served) -> None:
    message = {"id": "u1", "role": "user", "content": "Once"}
    body = {"threadId": "t1", "runId": "r1", "messages": [message]}
    async with httpx.AsyncClient(headers={"x-user": "user:1"}) as http:
        replies = await asyncio.gather(*(http.post(served.url, json=body) for _ in range(3)))
    assert all("RUN_FINISHED" in reply.text for reply in replies)
    assert [message["role"] for message in await the_history(served.engine)] == ["user", "assistant"]


async def test_every_user_has_threads_of_their_own(javascript: JavaScript, served: Served) -> None:
    window, other = Window(javascript, served.url), Window(javascript, served.url, user="user:2")
    await window.run("Mine")
    await other.run()
    assert other.messages == []
    await other.run("Yours")
    assert other.contents[-1] == "You said: Yours (1)"
    async with httpx.AsyncClient() as http:
        assert (await http.post(served.url, json={})).status_code == 401
        named = {"x-user": "user:1"}
        broken = await http.post(served.url, content=b"{", headers=named)
        assert broken.status_code == 422
        assert broken.json()["error"].startswith("The body is not valid: RunAgentInput: Invalid JSON")
        assert (await http.post(served.url, json={"threadId": "t1"}, headers=named)).status_code == 422


async def test_a_service_names_the_threads_and_gives_options(javascript: JavaScript, served: Served) -> None:
    @tool
    def whose(context: ToolContext) -> str:
        """Say whose order it is."""
        return f"that of {context.deps}"

    client = ScriptedChatClient([call("whose"), "Done."])
    agent = Agent(client, engine=served.engine, tools=[whose])
    thread = await served.engine.start_thread(thread_id="order-7")

    def options(given: Any, actor: str) -> Any:
        return {"deps": f"{actor} in {given.forwarded_props['shop']}"}

    def thread_of(actor: str, thread_id: str) -> str | None:
        return thread_id if actor == "user:1" else None

    async with listening(agui_app(agent, authenticate=actor_of, thread_of=thread_of, options=options)) as url:
        window = Window(javascript, url, thread.id)
        await window.run("Whose?", parameters={"forwardedProps": {"shop": "Cork"}})
        assert window.contents == ["Whose?", None, "that of user:1 in Cork", "Done."]
        reply = await Window(javascript, url, thread.id, user="user:2").run("Whose?")
        assert reply["events"][-1]["code"] == "unknown-thread"


async def test_a_stream_continues_after_its_server_was_killed(javascript: JavaScript, tmp_path: Path) -> None:
    def serving(port: int = 0, later: int = 0) -> ServerProcess:
        program = [sys.executable, "-m", "tests.servers.served_agent", str(tmp_path / "clew.db")]
        command = [*program, str(port), str(later)]
        return ServerProcess(command, ready=r"http://127\.0\.0\.1:(\d+)", folder=ROOT)

    with serving() as server:
        port = server.port
        window = Window(javascript, f"http://127.0.0.1:{port}/ag-ui")
        await window.run(LONG, parameters={"runId": "r1"}, leaveAfter=3)
    with serving(port, later=60_000_000):  # the lease of the killed process is over
        await window.run(parameters={"runId": "r1"})
        shown = window.messages
        await window.run()
    assert window.messages == shown  # the snapshot is what it had
    assert [message["role"] for message in shown] == ["user", "assistant", "assistant"]
    assert shown[-1]["content"].endswith("(2)")
