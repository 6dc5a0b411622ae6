"""Faults in a run: messages are recorded, the fault is on the log, and the next run works."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agents.faults import FAULTS, OF_THE_SERVICE, QUESTION, Fault, Waiting
from tests.agents.run_checks import check_requests, check_store, events_of, short_history
from tests.agents.scripted_wires import CANARY, Trouble, can_send
from tests.agents.services import KINDS, PATIENCE, Service, as_json, calls, service_of
from tests.conftest import SCALE

from clew.domain.events import Event
from clew.domain.runs.errors import ContextWindowError
from clew.domain.runs.events import Failure
from clew.engine import Agent, Engine

IN_FULL = frozenset(KINDS if SCALE >= 1 else ("scripted", "chat"))
"""The kinds of clients with all faults. The others have those of the service: what a fault of a tool leaves on the log,
and one after a tool call, depends on the run and not on the client. ``make soak`` runs all."""

CASES = [
    (kind, fault, streams)
    for kind in KINDS
    for fault in (FAULTS if kind in IN_FULL else OF_THE_SERVICE)
    for streams in fault.streams
    if can_send(kind, fault.lines, streams=streams)
]


@pytest.fixture
def service(kind: str) -> Iterator[Service]:
    with service_of(kind) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "fault", "streams"),
    CASES,
    ids=[f"{kind}, {fault.name}{' (stream)' * streams}" for kind, fault, streams in CASES],
)
def test_nothing_is_lost_and_the_next_run_works(
    service: Service,
    fault: Fault,
    streams: bool,  # noqa: FBT001  # pytest passes it by name
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        raised = runner.run(run_around_a_fault(service, fault, streams=streams, url=f"sqlite:///{tmp_path}/clew.db"))
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert QUESTION.encode() in stored
    assert CANARY.encode() not in stored
    assert CANARY not in caplog.text
    if raised is not None:
        assert CANARY not in "".join(traceback.format_exception(raised))
        assert CANARY not in repr(raised)
        assert CANARY not in repr(vars(raised))


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be set forward: what waits for a timeout need not be waited for."""

    skipped = 0.0

    def time(self) -> float:
        """Return the time of the clock, in seconds."""
        return super().time() + self.skipped


async def run_around_a_fault(service: Service, fault: Fault, *, streams: bool, url: str) -> BaseException | None:
    """Run successfully, with the fault, and successfully again; check the log and return the raised error."""
    waiting = Waiting()

    def agent(trouble: Trouble | None = None) -> Agent:
        client = service.client(trouble=trouble)
        return Agent(
            client, engine=engine, name="Clerk", instructions="Be brief.", tools=waiting.tools(), retries=fault.retries
        )

    async with Engine.open(f"{url}?synchronous=OFF") as engine:
        clerk = agent()
        thread = await clerk.get_local_thread()
        service.add_replies(calls(("lookup", as_json(order=7)), text="Let me see."), "On its way.", streams=False)
        await clerk.run("Where is my parcel?", thread=thread)
        before, count = await short_history(thread), len(await events_of(thread))

        service.add_replies(*fault.lines, streams=streams)
        failing_agent = agent(fault.trouble)
        words, raised = await run_through(service, failing_agent, fault, waiting, streams=streams, thread=thread)
        assert type(raised) is (fault.error or type(None))
        assert words == ("" if raised is not None and not streams else fault.words)
        if isinstance(raised, ContextWindowError):
            assert (raised.tokens, raised.limit) == (9000, 8192)

        service.add_replies("All is well.", streams=False)
        response = await clerk.run("And now?", thread=thread)
        assert response.text == "All is well."

        events = await events_of(thread)
        check_log(fault, service.codes, [event for event in events[count:] if event.run_id != response.run_id])
        assert await short_history(thread) == [
            *before,
            ("user", QUESTION),
            *fault.added,
            ("user", "And now?"),
            ("assistant", "All is well."),
        ]
        requests = await check_requests(thread, events)
        assert service.received([each for each in requests if each.sent is not False])
        assert {each.sent for each in requests} == {True, fault.sent}
        assert (await check_store(engine, thread, events)).run is None
        return raised


def check_log(fault: Fault, codes: Mapping[Trouble, str], events: list[Event]) -> None:
    """Check that the run has the events of the table, and an error the service's code."""
    assert tuple(event.type for event in events) == ("run-started", "message-appended", *fault.events)
    for type_, fields in fault.recorded.items():
        for event in (each for each in events if each.type == type_):
            for name, value in fields.items():
                assert field_of(event.data, name) == value, (type_, name)
    if fault.trouble is not None:
        failures: list[Any] = [getattr(each.data, "error", None) for each in events]
        assert {each.code for each in failures if each is not None} <= {codes.get(fault.trouble)}


def field_of(data: Any, name: str) -> Any:
    failure = getattr(data, "error", None)
    return getattr(failure if isinstance(failure, Failure) and name in Failure.model_fields else data, name)


async def run_through(
    service: Service, agent: Agent, fault: Fault, waiting: Waiting, *, streams: bool, thread: Any
) -> tuple[str, BaseException | None]:
    """Run the agent, interrupt it as the fault says, and return the words that it gave and the raised error."""
    words: list[str] = []
    answering = asyncio.Event()

    async def run() -> None:
        if not streams:
            words.append((await agent.run(QUESTION, thread=thread)).text)
            return
        async for update in agent.run(QUESTION, thread=thread, stream=True):
            if update.type == "text":
                words.append(update.text)
                answering.set()
                if fault.interruption == "abandoned":
                    break

    task = asyncio.ensure_future(run())
    if fault.interruption == "cancelled in a tool":
        await waiting.started.wait()
        task.cancel()
    if fault.trouble in {Trouble.STALL, Trouble.SILENCE}:
        await service.silent()
        if streams:
            await answering.wait()
        await leave(task, fault)
    [raised] = await asyncio.gather(task, return_exceptions=True)
    await service.left()
    return "".join(words), raised


async def leave(task: asyncio.Future[None], fault: Fault) -> None:
    """Leave the silent service: cancel the run, or let the timeout of the client pass until the run has ended."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    if fault.interruption == "cancelled in the answer":
        task.cancel()
    while fault.trouble is Trouble.STALL and not task.done():  # its wait may begin only after the clock was set
        loop.skipped += PATIENCE
        await asyncio.to_thread(time.sleep, 0.01)
