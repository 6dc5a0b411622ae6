"""Authorization in the engine: the function runs off the event loop, and a run reads as its actor."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from io import BytesIO

import pytest
from tests.service.grants import Grants

from clew import Agent, Context, ContextProvider, Engine, Message, ScriptedChatClient, ThreadStore, tool
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.errors import NotAuthorizedError, UnknownThreadError
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
async def engine(url: str, grants: Grants) -> AsyncIterator[Engine]:
    async with Engine.open(url, authorize=grants) as opened:
        yield opened


async def test_the_function_may_block_because_it_runs_in_a_worker_thread() -> None:
    called_in: set[int] = set()

    def authorize(actor: str | None, action: str, thread: str | None) -> bool:
        called_in.add(threading.get_ident())
        return (actor, action, thread) != ("missing", "ever", "this")

    async with Engine.open("memory:", authorize=authorize) as engine:
        thread = await engine.start_thread(messages=[Message.user("Hello")])
        await thread.history()
        assert len([each async for each in engine.threads()]) == len(await engine.search("Hello")) == 1
        assert [line async for line in engine.export_events()]
        await engine.import_events(BytesIO(b"".join([line async for line in engine.export_events()])))
        subscription = engine.subscribe()
        assert await subscription.wait(0) is not None
        assert await thread.version == 2
    assert called_in
    assert threading.get_ident() not in called_in


async def test_an_unreadable_thread_reveals_nothing(engine: Engine, grants: Grants) -> None:
    theirs = await engine.acting_as("operator").start_thread(thread_id="theirs", messages=[Message.user("Hello")])
    ada = engine.acting_as("ada")
    other = ada._thread("theirs", "local")
    for refused in (other.history(), other.version, other.status):
        with pytest.raises(NotAuthorizedError):
            await refused
    assert await theirs.version == 2
    grants.threads["ada"] = {"theirs"}
    assert (await other.version, await other.status) == (2, "active")


async def test_an_agent_runs_only_on_threads_that_its_actor_may_read(engine: Engine, grants: Grants) -> None:
    await engine.acting_as("operator").start_thread(thread_id="mine")
    grants.threads["ada"] = {"mine"}
    ada = engine.acting_as("ada")
    agent = Agent(ScriptedChatClient(lambda _: "Hello."), engine=ada)
    thread = await agent.thread("mine")
    response = await thread.run("Hi")
    assert (response.text, await thread.version) == ("Hello.", (await thread.summary()).version)
    by = {(event.actor, event.on_behalf_of) async for event in thread.events()}
    assert by == {("operator", None), ("ada", None), ("agent", "ada")}
    branch = await thread.branch()
    grants.threads["ada"] = set()
    before = await (await engine.acting_as("operator").thread("mine")).version
    refusals = (
        thread.run("Hi"),
        agent.run("Hi", thread=thread),
        agent.run("Hi", thread=thread, fork=True),
        thread.runs.control(),  # this process has cached it
        branch.runs.history(),
        branch.runs.event(1),
    )
    for refused in refusals:
        with pytest.raises(NotAuthorizedError):
            await refused
    with pytest.raises(NotAuthorizedError):
        await agent.thread("mine")
    assert (await (await engine.acting_as("operator").thread("mine")).summary()).version == before


async def test_a_run_completes_after_access_is_revoked(engine: Engine, grants: Grants) -> None:
    grants.threads["ada"] = {"mine"}
    thread = await engine.acting_as("ada").start_thread(thread_id="mine")

    @tool
    def revoke() -> str:
        """Revoke the access."""
        grants.threads["ada"] = set()
        return "done"

    agent = Agent(ScriptedChatClient([call("revoke"), "Done."]), engine=engine, tools=[revoke])
    response = await agent.run("Go", thread=thread)
    assert response.text == "Done."
    seen = await engine.acting_as("operator").thread("mine")
    assert [event.type async for event in seen.events()][-1] == "run-completed"
    with pytest.raises(NotAuthorizedError):
        await thread.history()


async def test_finding_an_approval_needs_access_to_its_thread(engine: Engine, grants: Grants) -> None:
    @tool(approval="always")
    def book(seat: str) -> str:
        """Book a seat."""
        return seat

    agent = Agent(ScriptedChatClient([call("book", seat="12A"), "Booked."]), engine=engine, tools=[book])
    thread = await engine.acting_as("operator").start_thread(thread_id="theirs")
    await agent.run("Go", thread=thread)
    grants.threads["ada"] = {"theirs"}
    thread_of_ada = await engine.acting_as("ada").thread("theirs")
    assert len(await thread_of_ada.approvals()) == 1
    grants.threads["ada"] = set()
    for refused in (thread_of_ada.approvals(), agent.continue_run(thread_of_ada)):
        with pytest.raises(NotAuthorizedError):
            await refused


class Passing(ContextProvider):
    """Provides the facts of a scope."""

    scope = "user/42"

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        return Context(facts=await ctx.scope.facts())


async def test_uses_of_a_fact_list_only_readable_threads(engine: Engine, grants: Grants) -> None:
    fact = await (await engine.acting_as("operator").memory("user/42")).remember("Likes tea")
    agent = Agent(ScriptedChatClient(lambda _: "Yes."), engine=engine, context_providers=Passing())
    grants.threads["ada"] = {"mine"}
    for actor, thread_id in (("ada", "mine"), ("operator", "theirs")):
        await agent.run("Hi", thread=await engine.acting_as(actor).start_thread(thread_id=thread_id))
    with pytest.raises(NotAuthorizedError):
        await engine.acting_as("ada").memory("user/42")
    grants.open_actions = {"memory"}
    for actor, expected in (("ada", ["mine"]), ("operator", ["mine", "theirs"])):
        uses = await (await engine.acting_as(actor).memory("user/42")).used_by(fact)
        assert [use.thread_id for use in uses] == expected


async def test_a_host_gets_new_threads(engine: Engine, grants: Grants) -> None:
    grants.threads["ada"] = {"chat-7"}
    store = ThreadStore(engine.acting_as("ada"))
    thread = await store.get("chat-7")
    await store.save(thread)
    assert await (await store.get("chat-7")).status == "active"
    await engine.acting_as("operator").start_thread(thread_id="chat-8")
    with pytest.raises(NotAuthorizedError):
        await store.get("chat-8")
    grants.threads["ada"].add("chat-9")
    with pytest.raises(UnknownThreadError):
        await engine.acting_as("ada").thread("chat-9")
