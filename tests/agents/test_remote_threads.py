"""Remote threads over HTTP: requests, the service's history, and deletion at the service."""

from __future__ import annotations

import asyncio
import contextlib
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
from tests.agents.run_checks import check_requests, check_store, events_of, short_history
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.raw_server import CUT, RawServer, Reply, stream, whole
from tests.servers.stateful_launchers import StatefulServer

from clew import (
    Conversations,
    Message,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    tool,
)
from clew.aio.threads import RemoteThread
from clew.domain.models.chat_requests import CUT_OFF
from clew.domain.models.client import ServiceKind, ServiceReference
from clew.domain.runs.events import ServiceThreadBound
from clew.errors import (
    AgentConfigurationError,
    ModelError,
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
def test_a_chain_of_responses_sends_only_new_messages(
    server: StatefulServer, tmp_path: Path, *, streamed: bool
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            new = await agent.get_remote_thread()
            assert (new.kind, await new.service_thread_id) == ("remote", None)
            thread = await two_turns(agent, streamed=streamed)
            first, second = await service_ids(thread)
            assert await thread.service_thread_id == second
            assert await short_history(thread) == TWO_TURNS
            one, two = await bodies(thread)
            assert "previous_response_id" not in one
            assert two["previous_response_id"] == first
            assert [body["input"] for body in (one, two)] == [
                [{"role": "user", "content": text}] for _, text in TWO_TURNS[::2]
            ]
            assert one["instructions"] == two["instructions"] == "Be funny."
            assert (await thread.state(at=(await thread.history()).messages[1].version)).service_thread_id == first
            await check_store(engine, thread, await events_of(thread))

    asyncio.run(converse())


@pytest.mark.parametrize("kind", ["response", "conversation"])
def test_the_service_history_is_listed_and_compared_with_the_log(
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
            listed = [(each.role, each.text) for each in await thread.service_history()]
            assert listed == [
                *TWO_TURNS[:2],
                ("user", "Which is warmer?"),
                ("assistant", ""),
                ("tool", ""),
                ("tool", ""),
                ("assistant", "Neither."),
            ]
            comparison = await thread.reconcile()
            assert comparison.counts == (7, 0, 0, 0)
            assert [row.a and row.a.version for row in comparison.rows] == [
                each.version for each in await thread.history()
            ]
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
            assert (await thread.reconcile()).rows[0].kind == "changed", "the service still has it"

    asyncio.run(converse())


def test_a_thread_continues_an_existing_service_thread(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            agent = joker(engine, client_of(server))
            (_, newest) = await service_ids(await two_turns(agent))
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
            ended, thread, local_only, failing = [await two_turns(agent) for _ in range(4)]
            await ended.end()
            assert len(await ended.service_history()) == 4, "ending deletes nothing"
            await local_only.delete()
            assert (
                len(await client.service_history(ServiceReference(kind=kind, id=(await service_ids(local_only))[-1])))
                == 4
            )

            names = await service_ids(thread)
            await client.delete_service_thread(ServiceReference(kind=kind, id=names[0]))
            await thread.delete(service=True, reason="asked for", actor="user:42")
            assert await thread.status == "deleted"
            actor, outcomes = await deleted(thread)
            assert (actor, list(outcomes.items())) == ("user:42", [(name, None) for name in reversed(names)])
            for name in names:
                with pytest.raises(ModelRequestError):
                    await client.service_history(ServiceReference(kind=kind, id=name))

            unreachable = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=refusing)
            with pytest.raises(ServiceDeletionError) as caught:
                await failing.delete(service=True, client=unreachable)
            assert await failing.status == "deleted"
            assert set(caught.value.failed) == set(await service_ids(failing))
            assert (await deleted(failing))[1] == caught.value.failed
            assert all(why for why in caught.value.failed.values())

    asyncio.run(converse())


def test_service_calls_need_a_client_for_remote_threads(server: StatefulServer, tmp_path: Path) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            client = client_of(server)
            thread = await engine.thread((await two_turns(joker(engine, client))).id)
            assert isinstance(thread, RemoteThread)
            chat = OpenAIChatClient("m-1", api_key="none", base_url=server.base_url)
            for call in (thread.service_history, thread.reconcile, lambda **more: thread.delete(service=True, **more)):
                with pytest.raises(AgentConfigurationError, match=r"client=.*agent\.thread"):
                    await call()
                with pytest.raises(UnsupportedThreadError, match=r"Chat.* it runs on local threads") as caught:
                    await call(client=chat)
                assert caught.value.supported == ("local",)
                with pytest.raises(AgentConfigurationError, match=r"ScriptedChatClient .* no service_history"):
                    await call(client=ScriptedChatClient([], thread_kinds=["remote"]))
            assert [(each.role, each.text) for each in await thread.service_history(client=client)] == TWO_TURNS

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


def test_the_sync_api_and_the_read_models_include_remote_threads(server: StatefulServer, tmp_path: Path) -> None:
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
        assert [(each.role, each.text) for each in thread.history()] == TWO_TURNS
        difference = conversations.diff(thread_id, branch_id)
        assert (difference.shared, difference.counts.same) == (2, 2)
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
def test_the_service_gets_a_result_for_every_call(
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
            assert approved.thread.kind == "remote", "the client supports only remote threads"
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
                "only-b",  # only the service gets the missing result
                *["same"] * 4,
            ]

    asyncio.run(converse())


def test_a_conversation_that_cannot_be_created_loses_nothing(
    server: StatefulServer, refusing: str, tmp_path: Path
) -> None:
    async def converse() -> None:
        async with engine_in(tmp_path) as engine:
            unreachable = OpenAIResponsesClient("m-1", store=True, service=GROWS, api_key="none", base_url=refusing)
            thread = await joker(engine, unreachable).get_remote_thread()
            with pytest.raises(ModelUnavailableError):
                await thread.run("Tell me about a pirate.")
            assert [event.type for event in await events_of(thread)][-2:] == ["message-appended", "run-failed"]
            await joker(engine, client_of(server, GROWS)).run("Now a parrot.", thread=thread)
            assert await short_history(thread) == [TWO_TURNS[0], TWO_TURNS[2], TWO_TURNS[3]]
            (body,) = await bodies(thread)
            assert [item["content"] for item in body["input"]] == [TWO_TURNS[0][1], TWO_TURNS[2][1]]

    asyncio.run(converse())


# Broken streams


def response(id_: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"m_{id_}", "role": "assistant", "status": "completed", "content": [part]}
    return {"id": id_, "object": "response", "model": "m-1", "status": "completed", "output": [item]}


def streamed_response(id_: str, text: str, *, cut: bool = False) -> Any:
    """Return a streamed response; with ``cut`` it breaks off."""
    done = response(id_, text)
    begins = {"type": "response.created", "response": {**done, "status": "in_progress", "output": []}}
    piece = {"type": "response.output_text.delta", "output_index": 0, "delta": text}
    ends = () if cut else ({"type": "response.completed", "response": done},)
    return stream(begins, piece, *ends, end=CUT if cut else None, done=False)


def test_unanswered_messages_are_sent_again_after_a_broken_stream(tmp_path: Path) -> None:
    async def converse(service: RawServer) -> None:
        async with engine_in(tmp_path) as engine:
            client = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=service.url)
            agent = joker(engine, client)
            thread = await agent.get_remote_thread()
            service.add_replies(
                streamed_response("resp_1", "One."),
                streamed_response("resp_2", "Two is cut", cut=True),
                whole(response("resp_3", "Three.")),
            )
            await agent.run("First.", thread=thread, stream=True).get_final_response()
            with pytest.raises(ModelStreamError):
                await agent.run("Second.", thread=thread, stream=True).get_final_response()
            assert await service_ids(thread) == ["resp_1", "resp_2"], "the id is known although the answer broke off"
            assert await thread.service_thread_id == "resp_2"
            await agent.run("Third.", thread=thread)
            assert await service_ids(thread) == ["resp_1", "resp_2", "resp_3"]
            assert [(each.path, each.body) for each in service.requests] == [
                ("/v1/responses", each.content) for each in await check_requests(thread, await events_of(thread))
            ]
            sent = [each.json() for each in service.requests]
            assert [body.get("previous_response_id") for body in sent] == [None, "resp_1", "resp_1"]
            assert [item["content"] for item in sent[2]["input"]] == ["Second.", "Two is cut", CUT_OFF, "Third."]
            assert [text for _, text in await short_history(thread)] == [
                "First.",
                "One.",
                "Second.",
                "Two is cut",
                "Third.",
                "Three.",
            ]

    with RawServer() as service:
        asyncio.run(converse(service))


def test_the_id_of_an_immediately_broken_stream_is_recorded(tmp_path: Path) -> None:
    async def converse(service: RawServer) -> None:
        async with engine_in(tmp_path) as engine:
            client = OpenAIResponsesClient("m-1", store=True, api_key="none", base_url=service.url)
            agent = joker(engine, client, retries=0)
            thread = await agent.get_remote_thread()
            begins = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
            service.add_replies(stream(begins, end=CUT), streamed_response("resp_2", "Here."))
            with pytest.raises(ModelUnavailableError):
                await agent.run("First.", thread=thread, stream=True).get_final_response()
            assert await service_ids(thread) == ["resp_1"]
            assert await thread.service_history() == [], "the service answered nothing"
            await agent.run("Second.", thread=thread, stream=True).get_final_response()
            body = service.requests[-1].json()
            assert "previous_response_id" not in body
            assert [item["content"] for item in body["input"]] == ["First.", "Second."]

    with RawServer() as service:
        asyncio.run(converse(service))


LOST: dict[str, tuple[Any, list[str], bool]] = {
    "no reply": (Reply((CUT,)), ["second"], True),
    "half a reply": (Reply((*whole({}, headers={"content-length": "99"}).steps, CUT)), ["second"], True),
    "refused": (whole({"error": {"message": "busy"}}, status=503), ["second", "second"], False),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("kind", ["response", "conversation"])
def test_a_conversation_gets_no_request_again_that_may_have_arrived(
    name: str, kind: ServiceKind, tmp_path: Path
) -> None:
    reply, sent, fails = LOST[name]

    async def converse() -> None:
        with RawServer() as service:
            if kind == "conversation":
                service.add_replies(whole({"id": "conv_1", "object": "conversation"}))
            service.add_replies(whole(response("resp_1", "One.")), reply, whole(response("resp_2", "Two.")))
            async with engine_in(tmp_path) as engine:
                client = OpenAIResponsesClient("m-1", service=kind, api_key="none", base_url=service.url)
                agent = joker(engine, client)
                thread = await agent.get_remote_thread()
                await agent.run("first", thread=thread)
                with pytest.raises(ModelError) if fails and kind == "conversation" else contextlib.nullcontext():
                    await agent.run("second", thread=thread)
            bodies = [request.json() for request in service.requests if request.path.endswith("/responses")]
        asked = [item["content"] for body in bodies for item in body["input"]]
        # A response that was lost is not continued, so that nothing is doubled: its request may be sent again.
        assert asked == ["first", *(sent if kind == "conversation" else ["second", "second"])]

    asyncio.run(converse())
