"""A run on a remote thread reads the end of it, and sends what the whole thread would give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.reduced_runs import talk, within
from tests.agents.run_checks import check_requests, events_of
from tests.agents.test_cold_runs import LONG, SHORT, read_by

from clew import Agent, Engine, Message
from clew.agents.journal import Journal
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall
from clew.domain.models.client import (
    Answer,
    ModelRequest,
    ServiceBound,
    ServiceKind,
    ServiceReference,
    ThreadKind,
    Update,
)
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.errors import ClewError, ModelUnavailableError
from clew.service import remote_threads


class Service:
    """A client of a service that holds threads. It answers "fail" with an error, and "cut" with a broken answer."""

    kind = "service"
    wire = OPENAI_RESPONSES
    model = "m"
    thread_kinds: tuple[ThreadKind, ...] = ("local", "remote")
    options: JsonObject = {}  # noqa: RUF012  # never changed

    def __init__(self, held_as: ServiceKind) -> None:
        self.bodies: list[str] = []
        self._names = map("name-{}".format, count())
        if held_as == "conversation":
            self.open_service_thread = self._open
        self._held_as = held_as

    async def _open(self) -> ServiceReference:
        return ServiceReference(kind="conversation", id=next(self._names))

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        self.bodies.append(json.dumps(request.body))
        name = next(self._names)
        if '"fail"' in self.bodies[-1]:
            raise ModelUnavailableError("The service is down.", retryable=False)
        if self._held_as == "response":
            yield ServiceBound(ServiceReference(kind="response", id=name))
        if '"cut"' in self.bodies[-1]:
            raise ModelUnavailableError("The connection broke.", retryable=False)
        yield Answer(Message.assistant(f"answer {name}"), response_id=name, finish_reason="stop")


ASKS = Message(role="assistant", contents=(FunctionCall(call_id="c", name="lookup", arguments="{}"),))
STEPS = st.lists(
    st.one_of(
        st.sampled_from(["run", "run", "fail", "cut", "append", "ask", "result", "answer"]).map(lambda kind: (kind, 0)),
        st.tuples(st.sampled_from(["rewind", "fork", "branch", "local"]), st.integers(1, 30)),
    ),
    min_size=2,
    max_size=14,
)
APPENDED = {
    "append": Message.user("appended"),
    "ask": ASKS,
    "result": Message.tool("c", "found"),
    "answer": Message.assistant("from elsewhere"),
}


async def bodies(steps: Sequence[tuple[str, int]], held_as: ServiceKind, *, cold: bool) -> list[str]:
    """The requests of a new agent to which this happens, and the errors."""
    client = Service(held_as)
    seen: list[str] = []
    async with Engine.open("memory:", projections=()) as engine:
        agent = Agent(client, engine=engine, id="a")
        thread: Any = await agent.get_remote_thread()
        threads = [thread]
        for kind, place in steps:
            if cold:
                engine._core.caches.clear()
            try:
                if kind in {"run", "fail", "cut"}:
                    await agent.run(kind, thread=thread)
                elif kind in APPENDED:
                    await thread.append(APPENDED[kind])
                else:
                    version = 1 + place % await thread.version
                    if kind == "rewind":
                        await thread.rewind(to=version)
                    else:
                        more = {"branch": {}, "fork": {"kind": "remote"}, "local": {"kind": "local"}}[kind]
                        thread = await thread.fork(at=version, **more)
                        threads.append(thread)
            except ClewError as error:
                seen.append(type(error).__name__)
        for each in threads:
            seen.append(repr((await each.runs.service_state()).call))
            await check_requests(each, await events_of(each))
    return [*seen, *client.bodies]


@contextmanager
def whole_threads() -> Iterator[None]:
    async def nothing(_: Journal) -> None: ...

    with (
        patch.object(remote_threads, "_is_settled", lambda *_, **__: False),
        patch.object(Journal, "leave_to_service", nothing),
    ):
        yield


@pytest.mark.parametrize("held_as", ["response", "conversation"])
@given(steps=STEPS, cold=st.booleans(), page=st.integers(1, 4))
def test_sends_what_the_whole_thread_would_give(
    held_as: ServiceKind, steps: list[tuple[str, int]], page: int, *, cold: bool
) -> None:
    with patch.object(remote_threads, "FIRST_PAGE_BACK", page):
        read = asyncio.run(bodies(steps, held_as, cold=cold))
    with whole_threads():
        assert read == asyncio.run(bodies(steps, held_as, cold=False))


@pytest.mark.parametrize("held_as", ["response", "conversation"])
def test_a_run_reads_as_much_of_a_long_remote_thread_as_of_a_short_one(held_as: ServiceKind) -> None:
    async def work(engine: Engine) -> None:
        client = Service(held_as)
        agent = Agent(client, engine=engine)
        read: list[list[int]] = []
        for messages in (SHORT, LONG):
            thread = await agent.get_remote_thread()
            await agent.run("first", thread=thread)
            await thread.append([Message.user("a question")] * messages)
            await agent.run("second", thread=thread)
            await agent.run("third", thread=thread)

            read.append(await read_by(engine, partial(talk, agent, thread, "fourth", "fifth")))
            assert len(json.loads(client.bodies[-1])["input"]) == 1
        short, long = read
        assert long == short
        assert sum(long) < 1_000

    within(work)
