"""What tools report while they run: updates of the stream, followers in any process, and events on the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import run_until
from tests.agents.run_checks import check_requests, events_of
from tests.agents.tool_calls import outcome

from clew import Agent, Engine, ScriptedChatClient, ToolContext, tool
from clew.agents import tool_progress
from clew.agents.response import AgentUpdate
from clew.domain.decider_state import CallLocation
from clew.domain.runs.events import ToolProgressed
from clew.errors import InvalidContentError
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF") as engine:
        yield engine


def packer(engine: Engine, pack: Any) -> Agent:
    return Agent(ScriptedChatClient([call("pack", boxes=3), "Packed."]), engine=engine, name="Packer", tools=[pack])


async def reports(thread: Any) -> list[tuple[str, float | None, Any]]:
    return [
        (event.data.text, event.data.fraction, event.data.data)
        for event in await events_of(thread)
        if isinstance(event.data, ToolProgressed)
    ]


def of_progress(updates: list[AgentUpdate]) -> list[tuple[str, float | None, Any, str | None, str | None]]:
    return [
        (each.text, each.fraction, each.data, each.call_id, each.name) for each in updates if each.type == "progress"
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_each_report_reaches_the_stream_before_the_result(engine: Engine, *, is_async: bool) -> None:
    @tool
    async def pack(boxes: int, context: ToolContext) -> str:
        for box in range(boxes):
            await context.progress(f"box {box}", fraction=box / boxes, data={"box": box})
        return "packed"

    @tool(name="pack")
    def pack_in_a_thread(boxes: int, context: ToolContext) -> str:
        for box in range(boxes):
            context.progress(f"box {box}", fraction=box / boxes, data={"box": box})
        return "packed"

    agent = packer(engine, pack if is_async else pack_in_a_thread)
    stream = agent.run("Pack.", stream=True)
    updates = [update async for update in stream]
    response = await stream.get_final_response()
    expected = [(f"box {box}", box / 3, {"box": box}, "call_1", "pack") for box in range(3)]
    assert [each[:3] for each in of_progress(updates)] == [each[:3] for each in expected]
    assert {each[4] for each in of_progress(updates)} == {"pack"}
    kinds = [update.type for update in updates]
    assert kinds.index("answer") < kinds.index("progress") < kinds.index("result")
    await check_requests(response.thread, await events_of(response.thread))
    assert (await engine.verify()).first_bad is None


async def test_events_are_a_second_apart_and_get_rarer_and_the_newest_is_among_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_progress, "RECORDED_SECONDS", 0.05)

    @tool
    async def pack(boxes: int, context: ToolContext) -> str:
        end = time.monotonic() + 0.25
        number = 0
        while time.monotonic() < end:
            await context.progress(f"{number}", fraction=boxes / 10)
            number += 1
            await asyncio.sleep(0.001)
        await context.progress("last")
        await asyncio.sleep(0.15)  # longer than the time between two events
        return "packed"

    thread = (await packer(engine, pack).run("Pack.")).thread
    texts = [text for text, _, _ in await reports(thread)]
    assert 2 <= len(texts) <= 9
    assert (texts[0], texts[-1]) == ("0", "last")


async def test_a_follower_gets_reports_once_and_continues_after_them(engine: Engine) -> None:
    seen = asyncio.Event()

    @tool
    async def pack(boxes: int, context: ToolContext) -> str:
        await context.progress("began", fraction=boxes / 4)
        await seen.wait()
        return "packed"

    thread = await engine.start_thread()
    run = await packer(engine, pack).run("Pack.", thread=thread, background=True)
    updates: list[AgentUpdate] = []
    async for update in thread.follow(run.run_id):
        updates.append(update)
        if update.type == "progress":
            seen.set()
    (place,) = [number for number, update in enumerate(updates) if update.type == "progress"]
    assert of_progress(updates)[0][:2] == ("began", 0.75)
    again = [update async for update in thread.follow(run.run_id, after=updates[place].position)]
    assert [update.type for update in again] == [update.type for update in updates[place + 1 :]]
    await run.response()


async def test_the_log_of_a_killed_process_shows_how_far_the_call_came(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/first.db"

    async def work(pass_point: Any) -> None:
        @tool
        async def pack(boxes: int, context: ToolContext) -> str:
            await context.progress(f"half of {boxes}", fraction=0.5)
            await asyncio.sleep(0.3)
            pass_point("in the tool")
            return "packed"

        async with Engine.open(url) as engine:
            await packer(engine, pack).run("Pack.", thread=await engine.open_thread("t"))

    names = run_until(None, work).points
    url = f"sqlite:///{tmp_path}/clew.db"
    assert run_until(names.index("in the tool") + 1, work).killed
    async with Engine.open(url) as engine:
        assert await reports(await engine.thread("t")) == [("half of 3", 0.5, None)]
        assert (await engine.verify()).first_bad is None


async def test_late_reports_of_a_thread_that_was_left_are_dropped(engine: Engine) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(timeout=0.05)
    def pack(boxes: int, context: ToolContext) -> str:
        time.sleep(0.15)
        context.progress(f"too late for {boxes}")
        loop.call_soon_threadsafe(done.set)
        return "packed"

    response = await packer(engine, pack).run("Pack.")
    await done.wait()
    await asyncio.sleep(0.05)
    assert response.text == "Packed."
    assert await reports(response.thread) == []


async def test_a_report_is_redacted_with_the_message_that_it_may_quote(engine: Engine) -> None:
    @tool
    async def pack(boxes: int, context: ToolContext) -> str:
        await context.progress(f"packing {boxes} for Ann", data={"for": "Ann"})
        await asyncio.sleep(0.1)
        return "packed"

    thread = (await packer(engine, pack).run("Pack for Ann.")).thread
    assert await reports(thread) == [("packing 3 for Ann", None, {"for": "Ann"})]
    await thread.redact((await thread.history()).messages[0])
    assert await reports(thread) == [("", None, None)]
    assert (await engine.verify()).first_bad is None


async def test_reports_are_bounded_and_checked() -> None:
    def report(context: ToolContext) -> str:
        context.progress("outside of a run")
        return "done"

    assert (await asyncio.to_thread(outcome, report)).result == "done"
    place = CallLocation(4, 0)
    for fraction, data, words in ((1.5, None, "fraction"), (None, {"x": "y" * 20_000}, "bytes"), (None, {1}, "data")):
        with pytest.raises(InvalidContentError, match=words):
            tool_progress.progressed(place, "x", fraction, data)  # type: ignore[arg-type]  # the fault
    assert len(tool_progress.progressed(place, "x" * 5_000, None, None).text) == tool_progress.MAX_TEXT
