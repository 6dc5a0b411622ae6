"""A manager who leads a chat: its ledger, its budget, and what a crash leaves."""

from __future__ import annotations

import asyncio
import io
import json
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.group_chats import agent_of, requests_of
from tests.agents.killed_processes import PassPoint, run_until

from clew import (
    Agent,
    ChatSerializer,
    Engine,
    ManagerSelection,
    MaxCost,
    MaxTokens,
    Message,
    ModelSelection,
    ModelTermination,
    Price,
    PriceTable,
    ScriptedChatClient,
)
from clew.domain.chats.events import TurnSelected
from clew.domain.json_values import JsonObject
from clew.domain.models.client import Answer, TokenUsage
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError
from clew.infrastructure import clock

pytestmark = pytest.mark.anyio

CHAT = "led"


def ledger(**fields: Any) -> str:
    known = {"facts": ["One."], "plan": ["Ask."], "progress": "Some.", "is_progressing": True, "is_satisfied": False}
    return json.dumps(known | fields)


ASK = ledger(next_speaker="worker", instruction="Work.")
STALLED = ledger(next_speaker="Worker", instruction="Work.", is_progressing=False)
DONE = ledger(is_satisfied=True, answer="It is 7.")


def manager_of(engine: Engine, *script: Any) -> Agent:
    return Agent(ScriptedChatClient(list(script)), engine=engine, name="Manager")


async def test_the_ledger_is_on_the_log_and_the_next_decision_reads_it() -> None:
    async with Engine.open("memory:") as engine:
        manager, worker = manager_of(engine, ASK, DONE), agent_of(engine, "Worker")
        chat = await engine.start_chat([worker], selection=ManagerSelection(manager))
        response = await chat.run("How many?")
        assert [each.text for each in response.messages] == ["Work.", "I heard 2.", "It is 7."]
        assert response.reason == "satisfied"
        assert set(response.usage) == {"Manager", "Worker"}
        assert response.usage == (await chat.state()).usage
        second = str(requests_of(manager)[1])
        for expected in ("How many?", "Worker: I heard 2.", "One.", "Ask.", "Some."):
            assert expected in second
        selected = [each.data async for each in chat.thread.events(types={"turn-selected"})]
        for each in selected:
            assert isinstance(each, TurnSelected)
            assert each.by == "Manager"
            assert await (await engine.thread(each.thread_id or "")).version
        assert [each.state["task"] for each in selected if isinstance(each, TurnSelected)] == ["How many?"] * 2
        fork = await chat.fork(at=response.messages[0].version + 1)
        assert ((await fork.state()).selection_state or {})["facts"] == ["One."]


async def test_without_progress_it_makes_another_plan_and_then_ends() -> None:
    async with Engine.open("memory:") as engine:
        manager = manager_of(engine, ASK, STALLED, ASK, STALLED, ledger(answer="I do not know."))
        selection = ManagerSelection(manager, max_stalls=1, max_replans=1)
        chat = await engine.start_chat([agent_of(engine, "Worker")], selection=selection)
        response = await chat.run("How many?")
        assert (response.reason, response.text) == ("stalled", "I do not know.")
        assert (await chat.state()).taken == len(["as planned", "after another plan"])
        assert "another plan" in str(requests_of(manager)[2]["messages"])


@pytest.mark.parametrize("limits", [{"max_turns": 1}, {"max_tokens": 5}])
async def test_the_manager_answers_when_the_budget_is_used_up(limits: Any) -> None:
    async with Engine.open("memory:") as engine:
        manager = manager_of(engine, ASK, ledger(answer="About 7."))
        chat = await engine.start_chat([agent_of(engine, "Worker")], selection=ManagerSelection(manager, **limits))
        response = await chat.run("How many?")
        assert (response.reason, response.text) == (next(iter(limits)).replace("_", "-"), "About 7.")
        assert "no more turns" in str(requests_of(manager)[1])


async def test_the_tokens_of_the_manager_count_for_a_termination_too() -> None:
    async with Engine.open("memory:") as engine:
        manager = manager_of(engine, ASK, DONE)
        chat = await engine.start_chat(
            [agent_of(engine, "Worker")], selection=ManagerSelection(manager), termination=MaxTokens(10)
        )
        response = await chat.run("How many?")
        assert response.reason == "max-tokens"
        assert response.usage["Worker"].total_tokens < 10 < sum(each.total_tokens for each in response.usage.values())


async def test_the_cost_of_the_manager_counts_and_ends_a_run() -> None:
    prices = PriceTable({"scripted": Price(input=Decimal(0), output=Decimal(1_000))})
    async with Engine.open("memory:", prices=prices) as engine:
        answers = [
            Answer(Message.assistant(ASK), "stop", TokenUsage(output_tokens=tokens), model="scripted")
            for tokens in (100, 900)
        ]
        manager, worker = manager_of(engine, *answers), agent_of(engine, "Worker")
        chat = await engine.start_chat([worker], selection=ManagerSelection(manager), termination=MaxCost("1"))
        response = await chat.run("How many?")
        assert response.reason == "max-cost"
        assert response.costs["Manager"] == Decimal(1)
        assert response.costs == (await chat.state()).costs
        assert response.cost == sum(each or 0 for each in response.costs.values())


