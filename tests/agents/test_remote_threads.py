"""Threads that a service holds, over HTTP: what it is sent, what it lists, and what is deleted there."""

from __future__ import annotations

import asyncio
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
from tests.agents.run_checks import check_requests, check_store, events_of, told
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.raw_server import CUT, RawServer, stream, whole
from tests.servers.stateful_server import StatefulServer

from clew import (
    Conversations,
    Message,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    tool,
)
from clew.aio.threads import RemoteThread
from clew.domain.models.client import ServiceKind, ServiceReference
from clew.domain.runs.events import ServiceThreadBound
from clew.errors import (
    AgentConfigurationError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
    ServiceDeletionError,
    UnsupportedThreadError,
)
from clew.sync import threads


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    will_joke(aimock)
    return stateful


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_chain_of_responses_is_sent_only_what_is_new(
    server: StatefulServer, tmp_path: Path, *, streamed: bool
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            fresh = await agent.get_remote_thread()
            assert (fresh.kind, await fresh.service_thread_id) == ("remote", None)
            thread = await two_turns(agent, streamed=streamed)
            first, second = await bound(thread)
            assert await thread.service_thread_id == second
            assert await told(thread) == TOLD
            one, two = await bodies(thread)
            assert "previous_response_id" not in one
            assert two["previous_response_id"] == first
            assert [body["input"] for body in (one, two)] == [
                [{"role": "user", "content": text}] for _, text in TOLD[::2]
            ]
            assert one["instructions"] == two["instructions"] == "Be funny."
            assert (await thread.state(at=(await thread.history()).messages[1].version)).service_thread_id == first
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


@pytest.mark.parametrize("kind", ["response", "conversation"])
def test_what_the_service_holds_is_listed_and_compared_with_the_record(
    server: StatefulServer, aimock: Aimock, tmp_path: Path, kind: ServiceKind
) -> None:
    @tool  # in the event loop: functions in threads may end in another order
    async def weather(city: str) -> dict[str, Any]:
        """The weather of a city."""
        return {"city": city, "degrees": 20}

    calls = [ToolCall("weather", {"city": city}, f"call_{city}") for city in ("Oslo", "Rome")]
    aimock.reply("warmer", tool_calls=calls, after_tools=False)
    aimock.reply("warmer", text="Neither.", after_tools=True)

    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server, kind), tools=[weather])
            thread = await agent.get_remote_thread()
            assert await thread.service_history() == []
            assert (await thread.reconcile()).rows == ()
            await agent.run("Tell me about a pirate.", thread=thread)
            before = await thread.version
            await agent.run("Which is warmer?", thread=thread)
            held = [(each.role, each.text) for each in await thread.service_history()]
            assert held == [
                *TOLD[:2],
                ("user", "Which is warmer?"),
                ("assistant", ""),
                ("tool", ""),
                ("tool", ""),
                ("assistant", "Neither."),
            ]
            found = await thread.reconcile()
            assert found.counts == (7, 0, 0, 0)
            assert [row.a and row.a.version for row in found.rows] == [each.version for each in await thread.history()]
            results = (await bodies(thread))[2]["input"]
            assert [(item["type"], item["call_id"]) for item in results] == [
                ("function_call_output", "call_Oslo"),
                ("function_call_output", "call_Rome"),
            ]
            await thread.append(Message.user("And a poet?"))
            assert [row.kind for row in (await thread.reconcile()).rows][7:] == ["only-a"]
            if kind == "response":  # a conversation has grown since
                assert (await thread.reconcile(at=before)).counts == (2, 0, 0, 0)
            redacted = (await thread.history()).messages[0]
            await thread.redact(redacted)
            assert (await thread.reconcile()).rows[0].kind == "changed", "the service holds it still"

    asyncio.run(converse())


def test_a_thread_goes_on_from_what_a_service_held_before(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            (_, newest) = await bound(await two_turns(agent))
            thread = await agent.get_remote_thread(newest)
            assert await thread.service_thread_id == newest
            await agent.run("Now a poet.", thread=thread)
            (body,) = await bodies(thread)
            assert body["previous_response_id"] == newest
            assert [row.kind for row in (await thread.reconcile()).rows] == ["only-b"] * 4 + ["same"] * 2

    asyncio.run(converse())


@pytest.mark.parametrize("kind", ["response", "conversation"])
def test_deleting_at_the_service_is_recorded_with_its_outcome(
    server: StatefulServer, refusing: str, tmp_path: Path, kind: ServiceKind
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server, kind)
            agent = joker(engine, client)
            ended, thread, kept, failing = [await two_turns(agent) for _ in range(4)]
            await ended.end()
            assert len(await ended.service_history()) == 4, "to end deletes nothing"
            await kept.delete()
            assert len(await client.service_history(ServiceReference(kind=kind, id=(await bound(kept))[-1]))) == 4

            names = await bound(thread)
            await client.delete_service_thread(ServiceReference(kind=kind, id=names[0]))
            await thread.delete(service=True, reason="asked for", actor="user:42")
            assert await thread.status == "deleted"
            actor, gone = await deleted(thread)
            assert (actor, list(gone.items())) == ("user:42", [(name, None) for name in reversed(names)])
            for name in names:
                with pytest.raises(ModelRequestError):
                    await client.service_history(ServiceReference(kind=kind, id=name))

            nobody = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=refusing)
            with pytest.raises(ServiceDeletionError) as caught:
                await failing.delete(service=True, client=nobody)
            assert await failing.status == "deleted"
            assert set(caught.value.failed) == set(await bound(failing))
            assert (await deleted(failing))[1] == caught.value.failed
            assert all(why for why in caught.value.failed.values())

    asyncio.run(converse())


