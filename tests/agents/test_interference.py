"""Changes to a thread by others during a run, and the reaction of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from tests.agents.run_checks import check_requests
from tests.agents.turns import (
    PATIENCE,
    Gate,
    ShiftedClock,
    check_runs,
    events_of,
    note,
    requests_of,
    taking_turns,
    types_of,
    watch_drafts,
)

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.agents.response import AgentResponse
from clew.aio.threads import LocalThread, Thread
from clew.domain.errors import ClewError, StoreUnavailableError, ThreadDeletedError, ThreadStatusError
from clew.domain.history import History, NeededHistory
from clew.domain.json_values import JsonObject
from clew.domain.ports import Lease
from clew.domain.runs.errors import NoOpenRunError, RunInProgressError, RunTakenOverError
from clew.domain.runs.events import AnswerInterrupted, RunAbandoned
from clew.domain.runs.ports import LEASE_SECONDS
from clew.infrastructure.scripted_client import Line, call
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio


class RunInProgress:
    """A run that waits for its model's first answer, and the same thread in another process."""

    def __init__(self, engine: Engine, other: Engine) -> None:
        self.engine = engine
        self.other = other
        self.gate = Gate()
        self.agent = taking_turns(engine, self.gate)

    async def start(self) -> None:
        thread = await self.engine.start_thread(messages=[Message.user("before"), Message.assistant("yes")])
        self.here: LocalThread = thread
        self.there: Any = await self.other.thread(thread.id)
        self.task: asyncio.Task[AgentResponse[Thread]] = asyncio.create_task(self.agent.run("one", thread=thread))
        await self.gate.reached.wait()

    async def ends(self) -> AgentResponse[Thread]:
        self.gate.opened.set()
        return await self.task


@pytest.fixture
async def run(url: str) -> AsyncIterator[RunInProgress]:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        in_progress = RunInProgress(engine, other)
        await in_progress.start()
        yield in_progress
        in_progress.gate.opened.set()
        await asyncio.wait([in_progress.task])


async def texts(thread: Any) -> list[str]:
    """Return the texts of the history; a call becomes its name."""
    messages = [each.message for each in await thread.history() if each.message is not None]
    return [each.text or "".join(call.name for call in each.calls) or str(each.results[0].result) for each in messages]


async def test_the_next_model_call_includes_messages_appended_during_the_run(run: RunInProgress) -> None:
    await run.there.append(Message.user("and two"))
    await run.there.label(topic="lamps")
    response = await run.ends()
    assert response.text == "done one"
    assert await texts(run.here) == ["before", "yes", "one", "and two", "note", "noted one", "done one"]
    second: Any = run.agent.client
    assert [each["content"] for each in second.requests[1]["messages"]][2:4] == ["one", "and two"]
    await check_requests(run.here, await events_of(run.here))
    await check_runs(run.here)