@pytest.mark.parametrize("by", [ManagerSelection, ModelSelection, ModelTermination])
async def test_what_models_decide_belongs_to_the_chat(by: Any) -> None:
    async with Engine.open("memory:") as engine:
        script = [ASK, DONE] if by is ManagerSelection else ["Worker", "Worker"] if by is ModelSelection else ["yes"]
        decides = by(manager_of(engine, *script))
        how: Any = {"termination": decides, "max_turns": 2} if by is ModelTermination else {"selection": decides}
        chat = await engine.start_chat([agent_of(engine, "Worker")], **({"max_turns": 2} | how))
        response = await chat.run("How many?", actor="user:ann")
        assert (by is ModelTermination) == ("Manager" not in response.usage)
        of_chat = [each async for each in engine.threads(labels={"clew:channel-of": chat.id})]
        assert {each.id for each in of_chat} == {each.id async for each in engine.threads()} - {chat.id}
        done = [each async for each in engine.audit(actor="Manager")]
        assert {each.on_behalf_of for each in done} == {"user:ann"}
        await chat.purge()
        assert "How many?" not in str([line async for line in engine.export_events()])


@pytest.mark.parametrize("first", ["Sorry?", ledger(next_speaker="Nobody", instruction="Work."), ledger()])
async def test_an_answer_that_cannot_be_used_is_asked_for_once_more(first: str) -> None:
    async with Engine.open("memory:") as engine:
        manager = manager_of(engine, first, DONE)
        chat = await engine.start_chat([agent_of(engine, "Worker")], selection=ManagerSelection(manager))
        assert (await chat.run("How many?")).text == "It is 7."
        assert len(requests_of(manager)) == len([first, DONE])


async def test_two_answers_that_cannot_be_used_are_an_error() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat(
            [agent_of(engine, "Worker")], selection=ManagerSelection(manager_of(engine, "What?", "Why?"))
        )
        with pytest.raises(AnswerFormatError):
            await chat.run("How many?")
        assert (await chat.state()).run is not None


async def test_a_document_takes_the_ledger_along() -> None:
    stream = io.StringIO()
    async with Engine.open("memory:") as engine:
        selection = ManagerSelection(manager_of(engine, ASK, DONE))
        chat = await engine.start_chat([agent_of(engine, "Worker")], selection=selection)
        await chat.run("How many?")
        await ChatSerializer.serialize(chat, stream)
    async with Engine.open("memory:") as there:
        manager = manager_of(there, DONE)
        other = await there.start_chat([agent_of(there, "Worker")], selection=ManagerSelection(manager))
        await (await ChatSerializer.deserialize(io.StringIO(stream.getvalue()))).restore(other)
        assert ((await other.state()).selection_state or {})["facts"] == ["One."]
        await other.run("And now?")
        assert "Facts:\\n- One." in str(requests_of(manager)[0])


@pytest.mark.parametrize("limits", [{"max_turns": 0}, {"max_tokens": True}, {"max_stalls": 0}, {"max_replans": -1}])
def test_refuses_limits_that_are_no_numbers_from_their_least(limits: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=next(iter(limits))):
        ManagerSelection(manager_of(Engine.open("memory:"), DONE), **limits)


def _deciding(pass_point: PassPoint, answered: Path, body: JsonObject) -> str:
    """Decide by what the request says, so that any process answers alike, and write down each answer."""
    pass_point("in the call of the manager")
    text = DONE if "I heard 2." in str(body) else ASK
    with answered.open("a", encoding="utf-8") as file:
        file.write(f"{'done' if text == DONE else 'ask'}\n")
    return text


async def _lead(folder: Path, pass_point: PassPoint, *, later: int = 0) -> None:
    now = lambda: clock.now() + later * 1_000_000  # noqa: E731  # the lease of the killed process has expired
    async with Engine.open(f"sqlite:///{folder / 'clew.db'}", embedded=False, now=now) as engine:
        manager = agent_of(engine, "Manager", partial(_deciding, pass_point, folder / "answers"))
        selection, workers = ManagerSelection(manager), [agent_of(engine, "Worker")]
        try:
            chat = await engine.chat(CHAT, workers, selection=selection)
        except Exception:  # noqa: BLE001  # it was killed before it began
            chat = await engine.start_chat(workers, chat_id=CHAT, selection=selection)
        await chat.run("How many?", idempotency_key="first")


def test_a_manager_killed_at_every_point_decides_nothing_twice_that_was_answered(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    points = run_until(None, partial(_lead, whole)).points
    calls = [number for number, name in enumerate(points, 1) if name.startswith("in the call")]
    assert len(calls) == len([ASK, DONE])
    expected = asyncio.run(_outcome(whole))
    for point in range(1, len(points) + 1):
        folder = tmp_path / str(point)
        folder.mkdir()
        assert run_until(point, partial(_lead, folder)).killed
        asyncio.run(_lead(folder, lambda _: None, later=60))
        assert asyncio.run(_outcome(folder)) == expected, points[:point]
        answers = (folder / "answers").read_text(encoding="utf-8").split()
        # An answer that arrived and was not stored yet is asked for again, and no other.
        is_lost = points[point - 1] == "before a commit" and points[point - 2].startswith("in the call")
        assert len(answers) == len(["ask", "done"]) + is_lost, points[:point]


async def _outcome(folder: Path) -> list[Any]:
    async with Engine.open(f"sqlite:///{folder / 'clew.db'}") as engine:
        chat = await engine.thread(CHAT)
        assert (await engine.verify()).first_bad is None
        types = [each.type async for each in chat.events()]
        return [types, [each.text for each in await chat.history()]]
