"""Whichever reply of a PostgreSQL server is lost, what was done is there once, by either face, and is no conflict."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.infrastructure.recording import PATIENCE, wait_until
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres_server import PostgresServer, ask

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient, tool
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.scripted_client import call

user = Message.user

MEASURED = 4
"""Times that something is done before replies are lost: the first makes connections, and so may any under load."""

DONE: dict[str, Callable[[Conversations, Any, int], object]] = {
    "one message": lambda _, thread, n: thread.append(user(f"{n}")),
    "many messages": lambda _, thread, n: thread.append([user(f"{n}-{each}") for each in range(30)]),
    "a message with a key": lambda _, thread, n: thread.append(user(f"{n}"), idempotency_key=f"key-{n}"),
    "a label": lambda _, thread, n: thread.label(number=n),
    "a new thread": lambda all_, _, n: all_.start_thread(thread_id=f"new-{n}", messages=[user(f"{n}")]),
    "a fork": lambda _, thread, n: thread.fork(thread_id=f"fork-{n}").append(user(f"{n}")),
    "a rewind": lambda _, thread, n: thread.append(user(f"{n}")) and thread.rewind(to=2),
    "a redaction": lambda _, thread, n: redact(thread, thread.append(user(f"secret-{n}")).version),
    "a fact": lambda all_, _, n: all_.memory("user/1").remember(f"fact {n}", key=f"{n}"),
    "an import": lambda all_, _, n: all_.import_events(io.BytesIO(b"".join(exported(n)))),
}


def exported(number: int) -> list[bytes]:
    """A thread with a checkpoint, a redacted message and a fork, as it was exported from another store."""
    with Conversations.open("memory:", projections=()) as other:
        thread = other.start_thread(thread_id=f"came-{number}", messages=[user("one"), user("two")])
        thread.checkpoint("here")
        thread.redact(3)
        thread.fork(thread_id=f"came-{number}-fork").append(user("three"))
        return list(other.export_events())


def redact(thread: Any, version: int) -> None:
    """It is done, whatever becomes of the indexes of words: they are filled again when they are read."""
    try:
        thread.redact(version)
    except StoreUnavailableError as error:
        if "do not redact it again" not in str(error):
            raise


def told(conversations: Conversations) -> list[tuple[str, int, str]]:
    """Thread, version and type of every event."""
    return sorted(
        (thread.id, event.version, event.type)
        for thread in conversations.threads()
        for event in conversations.thread(thread.id).events()
    )


@contextmanager
def cut_off(server: PostgresServer) -> Iterator[tuple[CuttingProxy, str, str]]:
    """A proxy before a database, its URL and the database's own."""
    with server.database() as url, CuttingProxy(server.port) as proxy:
        parts = urlsplit(url)
        netloc = f"{parts.username}@{parts.hostname}:{proxy.port}"
        yield proxy, urlunsplit(parts._replace(netloc=netloc)) + "?workers=2&readers=2", url


def asked_for(proxy: CuttingProxy, do: Callable[..., object], *given: object) -> int:
    """How many requests it takes."""
    before = proxy.requests
    do(*given)
    return proxy.requests - before


def cuts(requests: int, scale: float) -> list[int]:
    """Which of so many requests lose their replies: all of them at the full scale, else some from first to last."""
    step = max(1, round(requests / max(4, 60 * scale)))
    return [*range(1, requests + 1, step), requests]


def test_a_goodbye_does_not_count_as_a_request(postgres_server: PostgresServer) -> None:
    """Or the reply that is to be lost would be one that never comes."""
    with cut_off(postgres_server) as (proxy, url, own):
        through = url.partition("?")[0]
        with psycopg.connect(through, autocommit=True) as stays:
            with psycopg.connect(through) as leaves:
                there = f"SELECT FROM pg_stat_activity WHERE pid = {leaves.info.backend_pid}"
                proxy.lose_reply_number(1)
            wait_until(lambda: not ask(own, there))
            with pytest.raises(psycopg.OperationalError):
                stays.execute("SELECT 1")
        assert proxy.lost.is_set()


@pytest.mark.parametrize("what", DONE)
def test_every_operation_happens_once_whichever_reply_is_lost(
    postgres_server: PostgresServer, scale: float, what: str
) -> None:
    do = DONE[what]
    with cut_off(postgres_server) as (proxy, url, own):
        with Conversations.open(url, projections=()) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[user("first")])
            counts = [asked_for(proxy, do, conversations, thread, number) for number in range(MEASURED)]
            numbers = cuts(min(counts), scale)
            lost = 0
            for number, cut in enumerate(numbers, MEASURED):
                proxy.lose_reply_number(cut)
                do(conversations, thread, number)
                lost += proxy.lost.is_set()
            proxy.lose_reply_number(0)
            assert lost >= len(numbers) / 2
        with Conversations.open("memory:") as expected:
            same = expected.start_thread(thread_id="t", messages=[user("first")])
            for number in range(len(numbers) + MEASURED):
                do(expected, same, number)
            with Conversations.open(own) as found:
                assert found.verify().first_bad is None
                assert told(found) == told(expected)
                assert [each.text for each in found.thread("t").history()] == [each.text for each in same.history()]
                facts = [[each.text for each in store.memory("user/1").facts()] for store in (found, expected)]
                assert facts[0] == facts[1]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def on(url: str, work: Callable[[Engine], Awaitable[None]]) -> None:
    async def open_and_work() -> None:
        async with Engine.open(url, projections=()) as engine:
            await asyncio.wait_for(work(engine), PATIENCE * 6)

    asyncio.run(open_and_work())


def test_a_run_of_an_agent_finishes_whichever_reply_is_lost(postgres_server: PostgresServer, scale: float) -> None:
    """Its claims, drafts and blobs are of other appends than messages are."""
    ends: list[tuple[str, int]] = []

    async def run(engine: Engine, number: int) -> None:
        client = ScriptedChatClient([call("look_up", word="clew"), "It is a word of many letters."])
        agent = Agent(client, engine=engine, tools=[look_up], instructions=f"Be brief: {number}.")
        response = await agent.run("What is a clew?", stream=True).get_final_response()
        assert response.text == "It is a word of many letters."
        ends.append((response.thread.id, await response.thread.version))

    with cut_off(postgres_server) as (proxy, url, own):

        async def work(engine: Engine) -> None:
            await run(engine, 0)
            before = proxy.requests
            await run(engine, 1)
            for number, cut in enumerate(cuts(proxy.requests - before, scale), 2):
                proxy.lose_reply_number(cut)
                await run(engine, number)
            proxy.lose_reply_number(0)

        on(url, work)
        with Conversations.open(own) as conversations:
            assert conversations.verify().first_bad is None
            assert len({version for _, version in ends}) == 1
            types = {tuple(event.type for event in conversations.thread(id_).events()) for id_, _ in ends}
            assert len(types) == 1
            assert next(iter(types))[-1] == "run-completed"
