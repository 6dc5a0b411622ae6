"""The command line lists what runs wait for and decides it; the run continues with its agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import CalledClew

from clew import Agent, Conversations, Engine, ScriptedChatClient, tool
from clew.testing import call

MODULE = '''
from clew import Agent, ScriptedChatClient, tool

@tool(approval="always")
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"

clerk = Agent(ScriptedChatClient(["Done."]), name="Clerk", tools=[refund])
'''


@tool(approval="always")
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def clerk(engine: Engine, *script: Any, name: str = "Clerk") -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name=name, tools=[refund])


async def ask(path: Path) -> tuple[str, str]:
    """A thread that waits for one call, and one whose inner agent does."""
    async with Engine.open(path) as engine:
        first = await clerk(engine, call("refund", order=7)).run("Refund 7.", actor="user:ann")
        inner = clerk(engine, call("refund", order=8), name="Inner")
        boss = Agent(ScriptedChatClient([call("Inner", input="Refund 8.")]), engine=engine, name="Boss", tools=[inner])
        second = await boss.run("See to 8.", actor="user:ben")
        return first.thread.id, second.thread.id


def test_all_that_waits_is_listed_and_decided_on_the_command_line(clew: CalledClew, tmp_path: Path) -> None:
    first, second = asyncio.run(ask(tmp_path / "clew.db"))
    listed = [json.loads(line) for line in clew.text("approvals", "--json").splitlines()]
    fields = ("thread_id", "name", "arguments", "agent", "on_behalf_of")
    assert [tuple(each[field] for field in fields) for each in listed] == [
        (first, "refund", '{"order": 7}', "Clerk", "user:ann"),
        (second, "refund", '{"order": 8}', "Inner", "user:ben"),
    ]
    assert listed[0]["inner_thread_id"] is None
    assert listed[1]["request"] == f"{listed[1]['inner_thread_id']}:{listed[1]['version']}"
    table = clew.text("approvals", second)
    assert 'refund({"order": 8})' in table
    assert first not in table
    tmp_path.joinpath("shop.py").write_text(MODULE)
    done = json.loads(clew.text("approve", first, "--agent", "shop:clerk", "--actor", "ops:eve", "--json"))
    assert (done["decision"], done["pending"], done["answer"]) == ("approved", 0, "Done.")
    assert "continue_runs" in clew.text("decline", second, listed[1]["request"], "--reason", "Too much")
    assert "Nothing waits" in clew.text("approvals")
    with Conversations.open(tmp_path / "clew.db") as conversations:
        given = list(conversations.audit(type="approval-given"))
        assert [each.actor for each in given] == ["ops:eve", None]
        assert conversations.thread(first).history().messages[-1].text == "Done."
        assert conversations.verify().first_bad is None


def test_one_of_several_calls_is_named_by_its_request(clew: CalledClew, tmp_path: Path) -> None:
    async def begin() -> str:
        async with Engine.open(tmp_path / "clew.db") as engine:
            response = await clerk(engine, [call("refund", order=1), call("refund", order=2)]).run("Refund both.")
            return response.thread.id

    id_ = asyncio.run(begin())
    one, two = (each["request"] for each in clew.lines("approvals", id_, "--json"))
    assert f"{one} for refund, {two} for refund" in clew.refused(2, "approve", id_)
    assert f"REQUEST '99' does not wait. `clew approvals {id_}` lists {one}" in clew.refused(2, "approve", id_, "99")
    assert "that is str, and not an Agent" in clew.refused(2, "approve", id_, one, "--agent", "json:__name__")
    assert clew.object("decline", id_, two, "--json")["pending"] == 1
    assert [each["request"] for each in clew.lines("approvals", "--json")] == [one]
    clew.text("approve", id_, "--always")

    async def continue_runs() -> str:
        async with Engine.open(tmp_path / "clew.db") as engine:
            (run,) = await clerk(engine, "Done.").continue_runs()
            return (await run.response()).text

    assert asyncio.run(continue_runs()) == "Done."
    assert "waits for no approval" in clew.refused(2, "approve", id_)


def test_a_decision_stays_if_the_agent_that_continues_the_run_fails(clew: CalledClew, tmp_path: Path) -> None:
    first, second = asyncio.run(ask(tmp_path / "clew.db"))
    other = MODULE.replace('["Done."]', "[]").replace('name="Clerk"', 'name="Clerk", instructions="Be quick."')
    tmp_path.joinpath("other_shop.py").write_text(other)
    failed = clew.run("approve", first, "--agent", "other_shop:clerk")
    assert failed.returncode == 1
    assert failed.stdout == f'Approved refund({{"order": 7}}) of {first}, version 7.\n'
    warned, error = failed.stderr.splitlines()
    assert warned.startswith(f"clew: Thread {first!r} was last run by an agent that differs")
    assert error.startswith("clew: The script is at its end")
    assert [each["thread_id"] for each in clew.lines("approvals", "--json")] == [second]
    tmp_path.joinpath("fails.py").write_text("clerk = 1 / 0")
    assert "the module fails with ZeroDivisionError" in clew.refused(2, "approve", second, "--agent", "fails:clerk")
