"""Mem0 as an agent's memory: searched before each run, extended after it, not needed to read old requests."""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.acceptance.programs import requests, turns_in
from tests.servers.mem0_server import Mem0Server, mem0_server

from clew import Agent, Engine, Mem0Memory, ScriptedChatClient
from clew.errors import ContextProviderError, MemoryServiceError, ScopeError

KEY = "sk-canary"
INSTRUCTIONS = "You are a helpful assistant with memory."


def assistant(engine: Engine, memory: Any) -> Agent:
    client = ScriptedChatClient(["Noted.", "A soup.", "Another."], loop=True)
    return Agent(client=client, engine=engine, instructions=INSTRUCTIONS, context_providers=memory)


def memory_of(host: str, **more: Any) -> Mem0Memory:
    return Mem0Memory(**{"api_key": KEY, "host": host, "user_id": "user_123", "app_id": "my_app", **more})


async def events(thread: Any, type_: str | None = None) -> list[Any]:
    return [event async for event in thread.events() if type_ in {None, event.type}]


def leaks(folder: Path) -> list[Path]:
    """Return the files that contain the key."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_memory_of_one_thread_is_available_on_the_next(
    tmp_path: Path, mem0: Mem0Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = assistant(engine, memory_of(mem0.url))
            first = await agent.run("I only eat vegetables.")
            second = await agent.run("What should I cook?")
            assert first.thread.id != second.thread.id
            assert [each.path.split("/")[-2] for each in mem0.requests] == ["ping", "search", "add", "search", "add"]
            [one] = await requests(first.thread)
            [two] = await requests(second.thread)
            assert turns_in(one) == [("system", INSTRUCTIONS), ("user", "I only eat vegetables.")]
            (_, system), user = turns_in(two)
            assert str(system).startswith(INSTRUCTIONS)
            assert "I only eat vegetables." in str(system)
            assert user == ("user", "What should I cook?")
            [recalled] = await events(second.thread, "context-provided")
            assert recalled.data.provider == "mem0"
            assert "I only eat vegetables." in recalled.data.instructions
            assert [each.text for each in (await second.thread.history()).messages] == [
                "What should I cook?",
                "A soup.",
            ]
            assert KEY not in str([await events(thread) for thread in (first.thread, second.thread)])

    asyncio.run(main())
    assert leaks(tmp_path) == []
    assert KEY not in caplog.text


def test_requests_are_rebuilt_without_mem0(tmp_path: Path, mem0: Mem0Server) -> None:
    async def run() -> tuple[str, str]:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = assistant(engine, memory_of(mem0.url))
            await agent.run("I only eat vegetables.")
            thread = (await agent.run("What should I cook?")).thread
            return thread.id, str([turns_in(request) for request in await requests(thread)])

    async def read_again(thread_id: str) -> str:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            return str([turns_in(request) for request in await requests(await engine.thread(thread_id))])

    thread_id, sent = asyncio.run(run())
    count = len(mem0.requests)
    assert "I only eat vegetables." in sent
    assert asyncio.run(read_again(thread_id)) == sent
    assert len(mem0.requests) == count


def test_an_agent_does_not_get_the_memory_of_another_user(mem0: Mem0Server) -> None:
    async def main() -> None:
        async with Engine.open("memory:") as engine:
            await assistant(engine, memory_of(mem0.url)).run("I only eat vegetables.")
            for other in ({"user_id": "user_7"}, {"app_id": "other_app"}):
                response = await assistant(engine, memory_of(mem0.url, **other)).run("What should I cook?")
                assert await events(response.thread, "context-provided") == []
            own = await assistant(engine, memory_of(mem0.url)).run("What should I cook?")
            assert await events(own.thread, "context-provided")

    asyncio.run(main())


@pytest.mark.parametrize("trouble", ["refusing", "failing", "refused key", "stalling"])
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_run_fails_or_continues_without_mem0_as_configured(
    tmp_path: Path,
    trouble: str,
    policy: Literal["fail", "continue"],
    refusing: str,
    mem0: Mem0Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    reply = {"failing": (500, {"detail": KEY}), "refused key": (401, {"detail": KEY}), "stalling": None}
    if trouble in reply:
        mem0.replies.extend([reply[trouble]] * 2)
    host = refusing if trouble == "refusing" else mem0.url
    memory = memory_of(host, on_failure=policy, timeout=0.2 if trouble == "stalling" else 30)

    async def main() -> list[Any]:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = assistant(engine, memory)
            thread = await agent.get_local_thread()
            if policy == "continue":
                response = await agent.run("I only eat vegetables.", thread=thread)
                assert response.messages[-1].text == "Noted."
            else:
                with pytest.raises(ContextProviderError) as raised:
                    await agent.run("I only eat vegetables.", thread=thread)
                assert isinstance(raised.value.__cause__, MemoryServiceError)
                assert KEY not in "".join(traceback.format_exception(raised.value))
            assert (await thread.history()).messages[0].text == "I only eat vegetables."
            return await events(thread)

    log = asyncio.run(main())
    failed = [(event.data.hook, event.data.error.kind) for event in log if event.type == "context-failed"]
    if policy == "continue":
        assert failed == [("invoking", "MemoryServiceError"), ("invoked", "MemoryServiceError")]
        assert log[-1].type == "run-completed"
    else:
        assert failed == [("invoking", "MemoryServiceError")]
        assert log[-1].type == "run-failed"
        assert "model-called" not in [event.type for event in log]
    assert KEY not in str(log)
    assert leaks(tmp_path) == []
    assert KEY not in caplog.text


def test_a_server_that_stops_between_the_runs_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            with mem0_server(KEY) as server:
                agent = assistant(engine, memory_of(server.url, on_failure="continue"))
                first = await agent.run("I only eat vegetables.")
            second = await agent.run("What should I cook?", thread=first.thread)
            assert len(await events(second.thread, "context-failed")) == 2

    asyncio.run(main())


def test_a_memory_without_a_scope_is_refused() -> None:
    with pytest.raises(ScopeError):
        Mem0Memory(api_key=KEY)
