"""Processes that are killed while an answer arrives: what had come of it until a quarter of a second ago is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed import Passing, run_until
from tests.agents.run_checks import check_requests, check_store, events_of, told

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import Answer, TextDelta, ThreadKind, Update, WireFormat
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
class Typing:
    """A client that says word after word, and moves the clock of the event loop; nothing is waited for."""

    passing: Passing
    kind: str = "scripted"
    wire: WireFormat = "openai-chat"
    model: str = "m-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = field(default_factory=dict)

    async def ask(self, body: JsonObject, *, stream: bool) -> AsyncIterator[Update]:  # noqa: ARG002  # as all clients
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now  # type: ignore[method-assign]  # of this loop, which ends with its process
        writing = _Writing()
        for number, word in enumerate(WORDS, start=1):
            yield TextDelta(word)
            now += BETWEEN
            await writing.over()
            self.passing(f"word {number}")
        yield Answer(Message.assistant("".join(WORDS)), "stop", None, None)


class _Writing:
    """Knows of the drafts that are being written."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()
        really = ThreadRuns.put_draft

        async def put_draft(log: ThreadRuns, *given: Any) -> None:
            task = asyncio.ensure_future(really(log, *given))
            self._under_way.add(task)
            await task

        ThreadRuns.put_draft = put_draft  # type: ignore[assignment,method-assign]  # of this process, which ends

    async def over(self) -> None:
        """Wait until those that are due are written."""
        for _ in range(3):  # the loop looks at the clock, the timer starts the task, the task starts to write
            await asyncio.sleep(0)
        while self._under_way:
            await asyncio.wait(self._under_way)
            self._under_way = {task for task in self._under_way if not task.done()}


@pytest.mark.parametrize("going_on", [False, True], ids=["begun anew", "gone on with"])
def test_keeps_the_answer_until_a_quarter_of_a_second_ago(
    tmp_path: Path,
    going_on: bool,  # noqa: FBT001  # pytest passes it
    scale: float,
) -> None:
    every = 1 if scale >= 1 else 3
    kept: set[int] = set()
    point = 1
    while True:
        url = f"sqlite:///{tmp_path}/{point}.db"

        async def work(passing: Passing, url: str = url) -> None:
            async with Engine.open(f"{url}?synchronous=OFF", embedded=False) as engine:
                thread = await engine.start_thread(thread_id=THREAD)
                agent = Agent(Typing(passing), engine=engine, name="Typist")
                await agent.run("Write.", thread=thread, stream=True).get_final_response()

        passed = run_until(point, work)
        if not passed.killed:
            break
        words = sum(name.startswith("word") for name in passed.points)
        if "word 1" in passed.points:
            kept.add(asyncio.run(kept_of(url, words, going_on=going_on)))
        point += every
    assert 0 in kept
    assert max(kept) >= len(WORDS) - DRAFT_SECONDS / BETWEEN - every


async def kept_of(url: str, words: int, *, going_on: bool) -> int:
    """Take the thread up again; returns how many words were kept of those that had come."""
    later = 60_000_000
    async with Engine.open(f"{url}?synchronous=OFF", embedded=False, now=lambda: clock.now() + later) as engine:
        thread = await engine.thread(THREAD)
        agent = Agent(ScriptedChatClient("Well."), engine=engine, name="Typist")
        is_open = (await thread.runs.control()).run is not None  # it may be over, all but the end of its process
        await (agent.continue_run(thread) if going_on and is_open else agent.run("Go on.", thread=thread))
        events = await events_of(thread)
        interrupted = [event.data for event in events if event.type == "answer-interrupted"]
        history = [text for role, text in await told(thread) if role == "assistant"]
        partial = history[0] if len(history) > 1 else ""
        whole = "".join(WORDS)
        assert whole.startswith(partial)
        count = len(partial.split())
        assert partial == "".join(WORDS[:count])
        if is_open:
            assert [each.reason for each in interrupted] == ["crashed"]  # type: ignore[union-attr]  # they have one
        # The k-th word came (words - k + 1) moves of the clock before the last that is known of.
        old = [number for number in range(1, words + 1) if (words - number + 1) * BETWEEN >= DRAFT_SECONDS]
        assert count >= len(old)
        assert await thread.runs.draft() is None
        await check_requests(thread, events)
        assert (await check_store(engine, thread, events)).run is None
        return count
