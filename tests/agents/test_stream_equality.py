"""A streamed run records the same events as another, except for times and transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agents.faults import Waiting
from tests.agents.run_checks import check_requests, events_of
from tests.agents.scripted_wires import ScriptedReply, Trouble, can_send
from tests.agents.services import KINDS, USAGE, Service, as_json, calls, service_of

from clew.agents.response import AgentResponse
from clew.domain.events import Event
from clew.domain.models.client import TokenUsage
from clew.domain.runs.events import ModelAnswered, ModelCalled
from clew.engine import Agent, Engine

OF_TIME = {"ms", "first_ms", "streamed", "as_sent"}

SCRIPTS: dict[str, Sequence[ScriptedReply]] = {
    "text": ["Hello there, and welcome."],
    "empty": [""],
    "a tool": [calls(("lookup", as_json(order=7)), text="Let me see."), "It is on its way."],
    "parallel tools": [
        calls(("lookup", as_json(order=7)), ("breaks", as_json(order=8)), ("find", "{}"), ("lookup", "{}")),
        "Sorry.",
    ],
    "arguments that are not JSON": [calls(("lookup", "{")), "Sorry."],
    "rounds": [calls(("lookup", as_json(order=number))) for number in range(4)] + ["All of them."],
    "retries": [Trouble.OVERLOADED, calls(("is_late", as_json(order=7))), Trouble.OVERLOADED, "It is late."],
    "refused": [calls(("lookup", as_json(order=7))), Trouble.CONTEXT_WINDOW],
    "raised": [calls(("breaks_all", as_json(order=7)))],
}


CASES = [(kind, name) for kind in KINDS for name in SCRIPTS if can_send(kind, SCRIPTS[name], streams=False)]


@pytest.fixture
def service(kind: str) -> Iterator[Service]:
    with service_of(kind) as made:
        yield made


@pytest.mark.parametrize(("kind", "script"), CASES)
def test_streamed_and_other_runs_record_equal_events(service: Service, script: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    (events, response), (streamed, of_stream) = asyncio.run(both_ways(service, SCRIPTS[script], url))
    assert [comparable(event) for event in events] == [comparable(event) for event in streamed]
    answers = [event.data for event in streamed if isinstance(event.data, ModelAnswered)]
    assert all(each.usage == USAGE for each in answers)
    assert all(each.first_ms is None or each.first_ms <= each.ms for each in answers)
    assert {event.data.streamed for event in events if isinstance(event.data, ModelCalled)} == {False}
    assert {event.data.streamed for event in streamed if isinstance(event.data, ModelCalled)} == {True}
    if isinstance(response, AgentResponse):
        assert isinstance(of_stream, AgentResponse)
        assert (response.text, response.usage, response.finish_reason) == (
            of_stream.text,
            of_stream.usage,
            of_stream.finish_reason,
        )
        assert of_stream.usage == sum([USAGE] * len(answers), TokenUsage())
        assert [each.message for each in response.messages] == [each.message for each in of_stream.messages]
    else:
        assert (type(response), str(response)) == (type(of_stream), str(of_stream))


async def both_ways(
    service: Service, script: Sequence[ScriptedReply], url: str
) -> list[tuple[list[Event], AgentResponse[Any] | BaseException]]:
    results: list[tuple[list[Event], AgentResponse[Any] | BaseException]] = []
    async with Engine.open(url) as engine:
        for streams in (False, True):
            agent = Agent(
                service.client(), engine=engine, name="Clerk", instructions="Be brief.", tools=Waiting().tools()
            )
            thread = await agent.get_local_thread()
            service.add_replies(*script, streams=streams)
            run = (
                agent.run("Hi.", thread=thread, stream=True).get_final_response()
                if streams
                else agent.run("Hi.", thread=thread)
            )
            [response] = await asyncio.gather(run, return_exceptions=True)
            events = await events_of(thread)
            await check_requests(thread, events)
            results.append((events, response))
    return results


def comparable(event: Event) -> Any:
    """Return an event without ids and times."""
    data: Any = event.data
    return (
        event.version,
        event.type,
        event.messages,
        event.actor,
        event.run_id is None,
        _without_time(data.model_dump()),
    )


def _without_time(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in OF_TIME}


@pytest.mark.parametrize("kind", KINDS)
def test_the_updates_of_a_stream_add_up_to_the_recorded_messages(service: Service) -> None:
    async def follow() -> None:
        async with Engine.open("memory:") as engine:
            agent = Agent(service.client(), engine=engine, tools=Waiting().tools())
            thread = await agent.get_local_thread()
            service.add_replies(*SCRIPTS["parallel tools"], streams=True)
            text, arguments, received = "", "", []
            async for update in agent.run("Hi.", thread=thread, stream=True):
                text += update.text if update.type == "text" else ""
                arguments += update.text if update.type == "call" else ""
                received += [] if update.message is None else [update.message]
            recorded = list((await thread.history()).messages)[1:]
            assert received == recorded
            messages = [each.message for each in recorded if each.message is not None]
            assert text == "".join(each.text for each in messages if each.role == "assistant")
            assert arguments == "".join(made.arguments for each in messages for made in each.calls)

    asyncio.run(follow())
