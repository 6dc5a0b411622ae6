"""Threads that a host finds by its own ids, in any process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.run_checks import events_of
from tests.agents.turns import Child, Gate, Pipe, taking_turns, types_of

from clew import Agent, Engine, ScriptedChatClient, ThreadStore, tool
from clew.domain.context.provider import ContextProvider, ProviderContext
from clew.domain.messages import Message
from clew.domain.streams import check_id
from clew.errors import InvalidNameError, ThreadDeletedError
from clew.hosted_threads import thread_id_of
from clew.infrastructure.scripted_client import call

ODD = ["", " ", "a/b", "Größe", "\x00", "\ud800", "\ud83d\ude00", "\U0001f600", "x" * 200, "x" * 201, "y" * 100_000]


class RecordingProvider(ContextProvider):
    """Records its lifecycle hooks, in order."""

    def __init__(self) -> None:
        self.recorded: list[str] = []

    async def on_thread_created(self, ctx: ProviderContext, input: Sequence[Message]) -> None:  # noqa: ARG002  # the port's parameters
        self.recorded.append(f"created {ctx.thread.id}")

    async def on_suspend(self, ctx: ProviderContext) -> None:
        self.recorded.append(f"suspended {ctx.thread.id}")

    async def on_resume(self, ctx: ProviderContext) -> None:
        self.recorded.append(f"resumed {ctx.thread.id}")


def agent_of(engine: Engine, **more: Any) -> Agent:
    return Agent(ScriptedChatClient("Hello.", loop=True), engine=engine, name="Host", **more)


def test_a_thread_is_suspended_between_two_requests(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            provider = RecordingProvider()
            store = ThreadStore(engine, agent_of(engine, context_providers=[provider]))
            for number in (1, 2, 3):
                thread = await store.get("customer-7")
                assert (thread.id, await thread.status) == ("customer-7", "active")
                await thread.run("Hello")
                await store.save(thread)
                assert await thread.status == "suspended"
                assert len(await thread.history()) == 2 * number
            expected = ["created", "suspended", *["resumed", "suspended"] * 2]
            assert provider.recorded == [f"{each} customer-7" for each in expected]

    asyncio.run(host())


def test_repeating_get_and_save_records_nothing(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            store = ThreadStore(engine)
            first, again = await store.get("a"), await store.get("a")
            assert types_of(await events_of(first)) == ["thread-started"]
            assert again.id == first.id
            for _ in range(2):
                await store.save(first)
            for _ in range(2):
                await store.get("a")
            assert types_of(await events_of(first)) == ["thread-started", "thread-suspended", "thread-resumed"]

    asyncio.run(host())


def test_without_save_nothing_is_lost(url: str) -> None:

    async def request(text: str, *, save: bool) -> list[str]:
        async with Engine.open(url) as engine:
            store = ThreadStore(engine, agent_of(engine))
            thread = await store.get("a")
            await thread.run(text)
            if save:
                await store.save(thread)
            return [each.text for each in await thread.history()]

    asyncio.run(request("One", save=False))
    asyncio.run(request("Two", save=True))
    texts = asyncio.run(request("Three", save=False))
    assert texts[::2] == ["One", "Two", "Three"]


def test_an_ended_thread_stays_ended(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            store = ThreadStore(engine)
            thread = await store.get("a")
            await thread.end()
            await store.save(thread)
            assert await (await store.get("a")).status == "ended"
            await thread.delete()
            with pytest.raises(ThreadDeletedError):
                await store.get("a")
            await store.save(thread)
            assert types_of(await events_of(thread)) == ["thread-started", "thread-ended", "thread-deleted"]

    asyncio.run(host())


def test_a_run_that_waits_for_an_approval_stays_open_while_its_thread_is_suspended(any_url: str) -> None:
    @tool(approval="always")
    def pay(cents: int) -> str:
        """Pay."""
        return f"{cents} paid."

    async def host() -> None:
        async with Engine.open(any_url) as engine:
            client = ScriptedChatClient([call("pay", cents=7), "Paid."])
            store = ThreadStore(engine, Agent(client, engine=engine, tools=[pay]))
            thread = await store.get("a")
            await thread.run("Pay")
            await store.save(thread)
            assert await thread.status == "suspended"
            again = await store.get("a")
            (approval,) = await again.approvals()
            await approval.approve(actor="user:7")
            assert (await again.continue_run()).text == "Paid."

    asyncio.run(host())


def test_another_request_does_not_suspend_a_thread_during_a_run(url: str) -> None:
    async def host() -> None:
        gate = Gate()
        async with Engine.open(url) as engine:
            store = ThreadStore(engine, taking_turns(engine, gate))
            thread = await store.get("a")
            running = asyncio.create_task(thread.run("one"))
            await gate.reached.wait()
            other = await store.get("a")
            await store.save(other)
            assert await other.status == "active"
            gate.opened.set()
            await running
            await store.save(thread)
            assert await thread.status == "suspended"

    asyncio.run(host())


def test_a_run_continues_after_the_changes_of_another_process(url: str) -> None:

    async def host() -> None:
        async with Engine.open(url) as here, Engine.open(url) as there:
            thread = await ThreadStore(here, agent_of(here)).get("t")
            await thread.run("Hello")
            await thread.suspend()
            elsewhere = await ThreadStore(there, agent_of(there)).get("t")
            await elsewhere.run("Hello again")
            async with asyncio.timeout(20):  # a refusal from a stale cache is decided again on the stored thread
                await thread.run("And again", on_conflict="wait")
            assert len(await thread.history()) == 6

    asyncio.run(host())


def test_two_processes_that_get_a_thread_at_the_same_time_get_the_same_one(url: str) -> None:
    async def work(pipe: Pipe) -> None:
        async with Engine.open(url) as engine:
            provider = RecordingProvider()
            store = ThreadStore(engine, agent_of(engine, context_providers=[provider]))
            pipe.say("ready")
            await pipe.hear()
            for number in range(10):
                thread = await store.get(f"shared-{number}")
                await thread.append(Message.user("Here"))
            pipe.say(provider.recorded)

    children = [Child(work) for _ in range(2)]
    for child in children:
        assert child.heard() == ["ready"]
    for child in children:
        child.say("go")
    hooks = [each for child in children for each in child.heard()[0]]
    assert [child.wait() for child in children] == [0, 0]
    assert sorted(hooks) == sorted(f"created shared-{number}" for number in range(10)), "each thread was created once"

    async def check() -> None:
        async with Engine.open(url) as engine:
            for number in range(10):
                thread = await engine.thread(f"shared-{number}")
                assert len(await thread.history()) == 2
                assert types_of(await events_of(thread)) == ["thread-started"]

    asyncio.run(check())


def test_a_new_thread_has_the_kind_that_the_client_supports(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            client = ScriptedChatClient("Hello.", loop=True, thread_kinds=["remote"])
            store = ThreadStore(engine, Agent(client, engine=engine))
            thread = await store.get("a")
            assert thread.kind == "remote"
            await thread.run("Hello")
            await store.save(thread)
            assert (await store.get("a")).kind == "remote"

    asyncio.run(host())


def test_the_actor_is_that_of_the_engine(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            store = ThreadStore(engine.acting_as("user:7"), agent_of(engine))
            thread = await store.get("a")
            await thread.run("Hello")
            await store.save(thread)
            by = {(event.actor, event.on_behalf_of) for event in await events_of(thread)}
            assert by == {("user:7", None), ("Host", "user:7")}

    asyncio.run(host())


def test_any_host_id_is_accepted(any_url: str) -> None:
    async def host() -> None:
        async with Engine.open(any_url) as engine:
            store = ThreadStore(engine)
            for number, id_ in enumerate(ODD):
                await (await store.get(id_)).append(Message.user(str(number)))
            for number, id_ in enumerate(ODD):
                assert [each.text for each in await (await store.get(id_)).history()] == [str(number)]

    asyncio.run(host())


@given(st.lists(st.text(st.characters(), max_size=3) | st.sampled_from(ODD), min_size=2, unique=True))
def test_different_host_ids_have_different_threads(ids: list[str]) -> None:
    thread_ids = [thread_id_of(id_) for id_ in ids]
    thread_ids += [thread_id_of(id_) for id_ in thread_ids if id_ not in ids]
    assert len(set(thread_ids)) == len(thread_ids)
    for id_ in thread_ids:
        check_id(id_, "thread id")


def test_a_valid_host_id_is_the_thread_id() -> None:
    assert thread_id_of("user:42/chat") == "user:42/chat"
    assert thread_id_of("") == "host-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for wrong in (7, None, b"a", ("a", "b")):
        with pytest.raises(InvalidNameError, match="is not a string"):
            thread_id_of(wrong)  # type: ignore[arg-type]  # the test passes a wrong type
