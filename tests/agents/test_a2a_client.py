"""Remote agents over A2A: runs against the server of the package a2a-sdk, in another process, and cut connections."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.servers.raw_server import CUT, RawServer, stream, whole
from tests.servers.server_process import ServerProcess

from clew import A2AClient, Agent, ChatSerializer, Engine, GroupChat, ScriptedChatClient
from clew.domain.models.client import TokenUsage
from clew.errors import (
    AgentConfigurationError,
    ModelRequestError,
    ModelStreamError,
    RemoteTaskError,
    ServiceCannotForkError,
)
from clew.events import ModelCalled, ServiceThreadBound
from clew.infrastructure import clock
from clew.testing import HttpModelService, check_model_client

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


class Remote(NamedTuple):
    """The agent of the SDK, and the messages that reached it."""

    address: str
    port: int
    received: Path

    def messages(self, text: str) -> list[str]:
        """The ids of the messages with a text."""
        lines = self.received.read_text().splitlines()
        return [line.split(" ")[0] for line in lines if f" {text!r}" in line]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    received = tmp_path_factory.mktemp("a2a") / "received"
    received.touch()
    command = [sys.executable, "-m", "tests.servers.a2a_agent", str(received)]
    with ServerProcess(command, ready=r"http://127\.0\.0\.1:(\d+)", folder=ROOT) as server:
        yield Remote(f"http://127.0.0.1:{server.port}", server.port, received)


@pytest.fixture
async def agent(remote: Remote, tmp_path: Path) -> AsyncIterator[Agent]:
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        yield Agent(await A2AClient.from_card(remote.address), engine=engine, name="Echo")


def text_of(result: str, **more: Any) -> Any:
    return {"jsonrpc": "2.0", "id": "1", "result": {result: {"taskId": "t-1", "contextId": "c-1", **more}}}


PIECES = [
    text_of("artifactUpdate", artifact={"artifactId": "a", "parts": [{"text": "Hello "}]}),
    text_of("artifactUpdate", artifact={"artifactId": "a", "parts": [{"text": "there 🧶"}]}, append=True),
    text_of("statusUpdate", status={"state": "TASK_STATE_COMPLETED"}),
]
TASK = {
    "id": "t-1",
    "contextId": "c-1",
    "artifacts": [{"artifactId": "a", "parts": [{"text": "Hello "}, {"text": "there 🧶"}]}],
    "status": {"state": "TASK_STATE_COMPLETED"},
}


async def test_keeps_the_contract_of_model_clients() -> None:
    whole_answer: Any = {"jsonrpc": "2.0", "id": "1", "result": {"task": TASK}}
    with HttpModelService(A2AClient, whole=whole_answer, pieces=PIECES) as service:
        await check_model_client(service)


async def test_a_thread_is_a_context_and_each_answer_a_task(agent: Agent) -> None:
    thread = await agent.get_remote_thread()
    first = await agent.run("hello", thread=thread)
    second = await agent.run("status again", thread=thread)
    assert (first.text, second.text) == ("You said: hello", "Only in the status: status again")

    bound = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
    calls = [event async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert len({each.id for each in bound}) == 1
    assert len({each.task for each in bound}) == 2
    for call in calls:
        assert (await thread.request(call.version)).verified
    request = (await thread.request(calls[1].version)).body
    params: Any = request["params"]
    assert params["message"]["contextId"] == bound[0].id
    assert params["message"]["parts"] == [{"text": "status again"}]
    assert "taskId" not in params["message"]
    assert second.usage == TokenUsage()


async def test_streams_the_pieces_of_an_artifact(agent: Agent) -> None:
    async with agent.run("hello to you", thread=await agent.get_remote_thread(), stream=True) as stream_:
        texts = [update.text async for update in stream_ if update.type == "text"]
        response = await stream_.get_final_response()
    assert texts == ["You", " said:", " hello", " to", " you"]
    assert response.text == "".join(texts)


async def test_reads_data_and_files(agent: Agent) -> None:
    response = await agent.run("data", thread=await agent.get_remote_thread())
    message: Any = response.messages[-1].message
    data, file = message.contents
    assert data.value == {"data": {"count": 1.0}}  # the server's package has no other numbers
    assert (file.uri, file.media_type) == ("data:text/plain;base64,aGk=", "text/plain")
    (patch,) = message.native.patch
    assert patch["value"]["artifacts"][0]["parts"][1]["filename"] == "a.txt"


async def test_a_task_that_needs_input_waits_for_an_approval(agent: Agent, remote: Remote) -> None:
    thread = await agent.get_remote_thread()
    asked = await agent.run("book", thread=thread)
    (approval,) = asked.approvals
    assert (asked.text, asked.finish_reason, approval.call.name) == ("Which day?", "input-required", "input-required")

    await approval.approve(reason="Tuesday")
    done = await agent.continue_run(thread)
    assert (done.text, done.approvals) == ("You said: Tuesday", [])
    bound = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
    assert {each.task for each in bound} == {approval.call.call_id}
    assert len(remote.messages("Tuesday")) == 1


async def test_a_next_message_answers_a_task_that_needs_input(agent: Agent) -> None:
    thread = await agent.get_remote_thread()
    asked = await agent.run("book", thread=thread)
    done = await agent.run("Monday", thread=thread, abandon_run=True)
    assert done.text == "You said: Monday"
    bound = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
    assert {each.task for each in bound} == {asked.approvals[0].call.call_id}


async def test_a_failed_task_is_an_error_and_its_message_is_not_sent_again(agent: Agent, remote: Remote) -> None:
    thread = await agent.get_remote_thread()
    with pytest.raises(RemoteTaskError, match="The kitchen burns"):
        await agent.run("fail now", thread=thread)
    assert (await agent.run("what now", thread=thread)).text == "You said: what now"
    assert len(remote.messages("fail now")) == 1


async def test_cancelling_a_run_cancels_its_task(agent: Agent, remote: Remote) -> None:
    thread = await agent.get_remote_thread()
    async with agent.run("hang on", thread=thread, stream=True) as updates:
        async for _ in updates:
            break
    (bound,) = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
    assert f"cancel {bound.task}" in remote.received.read_text()
    assert (await agent.run("and now", thread=thread)).text == "You said: and now"


@asynccontextmanager
async def cutting(port: int, after: bytes, times: int = 1) -> AsyncIterator[int]:
    """A proxy that cuts the connection in whose reply some bytes appear, this many times; gives its port."""
    left = times
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]  # it is one
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)

        async def forward() -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    their_writer.write(data)

        sending = asyncio.create_task(forward())
        try:
            with suppress(ConnectionError):
                while data := await their_reader.read(65536):
                    if left and after in data:
                        left -= 1
                        break
                    writer.write(data)
        finally:
            sending.cancel()
            writer.transport.abort()
            their_writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), their_writer.wait_closed(), sending, return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("streams", [False, True])
async def test_reads_the_task_after_a_cut_and_sends_nothing_twice(
    agent: Agent, remote: Remote, *, streams: bool
) -> None:
    text = f"slow words to cut {streams}"
    async with cutting(remote.port, b'" words"') as port:
        cut = Agent(A2AClient(f"http://127.0.0.1:{port}/rpc"), engine=agent.engine)
        thread = await cut.get_remote_thread()
        shown = []
        if streams:
            async with cut.run(text, thread=thread, stream=True) as updates:
                shown = [update.text async for update in updates if update.type == "text"]
        else:
            shown = [(await cut.run(text, thread=thread)).text]
    assert "".join(shown) == f"You said: {text}"
    assert [each.text for each in await thread.history()] == [text, f"You said: {text}"]
    assert len(remote.messages(text)) == 1
    calls = [event async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert [(await thread.request(call.version)).body["method"] for call in calls] == [
        "SendStreamingMessage",
        "GetTask",
    ]
    assert all([(await thread.request(call.version)).verified for call in calls])


async def test_a_killed_process_is_continued_and_sends_nothing_twice(remote: Remote, tmp_path: Path) -> None:
    script = f"""
