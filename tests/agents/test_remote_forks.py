"""What a service that holds a thread can fork and go back in, and what only the record can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.remote_turns import (
    GROWS,
    TOLD,
    bodies,
    bound,
    client_of,
    deleted,
    engine_in,
    joker,
    two_turns,
    will_joke,
)
from tests.agents.run_checks import check_store, events_of, told
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_server import StatefulServer

from clew.aio.threads import LocalThread, RemoteThread
from clew.errors import (
    AgentConfigurationError,
    ServiceCannotForkError,
)


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    will_joke(aimock)
    return stateful


def test_responses_fork_and_rewind_at_the_service(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            thread = await two_turns(agent)
            first, _ = await bound(thread)

            async def goes_on(branch: RemoteThread, sent: list[str], after: str | None) -> None:
                """The next request goes on from there, with what is new there, and the service has it all then."""
                response = await agent.run("Now a poet.", thread=branch)
                body = (await bodies(response.thread))[-1]
                assert [item["content"] for item in body["input"]] == [*sent, "Now a poet."]
                assert body.get("previous_response_id") == after
                gone_on = response.thread
                assert isinstance(gone_on, RemoteThread)
                assert (await gone_on.reconcile()).counts == (len(await gone_on.history()), 0, 0, 0)

            # Right at the answer, though only the next event says whose it is; and in a fork of such a fork.
            branch = await thread.fork(at_message=2)
            assert isinstance(branch, RemoteThread)
            assert await branch.service_thread_id == first
            await goes_on(await branch.fork(), [], first)
            await goes_on(branch, [], first)
            # After the question: that was not answered there.
            await goes_on(await thread.fork(at_message=3), [TOLD[2][1]], first)
            await goes_on(await thread.fork(at_message=0), [], None)
            said = await thread.history()
            await goes_on(await thread.edit(said.messages[2], "Once more."), ["Once more."], first)
            response = await agent.run("Now a poet.", thread=thread, at=said.messages[1].version)
            assert (await bodies(response.thread))[-1]["previous_response_id"] == first

            undo = await thread.version
            await thread.rewind(to=said.messages[1].version)
            assert await thread.service_thread_id == first
            await goes_on(thread, [], first)
            await thread.rewind(to=undo)
            newest = (await bound(thread))[1]
            assert await thread.service_thread_id == newest
            await goes_on(thread, [], newest)
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


def test_a_conversation_that_grows_is_not_forked_or_rewound_but_its_record_is(
    server: StatefulServer, tmp_path: Path
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server, GROWS))
            thread = await two_turns(agent)
            (conversation,) = await bound(thread)
            assert [body["conversation"] for body in await bodies(thread)] == [conversation] * 2
            events = await events_of(thread)
            said = (await thread.history()).messages
            asked: list[Callable[[], Awaitable[Any]]] = [
                thread.fork,
                lambda: thread.fork(at_message=3),
                lambda: thread.fork(at=said[1].version),
                lambda: thread.edit(said[2], "Once more."),
                lambda: thread.rewind(to=said[1].version),
                lambda: agent.run("Now a poet.", thread=thread, at=said[1].version),
                lambda: agent.run("Now a poet.", thread=thread, fork=True),
                lambda: thread.run("Now a poet.", fork=True, stream=True).get_final_response(),
            ]
            for ask in asked:
                with pytest.raises(ServiceCannotForkError, match=r"fork\(kind='local'\)") as caught:
                    await ask()
                assert (caught.value.service_thread_id, caught.value.supported) == (conversation, ("local",))
            assert await events_of(thread) == events
            assert [each.id async for each in engine.threads()] == [thread.id]

            branch = await thread.fork(at_message=2, kind="local")
            assert isinstance(branch, LocalThread)
            other = joker(engine, client_of(server, store=False))
            await other.run("Now a poet.", thread=branch)
            body = (await bodies(branch))[-1]
            assert [item["content"] for item in body["input"]] == [*(text for _, text in TOLD[:2]), "Now a poet."]
            assert not {"conversation", "previous_response_id"} & set(body)
            assert isinstance(await engine.thread(branch.id), LocalThread)
            assert isinstance(await branch.fork(at_message=1), LocalThread), "also where its parent was remote"

            # Before it was begun there is nothing that the service would have to go back in.
            before = await thread.fork(at_message=1)
            assert await before.service_thread_id is None
            await agent.run("Now a poet.", thread=before)
            assert await before.service_thread_id not in {None, conversation}
            assert [item["content"] for item in (await bodies(before))[-1]["input"]] == [TOLD[0][1], "Now a poet."]
            await agent.run("Now a poet.", thread=thread)
            assert (await thread.reconcile()).counts == (6, 0, 0, 0), "nobody else wrote into it"

    asyncio.run(converse())


def test_a_conversation_that_was_given_is_not_shared_by_a_fork(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, GROWS)
            agent = joker(engine, client)
            given = (await client.create_conversation()).id
            thread = await agent.get_remote_thread(given)
            with pytest.raises(ServiceCannotForkError):
                await thread.fork()
            await thread.rewind(to=2)  # nothing was said there yet
            await agent.run("Tell me about a pirate.", thread=thread)
            with pytest.raises(ServiceCannotForkError):
                await thread.rewind(to=2)
            assert (await thread.reconcile()).counts == (2, 0, 0, 0)

    asyncio.run(converse())


def test_a_local_record_can_be_given_to_a_service(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            local = joker(engine, client_of(server, store=False))
            thread = (await local.run("Tell me about a pirate.")).thread
            remote = await thread.fork(kind="remote")
            await joker(engine, client_of(server)).run("Now a parrot.", thread=remote)
            assert await told(remote) == TOLD
            assert [item["content"] for item in (await bodies(remote))[-1]["input"]] == [text for _, text in TOLD[:3]]
            with pytest.raises(AgentConfigurationError, match="neither 'local' nor 'remote'"):
                await thread.fork(kind="shared")  # type: ignore[call-overload]  # as callers without types may

    asyncio.run(converse())


def test_a_fork_deletes_only_what_is_its_own_at_the_service(server: StatefulServer, tmp_path: Path) -> None:
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