def test_asking_the_service_needs_a_client_that_can(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server)
            thread = await engine.thread((await two_turns(joker(engine, client))).id)
            assert isinstance(thread, RemoteThread)
            chat = OpenAIChatClient("m-1", api_key="none", base_url=server.base_url)
            for ask in (thread.service_history, thread.reconcile, lambda **more: thread.delete(service=True, **more)):
                with pytest.raises(AgentConfigurationError, match=r"client=.*agent\.thread"):
                    await ask()
                with pytest.raises(UnsupportedThreadError, match=r"Chat.* it runs on local threads") as caught:
                    await ask(client=chat)
                assert caught.value.supported == ("local",)
                with pytest.raises(AgentConfigurationError, match=r"ScriptedChatClient .* no service_history"):
                    await ask(client=ScriptedChatClient([], thread_kinds=["remote"]))
            assert [(each.role, each.text) for each in await thread.service_history(client=client)] == TOLD

    asyncio.run(converse())


def test_a_client_for_local_threads_is_refused_before_any_event(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            thread = await two_turns(joker(engine, client_of(server)))
            events = await events_of(thread)
            for client in (OpenAIChatClient("m-1", api_key="none"), ScriptedChatClient(["No."])):
                agent = joker(engine, client)
                with pytest.raises(UnsupportedThreadError, match="local"):
                    await agent.get_remote_thread()
                with pytest.raises(UnsupportedThreadError, match="local"):
                    await agent.run("Now a poet.", thread=thread)
            assert await events_of(thread) == events
            assert [each.id async for each in engine.threads()] == [thread.id]

    asyncio.run(converse())


def test_the_synchronous_face_and_the_read_models_have_remote_threads_too(
    server: StatefulServer, tmp_path: Path
) -> None:
    async def converse() -> tuple[str, str]:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            thread = await two_turns(agent)
            branch = await thread.fork(at_message=2)
            await agent.run("Now a poet.", thread=branch)
            return thread.id, branch.id

    thread_id, branch_id = asyncio.run(converse())
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db") as conversations:
        thread = conversations.open_thread(thread_id)
        assert repr(thread) == f"RemoteThread({thread_id!r})"
        assert isinstance(thread, threads.RemoteThread)
        names = [event.data.id for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
        assert thread.service_thread_id == names[-1]
        assert [(each.role, each.text) for each in thread.history()] == TOLD
        found = conversations.diff(thread_id, branch_id)
        assert (found.shared, found.counts.same) == (2, 2)
        assert {hit.thread_id for hit in conversations.search("pirate")} == {thread_id}
        assert {hit.thread_id for hit in conversations.search("poet")} == {branch_id}
        types = [entry.type for entry in conversations.audit(thread=thread_id)]
        assert types.count("service-thread-bound") == 2
        assert conversations.thread(branch_id).verify().first_bad is None
        local = thread.fork(at_message=2, kind="local")
        assert isinstance(local, threads.LocalThread)
        assert isinstance(conversations.thread(local.id), threads.LocalThread)
        version = thread.history(at_message=2).messages[-1].version
        thread.rewind(to=version)
        assert thread.service_thread_id == thread.state(at=version).service_thread_id == names[0]


@pytest.mark.parametrize("kind", ["response", "conversation"])
def test_the_service_gets_a_result_for_every_call_that_it_holds(
    server: StatefulServer, aimock: Aimock, tmp_path: Path, kind: ServiceKind
) -> None:
    @tool(approval="always")
    def refund(order: int) -> str:
        """Pay an order back."""
        return f"Paid {order}."

    aimock.reply("order", tool_calls=[ToolCall("refund", {"order": 7}, "call_7")], after_tools=False)
    aimock.reply("order", text="It is on its way.", after_tools=True)

    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server, kind), tools=[refund])
            approved = await agent.run("Refund my order.")
            assert approved.thread.kind == "remote", "the client can do no other"
            await approved.approvals[0].approve(actor="user:42")
            await agent.continue_run(approved.thread)
            (_, body) = await bodies(approved.thread)
            assert body["input"] == [{"type": "function_call_output", "call_id": "call_7", "output": "Paid 7."}]

            thread = (await agent.run("Refund my order.")).thread
            assert isinstance(thread, RemoteThread)
            if kind == "response":
                branch = await thread.fork(at_message=2)
                await agent.run("No, a poet.", thread=branch)
                outputs = (await bodies(branch))[-1]["input"]
                assert [item.get("call_id") or item["content"] for item in outputs] == ["call_7", "No, a poet."]
            await agent.run("No, a poet.", thread=thread, abandon_run=True)
            outputs = (await bodies(thread))[-1]["input"]
            assert [item.get("call_id") or item["content"] for item in outputs] == ["call_7", "No, a poet."]
            await agent.run("And a parrot.", thread=thread)
            assert [item["content"] for item in (await bodies(thread))[-1]["input"]] == ["And a parrot."]
            assert [row.kind for row in (await thread.reconcile()).rows] == [
                "same",
                "same",
                "only-b",  # that there is no result is said to the service only
                *["same"] * 4,
            ]

    asyncio.run(converse())