@pytest.mark.parametrize("when", [1, 2])
async def test_a_model_call_is_decided_again_after_a_concurrent_append(
    url: str, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """The append comes between reading the history and the commit, at the start of the run or a later model call."""
    reads = 0
    really = ThreadRuns.history

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        thread = await engine.start_thread()
        there = await other.thread(thread.id)

        async def history(log: ThreadRuns, needed: NeededHistory | None = None) -> History:
            nonlocal reads
            reads += 1
            result = await really(log, needed)
            if reads == when:
                await there.append(Message.user("me first"))
            return result

        monkeypatch.setattr(ThreadRuns, "history", history)

        async def answer(_: JsonObject) -> Line:
            if when == 2:  # the run reads the history again only after a change
                await there.append(Message.user("in between"))
            return call("note", turn="one")

        agent = Agent(client=ScriptedChatClient([answer, "done one"]), engine=engine, tools=[note])
        await agent.run("one", thread=thread)
        assert reads > when
        first = ["me first", "one"] if when == 1 else ["one", "in between"]
        then = ["noted one"] if when == 1 else ["me first", "noted one"]
        assert await texts(thread) == [*first, "note", *then, "done one"]
        assert requests_of(agent) == 2
        assert len(await check_requests(thread, await events_of(thread))) == 2
        await check_runs(thread)


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        (lambda thread: thread.end(), ThreadStatusError, "thread-ended"),
        (lambda thread: thread.delete(), ThreadDeletedError, "thread-deleted"),
        (lambda thread: thread.rewind(to=2, abandon_run=True), RunTakenOverError, "history-rewound"),
    ],
    ids=["end", "delete", "rewind"],
)
async def test_end_delete_and_rewind_end_the_run(
    run: RunInProgress, change: Callable[[Any], Coroutine[Any, Any, None]], error: type[ClewError], kind: str
) -> None:
    await change(run.there)
    before = [event async for event in run.there.events()] if kind != "thread-deleted" else []
    with pytest.raises(error):
        await run.ends()
    assert requests_of(run.agent) == 1
    events = await events_of(run.there)
    assert events[-1].type == kind
    assert not before or events == before
    assert (await run.other.verify()).first_bad is None


async def test_a_fork_of_a_thread_ended_during_a_run_is_usable(run: RunInProgress) -> None:
    await run.there.end()
    with pytest.raises(ThreadStatusError):
        await run.ends()
    branch = await run.there.fork()
    await taking_turns(run.other).run("two", thread=branch)
    assert await texts(branch) == ["before", "yes", "one", "two", "note", "noted two", "done two"]
    await check_requests(branch, (await events_of(branch))[-10:])


async def test_a_run_continues_on_a_suspended_thread_and_no_other_starts(run: RunInProgress) -> None:
    await run.there.suspend(reason="lunch")
    with pytest.raises(RunInProgressError):
        await taking_turns(run.other).run("two", thread=run.there)
    assert (await run.ends()).text == "done one"
    assert types_of(await events_of(run.here))[-1] == "run-completed"
    agent = taking_turns(run.other)
    with pytest.raises(ThreadStatusError, match="suspended"):
        await agent.run("two", thread=run.there)
    assert requests_of(agent) == 0
    await run.there.resume()
    await agent.run("two", thread=run.there)
    await check_runs(run.here)


async def test_the_next_model_call_respects_a_redaction_during_the_run(run: RunInProgress) -> None:
    await run.there.redact((await run.there.history()).messages[0])
    await run.ends()
    client: Any = run.agent.client
    assert client.requests[0]["messages"][0]["content"] == "before"
    assert "before" not in str(client.requests[1])
    events = await events_of(run.here)
    (last,) = await check_requests(run.here, events[[event.type for event in events].index("tool-finished") :])
    assert "before" not in str(last.body)


async def test_a_rewind_is_refused_during_a_run(run: RunInProgress) -> None:
    before = await events_of(run.there)
    with pytest.raises(RunInProgressError, match=run.here.id):
        await run.there.rewind(to=2)
    with pytest.raises(RunInProgressError):
        await run.here.rewind(to=2)
    assert await events_of(run.there) == before
    assert (await run.ends()).text == "done one"
    await run.there.rewind(to=2)
    assert await texts(run.here) == ["before"]


