"""Forks and rewinds of remote threads: at the service where possible, otherwise only locally."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.remote_turns import (
    GROWS,
    TWO_TURNS,
    bodies,
    client_of,
    deleted,
    engine_in,
    joker,
    service_ids,
    two_turns,
    will_joke,
)
from tests.agents.run_checks import check_store, events_of, short_history
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew.aio.threads import LocalThread, RemoteThread
from clew.errors import (
    AgentConfigurationError,
    ServiceCannotForkError,
)


def texts(body: Any) -> list[str]:
    """The texts of a request's messages. An answer goes back in parts, as the service sent it."""
    contents = [item["content"] for item in body["input"]]
    return [each if isinstance(each, str) else "".join(part["text"] for part in each) for each in contents]


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    will_joke(aimock)
    return stateful


def test_responses_fork_and_rewind_at_the_service(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            thread = await two_turns(agent)
            first, _ = await service_ids(thread)

            async def check_next_run(branch: RemoteThread, sent: list[str], after: str | None) -> None:
                """Check that the next request sends only new messages, and that the service has all of them."""
                response = await agent.run("Now a poet.", thread=branch)
                body = (await bodies(response.thread))[-1]
                assert texts(body) == [*sent, "Now a poet."]
                assert body.get("previous_response_id") == after
                continued = response.thread
                assert isinstance(continued, RemoteThread)
                assert (await continued.reconcile()).counts == (len(await continued.history()), 0, 0, 0)

            # Right at the answer, before the event that names its response; and in a fork of such a fork.
            branch = await thread.fork(at_message=2)
            assert isinstance(branch, RemoteThread)
            assert await branch.service_thread_id == first
            await check_next_run(await branch.fork(), [], first)
            await check_next_run(branch, [], first)
            # After the question, which has no answer there.
            await check_next_run(await thread.fork(at_message=3), [TWO_TURNS[2][1]], first)
            await check_next_run(await thread.fork(at_message=0), [], None)
            history = await thread.history()
            await check_next_run(await thread.edit(history.messages[2], "Once more."), ["Once more."], first)
            response = await agent.run("Now a poet.", thread=thread, at=history.messages[1].version)
            assert (await bodies(response.thread))[-1]["previous_response_id"] == first

            undo = await thread.version
            await thread.rewind(to=history.messages[1].version)
            assert await thread.service_thread_id == first
            await check_next_run(thread, [], first)
            await thread.rewind(to=undo)
            newest = (await service_ids(thread))[1]
            assert await thread.service_thread_id == newest
            await check_next_run(thread, [], newest)
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


def test_a_service_conversation_is_forked_only_locally(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server, GROWS))
            thread = await two_turns(agent)
            (conversation,) = await service_ids(thread)
            assert [body["conversation"] for body in await bodies(thread)] == [conversation] * 2
            events = await events_of(thread)
            history = (await thread.history()).messages
            calls: list[Callable[[], Awaitable[Any]]] = [
                thread.fork,
                lambda: thread.fork(at_message=3),
                lambda: thread.fork(at=history[1].version),
                lambda: thread.edit(history[2], "Once more."),
                lambda: thread.rewind(to=history[1].version),
                lambda: agent.run("Now a poet.", thread=thread, at=history[1].version),
                lambda: agent.run("Now a poet.", thread=thread, fork=True),
                lambda: thread.run("Now a poet.", fork=True, stream=True).get_final_response(),
            ]
            for call in calls:
                with pytest.raises(ServiceCannotForkError, match=r"fork\(kind='local'\)") as caught:
                    await call()
                assert (caught.value.service_thread_id, caught.value.supported) == (conversation, ("local",))
            assert await events_of(thread) == events
            assert [each.id async for each in engine.threads()] == [thread.id]

            branch = await thread.fork(at_message=2, kind="local")
            assert isinstance(branch, LocalThread)
            other = joker(engine, client_of(server, store=False))
            await other.run("Now a poet.", thread=branch)
            body = (await bodies(branch))[-1]
            assert texts(body) == [*(text for _, text in TWO_TURNS[:2]), "Now a poet."]
            assert not {"conversation", "previous_response_id"} & set(body)
            assert isinstance(await engine.thread(branch.id), LocalThread)
            assert isinstance(await branch.fork(at_message=1), LocalThread), "also if its parent was remote"

            # Before its first run the service has nothing to rewind.
            before = await thread.fork(at_message=1)
            assert await before.service_thread_id is None
            await agent.run("Now a poet.", thread=before)
            assert await before.service_thread_id not in {None, conversation}
            assert texts((await bodies(before))[-1]) == [TWO_TURNS[0][1], "Now a poet."]
            await agent.run("Now a poet.", thread=thread)
            assert (await thread.reconcile()).counts == (6, 0, 0, 0), "no fork wrote into it"

    asyncio.run(converse())


def test_a_given_conversation_is_not_shared_by_a_fork(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, GROWS)
            agent = joker(engine, client)
            conversation_id = (await client.create_conversation()).id
            thread = await agent.get_remote_thread(conversation_id)
            with pytest.raises(ServiceCannotForkError):
                await thread.fork()
            await thread.rewind(to=2)  # the conversation is still empty
            await agent.run("Tell me about a pirate.", thread=thread)
            with pytest.raises(ServiceCannotForkError):
                await thread.rewind(to=2)
            assert (await thread.reconcile()).counts == (2, 0, 0, 0)

    asyncio.run(converse())


def test_a_local_thread_can_be_forked_to_a_service(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            local = joker(engine, client_of(server, store=False))
            thread = (await local.run("Tell me about a pirate.")).thread
            remote = await thread.fork(kind="remote")
            await joker(engine, client_of(server)).run("Now a parrot.", thread=remote)
            assert await short_history(remote) == TWO_TURNS
            assert texts((await bodies(remote))[-1]) == [text for _, text in TWO_TURNS[:3]]
            with pytest.raises(AgentConfigurationError, match="neither 'local' nor 'remote'"):
                await thread.fork(kind="shared")  # type: ignore[call-overload]  # callers without type checks can pass it

    asyncio.run(converse())


def test_deleting_a_fork_deletes_only_its_own_responses(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            thread = await two_turns(agent)
            branch = await thread.fork(at_message=2)
            await agent.run("Now a poet.", thread=branch)
            await branch.delete(service=True)
            assert len((await deleted(branch))[1]) == 1
            assert len(await thread.service_history()) == 4
            await agent.run("Now a poet.", thread=thread)

    asyncio.run(converse())
