"""An agent that is served over AG-UI. The judge is the package @ag-ui/client, which checks each event."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.servers.installation import agui_client, node

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agui import agui_app, agui_messages
from clew.testing import call

pytestmark = pytest.mark.anyio
PROGRAM = Path(__file__).with_name("agui_client.mjs")


class Client:
    """The JavaScript client, in a process of its own."""

    def __init__(self) -> None:
        command = [*node().node, str(PROGRAM), str(agui_client())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        with self._process as process:
            process.kill()

    async def run(self, name: str, **command: Any) -> Any:
        """Let the agent of this name run; returns its events, its messages and what it complained about."""
        return await asyncio.to_thread(self._run, {"name": name, **command})

    def _run(self, command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


class Served:
    """An agent of Clew and its address."""

    def __init__(self, agent: Agent, engine: Engine, url: str) -> None:
        self.agent = agent
        self.engine = engine
        self.url = url

    def config(self, thread_id: str, user: str = "user:1") -> Any:
        return {"url": self.url, "threadId": thread_id, "headers": {"x-user": user}}


@tool(approval="always")
def refund(order: int) -> str:
    """Pay money back."""
    return f"refunded {order}"


@tool
def track(parcel: int) -> str:
    """Say where a parcel is."""
    return f"parcel {parcel} is in Cork"


def script(body: Any) -> Any:
    """Answer like a model."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"Done: {last['content']}"
    asked = str(last["content"])
    if "fail" in asked:
        raise RuntimeError("secret of the agent")
    if "refund" in asked:
        return call("refund", order=7)
    if "track" in asked:
        return call("track", parcel=7)
    return f"You said: {asked} ({len(body['messages'])})"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        agent = Agent(ScriptedChatClient(script, delay=0.01), engine=engine, id="desk", tools=[refund, track])
        app = agui_app(agent, authenticate=lambda request: request.headers.get("x-user"))
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield Served(agent, engine, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        server.should_exit = True
        await serving


def user(text: str, id_: str) -> Any:
    return {"id": id_, "role": "user", "content": text}


def types(reply: Any) -> list[str]:
    return [event["type"] for event in reply["events"]]


async def the_history(served: Served) -> list[Any]:
    """The messages of the only thread."""
    [thread] = [each async for each in served.engine.threads()]
    messages = await agui_messages(await served.engine.thread(thread.id))
    return [json.loads(each.model_dump_json(by_alias=True)) for each in messages]


async def test_a_text_is_streamed_and_the_messages_are_the_history(client: Client, served: Served) -> None:
    first = await client.run("a", config=served.config("t1"), add=[user("Hello 🧶", "u1")])
    assert first["error"] is None
    assert first["said"] == []
    assert types(first)[:2] == ["RUN_STARTED", "TEXT_MESSAGE_START"]
    assert types(first)[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    second = await client.run("a", add=[user("And now?", "u2")])
    assert [message["content"] for message in second["messages"]] == [
        "Hello 🧶",
        "You said: Hello 🧶 (1)",
        "And now?",
        "You said: And now? (3)",
    ]
    assert second["messages"] == await the_history(served)


async def test_calls_of_tools_and_their_results_are_shown(client: Client, served: Served) -> None:
    reply = await client.run("tools", config=served.config("t1"), add=[user("track it", "u1")])
    assert (reply["error"], reply["said"]) == (None, [])
    called = [event for event in reply["events"] if event["type"].startswith("TOOL_CALL")]
    assert [event["type"] for event in called] == [f"TOOL_CALL_{each}" for each in ("START", "ARGS", "END", "RESULT")]
    assert called[-1]["content"] == "parcel 7 is in Cork"
    assert reply["messages"][-1]["content"] == "Done: parcel 7 is in Cork"
    assert reply["messages"] == await the_history(served)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "Done: refunded 7"),
        ({"status": "resolved", "payload": {"approved": False, "reason": "too late"}}, "too late"),
        ({"status": "cancelled"}, "The user gave no answer."),
    ],
)
async def test_an_approval_is_an_interrupt(client: Client, served: Served, answer: Any, told: str) -> None:
    asked = await client.run("approval", config=served.config("t1"), add=[user("refund, please", "u1")])
    [interrupt] = asked["pendingInterrupts"]
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", asked["messages"][-1]["toolCalls"][0]["id"])
    assert 'refund {"order": 7}' in interrupt["message"]
    resume = [{"interruptId": interrupt["id"], **answer}]
    done = await client.run("approval", parameters={"runId": "r2", "resume": resume})
    assert (done["error"], done["said"], done["pendingInterrupts"]) == (None, [], [])
    assert told in done["messages"][-1]["content"]
    assert "TOOL_CALL_START" not in types(done)
    assert done["messages"] == await the_history(served)
    again = await client.run("approval", parameters={"runId": "r3", "resume": resume})
    assert types(again) == ["RUN_STARTED", "RUN_FINISHED"]  # the client has all of it
    fresh = await client.run("fresh", config=served.config("t1"), parameters={"runId": "r2", "resume": resume})
    assert fresh["messages"] == done["messages"][1:]  # all of the run


async def test_a_thread_that_waits_refuses_anything_but_all_answers(client: Client, served: Served) -> None:
    await client.run("waits", config=served.config("t1"), add=[user("refund", "u1")])

    async def code(**request: Any) -> str:
        reply = await client.run("other", config=served.config("t1"), **request)
        assert types(reply) == ["RUN_STARTED", "RUN_ERROR"]
        return str(reply["events"][-1]["code"])

    unknown = {"interruptId": "r:t:1", "status": "cancelled"}
    assert await code(add=[user("Something else", "u2")]) == "interrupts-pending"
    assert await code(parameters={"resume": [unknown]}) == "interrupts-pending"
    shown = await client.run("shown", config=served.config("t1"))
    [interrupt] = shown["pendingInterrupts"]
    own = {"interruptId": interrupt["id"], "status": "resolved"}
    assert await code(parameters={"resume": [{**own, "payload": "yes"}]}) == "invalid-answer"
    assert await code(parameters={"resume": [{**own, "payload": True}, unknown]}) == "unknown-interrupt"


async def test_an_error_does_not_show_its_text(client: Client, served: Served) -> None:
    reply = await client.run("error", config=served.config("t1"), add=[user("fail", "u1")])
    assert types(reply) == ["RUN_STARTED", "RUN_ERROR"]
    assert "secret" not in json.dumps(reply)
    again = await client.run("error", add=[user("Hello", "u2")])
    assert again["messages"][-1]["content"] == "You said: Hello (2)"
    assert again["messages"] == await the_history(served)
