"""One Responses client on threads of both kinds, and threads whose service has lost or already has their history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agents.remote_turns import GROWS, TWO_TURNS, bodies, engine_in, joker, service_ids, two_turns, will_joke
from tests.agents.run_checks import check_store, events_of
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import OpenAIChatClient, OpenAIResponsesClient
from clew.domain.models.client import ServiceKind, ServiceReference
from clew.domain.runs.events import ModelFailed
from clew.errors import AgentConfigurationError, ServiceThreadExpiredError, UnsupportedThreadError

both_kinds = pytest.mark.parametrize("kind", ["response", GROWS])


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    will_joke(aimock)
    return stateful


def client_of(server: StatefulServer, kind: ServiceKind = "response") -> OpenAIResponsesClient:
    """A client for threads of both kinds."""
    return OpenAIResponsesClient(server.model, service=kind, api_key="none", base_url=server.base_url)


async def turns(thread: Any) -> list[tuple[str, str]]:
    return [(each.role, each.text) for each in (await thread.history()).messages]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_one_client_runs_on_threads_of_both_kinds(server: StatefulServer, tmp_path: Path, *, streamed: bool) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            remote = await two_turns(agent, streamed=streamed)
            local: Any = await agent.get_local_thread()
            for text in (TWO_TURNS[0][1], TWO_TURNS[2][1]):
                if streamed:
                    await agent.run(text, thread=local, stream=True).get_final_response()
                else:
                    await agent.run(text, thread=local)
            assert await turns(remote) == await turns(local) == TWO_TURNS
            there, here = await bodies(remote), await bodies(local)
            assert [each["store"] for each in there] == [True, True]
            assert [each["store"] for each in here] == [False, False]
            assert [len(each["input"]) for each in there] == [1, 1]
            assert [len(each["input"]) for each in here] == [1, 3]
            assert "reasoning.encrypted_content" in here[0]["include"]
            assert await service_ids(local) == []
            assert there[1]["previous_response_id"] == (await service_ids(remote))[0]
            started = await agent.run("Now a poet.")
            assert started.thread.kind == "local"

    asyncio.run(converse())


async def lost_thread(agent: Any, client: OpenAIResponsesClient, kind: ServiceKind) -> Any:
    """A thread of two turns that its service has deleted."""
    thread = await two_turns(agent)
    for name in await service_ids(thread):
        await client.delete_service_thread(ServiceReference(kind=kind, id=name))
    return thread


@both_kinds
def test_what_the_service_has_lost_is_an_error_that_says_what_to_do(
    server: StatefulServer, tmp_path: Path, kind: ServiceKind
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, kind)
            agent = joker(engine, client)
            thread = await lost_thread(agent, client, kind)
            with pytest.raises(ServiceThreadExpiredError, match=r"fork\(kind='local'\)") as expired:
                await agent.run("Now a poet.", thread=thread)
            assert expired.value.status == 404
            branch = await thread.fork(kind="local")
            assert (await agent.run("Now a poet.", thread=branch)).text == "It rhymes."
            assert [each["store"] for each in await bodies(branch)][-1] is False
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


@both_kinds
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_the_service_has_lost_is_sent_again_from_the_record(
    server: StatefulServer, tmp_path: Path, kind: ServiceKind, *, streamed: bool
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, kind)
            agent = joker(engine, client, on_expired_service_thread="reseed")
            thread = await lost_thread(agent, client, kind)
            if streamed:
                await agent.run("Now a poet.", thread=thread, stream=True).get_final_response()
            else:
                await agent.run("Now a poet.", thread=thread)
            await agent.run("Now a parrot.", thread=thread)
            failed = [event.data for event in await events_of(thread) if isinstance(event.data, ModelFailed)]
            assert [(each.error.kind, each.retry_in) for each in failed] == [("ServiceThreadExpiredError", 0.0)]
            *_, lost, again, last = await bodies(thread)
            continued = {"previous_response_id", "conversation"}
            assert (len(lost["input"]), bool(continued & set(lost))) == (1, True)
            assert (len(again["input"]), bool(continued & set(again))) == (5, False)
            assert (len(last["input"]), bool(continued & set(last))) == (1, True)
            assert [text for _, text in await turns(thread)][-3:] == ["It rhymes.", "Now a parrot.", "It talks."]
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


@both_kinds
def test_a_service_thread_is_taken_up_with_its_history(
    server: StatefulServer, tmp_path: Path, kind: ServiceKind
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, kind)
            agent = joker(engine, client)
            held = (await service_ids(await two_turns(agent)))[-1]
            thread: Any = await agent.get_remote_thread(held, read_history=True)
            assert await turns(thread) == TWO_TURNS
            messages = (await thread.history()).messages
            assert [each.message.metadata for each in messages] == [{"service": {"kind": kind, "id": held}}] * 4
            await agent.run("Now a poet.", thread=thread)
            (body,) = await bodies(thread)
            assert len(body["input"]) == 1, "the service has the rest"
            assert (await thread.reconcile()).counts == (6, 0, 0, 0)
            assert await turns(await agent.get_remote_thread(held)) == []

    asyncio.run(converse())


def test_a_history_is_read_only_with_an_id_and_a_client_for_it(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            with pytest.raises(AgentConfigurationError, match="service_thread_id="):
                await agent.get_remote_thread(read_history=True)
            chat = joker(engine, OpenAIChatClient("m-1", api_key="none"))
            with pytest.raises(UnsupportedThreadError, match="local"):
                await chat.get_remote_thread("resp_1", read_history=True)
            with pytest.raises(AgentConfigurationError, match="on_expired_service_thread='wait'"):
                joker(engine, client_of(server), on_expired_service_thread="wait")

    asyncio.run(converse())
