"""An agent of Clew that is served over A2A: the client of the package a2a-sdk asks it, and its process is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from tests.servers.server_process import ServerProcess

from clew import A2AClient, Agent, Engine

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


def served(path: Path, port: int = 0, later: int = 0) -> ServerProcess:
    command = [sys.executable, "-m", "tests.servers.served_agent", str(path), str(port), str(later)]
    return ServerProcess(command, ready=r"http://127\.0\.0\.1:(\d+)", folder=ROOT)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served") / "clew.db") as server:
        yield f"http://127.0.0.1:{server.port}"


@asynccontextmanager
async def caller(address: str, user: str = "user:1", *, streaming: bool = True) -> AsyncIterator[Any]:
    """A client of the SDK."""
    async with httpx.AsyncClient(headers={"x-user": user}, timeout=60) as http:
        yield await create_client(address, ClientConfig(streaming=streaming, httpx_client=http))


def request(text: str, id_: str, *, context: str = "", task: str = "") -> SendMessageRequest:
    parts = [Part(text=text)]
    message = Message(message_id=id_, role=Role.ROLE_USER, parts=parts, context_id=context, task_id=task)
    return SendMessageRequest(message=message)


async def sent(client: Any, *arguments: str, **more: str) -> list[Any]:
    return [update async for update in client.send_message(request(*arguments, **more))]


def words(updates: list[Any]) -> str:
    parts = [part.text for update in updates for part in update.artifact_update.artifact.parts]
    return "".join(parts)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_context_is_a_thread_and_a_task_a_run(address: str, *, streaming: bool) -> None:
    async with caller(address, streaming=streaming) as client:
        first = (await sent(client, "Hello 🧶", f"m1-{streaming}"))[0].task
        updates = await sent(client, "And now?", f"m2-{streaming}", context=first.context_id)
        second = updates[0].task
        got = await client.get_task(GetTaskRequest(id=second.id))
    text = "".join(part.text for part in got.artifacts[0].parts)
    assert (second.context_id, got.status.state) == (first.context_id, TaskState.TASK_STATE_COMPLETED)
    assert text == "You said: And now? (3)"
    assert second.id != first.id
    if streaming:
        assert words(updates) == text
        assert updates[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_repeated_message_begins_one_task(address: str) -> None:
    async with caller(address) as client:
        both = await asyncio.gather(*(sent(client, "Once", "same-id") for _ in range(2)))
        again = await sent(client, "Once", "same-id")
        with pytest.raises(InvalidParamsError, match="messageId"):
            await sent(client, "Twice", "same-id")
    assert {updates[0].task.id for updates in (*both, again)} == {again[0].task.id}
    assert {words(updates) for updates in (*both, again)} == {"You said: Once (1)"}


async def test_an_approval_is_input_required(address: str) -> None:
    async with caller(address) as client:
        updates = await sent(client, "refund, please", "m-refund")
        task, status = updates[0].task, updates[-1].status_update.status
        assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert 'refund {"order": 7}' in status.message.parts[0].text
        with pytest.raises(UnsupportedOperationError, match="not over"):
            await sent(client, "Something else", "m-else", context=task.context_id)
        done = await sent(client, "Yes", "m-yes", context=task.context_id, task=task.id)
        assert words(done).endswith("Done: refunded 7")
        with pytest.raises(UnsupportedOperationError, match="over"):
            await sent(client, "Yes", "m-yes-2", task=task.id)


async def test_a_task_that_waits_can_be_cancelled(address: str) -> None:
    async with caller(address) as client:
        task = (await sent(client, "refund", "m-cancel"))[0].task
        cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED


async def test_an_error_does_not_show_its_text(address: str) -> None:
    async with caller(address) as client:
        updates = await sent(client, "fail", "m-fail")
        got = await client.get_task(GetTaskRequest(id=updates[0].task.id))
    assert got.status.state == TaskState.TASK_STATE_FAILED
    assert "secret" not in str(updates)
    assert "secret" not in str(got)


async def test_nobody_uses_the_threads_of_others(address: str) -> None:
    async with caller(address) as client, caller(address, "user:2") as other:
        task = (await sent(client, "Mine", "m-mine"))[0].task
        with pytest.raises(TaskNotFoundError):
            await other.get_task(GetTaskRequest(id=task.id))
        with pytest.raises(TaskNotFoundError):
            await other.cancel_task(CancelTaskRequest(id=task.id))
        with pytest.raises(InvalidParamsError):
            await sent(other, "Yours", "m-yours", context=task.context_id)
        assert (await sent(other, "Mine", "m-mine"))[0].task.id != task.id  # the same id, of another caller
    async with httpx.AsyncClient() as http:
        assert (await http.post(f"{address}/", json={})).status_code == 401


async def test_refuses_what_is_no_request(address: str) -> None:
    async with httpx.AsyncClient(headers={"x-user": "u"}) as http:

        async def code(body: bytes, **headers: str) -> int:
            reply = (await http.post(f"{address}/", content=body, headers=headers)).json()
            return int(reply["error"]["code"])

        assert await code(b"{") == -32700
        assert await code(b"[]") == -32600
        assert await code(b'{"jsonrpc":"2.0","method":"Nothing","params":{}}') == -32601
        assert await code(b'{"jsonrpc":"2.0","method":"SendMessage","params":{"message":{}}}') == -32602
        assert await code(b'{"jsonrpc":"2.0","method":"ListTasks","params":{}}') == -32004
        assert await code(b"{}", **{"a2a-version": "0.3"}) == -32009


async def test_answers_from_the_log_after_a_kill_and_nothing_is_doubled(tmp_path: Path) -> None:
    with served(tmp_path / "clew.db") as server:
        port = server.port
        async with caller(f"http://127.0.0.1:{port}") as client:
            done = (await sent(client, "First", "m-1"))[0].task
            waiting = (await sent(client, "refund", "m-2"))[0].task
    with served(tmp_path / "clew.db", port) as server:
        async with caller(f"http://127.0.0.1:{port}") as client:
            assert (await sent(client, "First", "m-1"))[0].task.id == done.id
            got = await client.get_task(GetTaskRequest(id=waiting.id))
            assert got.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            answered = await sent(client, "no, too late", "m-3", task=waiting.id)
            assert "too late" in words(answered)
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        assert len([each async for each in engine.threads()]) == 2


async def test_a_run_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    text = "long words " * 40
    with served(tmp_path / "clew.db") as server:
        port = server.port
        async with caller(f"http://127.0.0.1:{port}") as client:
            updates = client.send_message(request(text, "m-long"))
            task = (await anext(updates)).task
            await anext(updates)
    with served(tmp_path / "clew.db", port, later=60_000_000):  # the lease of the killed process is over
        async with caller(f"http://127.0.0.1:{port}") as client:
            rest = [update async for update in client.subscribe(SubscribeToTaskRequest(id=task.id))]
            got = await client.get_task(GetTaskRequest(id=task.id))
    begins = max(
        n for n, update in enumerate(rest) if update.HasField("artifact_update") and not update.artifact_update.append
    )
    answer = "".join(part.text for part in got.artifacts[0].parts)
    assert words(rest[begins:]) == answer
    assert answer.startswith("You said: You said: long words")  # it heard what it had said before the kill
    assert answer.count("(2)") == 1
    assert got.status.state == TaskState.TASK_STATE_COMPLETED


async def test_clews_own_client_talks_to_it(address: str, tmp_path: Path) -> None:
    async with Engine.open(f"sqlite:///{tmp_path / 'caller.db'}") as engine:
        client = await A2AClient.from_card(address, headers={"x-user": "user:9"})
        agent = Agent(client, engine=engine)
        thread = await agent.get_remote_thread()
        assert (await agent.run("Hello", thread=thread)).text == "You said: Hello (1)"
        asked = await agent.run("refund", thread=thread)
        await asked.approvals[0].approve(reason="yes")
        assert (await agent.continue_run(thread)).text.endswith("Done: refunded 7")
