"""Remote agents with the wire of OpenAI's Assistants: runs against a strict server, with cuts and late answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.beta.threads import Run
from tests.servers.raw_server import Reply
from tests.servers.strict_assistants import StrictAssistants

from clew import Agent, AssistantsClient, Engine, Message, ScriptedChatClient, tool
from clew.domain.models.client import TokenUsage
from clew.errors import (
    AgentConfigurationError,
    ModelError,
    ModelRequestError,
    ModelStreamError,
    RemoteTaskError,
    ServiceCannotForkError,
)
from clew.events import ModelCalled, ServiceThreadBound
from clew.infrastructure import clock
from clew.infrastructure.assistants import client as client_module
from clew.testing import HttpModelService, ScriptedReply, check_model_client

pytestmark = pytest.mark.anyio
KEY = "sk-canary0123456789"


@pytest.fixture
def server() -> Iterator[StrictAssistants]:
    with StrictAssistants() as strict:
        yield strict


def client(server: StrictAssistants, **more: Any) -> AssistantsClient:
    return AssistantsClient("asst_1", base_url=server.url, api_key=KEY, **more)


@pytest.fixture
async def agent(server: StrictAssistants, tmp_path: Path) -> AsyncIterator[Agent]:
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        yield Agent(client(server), engine=engine, name="Echo")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_POLL_SECONDS", 0.01)


async def bound_to(thread: Any) -> list[tuple[str, str | None]]:
    events = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
    return [(each.id, each.task) for each in events]


async def calls_of(thread: Any) -> list[int]:
    return [event.version async for event in thread.events() if isinstance(event.data, ModelCalled)]


async def texts(thread: Any) -> list[str]:
    return [f"{each.role}: {each.text}" for each in await thread.history() if each.text]


RUN = {"id": "run_1", "object": "thread.run", "thread_id": "thread_1", "model": "m", "status": "queued"}
DELTA = {"id": "msg_1", "object": "thread.message.delta"}
MESSAGE = {"id": "msg_1", "object": "thread.message", "status": "completed", "role": "assistant"}
PIECES: list[Any] = [
    RUN,
    {**DELTA, "delta": {"content": [{"index": 0, "type": "text", "text": {"value": "Hello "}}]}},
    {**DELTA, "delta": {"content": [{"index": 0, "type": "text", "text": {"value": "there 🧶"}}]}},
    {**MESSAGE, "content": [{"type": "text", "text": {"value": "Hello there 🧶", "annotations": []}}]},
    {**RUN, "status": "completed", "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
]


class AlwaysStreams(HttpModelService):
    """A service that streams each answer, because each request asks for it."""

    def _reply(self, reply: ScriptedReply) -> Reply:
        return super()._reply(reply if reply.kind == "status" else replace(reply, streams=True))


async def test_keeps_the_contract_of_model_clients() -> None:
    def make(address: str) -> AssistantsClient:
        return AssistantsClient("asst_1", base_url=f"{address}/v1", api_key=KEY)

    with AlwaysStreams(make, whole={}, pieces=PIECES) as service:
        await check_model_client(service)


async def test_a_thread_is_the_services_thread_and_each_answer_a_run(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    first = await agent.run("hello", thread=thread)
    second = await agent.run("again", thread=thread)
    assert (first.text, second.text) == ("You said: hello", "You said: again")
    assert second.usage == TokenUsage(input_tokens=9, output_tokens=4)
    ((id_, _), *_) = bound = await bound_to(thread)
    runs = [run["id"] for run in server.runs[id_]]
    assert bound == [(id_, None), *((id_, run) for run in runs)]
    assert server.texts(id_) == await texts(thread)
    assert {row.kind for row in (await thread.reconcile()).rows} == {"same"}
    for at in await calls_of(thread):
        request = await thread.request(at)
        assert request.verified
        assert request.path == f"/threads/{id_}/runs"
    assert request.body["additional_messages"] == [{"role": "user", "content": [{"type": "text", "text": "again"}]}]
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    Run.model_validate(server.runs[id_][0] | {"created_at": 1, "parallel_tool_calls": True, "tools": []})


async def test_streams_the_pieces_of_a_message(agent: Agent) -> None:
    async with agent.run("hello to you", thread=await agent.get_remote_thread(), stream=True) as updates:
        pieces = [update.text async for update in updates if update.type == "text"]
    assert pieces == ["You", " said:", " hello", " to", " you"]


def look_up(order: int) -> str:
    """Look up an order."""
    return f"order {order}"


@pytest.mark.parametrize("cut", [None, 0, 1, 3])
async def test_gives_the_run_the_results_of_its_calls_once(agent: Agent, server: StrictAssistants, cut: Any) -> None:
    """A cut while the results are sent repeats neither the call nor the results."""
    done: list[int] = []

    def look_up(order: int) -> str:
        """Look up an order."""
        done.append(order)
        server.cut = cut
        return f"order {order}"

    thread = await agent.get_remote_thread()
    response = await agent.run("please look up order 7", thread=thread, tools=[look_up])
    assert (response.text, done) == ("Found order 7", [7])
    assert await texts(thread) == [
        "user: please look up order 7",
        "assistant: Let me look.",
        "assistant: Found order 7",
    ]
    assert len(server.posted("submit_tool_outputs")) == len(server.posted("/runs")) == 1
    assert (await agent.run("thanks", thread=thread)).text == "You said: thanks"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 4])
async def test_reads_the_run_after_a_cut_and_sends_nothing_twice(
    agent: Agent, server: StrictAssistants, *, cut: int, streams: bool
) -> None:
    """Also if the connection is cut before the first byte: the run is found by the id of its message."""
    thread = await agent.get_remote_thread()
    server.cut = cut
    if streams:
        async with agent.run("hello there", thread=thread, stream=True) as updates:
            shown = "".join([update.text async for update in updates if update.type == "text"])
    else:
        shown = (await agent.run("hello there", thread=thread)).text
    assert shown == "You said: hello there"
    assert await texts(thread) == ["user: hello there", "assistant: You said: hello there"]
    assert len(server.posted("/runs")) == 1
    requests = [await thread.request(at) for at in await calls_of(thread)]
    assert [sorted(request.body) for request in requests][1:] == [["after", "run_id"]]
    assert [request.verified for request in requests] == [cut > 0, True]  # whether the first was sent is not known


async def test_records_a_late_answer_before_it_sends_the_next_message(agent: Agent, server: StrictAssistants) -> None:
    """An answer that came after its run had failed is not taken for the answer to the next message."""
    thread = await agent.get_remote_thread()
    await agent.run("hello", thread=thread)
    impatient = Agent(agent.client, engine=agent.engine, name="Echo", retries=0)
    for cut, text in ((0, "first"), (2, "second")):
        server.cut = cut
        with pytest.raises(ModelError):
            await impatient.run(text, thread=thread)
        response = await agent.run(f"after the {text}", thread=thread)
        assert response.text == f"You said: after the {text}"
        assert [each.text for each in response.messages] == [f"You said: {text}", f"You said: after the {text}"]
    assert sorted(await texts(thread)) == sorted(server.texts((await bound_to(thread))[0][0]))
    assert len(server.posted("/runs")) == 5


async def test_waits_for_the_late_answer_of_a_run_that_works(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    impatient = Agent(agent.client, engine=agent.engine, name="Echo", retries=0)
    server.works = True
    with pytest.raises(ModelStreamError):
        await impatient.run("slow", thread=thread)
    (_, (_, run_id)) = await bound_to(thread)
    assert run_id is not None
    asking = asyncio.create_task(agent.run("next", thread=thread))
    while not any(path.endswith(run_id) for _, path, _ in server.requests):  # noqa: ASYNC110  # another thread
        await asyncio.sleep(0.01)
    server.release()
    assert (await asking).text == "You said: next"
    assert [each.text for each in await thread.history()] == ["slow", "next", "You said: slow", "You said: next"]


async def test_a_failed_run_is_an_error_and_its_message_is_not_sent_again(
    agent: Agent, server: StrictAssistants
) -> None:
    thread = await agent.get_remote_thread()
    with pytest.raises(RemoteTaskError, match="The kitchen burns"):
        await agent.run("fail now", thread=thread)
    assert (await agent.run("what now", thread=thread)).text == "You said: what now"
    assert len(server.posted("/runs")) == 2
    server.cut = 1
    with pytest.raises(RemoteTaskError, match="The kitchen burns"):
        await agent.run("fail again", thread=thread)
    impatient = Agent(agent.client, engine=agent.engine, name="Echo", retries=0)
    server.cut = 1
    with pytest.raises(ModelStreamError):
        await impatient.run("fail unseen", thread=thread)
    assert (await agent.run("and now", thread=thread)).text == "You said: and now"
    said = [text for text in server.texts((await bound_to(thread))[0][0]) if "fail" in text]
    assert said == ["user: fail now", "user: fail again", "user: fail unseen"]


async def test_a_run_that_waits_for_abandoned_calls_is_cancelled(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    waiting = await agent.run("look up order 7", thread=thread, tools=[tool(look_up, approval="always")])
    assert len(waiting.approvals) == 1
    response = await agent.run("never mind", thread=thread, abandon_run=True)
    assert response.text == "You said: never mind"
    (first, second) = server.runs[(await bound_to(thread))[0][0]]
    assert (first["status"], second["status"]) == ("cancelled", "completed")


async def test_cancelling_a_run_cancels_it_at_the_service(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    async with agent.run("hello to you", thread=thread, stream=True) as updates:
        async for _ in updates:
            break
    assert any(path.endswith("/cancel") for _, path, _ in server.requests)


async def test_a_killed_process_is_continued_and_sends_nothing_twice(server: StrictAssistants, tmp_path: Path) -> None:
    """The process is killed when the service has its message, and before the log has the run."""
    script = f"""