def test_a_conversation_that_cannot_be_begun_loses_nothing(
    server: StatefulServer, refusing: str, tmp_path: Path
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            nobody = OpenAIResponsesClient("m-1", store=True, service=GROWS, api_key="none", base_url=refusing)
            thread = await joker(engine, nobody).get_remote_thread()
            with pytest.raises(ModelUnavailableError):
                await thread.run("Tell me about a pirate.")
            assert [event.type for event in await events_of(thread)][-2:] == ["message-appended", "run-failed"]
            await joker(engine, client_of(server, GROWS)).run("Now a parrot.", thread=thread)
            assert await told(thread) == [TOLD[0], TOLD[2], TOLD[3]]
            (body,) = await bodies(thread)
            assert [item["content"] for item in body["input"]] == [TOLD[0][1], TOLD[2][1]]

    asyncio.run(converse())


# Streams that are cut


def response(id_: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"m_{id_}", "role": "assistant", "status": "completed", "content": [part]}
    return {"id": id_, "object": "response", "model": "m-1", "status": "completed", "output": [item]}


def said(id_: str, text: str, *, cut: bool = False) -> Any:
    """A streamed answer, cut before it is complete."""
    done = response(id_, text)
    begins = {"type": "response.created", "response": {**done, "status": "in_progress", "output": []}}
    piece = {"type": "response.output_text.delta", "output_index": 0, "delta": text}
    ends = () if cut else ({"type": "response.completed", "response": done},)
    return stream(begins, piece, *ends, end=CUT if cut else None, done=False)


def test_what_was_not_answered_is_sent_again_after_a_cut(tmp_path: Path) -> None:
    async def converse(service: RawServer) -> None:
        async with engine_in(tmp_path) as engine:
            client = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=service.url)
            agent = joker(engine, client)
            thread = await agent.get_remote_thread()
            service.add_replies(
                said("resp_1", "One."), said("resp_2", "Two is cut", cut=True), whole(response("resp_3", "Three."))
            )
            await agent.run("First.", thread=thread, stream=True).get_final_response()
            with pytest.raises(ModelStreamError):
                await agent.run("Second.", thread=thread, stream=True).get_final_response()
            assert await bound(thread) == ["resp_1", "resp_2"], "it is known though the answer was cut"
            assert await thread.service_thread_id == "resp_2"
            await agent.run("Third.", thread=thread)
            assert await bound(thread) == ["resp_1", "resp_2", "resp_3"]
            assert [(each.path, each.body) for each in service.requests] == [
                ("/v1/responses", each.content) for each in await check_requests(thread, await events_of(thread))
            ]
            sent = [each.json() for each in service.requests]
            assert [body.get("previous_response_id") for body in sent] == [None, "resp_1", "resp_1"]
            assert [item["content"] for item in sent[2]["input"]] == ["Second.", "Two is cut", "Third."]
            assert [text for _, text in await told(thread)] == [
                "First.",
                "One.",
                "Second.",
                "Two is cut",
                "Third.",
                "Three.",
            ]

    with RawServer() as service:
        asyncio.run(converse(service))


def test_the_name_of_a_stream_that_is_cut_at_once_is_recorded(tmp_path: Path) -> None:
    async def converse(service: RawServer) -> None:
        async with engine_in(tmp_path) as engine:
            client = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=service.url)
            agent = joker(engine, client, retries=0)
            thread = await agent.get_remote_thread()
            begins = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
            service.add_replies(stream(begins, end=CUT), said("resp_2", "Here."))
            with pytest.raises(ModelUnavailableError):
                await agent.run("First.", thread=thread, stream=True).get_final_response()
            assert await bound(thread) == ["resp_1"]
            assert await thread.service_history() == [], "nothing that was asked was answered"
            await agent.run("Second.", thread=thread, stream=True).get_final_response()
            body = service.requests[-1].json()
            assert "previous_response_id" not in body
            assert [item["content"] for item in body["input"]] == ["First.", "Second."]

    with RawServer() as service:
        asyncio.run(converse(service))
