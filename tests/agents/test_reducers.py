"""Agents with reducers: what the model is sent, what the log says of it, and that the history stays whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agents.reduced_runs import TRIGGERS, checked, lookup, reductions, said, short, talk, within
from tests.agents.test_corpus_runs import sent_turns

from clew.agents.tools import tool
from clew.domain.context.events import HistoryReduced
from clew.domain.events import Event
from clew.domain.messages import Message
from clew.domain.reducers.reducer import ReductionTrigger
from clew.domain.reducers.strategies import KeepLast, TokenBudget, TrimToolResults
from clew.domain.runs.errors import ModelUnavailableError
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient, call, fault
from clew.memory.summary_reducer import TITLE, Summarise

WIRES = {"openai-chat": ("local",), "openai-responses": ("local", "remote")}


# Two messages


@pytest.mark.parametrize("when", TRIGGERS)
@pytest.mark.parametrize("wire", WIRES)
def test_the_model_is_sent_two_messages_and_the_history_has_all(when: ReductionTrigger, wire: str) -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient(["a1", "a2", "a3"], thread_kinds=WIRES[wire])  # type: ignore[arg-type]  # they are
        agent = Agent(client, engine=engine, name="Joker", instructions="Be funny.", reducer=KeepLast(2, when=when))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2", "u3")
        first = [] if wire == "openai-responses" else ["Be funny."]
        assert [said(client, number) for number in range(3)] == [
            [*first, "u1"],
            [*first, "u1", "a1", "u2"],
            [*first, "u2", "a2", "u3"],
        ]
        assert [each.text for each in await thread.history()] == ["u1", "a1", "u2", "a2", "u3", "a3"]
        found = reductions(await checked(engine, thread))
        versions = {each.text: each.version for each in await thread.history()}
        assert {each.reducer for each in found} == {"keep-last(2)"}
        assert {each.agent for each in found} == {"Joker"}
        assert found[0].left_out == ((versions["u1"], versions["a1"]),)
        assert len(found) == (1 if when == "before_retrieval" else 2)

    within(doing)


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_thread_that_was_there_before_is_reduced_at_the_first_run(when: ReductionTrigger) -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1, when=when))
        thread = await engine.start_thread(messages=[Message.system("Be brief."), *[Message.user("u")] * 5])
        await talk(agent, thread, "now")
        assert said(client) == ["Be brief.", "u", "now"]
        await checked(engine, thread)

    within(doing)


@pytest.mark.parametrize("when", TRIGGERS)
def test_messages_that_others_append_are_sent_and_what_waits_for_an_answer_is_the_runs_own(
    when: ReductionTrigger,
) -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1, when=when))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2")
        await thread.append([Message.user("x"), Message.user("y"), Message.user("z")])
        await agent.run(thread=thread)
        assert said(client) == ["a", "x", "y", "z"]
        await checked(engine, thread)

    within(doing)


def test_a_stream_is_sent_the_same() -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        async for _ in agent.run("u2", thread=thread, stream=True):
            pass
        assert said(client) == ["a", "u2"]
        await checked(engine, thread)

    within(doing)


def test_nothing_is_recorded_while_nothing_is_left_out() -> None:
    async def doing(engine: Engine) -> None:
        agent = Agent(ScriptedChatClient("a", loop=True), engine=engine, reducer=KeepLast(20))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2", "u3")
        assert reductions(await checked(engine, thread)) == []

    within(doing)


# Calls and their results


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_call_and_its_result_stay_or_go_together_and_the_runs_own_rounds_stay(when: ReductionTrigger) -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient(
            [[call("lookup", order=1), call("lookup", order=2)], "Both.", call("lookup", order=3), "x"]
        )
        agent = Agent(client, engine=engine, tools=[lookup], reducer=KeepLast(2, when=when))
        thread = await agent.get_local_thread()
        await agent.run("Look up 1 and 2.", thread=thread)
        assert len(sent_turns(client.requests[1])) == 5
        await agent.run("And 3.", thread=thread)
        kinds = [kind for kind, _ in sent_turns(client.requests[3])]
        assert kinds == ["call", "call", "result", "result", "assistant", "user", "call", "result"]
        await checked(engine, thread)

    within(doing)


def test_long_results_are_cut_in_later_runs() -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient([call("lookup", order=1), "Found.", "Yes."])
        agent = Agent(client, engine=engine, tools=[lookup], reducer=TrimToolResults(60))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "Look up 1.", "Sure?")
        assert "x" * 200 in said(client, 1)[-1]
        assert said(client, 2)[2].endswith("… [cut: 208 characters]")
        assert len(said(client, 2)[2]) == 60
        events = await checked(engine, thread)
        (found,) = reductions(events)
        assert [length for _, length in found.trimmed] == [60]
        assert any("x" * 200 in str(each.results) for each in await thread.history())

    within(doing)


# A budget


def test_what_must_be_sent_is_sent_and_the_log_says_that_it_is_too_much() -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, instructions="i", reducer=TokenBudget(5, len))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "1", "22", "333333", "4")
        assert [said(client, number) for number in range(4)] == [
            ["i", "1"],
            ["i", "1", "a", "22"],
            ["i", "333333"],
            ["i", "a", "4"],
        ]
        found = reductions(await checked(engine, thread))
        assert [each.over_budget for each in found] == [True, False]

    within(doing)


def check_budget(events: Sequence[Event], bodies: list[Any], history: Sequence[int], budget: int) -> None:
    """Each request is as large as it may be, or the run's own and nothing else, and the log says so."""
    began, holds = 0, None
    for event in events:
        if event.type == "run-started":
            began = event.version
        elif isinstance(event.data, HistoryReduced):
            holds = event.data
        elif event.type == "model-called":
            body = bodies.pop(0)
            over = sum(len(text) for _, text in sent_turns(body)) > budget
            assert over == (holds is not None and holds.over_budget)
            if over:
                assert len(body["messages"]) == sum(began < version < event.version for version in history)


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_budget_holds_for_each_request_of_each_round_or_the_runs_own_is_all(
    when: ReductionTrigger, scale: float
) -> None:
    budget = 200

    async def talk_at_random(engine: Engine, chance: random.Random) -> None:
        @tool
        def load(size: int) -> str:
            return "y" * size

        script: list[Any] = []
        for _ in range(5):
            script += [call("load", size=chance.randint(1, 80)) for _ in range(chance.randint(0, 3))]
            script.append("a" * chance.randint(1, 40))
        client = ScriptedChatClient(script)
        agent = Agent(client, engine=engine, tools=[load], reducer=TokenBudget(budget, len, when=when))
        thread = await engine.start_thread()
        for _ in range(5):
            await agent.run("u" * chance.randint(1, 60), thread=thread)
        history = [each.version for each in await thread.history()]
        check_budget(await checked(engine, thread), list(client.requests), history, budget)

    async def doing(engine: Engine) -> None:
        for seed in range(max(3, round(30 * scale))):
            await talk_at_random(engine, random.Random(seed))

    within(doing)