async def test_a_rewind_abandons_the_run_in_one_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds during a streamed answer: its recorded draft is kept."""
    drafted = watch_drafts(monkeypatch)
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        thread = await engine.start_thread()
        client = ScriptedChatClient("old " * 40, delay=0.01)
        stream = Agent(client=client, engine=engine).run("one", thread=thread, stream=True)
        await anext(stream)
        await drafted.wait()
        there = await other.thread(thread.id)
        version = await there.rewind(to=1, abandon_run=True, actor="ops:ada")
        events = await events_of(there)
        assert [event.type for event in events[-4:]] == [
            "message-appended", "answer-interrupted", "run-abandoned", "history-rewound",
        ]  # fmt: skip
        assert version == events[-1].version
        assert [event.actor for event in events[-4:]] == ["agent", "agent", "ops:ada", "ops:ada"]
        assert isinstance(events[-3].data, AnswerInterrupted)
        assert events[-3].data.message == events[-4].version
        assert events[-2].data == RunAbandoned(reason="asked")
        assert await there.runs.lease() is None
        assert await there.runs.draft() is None
        assert len(await there.history()) == 0
        with pytest.raises(RunTakenOverError):
            await stream.get_final_response()
        assert await events_of(thread) == events
        await there.rewind(to=version - 1)  # undo the rewind
        assert (await texts(there))[0] == "one"
        assert (await there.runs.control(fresh=True)).run is None
        await taking_turns(other).run("two", thread=there)


async def test_a_run_that_starts_during_a_check_does_not_look_orphaned(
    run: RunInProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check reads the control and then the lease; in between, one run ends and the next one starts."""
    really, gate = ThreadRuns.lease, Gate()
    second: list[asyncio.Task[AgentResponse[Thread]]] = []

    async def lease(log: ThreadRuns) -> Lease | None:
        if second or log is run.here.runs:
            return await really(log)
        await run.ends()
        result = await really(log)
        assert result is None
        second.append(asyncio.create_task(taking_turns(run.engine, gate).run("two", thread=run.here)))
        await gate.reached.wait()
        return result

    monkeypatch.setattr(ThreadRuns, "lease", lease)
    with pytest.raises(RunInProgressError):
        await taking_turns(run.other).run("three", thread=run.there)
    gate.opened.set()
    assert (await second[0]).text == "done two"
    assert "run-abandoned" not in types_of(await events_of(run.here))


async def test_a_rewind_with_abandon_run_works_without_a_run(url: str) -> None:
    async with Engine.open(url) as engine:
        thread = await engine.start_thread(messages=[Message.user("one"), Message.user("two")])
        await thread.rewind(to=2, abandon_run=True)
        assert types_of(await events_of(thread)) == ["thread-started", "history-rewound"]


async def test_a_rewind_closes_a_run_with_an_expired_lease(run: RunInProgress, url: str) -> None:
    async with Engine.open(url, now=ShiftedClock(LEASE_SECONDS + 1)) as later:
        there = await later.thread(run.here.id)
        await there.rewind(to=2)
        with pytest.raises(NoOpenRunError):
            await taking_turns(later).continue_run(there)
        with pytest.raises(RunTakenOverError):
            await run.ends()
        await taking_turns(later).run("two", thread=there)
        assert await texts(there) == ["before", "two", "note", "noted two", "done two"]


def test_conversations_rewind_like_the_engine_during_a_run(url: str) -> None:
    with Conversations.open(url) as conversations:
        thread_id = conversations.start_thread(messages=[Message.user("before")]).id

        async def while_it_runs() -> None:
            async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
                gate = Gate()
                thread = await engine.thread(thread_id)
                task = asyncio.create_task(taking_turns(engine, gate).run("one", thread=thread))
                await gate.reached.wait()
                with pytest.raises(RunInProgressError):
                    await asyncio.to_thread(conversations.thread(thread_id).rewind, 2)
                await asyncio.to_thread(conversations.thread(thread_id).rewind, 2, abandon_run=True)
                gate.opened.set()
                with pytest.raises(RunTakenOverError):
                    await task

        asyncio.run(while_it_runs())
        types = types_of(conversations.thread(thread_id).events())
        assert types[-3:] == ["answer-interrupted", "run-abandoned", "history-rewound"]


