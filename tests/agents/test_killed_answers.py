"""Processes killed during an answer: the part received up to a quarter of a second before is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.run_checks import check_requests, check_store, events_of, short_history

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, ModelRequest, TextDelta, ThreadKind, Update
from clew.engine import Agent, Engine
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.service.run_log import ThreadRuns

THREAD = "killed"
WORDS = [f"word{number} " for number in range(24)]
DRAFT_SECONDS = 0.25
BETWEEN = 0.04
"""Seconds between two words, on a clock that moves only then."""


@dataclass
class TypingClient:
    """A client that sends word after word and moves the clock of the event loop without waiting."""

    pass_point: PassPoint
    kind: str = "scripted"
    wire = OPENAI_CHAT
    model: str = "m-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = field(default_factory=dict)

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:  # noqa: ARG002  # the protocol's parameter
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now  # type: ignore[method-assign]  # only this loop, which ends with its process
        drafts = _DraftWrites()
        for number, word in enumerate(WORDS, start=1):
            yield TextDelta(word)
            now += BETWEEN
            await drafts.wait_until_written()
            self.pass_point(f"word {number}")
        yield Answer(Message.assistant("".join(WORDS)), "stop", None, None)


class _DraftWrites:
    """Tracks the drafts that are being written."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()
        put = ThreadRuns.put_draft

        async def put_draft(log: ThreadRuns, *args: Any) -> None:
            task = asyncio.ensure_future(put(log, *args))
            self._under_way.add(task)
            await task

        ThreadRuns.put_draft = put_draft  # type: ignore[assignment,method-assign]  # only in this process, which ends

    async def wait_until_written(self) -> None:
        """Wait until the due drafts are written."""
        for _ in range(3):  # the loop reads the clock, the timer starts the task, the task starts to write
            await asyncio.sleep(0)
        while self._under_way:
            await asyncio.wait(self._under_way)
            self._under_way = {task for task in self._under_way if not task.done()}


@pytest.mark.parametrize("resume", [False, True], ids=["new run", "continued"])
def test_keeps_the_answer_until_a_quarter_of_a_second_ago(
    tmp_path: Path,
    resume: bool,  # noqa: FBT001  # pytest passes it by name
    scale: float,
) -> None:
    every = 1 if scale >= 1 else 3
    counts: set[int] = set()
    point = 1
    while True:
        url = f"sqlite:///{tmp_path}/{point}.db"

        async def work(pass_point: PassPoint, url: str = url) -> None:
            async with Engine.open(f"{url}?synchronous=OFF", embedded=False) as engine:
                thread = await engine.start_thread(thread_id=THREAD)
                agent = Agent(TypingClient(pass_point), engine=engine, name="Typist")
                await agent.run("Write.", thread=thread, stream=True).get_final_response()

        passed = run_until(point, work)
        if not passed.killed:
            break
        words = sum(name.startswith("word") for name in passed.points)
        if "word 1" in passed.points:
            counts.add(asyncio.run(words_kept(url, words, resume=resume)))
        point += every
    assert 0 in counts
    assert max(counts) >= len(WORDS) - DRAFT_SECONDS / BETWEEN - every


async def words_kept(url: str, words: int, *, resume: bool) -> int:
    """Use the thread again and return how many of the received words were kept."""
    later = 60_000_000
    async with Engine.open(f"{url}?synchronous=OFF", embedded=False, now=lambda: clock.now() + later) as engine:
        thread = await engine.thread(THREAD)
        agent = Agent(ScriptedChatClient("Well."), engine=engine, name="Typist")
        is_open = (
            await thread.runs.control()
        ).run is not None  # the run may be complete although its process was killed
        await (agent.continue_run(thread) if resume and is_open else agent.run("Go on.", thread=thread))
        events = await events_of(thread)
        interrupted = [event.data for event in events if event.type == "answer-interrupted"]
        history = [text for role, text in await short_history(thread) if role == "assistant"]
        partial = history[0] if len(history) > 1 else ""
        whole = "".join(WORDS)
        assert whole.startswith(partial)
        count = len(partial.split())
        assert partial == "".join(WORDS[:count])
        if is_open:
            assert [each.reason for each in interrupted] == ["crashed"]  # type: ignore[union-attr]  # the events have one
        # Word k arrived (words - k + 1) clock steps before the last known time.
        old = [number for number in range(1, words + 1) if (words - number + 1) * BETWEEN >= DRAFT_SECONDS]
        assert count >= len(old)
        assert await thread.runs.draft() is None
        await check_requests(thread, events)
        assert (await check_store(engine, thread, events)).run is None
        return count
