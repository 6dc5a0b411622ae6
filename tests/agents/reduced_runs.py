"""Helpers to run agents with reducers and to check the results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.agents.run_checks import check_requests, check_store, events_of
from tests.agents.test_corpus_runs import sent_turns

from clew.agents.tools import tool
from clew.aio.threads import Thread
from clew.domain.context.events import HistoryReduced
from clew.domain.events import Event
from clew.domain.reducers.reducer import ReductionTrigger
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient

TRIGGERS: tuple[ReductionTrigger, ...] = ("after_message_added", "before_retrieval")

EngineWork = Callable[[Engine], Awaitable[None]]


def within(work: EngineWork) -> None:
    """Run the work with an engine."""

    async def done() -> None:
        async with Engine.open("memory:", projections=()) as engine:
            await work(engine)

    asyncio.run(done())


def reductions(events: Sequence[Event]) -> list[HistoryReduced]:
    return [event.data for event in events if isinstance(event.data, HistoryReduced)]


async def checked(engine: Engine, thread: Thread) -> list[Event]:
    """Check the requests and the store of a thread, and return its events."""
    events = await events_of(thread)
    await check_requests(thread, events)
    await check_store(engine, thread, events)
    return events


def texts_sent(client: ScriptedChatClient, number: int = -1) -> list[str]:
    """Return the texts of a request."""
    return [text for _, text in sent_turns(client.requests[number])]


async def talk(agent: Agent, thread: Any, *texts: str) -> None:
    for text in texts:
        await agent.run(text, thread=thread)


@tool
def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order} " + "x" * 200


def short(body: Any) -> str:
    """Return a summary that joins the texts that it summarizes."""
    request = json.loads(body["messages"][-1]["content"])
    parts = [*filter(None, [request.get("summary_so_far")]), *(each["said"] for each in request["messages"])]
    return json.dumps({"summary": "+".join(parts)})