import asyncio, os, signal
from clew import AssistantsClient, Agent, Engine
from clew.infrastructure.plain_connection import PlainHttp

send = PlainHttp.send

async def killed(self, path, content, *more, **options):
    response = await send(self, path, content, *more, **options)
    if path.endswith("/runs"):
        os.kill(os.getpid(), signal.SIGKILL)
    return response

PlainHttp.send = killed

async def main():
    async with Engine.open("sqlite:///{tmp_path}/clew.db") as engine:
        agent = Agent(AssistantsClient("asst_1", base_url="{server.url}", api_key="{KEY}"), engine=engine, id="echo")
        thread = await agent.get_remote_thread()
        print(thread.id, flush=True)
        await agent.run("before a kill", thread=thread)

asyncio.run(main())
"""
    process = subprocess.run(  # noqa: ASYNC221  # it is killed
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
    )
    later = 60_000_000  # microseconds: the lease of the killed process is over
    async with Engine.open(f"sqlite:///{tmp_path}/clew.db", embedded=False, now=lambda: clock.now() + later) as engine:
        agent = Agent(client(server), engine=engine, id="echo")
        thread = await agent.thread(process.stdout.strip())
        assert (await agent.continue_run(thread)).text == "You said: before a kill"
        assert await texts(thread) == ["user: before a kill", "assistant: You said: before a kill"]
    assert len(server.posted("/runs")) == 1


async def test_a_message_that_did_not_arrive_is_sent_again(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    server.busy = 1
    assert (await agent.run("hello", thread=thread)).text == "You said: hello"
    assert server.texts((await bound_to(thread))[0][0]) == ["user: hello", "assistant: You said: hello"]


async def test_reads_and_deletes_the_thread_and_offers_a_local_fork(agent: Agent, server: StrictAssistants) -> None:
    thread = await agent.get_remote_thread()
    await agent.run("hello", thread=thread)
    await agent.run("again", thread=thread)
    (id_, _), *_ = await bound_to(thread)
    held = await thread.service_history()
    assert [each.text for each in held] == ["hello", "You said: hello", "again", "You said: again"]
    with pytest.raises(ServiceCannotForkError, match="local"):
        await thread.fork()

    def count(body: Any) -> str:
        return str(len(body["messages"]))

    local = Agent(ScriptedChatClient(count), engine=agent.engine)
    assert (await local.run("Continue", thread=await thread.fork(kind="local"))).text == "5"
    read = await agent.get_remote_thread(id_, read_history=True)
    assert (await agent.run("more", thread=read)).text == "You said: more"
    assert len(server.posted("/runs")[-1]["additional_messages"]) == 1
    await thread.delete(service=True)
    assert id_ not in server.threads


async def test_context_goes_into_the_instructions_and_other_speakers_are_named(
    agent: Agent, server: StrictAssistants
) -> None:
    kind = Agent(agent.client, engine=agent.engine, name="Echo", instructions="Be kind.")
    thread = await kind.get_remote_thread()
    await kind.run([Message.user("hello", author="Zoë")], thread=thread)
    (body,) = server.posted("/runs")
    assert body["additional_instructions"] == "Be kind."
    assert server.texts((await bound_to(thread))[0][0])[0] == "user: Zoë: hello"


async def test_takes_turns_in_a_chat(agent: Agent) -> None:
    def heard(body: Any) -> str:
        return f"heard {body['messages'][-1]['content']}"

    assert isinstance(agent.engine, Engine)
    other = Agent(ScriptedChatClient(heard), id="b", name="Bo")
    chat = await agent.engine.start_chat([agent, other], max_turns=3)
    response = await chat.run("hello all", actor="user:1")
    assert [each.text for each in response.messages][:2] == ["You said: hello all", "heard You said: hello all"]


async def test_sends_the_version_of_the_api_and_a_new_token_each_time(server: StrictAssistants, tmp_path: Path) -> None:
    tokens = iter(f"token-{number:08d}" for number in range(9))
    azure = AssistantsClient("asst_1", base_url=server.url, api_key=lambda: next(tokens), api_version="v1")
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        agent = Agent(azure, engine=engine)
        assert (await agent.run("hello", thread=await agent.get_remote_thread())).text == "You said: hello"
    assert [headers["authorization"] for headers in server.headers] == [
        "Bearer token-00000000",
        "Bearer token-00000001",
    ]


async def test_refuses_what_the_wire_cannot_send(agent: Agent, server: StrictAssistants) -> None:
    with pytest.raises(AgentConfigurationError, match="assistant_id"):
        client(server, options={"assistant_id": "other"})
    with pytest.raises(AgentConfigurationError, match="base_url="):
        AssistantsClient("asst_1", base_url="https://a.example/?api-version=v1", api_key=KEY)
    with pytest.raises(ModelRequestError, match="No thread found"):
        await agent.run("hello", thread=await agent.get_remote_thread("thread_of_nobody"))
