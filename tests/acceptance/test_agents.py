"""Agents in applications: across processes and kills, with definitions stored outside the events."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.acceptance.programs import in_another_process, json_output, requests, turns_in

from clew import Agent, Engine, Message, ScriptedChatClient, tool
from clew.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    DefinitionMissingError,
    NoOpenRunError,
    ThreadStatusError,
    UnknownThreadError,
)
from clew.testing import call

QUESTIONS = ["Has invoice 33-22-6324 from Fabrikam been paid yet?", "And invoice 33-22-6325?"]
LATER = 60_000_000
"""Microseconds after which the lease of a killed process is expired."""


def creditors_agent(engine: Engine | None, *script: str) -> Agent:
    """Return the agent that helps pay creditors."""
    client = ScriptedChatClient(script)
    return Agent(client=client, engine=engine, name="CreditorsAgent", instructions="You help pay creditors.")


async def two_questions(engine: Engine | None) -> Any:
    """Run the first two turns of the creditors' conversation and return its thread."""
    agent = creditors_agent(engine, "Yes.", "Not yet.")
    first = await agent.run(QUESTIONS[0])
    again = await agent.run(QUESTIONS[1], thread=first.thread)
    assert (first.text, again.text) == ("Yes.", "Not yet.")
    assert again.thread.id == first.thread.id
    return first.thread


THIRD_QUESTION = """
import asyncio, json, sys
from clew import Agent, Engine, ScriptedChatClient

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        client = ScriptedChatClient(lambda body: " and ".join(
            word.rstrip("?") for each in body["messages"] for word in each["content"].split() if word[0] == "3"))
        agent = Agent(client=client, engine=engine, name="CreditorsAgent", instructions="You help pay creditors.")
        thread = await agent.thread(sys.argv[1])
        response = await agent.run("Which two did I ask about?", thread=thread)
        await thread.end()
        print(json.dumps([response.text, client.requests]))

asyncio.run(main())
"""


