"""A reducer that decides from the newest message on reads only a part, and sends what the whole history would give."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agents.recording_providers import Watching
from tests.agents.reduced_runs import TRIGGERS, checked, lookup, short, talk, texts_sent, within

from clew import Agent, Engine, KeepLast, Message, Record, ScriptedChatClient, SlidingWindow, Summarise, TokenBudget
from clew.agents.run_setup import RunSetup
from clew.agents.tools import tool
from clew.domain.errors import ClewError
from clew.domain.history import History
from clew.domain.messages import FunctionCall, Text
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction, ReductionTrigger
from clew.domain.reducers.strategies import TrimToolResults
from clew.domain.runs.request_construction import request_of
from clew.infrastructure.scripted_client import call
from clew.service.run_log import ThreadRuns


@tool(name="lookup", approval="always")
def approved(order: int) -> str:
    """Look up an order."""
    return f"order {order}"


class Step(NamedTuple):
    """An operation on a thread; ``place`` chooses one of its messages."""

    kind: str
    messages: tuple[Message, ...] = ()
    place: int = 0


def asks(*ids: str) -> Message:
    calls = tuple(FunctionCall(call_id=id_, name="lookup", arguments="{}") for id_ in ids)
    return Message(role="assistant", contents=(Text(text="let me see"), *calls))


IDS = st.sampled_from(["call_1", "call_2"])
MESSAGES = st.one_of(
    st.sampled_from([Message.user("one or two words"), Message.assistant("a few more words"), Message.user("u")]),
    st.sampled_from([Message.system("Be brief."), Message(role="developer", contents=(Text(text="Be kind."),))]),
    st.lists(IDS, min_size=1, max_size=2, unique=True).map(lambda ids: asks(*ids)),
    st.tuples(IDS, st.sampled_from(["found", "nothing at all, however long one looks for it"])).map(
        lambda result: Message.tool(*result)
    ),
)
BATCHES = st.lists(MESSAGES, max_size=4).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.just(Step("run", (Message.user("and now?"),))),
        st.just(Step("run", (Message.user("please look it up"),))),
        BATCHES.map(lambda batch: Step("run", batch)),
        BATCHES.map(lambda batch: Step("append", batch)),
        st.tuples(st.sampled_from(["rewind", "fork", "redact", "record"]), st.integers(0, 8)).map(
            lambda chosen: Step(chosen[0], place=chosen[1])
        ),
    ),
    min_size=4,
    max_size=16,
)
REDUCERS: dict[str, Callable[[ReductionTrigger], Any]] = {
    "keep-last": lambda when: KeepLast(2, when=when),
    "one": lambda when: KeepLast(1, when=when),
    "window": lambda when: SlidingWindow(1, when=when),
    "budget": lambda when: TokenBudget(20, when=when),
    "trimmed": lambda when: TrimToolResults(40, 1, when=when) | TokenBudget(25, when=when),
    "two": lambda when: TokenBudget(30, when=when) | KeepLast(3, when=when),
    "summary": lambda when: Summarise(ScriptedChatClient(short), keep_last=2, every=2, when=when),
    "summary in a budget": lambda when: (
        Summarise(ScriptedChatClient(short), keep_last=2, every=2, when=when) | TokenBudget(25, when=when)
    ),
}


def answer(body: Any) -> Any:
    """Call the tool for a request whose last message asks for it."""
    last = body["messages"][-1]
    return call("lookup", order=1) if last["content"] == "please look it up" else "yes, of course"


async def bodies(steps: Sequence[Step], reducer: Reducer, *, forgets_after: int = 99) -> list[str]:
    """The requests of a new agent to which this happens, and the errors of its runs.

    After so many steps, the process forgets what it has read of the thread.
    """
    client = ScriptedChatClient(answer)
    seen: list[str] = []
    async with Engine.open("memory:", projections=()) as engine:
        agent = Agent(client, engine=engine, id="a", tools=[lookup], reducer=reducer)
        thread = await agent.get_local_thread()
        for number, step in enumerate(steps, 1):
            if number % forgets_after == 0:
                engine._core.caches.clear()
            try:
                thread = await carry_out(step, agent, thread)
            except ClewError as error:
                seen.append(type(error).__name__)
        if all(step.kind != "redact" for step in steps):  # a redaction changes earlier requests
            await checked(engine, thread)
    return [*seen, *map(json.dumps, client.requests)]


async def carry_out(step: Step, agent: Agent, thread: Any) -> Any:
    if step.kind == "run":
        await agent.run(list(step.messages) or None, thread=thread)
    elif step.kind == "append":
        await thread.append(list(step.messages))
    elif step.kind == "record":
        await thread.append(Record("noted", {"place": step.place}))
    elif messages := (await thread.history()).messages:
        message = messages[-1 - step.place % len(messages)]
        if step.kind == "fork":
            return await thread.fork(at=message.version)
        await (thread.redact(message) if step.kind == "redact" else thread.rewind(to=message.version))
    return thread


@contextmanager
def whole_histories() -> Iterator[None]:
    with patch.object(RunSetup, "needed_history", lambda *_: None):
        yield


@pytest.mark.parametrize("reducer", REDUCERS)
@settings(max_examples=math.ceil(settings().max_examples / 3))  # each example takes three conversations
@given(when=st.sampled_from(TRIGGERS), steps=STEPS, forgets_after=st.integers(1, 4))
def test_sends_what_the_whole_history_would_give(
    reducer: str, when: ReductionTrigger, steps: list[Step], forgets_after: int
) -> None:
    warm = asyncio.run(bodies(steps, REDUCERS[reducer](when)))
    cold = asyncio.run(bodies(steps, REDUCERS[reducer](when), forgets_after=forgets_after))
    with whole_histories():
        assert warm == cold == asyncio.run(bodies(steps, REDUCERS[reducer](when)))


@contextmanager
def histories_read() -> Iterator[list[int]]:
    """The lengths of the histories that are read meanwhile."""
    lengths: list[int] = []
    read = ThreadRuns.history

    async def counted(self: ThreadRuns, needed: Any = None) -> History:
        history = await read(self, needed)
        lengths.append(len(history))
        return history

    with patch.object(ThreadRuns, "history", counted):
        yield lengths


async def long_thread(engine: Engine, messages: int) -> Any:
    thread = await engine.start_thread()
    turn = [Message.user("a question"), Message.assistant("an answer")]
    await thread.append(turn * (messages // 2))
    return thread


@pytest.mark.parametrize("reducer", ["keep-last", "window", "budget", "trimmed", "two", "summary"])
def test_a_run_reads_as_much_of_a_long_thread_as_of_a_short_one(reducer: str) -> None:
    async def work(engine: Engine) -> None:
        agent = Agent(
            ScriptedChatClient(answer), engine=engine, tools=[lookup], reducer=REDUCERS[reducer]("before_retrieval")
        )
        read: list[list[int]] = []
        for messages in (100, 1_000):
            thread = await long_thread(engine, messages)
            await talk(agent, thread, "first", "second")
            with histories_read() as lengths:
                await talk(agent, thread, "third", "please look it up", "fifth")
            read.append(lengths)
        short, long = read
        assert long == short
        assert max(long) < 80

    within(work)


def test_a_fork_and_a_continued_run_read_only_a_part() -> None:
    async def work(engine: Engine) -> None:
        agent = Agent(ScriptedChatClient(answer), engine=engine, tools=[approved], reducer=KeepLast(2))
        thread = await long_thread(engine, 1_000)
        await talk(agent, thread, "first")
        with histories_read() as lengths:
            fork = await thread.fork()
            await talk(agent, fork, "second")
            waiting = await agent.run("please look it up", thread=fork)
            (approval,) = waiting.approvals
            await approval.approve()
            await agent.continue_run(fork)
        assert lengths
        assert max(lengths) < 80

    within(work)


def test_a_checkpoint_reads_what_the_providers_have_not_seen() -> None:
    async def work(engine: Engine) -> None:
        thread = await long_thread(engine, 300)
        thread.context_providers.add(Watching())
        with histories_read() as lengths:
            await thread.checkpoint("one")
            await thread.append(Message.user("new"))
            await thread.checkpoint("two")
        assert lengths == [300, 1]

    within(work)


class Everything:
    """A reducer that needs the whole history, and notes the threads in which it is asked."""

    name = "everything"
    when: ReductionTrigger = "before_retrieval"

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def reduce(self, given: Reducible) -> Reduction:
        self.asked.append((len(given.history), current_thread() is main_thread()))
        return Reduction(given.groups().newest(1))


def test_a_reducer_that_needs_all_gets_all_once_and_in_a_thread() -> None:
    async def work(engine: Engine) -> None:
        reducer = Everything()
        agent = Agent(ScriptedChatClient(answer), engine=engine, reducer=reducer)
        short, long = await long_thread(engine, 100), await long_thread(engine, 1_000)
        with histories_read() as lengths:
            await talk(agent, short, "question")
            await talk(agent, long, "question", "another")
        assert reducer.asked == [(100, True), (1_000, False), (1_002, False)]
        assert lengths == [100, 1_000, 1_002]

    within(work)


def test_a_request_with_a_long_history_is_made_in_a_thread() -> None:
    places: list[bool] = []

    def noted(*arguments: Any) -> Any:
        places.append(current_thread() is main_thread())
        return request_of(*arguments)

    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(answer)
        agent = Agent(client, engine=engine)
        with patch("clew.agents.model_calls.request_of", noted):
            await talk(agent, await long_thread(engine, 100), "question")
            await talk(agent, await long_thread(engine, 1_000), "question")
        assert [len(texts_sent(client, number)) for number in (0, 1)] == [101, 1_001]
        assert places == [True, False]

    within(work)
