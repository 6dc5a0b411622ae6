"""A process that has not read a thread reads its end for a run: as much of a long thread as of a short one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.group_chats import agent_of, grow_chat
from tests.agents.recording_providers import Watching
from tests.agents.reduced_runs import checked, talk, texts_sent, within
from tests.agents.test_windowed_histories import REDUCERS, answer

from clew import Agent, ConversationSummaries, Engine, KeepLast, MaxTurns, Message, ScriptedChatClient, UserFacts
from clew.domain.decider_state import SNAPSHOT_EVERY

SHORT, LONG = 2 * SNAPSHOT_EVERY, 12 * SNAPSHOT_EVERY
"""Messages of a short and of a long thread, which have the same distance to the last snapshot."""


def forget(engine: Engine) -> None:
    """Forget everything that this process has read."""
    engine._core.caches.clear()


@contextmanager
def reads(engine: Engine) -> Iterator[list[int]]:
    """The rows of each query of a thread meanwhile."""
    rows: list[int] = []
    recorder: Any = engine._core.log.recorder  # type: ignore[attr-defined]  # the log is an application

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found = read(*arguments, **options)
            rows.append(len(found) if isinstance(found, list) else 1)
            return found

        return call

    names = "lineage", "indexed", "snapshot"
    for name in names:
        setattr(recorder, name, counted(getattr(recorder, name)))
    try:
        yield rows
    finally:
        for name in names:
            delattr(recorder, name)


async def read_by(engine: Engine, work: Callable[[], Awaitable[Any]]) -> list[int]:
    """The rows of each query of ``work`` in a new process."""
    forget(engine)
    with reads(engine) as rows:
        await work()
    return rows


Prepare = Callable[[Agent, Any], Awaitable[Any]]


async def nothing(_: Agent, thread: Any) -> Any:
    return thread


async def rewound(agent: Agent, thread: Any) -> Any:
    version = await thread.version
    await talk(agent, thread, "abandoned", "abandoned, too")
    await thread.rewind(to=version)
    return thread


async def forked(agent: Agent, thread: Any) -> Any:
    await talk(agent, thread, "later")
    return await thread.fork(at=await thread.version - 2)


PREPARED = {"end": nothing, "rewind": rewound, "fork": forked, "provider": nothing}


@pytest.mark.parametrize("prepared", PREPARED)
@pytest.mark.parametrize("reducer", ["keep-last", "window", "budget", "two", "summary"])
def test_a_cold_run_reads_as_much_of_a_long_thread_as_of_a_short_one(reducer: str, prepared: str) -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(answer)
        agent = Agent(client, engine=engine, reducer=REDUCERS[reducer]("before_retrieval"))
        read: list[list[int]] = []
        for messages in (SHORT, LONG):
            thread = await agent.get_local_thread()
            await thread.append(Message.system("Be brief."))
            await thread.append([Message.user("a question"), Message.assistant("an answer")] * (messages // 2))
            if prepared == "provider":
                thread.context_providers.add(Watching())
            await talk(agent, thread, "first", "second")
            thread = await PREPARED[prepared](agent, thread)
            read.append(await read_by(engine, partial(talk, agent, thread, "third")))
            sent = texts_sent(client)
            await checked(engine, thread)
            if prepared == "end":
                assert sent[-3:] == ["second", "yes, of course", "third"]
        short, long = read
        assert long == short
        assert sum(long) < 3 * SNAPSHOT_EVERY

    within(work)


def test_the_second_run_of_a_process_reads_only_what_is_new() -> None:
    async def work(engine: Engine) -> None:
        agent = Agent(ScriptedChatClient(answer), engine=engine, reducer=KeepLast(2))
        thread = await agent.get_local_thread()
        await thread.append([Message.user("a question"), Message.assistant("an answer")] * 300)
        await talk(agent, thread, "first")
        await read_by(engine, partial(talk, agent, thread, "second"))
        with reads(engine) as rows:
            await talk(agent, thread, "third", "fourth")
        assert sum(rows) == 0
        assert len(await thread.history()) == 608

    within(work)


def test_a_rewind_to_an_abandoned_version_is_followed_after_a_cold_run() -> None:
    async def work(engine: Engine) -> None:
        client = ScriptedChatClient(answer)
        agent = Agent(client, engine=engine, reducer=KeepLast(2))
        thread = await agent.get_local_thread()
        await talk(agent, thread, "first", "second", "third")
        before = await thread.version
        await thread.rewind(to=(await thread.history()).messages[1].version)
        await talk(agent, thread, "other")
        forget(engine)
        await talk(agent, thread, "cold")
        assert texts_sent(client) == ["other", "yes, of course", "cold"]
        await thread.rewind(to=before)
        await talk(agent, thread, "again")
        assert texts_sent(client) == ["third", "yes, of course", "again"]
        await checked(engine, thread)

    within(work)


@pytest.mark.anyio
async def test_user_facts_read_back_to_the_last_answer_only() -> None:
    read: list[list[int]] = []
    for messages in (SHORT, LONG):
        async with Engine.open("memory:") as engine:
            extractor = ScriptedChatClient(json.dumps({"facts": []}), loop=True)
            facts = UserFacts("user/42", extractor)
            agent = Agent(ScriptedChatClient(answer), engine=engine, reducer=KeepLast(2), context_providers=facts)
            thread = await agent.get_local_thread()
            await thread.append([Message.user("a question"), Message.assistant("an answer")] * (messages // 2))
            await talk(agent, thread, "first", "second")
            read.append(await read_by(engine, partial(agent.run, "third", thread=thread)))
            body: Any = extractor.requests[-1]
            asked = json.loads(body["messages"][-1]["content"])
            assert (asked["before"], len(asked["messages"])) == ("yes, of course", 1)
    short, long = read
    assert long == short
    assert sum(long) < 3 * SNAPSHOT_EVERY


@pytest.mark.anyio
async def test_a_checkpoint_without_new_messages_reads_only_the_newest() -> None:
    read: list[list[int]] = []
    for messages in (SHORT, LONG):
        async with Engine.open("memory:") as engine:
            summariser = ScriptedChatClient(json.dumps({"summary": "All is said."}), loop=True)
            thread = await engine.start_thread()
            await thread.append([Message.user("a question"), Message.assistant("an answer")] * (messages // 2))
            thread.context_providers.add(ConversationSummaries("group/1", summariser, at_checkpoints=True))
            await thread.checkpoint("one")
            read.append(await read_by(engine, partial(thread.checkpoint, "two")))
            assert len(summariser.requests) == 1
    short, long = read
    assert long == short
    assert sum(long) < 3 * SNAPSHOT_EVERY


@pytest.mark.anyio
async def test_a_turn_of_a_long_chat_reads_as_much_as_one_of_a_short_chat(tmp_path: Path) -> None:
    known, new = set(), []
    async with Engine.open(f"sqlite:///{tmp_path}/chats.db?synchronous=OFF", embedded=False) as engine:
        for turns in (100, 600):
            await grow_chat(engine, turns=turns, chat_id=f"{turns} turns")
            agents = [agent_of(engine, f"P{each}") for each in range(10)]
            chat = await engine.chat(f"{turns} turns", agents, termination=MaxTurns(len(agents)))
            await chat.run("Continue.")
            with reads(engine) as rows:
                await chat.run("Continue.")
            known.add((len(rows), sum(rows)))
            new.append(await read_by(engine, partial(chat.run, "Continue.")))
    assert len(known) == 1, known
    short, long = new
    assert len(long) <= len(short) + 5
    assert sum(long) <= sum(short) + 2 * SNAPSHOT_EVERY  # the distance to the last snapshot differs