async def test_a_rewind_also_abandons_a_run_that_starts_meanwhile(
    run: RunInProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run starts between the rewind's read and write; the rewind reads again and nothing interleaves."""
    core: Any = run.other._core
    really, has_read, started = core.log.draft, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def draft(stream: str) -> Any:
        if not has_read.is_set():
            loop.call_soon_threadsafe(has_read.set)
            asyncio.run_coroutine_threadsafe(started.wait(), loop).result(PATIENCE)
        return really(stream)

    monkeypatch.setattr(core.log, "draft", draft)
    rewinding = asyncio.create_task(run.there.rewind(to=2, abandon_run=True))
    await has_read.wait()
    await run.ends()
    gate = Gate()
    second = asyncio.create_task(taking_turns(run.engine, gate).run("two", thread=run.here))
    await gate.reached.wait()
    started.set()
    await rewinding
    gate.opened.set()
    with pytest.raises(RunTakenOverError):
        await second
    types = types_of(await events_of(run.here))
    assert types.count("run-completed") == 1
    assert types[-3:] == ["answer-interrupted", "run-abandoned", "history-rewound"]


@pytest.mark.parametrize("failing_write", [1, 2, 3, 4])
async def test_a_thread_is_usable_after_a_temporary_store_failure(
    url: str, monkeypatch: pytest.MonkeyPatch, failing_write: int
) -> None:
    """The end of the run is not recorded; the next run records it and does not wait for the lease."""
    really, writes_left = ThreadRuns.record, failing_write

    async def record(*args: Any, **options: Any) -> Any:
        nonlocal writes_left
        writes_left -= 1
        if writes_left <= 0:
            raise StoreUnavailableError("The disk is full.")
        return await really(*args, **options)

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        agent = taking_turns(engine)
        monkeypatch.setattr(ThreadRuns, "record", record)
        with pytest.raises(StoreUnavailableError) as failed:
            await agent.run("one", thread=thread)
        monkeypatch.undo()
        recorded = await texts(thread)
        assert recorded == ["one", "note", "noted one"][: max(0, failing_write - 1)]
        assert (await agent.run("two", thread=thread)).text == "done two"
        assert await texts(thread) == [*recorded, "two", "note", "noted two", "done two"]
        assert types_of(await events_of(thread)).count("run-abandoned") == (failing_write > 1)
        await check_runs(thread)
    assert failed.tb is not None, "the run is alive when its engine is closed, which cancels nothing"


@pytest.mark.parametrize(
    ("failing_write", "recorded"), [(2, ["note"]), (3, ["note", "noted one"]), (4, ["note", "noted one", "done one"])]
)
async def test_events_before_a_store_failure_are_recorded_with_the_end_of_the_run(
    url: str, monkeypatch: pytest.MonkeyPatch, failing_write: int, recorded: list[str]
) -> None:
    really, writes_left = ThreadRuns.record, failing_write

    async def record(*args: Any, **options: Any) -> Any:
        nonlocal writes_left
        writes_left -= 1
        if writes_left == 0:
            raise StoreUnavailableError("The disk is busy.")
        return await really(*args, **options)

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        agent = taking_turns(engine)
        monkeypatch.setattr(ThreadRuns, "record", record)
        with pytest.raises(StoreUnavailableError):
            await agent.run("one", thread=thread)
        assert await texts(thread) == ["one", *recorded]
        assert types_of(await events_of(thread))[-1] == "run-failed"
        assert (await agent.run("two", thread=thread)).text == "done two"
        await check_runs(thread)


@pytest.mark.parametrize("change", [lambda thread: thread.end(), lambda thread: thread.delete()], ids=["end", "delete"])
async def test_a_thread_ended_during_an_answer_keeps_no_draft(
    url: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    drafted = watch_drafts(monkeypatch)
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        client = ScriptedChatClient(
            "word " * 40, delay=0.01
        )  # more than a stream buffers: the run waits for its reader
        stream = Agent(client=client, engine=engine).run("one", thread=thread, stream=True)
        await anext(stream)
        await drafted.wait()
        await change(thread)
        with pytest.raises(ThreadStatusError):
            await stream.get_final_response()
        assert await thread.runs.draft() is None
        assert await thread.runs.lease() is None
