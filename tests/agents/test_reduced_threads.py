"""Reducers on forked, rewound, waiting and shared threads, on real conversations, and failing reducers."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
from tests.agents.reduced_runs import TRIGGERS, checked, lookup, reductions, short, talk, texts_sent, within
from tests.agents.test_corpus_runs import sent_turns
from tests.domain.reducers.test_pipeline import ReturnsFixed

from clew.agents.tools import tool
from clew.aio.threads import LocalThread
from clew.domain.errors import ReducerError
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.messages import Message
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction, ReductionTrigger
from clew.domain.reducers.strategies import KeepLast, SlidingWindow, TokenBudget, TrimToolResults
from clew.domain.runs.errors import AgentConfigurationError
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient, call
from clew.memory.summary_reducer import TITLE, Summarise

# Forks, rewinds, other agents, waiting runs


def test_a_fork_and_a_rewind_use_the_reduction_at_their_version() -> None:
    async def work(engine: Engine) -> None:
        client, summariser = ScriptedChatClient("a", loop=True), ScriptedChatClient(short)
        agent = Agent(client, engine=engine, reducer=Summarise(summariser, keep_last=1, every=3))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1", "u2")
        await thread.checkpoint("before")
        await talk(agent, thread, "u3")
        assert texts_sent(client) == [f"{TITLE}\nu1+a+u2", "a", "u3"]
        requests = len(summariser.requests)
        early, late = await thread.fork(at="before"), await thread.fork()
        await talk(agent, late, "late")
        assert texts_sent(client) == [f"{TITLE}\nu1+a+u2", "a", "u3", "a", "late"]
        assert len(summariser.requests) == requests
        await talk(agent, early, "early")
        assert texts_sent(client) == [f"{TITLE}\nu1+a+u2", "a", "early"]
        assert len(summariser.requests) == requests + 1
        await thread.rewind(to="before")
        await talk(agent, thread, "again")
        assert texts_sent(client) == [f"{TITLE}\nu1+a+u2", "a", "again"]
        assert len(summariser.requests) == requests + 2
        for each in (thread, early, late):
            await checked(engine, each)

    within(work)


def test_a_reduction_applies_only_to_its_agent() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        forgetful = Agent(client, engine=engine, name="Forgetful", reducer=KeepLast(1))
        faithful = Agent(client, engine=engine, name="Faithful")
        thread = await engine.start_thread()
        await talk(forgetful, thread, "u1", "u2")
        assert texts_sent(client) == ["a", "u2"]
        await talk(faithful, thread, "u3")
        assert texts_sent(client) == ["u1", "a", "u2", "a", "u3"]
        await talk(forgetful, thread, "u4")
        assert texts_sent(client) == ["a", "u4"]
        await checked(engine, thread)

    within(work)


@pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")
def test_without_its_reducer_an_agent_is_sent_all_messages() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        thread = await engine.start_thread()
        await talk(Agent(client, engine=engine, reducer=KeepLast(1)), thread, "u1", "u2")
        await talk(Agent(client, engine=engine), thread, "u3")
        assert texts_sent(client) == ["u1", "a", "u2", "a", "u3"]
        await talk(Agent(client, engine=engine, reducer=SlidingWindow(1)), thread, "u4")
        assert texts_sent(client) == ["u3", "a", "u4"]
        await checked(engine, thread)

    within(work)


@tool(approval="always")
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@pytest.mark.parametrize("when", TRIGGERS)
def test_a_continued_run_keeps_its_own_rounds_and_the_earlier_reduction(when: ReductionTrigger) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(["a1", [call("lookup", order=1), call("refund", order=1)], "Done."])
        reducer = KeepLast(1, when=when) | TokenBudget(150, len, when=when)
        agent = Agent(client, engine=engine, tools=[lookup, refund], reducer=reducer)
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        waiting = await agent.run("u2", thread=thread)
        await waiting.approvals[0].approve(actor="user:1")
        await agent.continue_run(thread)
        assert texts_sent(client, 1) == ["a1", "u2"]
        assert [kind for kind, _ in sent_turns(client.requests[2])] == ["user", "call", "call", "result", "result"]
        events = await checked(engine, thread)
        assert any(each.over_budget for each in reductions(events))

    within(work)


@pytest.mark.parametrize("when", TRIGGERS)
def test_unanswered_messages_belong_to_the_continued_run(when: ReductionTrigger) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(["a1", [call("lookup", order=1), call("refund", order=1)], "Done."])
        agent = Agent(client, engine=engine, tools=[lookup, refund], reducer=KeepLast(1, when=when))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "u1")
        await thread.append([Message.user("x"), Message.user("y")])
        waiting = await agent.run(thread=thread)
        await waiting.approvals[0].approve(actor="user:1")
        await agent.continue_run(thread)
        assert texts_sent(client, 1) == texts_sent(client, 2)[:3] == ["a1", "x", "y"]
        await checked(engine, thread)

    within(work)


# Configuration and invalid results


def test_a_reducer_on_a_remote_thread_is_a_configuration_error() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", thread_kinds=("local", "remote"))
        agent = Agent(client, engine=engine, reducer=KeepLast(2))
        with pytest.raises(
            AgentConfigurationError, match=r"service that holds a remote thread limits its history.*keep-last"
        ):
            await agent.get_remote_thread()
        thread = await Agent(client, engine=engine).get_remote_thread()
        with pytest.raises(AgentConfigurationError, match="limits its history"):
            await agent.run("u", thread=thread)
        assert client.requests == []

    within(work)


@pytest.mark.parametrize("reducer", [5, "keep-last(2)", KeepLast, ReturnsFixed(None, when="never")], ids=range(4))  # type: ignore[arg-type]  # the test passes a wrong value
def test_refuses_an_invalid_reducer(reducer: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=r"reducer=.* is not a reducer|is not a moment"):
        Agent(ScriptedChatClient("a"), reducer=reducer)


@pytest.mark.parametrize("result", [None, Reduction([77]), Reduction(["1"])], ids=range(3))  # type: ignore[list-item]
def test_a_reducer_with_an_invalid_result_fails_the_run_and_records_nothing(result: Any) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("a", loop=True)
        agent = Agent(client, engine=engine, reducer=ReturnsFixed(result))
        thread = await engine.start_thread(messages=[Message.user("u1")] * 2)
        with pytest.raises(ReducerError, match="The reducer gives"):
            await agent.run("u2", thread=thread)
        assert client.requests == []
        events = await checked(engine, thread)
        assert reductions(events) == []
        assert events[-1].type == "run-failed"
        assert [each.text for each in await thread.history()] == ["u1", "u1", "u2"]

    within(work)


@dataclass(frozen=True)
class Raises:
    """A reducer that fails."""

    name: str = "raises"
    when: ReductionTrigger = "after_message_added"

    def reduce(self, history: Reducible) -> Reduction:
        if history.history[-1].role == "assistant":
            raise ZeroDivisionError
        return Reduction([each.version for each in history.history])


def test_a_reducer_that_fails_after_the_answer_keeps_the_answer() -> None:
    async def work(engine: Engine) -> None:
        agent = Agent(ScriptedChatClient("a"), engine=engine, reducer=Raises())
        thread = await agent.get_local_thread()
        with pytest.raises(ZeroDivisionError):
            await agent.run("u", thread=thread)
        assert [each.text for each in await thread.history()] == ["u", "a"]
        await checked(engine, thread)

    within(work)


# Real conversations


@pytest.mark.parametrize("when", TRIGGERS)
def test_runs_on_real_conversations_send_valid_and_rebuildable_requests(
    when: ReductionTrigger, corpus: list[dict[str, Any]], scale: float
) -> None:
    sample = random.Random(23).sample(corpus, max(1, min(len(corpus), round(len(corpus) * scale / 6))))
    reducers: list[Reducer] = [
        KeepLast(3, when=when),
        TrimToolResults(80, when=when) | TokenBudget(2000, when=when),
        Summarise(ScriptedChatClient(lambda _: json.dumps({"summary": "s"})), keep_last=3, every=2, when=when),
    ]

    async def work(engine: Engine) -> None:
        client = ScriptedChatClient("I see.", loop=True)
        for conversation in sample:
            messages = read_conversation(conversation).messages
            for reducer in reducers:
                agent = Agent(client, engine=engine, name="Clerk", reducer=reducer)
                thread: LocalThread = await engine.start_thread(messages=messages[:1])
                for place in range(1, len(messages), 5):
                    await thread.append(messages[place : place + 5])
                    await agent.run("And now?", thread=thread)
                await checked(engine, thread)
                imported = [each.message for each in await thread.history() if each.message in messages]
                assert [each for each in imported if each is not None] == list(messages)

    within(work)
