"""If any reply of a PostgreSQL server is lost, the operation still happens exactly once, without a conflict."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres_server import PostgresServer, ask

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient, tool
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.scripted_client import call

user = Message.user

MEASURED = 4
"""The number of repetitions that count requests. The first one opens connections, and under load later ones may too."""

OPERATIONS: dict[str, Callable[[Conversations, Any, int], object]] = {
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
    """The export of a thread with a checkpoint, a redacted message and a fork, from another store."""
    with Conversations.open("memory:", projections=()) as other:
        thread = other.start_thread(thread_id=f"came-{number}", messages=[user("one"), user("two")])
        thread.checkpoint("here")
        thread.redact(3)
        thread.fork(thread_id=f"came-{number}-fork").append(user("three"))
        return list(other.export_events())


def redact(thread: Any, version: int) -> None:
    """Redact a message. Ignores an error of the text index, which is updated when it is read."""
    try:
        thread.redact(version)
    except StoreUnavailableError as error:
        if "do not redact it again" not in str(error):
            raise


def events_of(conversations: Conversations) -> list[tuple[str, int, str]]:
    """The thread, the version and the type of every event."""
    return sorted(
        (thread.id, event.version, event.type)
        for thread in conversations.threads()
        for event in conversations.thread(thread.id).events()
    )


@contextmanager
def proxied_database(server: PostgresServer) -> Iterator[tuple[CuttingProxy, str, str]]:
    """A proxy in front of a database, the URL through the proxy, and the direct URL."""
    with server.database() as url, CuttingProxy(server.port) as proxy:
        parts = urlsplit(url)
        netloc = f"{parts.username}@{parts.hostname}:{proxy.port}"
        yield proxy, urlunsplit(parts._replace(netloc=netloc)) + "?workers=2&readers=2", url


def count_requests(proxy: CuttingProxy, do: Callable[..., object], *arguments: object) -> int:
    """The number of requests that an operation sends."""
    before = proxy.requests
    do(*arguments)
    return proxy.requests - before


def requests_to_cut(requests: int, scale: float) -> list[int]:
    """The numbers of the requests whose replies are lost: all at full scale, otherwise a sample with first and last."""
    step = max(1, round(requests / max(4, 60 * scale)))
    return [*range(1, requests + 1, step), requests]


def test_a_termination_message_does_not_count_as_a_request(postgres_server: PostgresServer) -> None:
    """The server does not answer it, so its reply cannot be lost."""
    with proxied_database(postgres_server) as (proxy, url, direct_url):
        proxied_url = url.partition("?")[0]
        with psycopg.connect(proxied_url, autocommit=True) as open_connection:
            with psycopg.connect(proxied_url) as closed_connection:
                session = f"SELECT FROM pg_stat_activity WHERE pid = {closed_connection.info.backend_pid}"
                proxy.lose_reply_number(1)
            wait_until(lambda: not ask(direct_url, session))
            with pytest.raises(psycopg.OperationalError):
                open_connection.execute("SELECT 1")
        assert proxy.lost.is_set()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_happens_once_if_any_reply_is_lost(
    postgres_server: PostgresServer, scale: float, operation: str
) -> None:
    do = OPERATIONS[operation]
    with proxied_database(postgres_server) as (proxy, url, direct_url):
        with Conversations.open(url, projections=()) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[user("first")])
            counts = [count_requests(proxy, do, conversations, thread, number) for number in range(MEASURED)]
            numbers = requests_to_cut(min(counts), scale)
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
            with Conversations.open(direct_url) as actual:
                assert actual.verify().first_bad is None
                assert events_of(actual) == events_of(expected)
                assert [each.text for each in actual.thread("t").history()] == [each.text for each in same.history()]
                facts = [[each.text for each in store.memory("user/1").facts()] for store in (actual, expected)]
                assert facts[0] == facts[1]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def with_engine(url: str, work: Callable[[Engine], Awaitable[None]]) -> None:
    async def open_and_work() -> None:
        async with Engine.open(url, projections=()) as engine:
            await asyncio.wait_for(work(engine), PATIENCE * 2)

    asyncio.run(open_and_work())


def test_a_run_of_an_agent_finishes_if_any_reply_is_lost(postgres_server: PostgresServer, scale: float) -> None:
    """A run appends claims, drafts and blobs separately from messages."""
    ends: list[tuple[str, int]] = []

    async def run(engine: Engine, number: int) -> None:
        client = ScriptedChatClient([call("look_up", word="clew"), "It is a word of many letters."])
        agent = Agent(client, engine=engine, tools=[look_up], instructions=f"Be brief: {number}.")
        response = await agent.run("What is a clew?", stream=True).get_final_response()
        assert response.text == "It is a word of many letters."
        ends.append((response.thread.id, await response.thread.version))

    with proxied_database(postgres_server) as (proxy, url, direct_url):

        async def work(engine: Engine) -> None:
            await run(engine, 0)
            before = proxy.requests
            await run(engine, 1)
            for number, cut in enumerate(requests_to_cut(proxy.requests - before, scale), 2):
                proxy.lose_reply_number(cut)
                await run(engine, number)
            proxy.lose_reply_number(0)

        with_engine(url, work)
        with Conversations.open(direct_url) as conversations:
            assert conversations.verify().first_bad is None
            assert len({version for _, version in ends}) == 1
            types = {tuple(event.type for event in conversations.thread(id_).events()) for id_, _ in ends}
            assert len(types) == 1
            assert next(iter(types))[-1] == "run-completed"
