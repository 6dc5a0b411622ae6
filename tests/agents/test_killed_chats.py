"""Chats whose process is killed at any point: another process continues, and no turn is lost or repeated."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.agents.group_chats import agent_of
from tests.agents.killed_processes import PassPoint, run_until
from tests.servers.postgres_server import Databases

from clew import Engine, GroupChat, Human, Together, tool
from clew.agents.tools import Tool, ToolContext
from clew.aio.threads import Thread
from clew.domain.errors import UnknownThreadError
from clew.domain.json_values import JsonObject
from clew.infrastructure import clock
from clew.testing import call

KILLED, DESK = "killed", "desk"
TOOLS = ("look", "publish")


@dataclass(frozen=True)
class Work:
    """What a process does with a chat in a store: it starts it or opens it, and drives it to its end.

    The chat has a writer, a person, and a desk: a chat of two agents. The writer and one of the desk call a tool, which
    notes its effects in a folder. The tool of the writer must not be called again, the other one may.
    """

    url: str
    folder: Path
    at_once: bool

    async def do(self, pass_point: PassPoint, *, later: int = 0) -> None:
        now = lambda: clock.now() + later * 1_000_000  # noqa: E731  # the leases of the killed process have expired
        async with Engine.open(self.url, embedded=False, now=now) as engine:
            chat = await self._chat(engine, pass_point)
            response = await chat.run("Begin.", idempotency_key="first")
            while response.reason is None:
                for each in response.approvals:
                    assert (each.call.name, each.reason) == ("publish", "outcome-unknown")
                    await each.reject("Look first.", actor="user:ann")
                if response.waiting_for:
                    assert response.waiting_for == ("ann",)
                    await chat.respond("ann", "Yes.")
                response = await chat.continue_run()

    async def _chat(self, engine: Engine, pass_point: PassPoint) -> GroupChat:
        def calling(name: str, *, idempotent: bool) -> Tool:
            def note(context: ToolContext) -> str:
                pass_point(f"before {name}")
                self.folder.mkdir(exist_ok=True)
                with (self.folder / name).open("a", encoding="utf-8") as file:
                    file.write(f"{context.idempotency_key}\n")
                pass_point(f"after {name}")
                return "Done."

            return tool(note, name=name, idempotent=idempotent)

        look, publish = calling("look", idempotent=True), calling("publish", idempotent=False)
        finder = agent_of(engine, "Finder", partial(_answer, "look"), tools=[look])
        writer = agent_of(engine, "Writer", partial(_answer, "publish"), tools=[publish])
        desk = await _opened(engine, DESK, [finder, agent_of(engine, "Checker", partial(_answer, None))], {})
        members = [desk.as_participant("Desk"), Human("ann", "Ann"), writer]
        return await _opened(engine, KILLED, members, {"selection": Together()} if self.at_once else {})

    async def outcome(self) -> Outcome:
        async with Engine.open(self.url) as engine:
            chat = await engine.thread(KILLED)
            said = [((each.message and each.message.author) or "", each.text) for each in await chat.history()]
            types = Counter([event.type async for event in chat.events()])
            threads = [[each.text for each in await thread.history()] for thread in await _threads(engine)]
            if self.at_once:  # the order depends on who is faster
                threads = [*map(sorted, threads)]
            return Outcome(sorted(said), types, sorted(threads), (await engine.verify()).first_bad)

    async def recorded(self) -> set[str]:
        """The tools whose result is on the log."""
        async with Engine.open(self.url) as engine:
            messages = [each.message for thread in await _threads(engine) for each in await thread.history()]
            return {result.name or "" for each in messages if each is not None for result in each.results}

    def effects(self, name: str) -> list[str]:
        """The keys of the calls of a tool that had an effect."""
        file = self.folder / name
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def done(self, name: str) -> int:
        return len(self.effects(name))


class Outcome(NamedTuple):
    """What was said in the chat and on each thread, the types of the chat's events, and what does not verify."""

    said: list[tuple[str, str]]
    types: Counter[str]
    threads: list[list[str]]
    bad: Any


def _answer(tool_name: str | None, body: JsonObject) -> Any:
    """Call the tool once, and answer with the number of messages. Equal requests have equal answers, in any process."""
    messages: Any = body["messages"]
    if tool_name is not None and all(each["role"] != "tool" for each in messages):
        return call(tool_name)
    return f"I heard {len(messages)}."


async def _opened(engine: Engine, chat_id: str, members: list[Any], options: Any) -> GroupChat:
    try:
        return await engine.chat(chat_id, members)
    except UnknownThreadError:  # the process was killed before it began
        return await engine.start_chat(members, chat_id=chat_id, max_turns=len(members), **options)


async def _threads(engine: Engine) -> list[Thread]:
    return [await engine.thread(each.id) async for each in engine.threads()]


Stores = Callable[[], AbstractContextManager[str]]


def _in_files(folder: Path) -> Stores:
    numbers = itertools.count()
    return lambda: nullcontext(f"sqlite:///{folder}/{next(numbers)}.db?synchronous=OFF")


def _kill(stores: Stores, folder: Path, *, at_once: bool, first: int, every: int) -> None:
    """Kill a process at some points of the work, and let another one do the rest."""
    with stores() as url:
        whole = Work(url, folder / "whole", at_once)
        points = run_until(None, whole.do).points
        expected = asyncio.run(whole.outcome())
    assert {"before look", "after look", "before publish", "after publish"} < set(points)
    assert whole.done("look") == whole.done("publish") == 1
    for point in range(first, len(points) + 1, every):
        with stores() as url:
            work = Work(url, folder / f"{point}", at_once)
            killed = run_until(point, work.do).killed
            assert killed or at_once  # turns at once need a varying number of commits
            recorded, before = asyncio.run(work.recorded()), {name: work.done(name) for name in TOOLS}
            asyncio.run(work.do(lambda _: None, later=60))
            assert asyncio.run(work.outcome()) == expected, points[:point]
            for name in TOOLS:
                assert len(set(work.effects(name))) <= 1, "a tool was called with two keys"
                assert name not in recorded or work.done(name) == before[name]
            assert work.done("publish") <= 1
            assert work.done("look") >= 1


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_a_chat_with_tools_a_person_and_a_chat_loses_and_repeats_nothing(
    tmp_path: Path, scale: float, *, at_once: bool
) -> None:
    _kill(_in_files(tmp_path), tmp_path, at_once=at_once, first=1, every=1 if scale >= 1 else 7)


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_the_same_on_a_server(databases: Databases, tmp_path: Path, scale: float, *, at_once: bool) -> None:
    _kill(databases.one, tmp_path, at_once=at_once, first=1 if scale >= 1 else 4, every=1 if scale >= 1 else 13)
