"""Agents with reducers: the sent messages, the recorded reductions, and the complete history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agents.reduced_runs import TRIGGERS, checked, lookup, reductions, short, talk, texts_sent, within
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
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(["a1", "a2", "a3"], thread_kinds=WIRES[wire])  # type: ignore[arg-type]  # they are
        agent = Agent(client, engine=engine, name="Joker", instructions="Be funny.", reducer=KeepLast(2, when=when))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2", "u3")
        first = [] if wire == "openai-responses" else ["Be funny."]
        assert [texts_sent(client, number) for number in range(3)] == [
            [*first, "u1"],
            [*first, "u1", "a1", "u2"],
            [*first, "u2", "a2", "u3"],
        ]
        assert [each.text for each in await thread.history()] == ["u1", "a1", "u2", "a2", "u3", "a3"]
        recorded = reductions(await checked(engine, thread))
        versions = {each.text: each.version for each in await thread.history()}
        assert {each.reducer for each in recorded} == {"keep-last(2)"}
        assert {each.agent for each in recorded} == {"Joker"}
        assert recorded[0].left_out == ((versions["u1"], versions["a1"]),)
        assert len(recorded) == (1 if when == "before_retrieval" else 2)

    within(work)


@pytest.mark.parametrize("when", TRIGGERS)
def test_an_existing_thread_is_reduced_at_the_first_run(when: ReductionTrigger) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1, when=when))
        thread = await engine.start_thread(messages=[Message.system("Be brief."), *[Message.user("u")] * 5])
        await talk(agent, thread, "now")
        assert texts_sent(client) == ["Be brief.", "u", "now"]
        await checked(engine, thread)

    within(work)


@pytest.mark.parametrize("when", TRIGGERS)
def test_unanswered_messages_of_others_are_sent_and_belong_to_the_run(
    when: ReductionTrigger,
) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1, when=when))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2")
        await thread.append([Message.user("x"), Message.user("y"), Message.user("z")])
        await agent.run(thread=thread)
        assert texts_sent(client) == ["a", "x", "y", "z"]
        await checked(engine, thread)

    within(work)


def test_a_streamed_run_is_reduced_the_same() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=KeepLast(1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        async for _ in agent.run("u2", thread=thread, stream=True):
            pass
        assert texts_sent(client) == ["a", "u2"]
        await checked(engine, thread)

    within(work)


def test_records_nothing_while_no_message_is_omitted() -> None:
    async def work(engine: Engine) -> None:
        agent = Agent(ScriptedChatClient("a", loop=True), engine=engine, reducer=KeepLast(20))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2", "u3")
        assert reductions(await checked(engine, thread)) == []

    within(work)


# Calls and their results


@pytest.mark.parametrize("when", TRIGGERS)
def test_keeps_calls_with_their_results_and_the_rounds_of_the_run(when: ReductionTrigger) -> None:
    async def work(engine: Engine) -> None:
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

    within(work)


def test_long_results_are_trimmed_in_later_runs() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient([call("lookup", order=1), "Found.", "Yes."])
        agent = Agent(client, engine=engine, tools=[lookup], reducer=TrimToolResults(60))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "Look up 1.", "Sure?")
        assert "x" * 200 in texts_sent(client, 1)[-1]
        assert texts_sent(client, 2)[2].endswith("… [cut: 208 characters]")
        assert len(texts_sent(client, 2)[2]) == 60
        events = await checked(engine, thread)
        (recorded,) = reductions(events)
        assert [length for _, length in recorded.trimmed] == [60]
        assert any("x" * 200 in str(each.results) for each in await thread.history())

    within(work)


# A budget


def test_required_messages_are_sent_and_recorded_as_over_budget() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, instructions="i", reducer=TokenBudget(5, len))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "1", "22", "333333", "4")
        assert [texts_sent(client, number) for number in range(4)] == [
            ["i", "1"],
            ["i", "1", "a", "22"],
            ["i", "333333"],
            ["i", "a", "4"],
        ]
        recorded = reductions(await checked(engine, thread))
        assert [each.over_budget for each in recorded] == [True, False]

    within(work)


def check_budget(events: Sequence[Event], bodies: list[Any], history: Sequence[int], budget: int) -> None:
    """Check that each request fits the budget, or has only the messages of the run and is recorded as over budget."""
    started, current = 0, None
    for event in events:
        if event.type == "run-started":
            started = event.version
        elif isinstance(event.data, HistoryReduced):
            current = event.data
        elif event.type == "model-called":
            body = bodies.pop(0)
            over = sum(len(text) for _, text in sent_turns(body)) > budget
            assert over == (current is not None and current.over_budget)
            if over:
                assert len(body["messages"]) == sum(started < version < event.version for version in history)


@pytest.mark.parametrize("when", TRIGGERS)
def test_each_request_fits_the_budget_or_has_only_the_messages_of_the_run(when: ReductionTrigger, scale: float) -> None:
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

    async def work(engine: Engine) -> None:
        for seed in range(max(3, round(30 * scale))):
            await talk_at_random(engine, random.Random(seed))

    within(work)


# Summaries


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_summary_replaces_omitted_messages_and_is_extended(when: ReductionTrigger) -> None:
    async def work(engine: Engine) -> None:
        client, summariser = ScriptedChatClient([f"a{number}" for number in range(1, 9)]), ScriptedChatClient(short)
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1, every=2, when=when))
        thread = await engine.start_thread(messages=[Message.system("Be brief.")])
        await talk(agent, thread, "u1", "u2", "u3", "u4")
        assert [texts_sent(client, number) for number in (1, 2, 3)] == [
            ["Be brief.", "u1", "a1", "u2"],
            ["Be brief.", f"{TITLE}\nu1+a1+u2", "a2", "u3"],
            ["Be brief.", f"{TITLE}\nu1+a1+u2+a2+u3", "a3", "u4"],
        ]
        events = await checked(engine, thread)
        assert [each.text for each in await thread.history()][-3:] == ["a3", "u4", "a4"]
        assert all(each.summary is not None for each in reductions(events))

    within(work)


def test_a_failing_summary_fails_the_run_and_loses_nothing() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        summariser = ScriptedChatClient([fault("refused"), short])
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        with pytest.raises(ModelUnavailableError):
            await agent.run("u2", thread=thread)
        assert [each.text for each in await thread.history()] == ["u1", "a", "u2"]
        await agent.run(thread=thread)
        assert texts_sent(client) == [f"{TITLE}\nu1", "a", "u2"]
        await checked(engine, thread)

    within(work)


def test_messages_appended_during_a_summary_are_sent() -> None:
    async def work(engine: Engine) -> None:
        async def interrupted(body: Any) -> str:
            if len(summariser.requests) == 1:
                await thread.append(Message.user("By the way."))
            return short(body)

        client, summariser = ScriptedChatClient("a", loop=True), ScriptedChatClient(interrupted)
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2")
        assert texts_sent(client) == [f"{TITLE}\nu1+a", "By the way.", "u2"]
        events = await checked(engine, thread)
        assert len(reductions(events)) == 1

    within(work)