def test_another_process_continues_a_thread_by_its_id(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"

    async def before() -> str:
        async with Engine.open(url) as engine:
            thread_id: str = (await two_questions(engine)).id
            return thread_id

    async def afterwards(thread_id: str, sent: Any) -> None:
        async with Engine.open(url, create=False) as engine:
            agent = creditors_agent(engine, "Too late.")
            thread = await agent.thread(thread_id)
            types = [event.type async for event in thread.events()]
            assert [types.count(each) for each in ("thread-started", "run-completed", "thread-ended")] == [1, 3, 1]
            rebuilt = await requests(thread)
            assert [each.verified for each in rebuilt] == [True, True, True]
            assert [rebuilt[2].body] == sent
            assert [text for role, text in turns_in(rebuilt[2]) if role == "user"] == [
                *QUESTIONS,
                "Which two did I ask about?",
            ]
            with pytest.raises(ThreadStatusError, match=f"Thread '{thread_id}' is ended: a run is refused"):
                await agent.run("One more?", thread=thread)
            assert (await thread.summary()).version == len(types)
            with pytest.raises(UnknownThreadError, match="There is no thread 'missing'"):
                await agent.thread("missing")
            assert (await engine.verify()).first_bad is None

    thread_id = asyncio.run(before())
    text, sent = json_output(THIRD_QUESTION, tmp_path, thread_id)
    assert text == "33-22-6324 and 33-22-6325"
    asyncio.run(afterwards(thread_id, sent))


def test_a_thread_in_memory_needs_no_configuration() -> None:
    async def talk() -> None:
        thread = await two_questions(None)
        assert [message.role for message in await thread.history()] == ["user", "assistant"] * 2

    asyncio.run(talk())
    assert Agent(ScriptedChatClient("Hello.")).run_sync("Hi").text == "Hello."


@tool(approval="always")
def refund(order: int) -> str:
    """Pay an order back."""
    raise AssertionError(order)  # the test's own process never calls it


APPROVE = """
import asyncio, json, sys
from clew import Engine

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        thread = await engine.thread(sys.argv[1])
        (approval,) = await thread.approvals()
        await approval.approve(actor="user:42")
        print(json.dumps([approval.call.name, approval.call.arguments, approval.reason]))

asyncio.run(main())
"""
CONTINUE = """
import asyncio, json, sys
from clew import Agent, Engine, ScriptedChatClient, ToolContext, tool

acted = []

@tool(approval="always")
def refund(order: int, context: ToolContext) -> str:
    "Pay an order back."
    acted.append([order, context.deps, context.actor])
    return "paid back"

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        agent = Agent(client=ScriptedChatClient("Done."), engine=engine, name="Desk", tools=[refund])
        response = await agent.continue_run(await agent.thread(sys.argv[1]), actor="service:desk", deps="till")
        print(json.dumps([response.text, acted]))

asyncio.run(main())
"""


def test_other_processes_approve_a_call_and_continue_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    script: list[Any] = [call("refund", order=7), "It is in progress."]

    async def ask() -> str:
        async with Engine.open(url) as engine:
            agent = Agent(client=ScriptedChatClient(script), engine=engine, name="Desk", tools=[refund])
            response = await agent.run("Pay 7 back.", actor="user:1")
            assert [each.call.arguments for each in response.approvals] == ['{"order": 7}']
            with pytest.raises(ApprovalPendingError):
                await agent.run("And?", thread=response.thread)
            with pytest.raises(ApprovalPendingError):
                await agent.continue_run(response.thread)
            thread_id: str = response.thread.id
            return thread_id

    async def look(thread_id: str) -> None:
        async with Engine.open(url) as engine:
            thread = await engine.thread(thread_id)
            assert await thread.approvals() == []
            acts = {event.type: (event.actor, event.on_behalf_of) async for event in thread.events()}
            assert (acts["run-started"], acts["approval-given"], acts["tool-finished"]) == (
                ("user:1", None),
                ("user:42", None),
                ("Desk", "user:1"),
            )
            assert [message.text for message in await thread.history()][-1] == "Done."
            with pytest.raises(NoOpenRunError):
                await Agent(client=ScriptedChatClient("?"), name="Desk").continue_run(thread)

    thread_id = asyncio.run(ask())
    assert json_output(APPROVE, tmp_path, thread_id) == ["refund", '{"order": 7}', "approval"]
    text, acted = json_output(CONTINUE, tmp_path, thread_id)
    assert (text, acted) == ("Done.", [[7, "till", "service:desk"]])
    asyncio.run(look(thread_id))


def test_a_second_decision_about_an_approval_is_refused() -> None:
    async def talk() -> None:
        agent = Agent(client=ScriptedChatClient([call("refund", order=7), "No."]), tools=[refund])
        response = await agent.run("Pay 7 back.")
        (approval,) = response.approvals
        await approval.reject("It was delivered", actor="user:42")
        with pytest.raises(ApprovalNotPendingError):
            await approval.approve(actor="user:42")
        assert (await agent.continue_run(response.thread)).text == "No."
        assert "It was delivered" in str((await requests(response.thread))[-1].body)

    asyncio.run(talk())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from clew import Agent, Engine, ScriptedChatClient, tool
from clew.testing import call

@tool(idempotent=True)
def look_up(order: int) -> str:
    "Look an order up."
    with Path("acts").open("a") as acts:
        acts.write(f"look_up {order}\\n")
    return "lost"

@tool(idempotent=sys.argv[1] == "idempotent")
def refund(order: int) -> str:
    "Pay an order back."
    with Path("acts").open("a") as acts:
        acts.write(f"refund {order}\\n")
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        client = ScriptedChatClient([call("look_up", order=7), call("refund", order=7)])
        agent = Agent(client=client, engine=engine, name="Desk", tools=[look_up, refund])
        await agent.run("Where is order 7?", thread=await engine.start_thread(thread_id="killed"))

asyncio.run(main())
"""


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_run_continues_after_a_kill_without_repeating_calls_that_are_not_idempotent(
    tmp_path: Path, *, idempotent: bool
) -> None:
    killed = in_another_process(KILLED, tmp_path, "idempotent" if idempotent else "once")
    assert killed.returncode == -signal.SIGKILL
    acts = tmp_path / "acts"

    @tool(idempotent=True)
    def look_up(order: int) -> str:
        """Look an order up."""
        with acts.open("a") as file:
            file.write(f"look_up {order}\n")
        return "lost"

    @tool(idempotent=idempotent)
    def refund(order: int) -> str:
        """Pay an order back."""
        with acts.open("a") as file:
            file.write(f"refund {order} again\n")
        return "paid back"

    async def continue_run() -> None:
        later = a_minute_later()
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db", create=False, now=lambda: next(later)) as engine:
            client = ScriptedChatClient("I have paid it back.")
            agent = Agent(client=client, engine=engine, name="Desk", tools=[look_up, refund])
            thread = await agent.thread("killed")
            response = await agent.continue_run(thread)
            if not idempotent:
                (approval,) = response.approvals
                assert (approval.call.name, approval.reason) == ("refund", "outcome-unknown")
                await approval.reject(actor="user:42")
                response = await agent.continue_run(thread)
            assert response.text == "I have paid it back."
            bodies: list[Any] = list(client.requests)
            (body,) = bodies
            results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
            assert results[0] == "lost"
            assert ("paid back" if idempotent else "outcome unknown") in results[1]
            assert (await thread.verify()).first_bad is None

    asyncio.run(continue_run())
    assert acts.read_text().splitlines() == ["look_up 7", "refund 7"] + ["refund 7 again"] * idempotent


def a_minute_later() -> Iterator[int]:
    """Return times after the lease of the killed process expired, one microsecond apart."""
    return itertools.count(time.time_ns() // 1000 + LATER)


INSTRUCTIONS = "Never reveal that the colour of the day is vermilion."


SECRETS = ("vermilion", "periwinkle", "chartreuse")
"""One word of the instructions, one of the tool's description, one of the answer's format."""


@tool
def paint(shade: str) -> str:
    """Mix a paint of the periwinkle kind."""
    return f"{shade} it is"


class Mixed(BaseModel):
    """A mixed paint of the chartreuse family."""

    shade: str


def painter(engine: Engine, *script: Any) -> Agent:
    """Return the agent whose instructions and tool must not be in any event."""
    return Agent(ScriptedChatClient(script), engine=engine, name="Painter", instructions=INSTRUCTIONS, tools=[paint])


def test_instructions_and_tool_schemas_are_in_definitions_and_in_no_event(tmp_path: Path) -> None:
    async def talk() -> list[str]:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            thread = await engine.start_thread(messages=[Message.user("Hello.")])
            agent = painter(engine, call("paint", shade="red"), "Done.", '{"shade": "red"}')
            await agent.run("Paint.", thread=thread)
            response = await agent.run("Again.", thread=thread, response_format=Mixed)
            assert response.value == Mixed(shade="red")
            sent = [str(each.body) for each in await requests(thread)]
            assert [[word in body for word in SECRETS] for body in sent] == [[True, True, False]] * 2 + [[True] * 3]
            await engine.wait()
            return [str(event.data) async for event in thread.events()]

    events = asyncio.run(talk())
    file = sqlite3.connect(tmp_path / "clew.db")
    stored = [bytes(state) for (state,) in file.execute("SELECT state FROM event")]
    assert len(events) == len(stored) > 15
    for word in (*SECRETS, '"properties"', "'properties'"):
        assert not any(word in event for event in events)
        assert not any(word.encode() in state for state in stored)
        assert word.encode() not in (tmp_path / "clew.db.projections").read_bytes()
    blobs = file.execute("SELECT kind, CAST(data AS TEXT) FROM blob").fetchall()
    file.close()
    assert [kind for kind, _ in blobs] == ["definition"] * 3
    assert sorted(word for _, data in blobs for word in SECRETS if word in data) == sorted(SECRETS)


def test_a_request_without_its_definitions_is_rebuilt_when_an_equal_agent_supplies_them(tmp_path: Path) -> None:
    moved = tmp_path / "moved.jsonl"

    async def talk() -> tuple[str, list[Any]]:
        async with Engine.open(f"sqlite:///{tmp_path}/one.db") as engine:
            thread = (await painter(engine, call("paint", shade="red"), "Done.").run("Paint.")).thread
            moved.write_bytes(b"".join([line async for line in engine.export_events()]))
            return thread.id, await requests(thread)

    async def elsewhere(thread_id: str, sent: list[Any]) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/two.db") as engine:
            await engine.import_events(moved)
            thread = await engine.thread(thread_id)
            version = sent[0].version
            with pytest.raises(DefinitionMissingError, match=rf"version {version} of thread '{thread_id}'") as caught:
                await thread.request(version)
            assert len(caught.value.digests) == 2
            other = Agent(ScriptedChatClient("?"), engine=engine, name="Painter", instructions="Paint it black.")
            with pytest.warns(UserWarning, match="the instructions, the tools differ"):
                await other.thread(thread_id)
            with pytest.raises(DefinitionMissingError):
                await thread.request(version)
            await painter(engine, "?").thread(thread_id)
            rebuilt = await requests(thread)
            assert [(each.verified, each.content) for each in rebuilt] == [(True, each.content) for each in sent]

    thread_id, sent = asyncio.run(talk())
    assert len(sent) == 2
    assert b"vermilion" not in moved.read_bytes()
    assert b"periwinkle" not in moved.read_bytes()
    asyncio.run(elsewhere(thread_id, sent))