# Summaries


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_summary_is_said_in_place_of_what_is_left_out_and_goes_on(when: ReductionTrigger) -> None:
    async def doing(engine: Engine) -> None:
        client, summariser = ScriptedChatClient([f"a{number}" for number in range(1, 9)]), ScriptedChatClient(short)
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1, every=2, when=when))
        thread = await engine.start_thread(messages=[Message.system("Be brief.")])
        await talk(agent, thread, "u1", "u2", "u3", "u4")
        assert [said(client, number) for number in (1, 2, 3)] == [
            ["Be brief.", "u1", "a1", "u2"],
            ["Be brief.", f"{TITLE}\nu1+a1+u2", "a2", "u3"],
            ["Be brief.", f"{TITLE}\nu1+a1+u2+a2+u3", "a3", "u4"],
        ]
        events = await checked(engine, thread)
        assert [each.text for each in await thread.history()][-3:] == ["a3", "u4", "a4"]
        assert all(each.summary is not None for each in reductions(events))

    within(doing)


def test_a_summary_that_cannot_be_had_fails_the_run_and_loses_nothing() -> None:
    async def doing(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        summariser = ScriptedChatClient([fault("refused"), short])
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        with pytest.raises(ModelUnavailableError):
            await agent.run("u2", thread=thread)
        assert [each.text for each in await thread.history()] == ["u1", "a", "u2"]
        await agent.run(thread=thread)
        assert said(client) == [f"{TITLE}\nu1", "a", "u2"]
        await checked(engine, thread)

    within(doing)


def test_what_others_say_while_a_summary_is_made_is_sent() -> None:
    async def doing(engine: Engine) -> None:
        async def interrupted(body: Any) -> str:
            if len(summariser.requests) == 1:
                await thread.append(Message.user("By the way."))
            return short(body)

        client, summariser = ScriptedChatClient("a", loop=True), ScriptedChatClient(interrupted)
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2")
        assert said(client) == [f"{TITLE}\nu1+a", "By the way.", "u2"]
        events = await checked(engine, thread)
        assert len(reductions(events)) == 1

    within(doing)
