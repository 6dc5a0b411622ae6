"""Helpers for turns on remote threads, which a service holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.agents.run_checks import check_requests, events_of
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import (
    Agent,
    Engine,
    OpenAIResponsesClient,
)
from clew.aio.threads import RemoteThread
from clew.domain.events import ThreadDeleted
from clew.domain.models.client import ServiceKind
from clew.domain.runs.events import ServiceThreadBound

TWO_TURNS = [
    ("user", "Tell me about a pirate."),
    ("assistant", "A pirate walks in."),
    ("user", "Now a parrot."),
    ("assistant", "It talks."),
]
GROWS: ServiceKind = "conversation"


def will_joke(aimock: Aimock) -> None:
    """Script the answers to the turns."""
    aimock.reply("pirate", text="A pirate walks in.")
    aimock.reply("parrot", text="It talks.")
    aimock.reply("poet", text="It rhymes.")


def client_of(
    server: StatefulServer, service: ServiceKind = "response", *, store: bool = True
) -> OpenAIResponsesClient:
    return OpenAIResponsesClient(server.model, store=store, service=service, api_key="none", base_url=server.base_url)


def joker(engine: Engine, client: Any, **more: Any) -> Agent:
    return Agent(client=client, engine=engine, name="Joker", instructions="Be funny.", **more)


@asynccontextmanager
async def engine_in(folder: Path) -> AsyncIterator[Engine]:
    async with Engine.open(f"sqlite:///{folder}/clew.db") as engine:
        yield engine


async def two_turns(agent: Agent, *, streamed: bool = False) -> RemoteThread:
    """Return a thread with the two turns of ``TWO_TURNS``."""
    thread: RemoteThread = await agent.get_remote_thread()
    for _, text in TWO_TURNS[::2]:
        if streamed:
            await agent.run(text, thread=thread, stream=True).get_final_response()
        else:
            await agent.run(text, thread=thread)
    return thread


async def service_ids(thread: Any) -> list[str]:
    """Return the ids of the service for the thread, in order."""
    return [event.data.id for event in await events_of(thread) if isinstance(event.data, ServiceThreadBound)]


async def deleted(thread: Any) -> tuple[str | None, dict[str, str | None]]:
    """Return the actor of the deletion, and the error or None for each id at the service, in order."""
    event = (await events_of(thread))[-1]
    assert isinstance(event.data, ThreadDeleted)
    return event.actor, {each.id: each.failed for each in event.data.service}


async def bodies(thread: Any) -> list[Any]:
    """Return the sent bodies, rebuilt from the log."""
    return [each.body for each in await check_requests(thread, await events_of(thread))]
