"""Runs of agents with reducers: how they are begun, and what is looked at then."""

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

Doing = Callable[[Engine], Awaitable[None]]


def within(doing: Doing) -> None:
    """Do something with an engine."""

    async def done() -> None:
        async with Engine.open("memory:", projections=()) as engine:
            await doing(engine)

    asyncio.run(done())


def reductions(events: Sequence[Event]) -> list[HistoryReduced]:
    return [event.data for event in events if isinstance(event.data, HistoryReduced)]


async def checked(engine: Engine, thread: Thread) -> list[Event]:
    """The events of a thread, each request of which is rebuilt as it was sent."""
    events = await events_of(thread)
    await check_requests(thread, events)
    await check_store(engine, thread, events)
    return events


def said(client: ScriptedChatClient, number: int = -1) -> list[str]:
    """The words of a request."""
    return [text for _, text in sent_turns(client.requests[number])]


async def talk(agent: Agent, thread: Any, *texts: str) -> None:
    for text in texts:
        await agent.run(text, thread=thread)


@tool
def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order} " + "x" * 200


def short(body: Any) -> str:
    """A summary that says of what it is."""
    given = json.loads(body["messages"][-1]["content"])
    parts = [*filter(None, [given.get("summary_so_far")]), *(each["said"] for each in given["messages"])]
    return json.dumps({"summary": "+".join(parts)})