import asyncio
from clew import A2AClient, Agent, Engine

async def main():
    async with Engine.open("sqlite:///{tmp_path}/clew.db") as engine:
        agent = Agent(A2AClient("{remote.address}/rpc"), engine=engine, id="echo")
        thread = await agent.get_remote_thread()
        async with agent.run("slow words before a kill", thread=thread, stream=True) as updates:
            async for update in updates:
                print(thread.id, flush=True)

asyncio.run(main())
"""
    process = subprocess.Popen(  # noqa: ASYNC220  # it is killed
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    thread_id = process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()
    later = 60_000_000  # microseconds: the lease of the killed process is over
    async with Engine.open(f"sqlite:///{tmp_path}/clew.db", embedded=False, now=lambda: clock.now() + later) as engine:
        agent = Agent(A2AClient(f"{remote.address}/rpc"), engine=engine, id="echo")
        thread = await agent.thread(thread_id)
        response = await agent.continue_run(thread)
        assert response.text == "You said: slow words before a kill"
        assert [each.role for each in await thread.history()] == ["user", "assistant"]
    assert len(remote.messages("slow words before a kill")) == 1


async def test_a_message_that_may_have_arrived_is_not_sent_again_by_itself(tmp_path: Path) -> None:
    with RawServer() as server:
        server.add_replies(stream(end=CUT), stream(*PIECES, done=False))
        server.replies[0] = type(server.replies[0])((CUT,))
        async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
            agent = Agent(A2AClient(f"http://127.0.0.1:{server.port}"), engine=engine)
            thread = await agent.get_remote_thread()
            with pytest.raises(ModelStreamError, match="may have received"):
                await agent.run("hello", thread=thread)
            assert len(server.requests) == 1
            assert (await agent.run(thread=thread)).text == "Hello there 🧶"
        first, second = (request.json()["params"]["message"]["parts"] for request in server.requests)
        assert first == second == [{"text": "hello"}]


async def test_reads_a_task_that_works_until_it_answers(tmp_path: Path) -> None:
    working = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
    with RawServer() as server:
        server.add_replies(
            stream({"jsonrpc": "2.0", "id": "1", "result": {"task": working}}, done=False),  # it ends early
            whole({"jsonrpc": "2.0", "id": "1", "error": {"code": -32603, "message": "busy"}}),
            whole({"jsonrpc": "2.0", "id": "1", "result": {**working, "artifacts": TASK["artifacts"]}}),
            whole({"jsonrpc": "2.0", "id": "1", "error": {"code": -32004, "message": "no streams"}}),
            whole({"jsonrpc": "2.0", "id": "1", "result": TASK}),
        )
        async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
            agent = Agent(A2AClient(f"http://127.0.0.1:{server.port}"), engine=engine)
            async with agent.run("hello", thread=await agent.get_remote_thread(), stream=True) as updates:
                texts = [update.text async for update in updates if update.type == "text"]
            assert "".join(texts) == "Hello there 🧶"
    methods = [request.json()["method"] for request in server.requests]
    assert methods == ["SendStreamingMessage", "GetTask", "GetTask", "SubscribeToTask", "GetTask"]


async def test_a_task_that_the_agent_has_lost_is_an_error(tmp_path: Path) -> None:
    working = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
    with RawServer() as server:
        server.add_replies(
            stream({"jsonrpc": "2.0", "id": "1", "result": {"task": working}}, end=CUT),
            whole({"jsonrpc": "2.0", "id": "1", "error": {"code": -32001, "message": "Task not found"}}),
        )
        async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
            agent = Agent(A2AClient(f"http://127.0.0.1:{server.port}"), engine=engine)
            thread = await agent.get_remote_thread()
            with pytest.raises(RemoteTaskError, match="does not have the task") as raised:
                await agent.run("hello", thread=thread)
            assert raised.value.sent
            calls = [event async for event in thread.events() if isinstance(event.data, ModelCalled)]
            assert [(await thread.request(call.version)).verified for call in calls] == [True, True]
        assert len(server.requests) == 2


async def test_late_and_repeated_updates_add_nothing(tmp_path: Path) -> None:
    late = text_of("artifactUpdate", artifact={"artifactId": "b", "parts": [{"text": "late"}]})
    with RawServer() as server:
        server.add_replies(stream(*PIECES, PIECES[-1], late, done=False))
        async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
            agent = Agent(A2AClient(f"http://127.0.0.1:{server.port}"), engine=engine)
            assert (await agent.run("hello", thread=await agent.get_remote_thread())).text == "Hello there 🧶"


def count(body: Any) -> str:
    """How many messages a model receives."""
    return str(len(body["messages"]))


async def test_a_context_cannot_be_forked_and_a_local_fork_is_offered(agent: Agent) -> None:
    thread = await agent.get_remote_thread()
    await agent.run("hello", thread=thread)
    with pytest.raises(ServiceCannotForkError, match="local"):
        await thread.fork()
    local = Agent(ScriptedChatClient(count), engine=agent.engine)
    assert (await local.run("Go on", thread=await thread.fork(kind="local"))).text == "3"
    with pytest.raises(AgentConfigurationError, match=r"no service_history\(\)"):
        await thread.service_history()


async def test_continues_a_context_that_another_program_began(agent: Agent) -> None:
    thread = await agent.get_remote_thread("ctx-of-others")
    await agent.run("hello", thread=thread)
    bound = {event.data.id async for event in thread.events() if isinstance(event.data, ServiceThreadBound)}
    assert bound == {"ctx-of-others"}


async def test_refuses_tools_and_an_error_of_the_server_is_not_retried(agent: Agent, remote: Remote) -> None:
    def look_up(order: int) -> str:
        """Look up an order."""
        return str(order)

    thread = await agent.get_remote_thread()
    with pytest.raises(AgentConfigurationError, match="its own tools"):
        await agent.run("hello tool", thread=thread, tools=[look_up])
    with pytest.raises(ModelRequestError):
        await agent.run("raise", thread=await agent.get_remote_thread())
    assert remote.messages("hello tool") == []
    assert len(remote.messages("raise")) == 1


async def test_takes_turns_in_a_chat_and_keeps_its_context_in_a_document(agent: Agent, tmp_path: Path) -> None:
    def heard(body: Any) -> str:
        return f"heard {body['messages'][-1]['content']}"

    other, engine = Agent(ScriptedChatClient(heard), id="b", name="Bo"), agent.engine
    assert isinstance(engine, Engine)
    chat = await engine.start_chat([agent, other], max_turns=2)
    first = await chat.run("hello all", actor="user:1")
    assert [each.text for each in first.messages] == ["You said: hello all", "heard You said: hello all"]
    before, text = await contexts_of(chat), io.StringIO()
    await ChatSerializer.serialize(chat, text)
    async with Engine.open(f"sqlite:///{tmp_path / 'other.db'}") as store:
        document = await ChatSerializer.deserialize(io.StringIO(text.getvalue()))
        local = Agent(ScriptedChatClient(heard), engine=store, id="b", name="Bo")
        restored = await store.start_chat([local], max_turns=1)
        assert (await document.restore(restored)).missing == [agent.id]
        await restored.add(Agent(agent.client, engine=store, id=agent.id, name="Echo"))
        response = await restored.run("one more", next_speaker=agent.id)
        assert response.text.startswith("You said: Bo: heard"), "the agent has heard the rest"
        assert await contexts_of(restored) == before


async def test_a_chat_that_goes_back_begins_another_context(agent: Agent) -> None:
    engine = agent.engine
    assert isinstance(engine, Engine)
    chat = await engine.start_chat([agent], max_turns=1)
    await chat.run("hello")
    await chat.thread.checkpoint("hello")
    await chat.run("something else")
    before = await contexts_of(chat)
    await chat.thread.rewind("hello")
    fork = await chat.fork()
    for each in (chat, fork):
        response = await each.run("and now")
        assert "hello" in response.text, "the new context hears the chat"
        assert "something else" not in response.text
        assert not await contexts_of(each) & before


async def contexts_of(chat: GroupChat) -> set[str]:
    """The ids of the contexts that the channels of a chat have had."""
    channels = [each.thread for each in chat.participants]
    events = [event for channel in channels for event in [each async for each in channel.events()]]
    return {event.data.id for event in events if isinstance(event.data, ServiceThreadBound)}


async def test_sends_headers_to_no_other_server() -> None:
    card = {
        "name": "Far",
        "supportedInterfaces": [
            {"url": "http://other.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
    }
    with RawServer() as server:
        server.add_replies(whole(card), whole({"supportedInterfaces": []}))
        address = f"http://127.0.0.1:{server.port}"
        with pytest.raises(AgentConfigurationError, match="another server"):
            await A2AClient.from_card(address, headers={"Authorization": "Bearer abcdefgh"})
        with pytest.raises(AgentConfigurationError, match="but none"):
            await A2AClient.from_card(address)
