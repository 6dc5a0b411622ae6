"""Context providers between runs and processes: state recorded by one and restored by another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.agents.fake_history_stores import FakeHistoryBackend
from tests.agents.recording_providers import Watching, instructions_of
from tests.agents.remote_turns import client_of, will_joke
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import Agent, Context, ContextProvider, Engine, Message, ScriptedChatClient, ToolContext, tool
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import MissingProviderError, MissingProviderWarning
from clew.errors import InvalidContentError, ThreadStatusError
from clew.service.core import BoundedCache, CacheBudget
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    """A server that stores threads, in front of aimock."""
    will_joke(aimock)
    return stateful


@tool(approval="always")
def risk() -> str:
    """Take a risk."""
    return "taken"


@tool
def given_tool() -> str:
    """A tool of a provider."""
    return "given"


def agent_of(engine: Engine, *lines: Any, **more: Any) -> Agent:
    return Agent(client=ScriptedChatClient(list(lines)), engine=engine, **more)


@pytest.mark.parametrize("supplied", ["none", "another", "without its tool"])
async def test_a_continued_run_keeps_its_context_without_its_provider(supplied: str, url: str) -> None:
    provided = Context(instructions="Think of Ariadne.", tools=[given_tool])
    async with Engine.open(url) as engine:
        agent = agent_of(engine, call("risk"), tools=[risk], context_providers=Watching(gives=lambda _: provided))
        waiting = await agent.run("Well?")
        await waiting.approvals[0].approve(actor="approver")
    others: dict[str, Any] = {
        "none": (),
        "another": Watching("other"),
        "without its tool": Watching(gives=instructions_of("Something else.")),
    }
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "Yes.", tools=[risk], context_providers=others[supplied])
        thread = await engine.thread(waiting.thread.id)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert (await agent.continue_run(thread)).text == "Yes."
        missing = [each for each in warned if each.category is MissingProviderWarning]
        assert bool(missing) is (supplied != "without its tool")
        first, second = await check_requests(thread, await events_of(thread))
        requests: list[Any] = [first.body, second.body]
        assert [each["messages"][0]["content"] for each in requests] == ["Think of Ariadne."] * 2
        assert [[each["function"]["name"] for each in body["tools"]] for body in requests] == [
            ["risk", "given_tool"],
            ["risk"],
        ]


async def test_a_missing_provider_is_reported_before_the_run_continues(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, call("risk"), "Yes.", tools=[risk], on_missing_provider="raise")
        thread = await engine.start_thread(context_providers=[Watching()])
        waiting = await agent.run("Well?", thread=thread)
        await waiting.approvals[0].approve(actor="approver")
        elsewhere, before = await engine.thread(thread.id), (await thread.summary()).version
        with pytest.raises(MissingProviderError, match="watching"):
            await agent.continue_run(elsewhere)
        assert (await thread.summary()).version == before
        assert (await agent.continue_run(thread)).text == "Yes."


async def test_provided_messages_do_not_separate_a_call_from_its_result(any_url: str) -> None:
    def give(_: Any) -> Context:
        return Context(messages=[Message.user("Remember.")])

    async with Engine.open(any_url) as engine:
        watching = Watching(gives=give, every_model_call=True)
        agent = agent_of(engine, call("given_tool"), "Yes.", tools=[given_tool], context_providers=watching)
        thread = (await agent.run("Well?")).thread
        _, request = await check_requests(thread, await events_of(thread))
        body: Any = request.body
        assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "user"]


async def test_provided_tools_survive_an_append_before_the_model_call(any_url: str) -> None:
    class Appending(ContextProvider):
        async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
            del ctx, messages
            await thread.append(Message.user("One more thing."))
            return Context(tools=[given_tool])

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await agent_of(engine, "Yes.", context_providers=Appending()).run("Well?", thread=thread)
        (request,) = await check_requests(thread, await events_of(thread))
        body: Any = request.body
        assert [each["content"] for each in body["messages"]] == ["Well?", "One more thing."]


async def test_providers_are_notified_about_checkpoints_and_deletion_of_an_ended_thread(any_url: str) -> None:
    class Counting(Watching):
        async def on_thread_deleted(self, ctx: ProviderContext) -> None:
            ctx.state["deleted"] = True
            await super().on_thread_deleted(ctx)

    watching = Counting()
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(context_providers=[watching])
        await thread.append(Message.user("Hello."))
        await thread.end()
        await thread.checkpoint("last")
        assert (await thread.state()).states["watching"] == {"shown": 1, "ended": True, "checkpoint": "last"}
        with pytest.raises(ThreadStatusError):
            await thread.context("What do you know?")
        assert "invoking" not in {each[0] for each in watching.calls}
        await thread.delete()
        assert watching.calls[-1] == ("deleted",)


async def test_a_checkpoint_of_a_tool_does_not_change_the_provider_state_of_its_run(any_url: str) -> None:
    watching = Watching()

    @tool
    async def save(ctx: ToolContext) -> str:
        """Make a checkpoint."""
        await ctx.thread.checkpoint("saved")
        return "saved"

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(context_providers=[watching])
        await agent_of(engine, call("save"), "Yes.", tools=[save]).run("Well?", thread=thread)
        assert [each[1] for each in watching.calls if each[0] == "message"] == ["Well?", "→", "→", "Yes."]
        assert (await thread.state()).states["watching"] == {"shown": 4, "checkpoint": "saved"}
        await check_store(engine, thread, await events_of(thread))


@pytest.mark.parametrize(
    ("before", "after"),
    [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 1.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"n": 0}, {"n": False})],
)
async def test_states_that_are_equal_only_in_python_are_different(any_url: str, before: Any, after: Any) -> None:
    class Turning(ContextProvider):
        def initial_state(self, ctx: ProviderContext) -> Any:
            del ctx
            return dict(before)

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            ctx.state = after

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await agent_of(engine, "Yes.", context_providers=Turning()).run("Well?", thread=thread)
        assert repr((await thread.state()).states["turning"]) == repr(after)


class Named(BaseModel):
    """A state with an alias for a field."""

    model_config = ConfigDict(strict=True)
    shown_to: tuple[str, ...] = Field(default=(), alias="shownTo")


class Naming(ContextProvider):
    state_model = Named

    async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
        del args
        ctx.state = Named(shownTo=(*ctx.state.shown_to, str(ctx.run_id)))


async def test_a_state_model_with_aliases_is_restored(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", "No.", context_providers=Naming())
        runs = [(await agent.run("Well?", thread=thread)).run_id for _ in range(2)]
        assert (await thread.state()).states["naming"] == {"shownTo": runs}


async def test_a_remote_run_without_input_is_refused_before_any_hook(
    any_url: str,
    server: StatefulServer,
) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        agent = Agent(client=client_of(server), engine=engine, context_providers=watching)
        thread = (await agent.run("Tell me about a pirate.")).thread
        before, hooks = await thread.version, len(watching.calls)
        with pytest.raises(InvalidContentError, match="nothing to answer"):
            await agent.run(thread=thread)
        assert (await thread.version, len(watching.calls)) == (before, hooks)


async def test_context_for_a_remote_thread_is_recorded_with_its_model_call(
    any_url: str, server: StatefulServer
) -> None:
    class Counting(ContextProvider):
        async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
            del messages
            ctx.state = {"asked": (ctx.state or {"asked": 0})["asked"] + 1}
            return Context(instructions="Think.", messages=[Message.user("Now a parrot.")], persist=True)

    async with Engine.open(any_url) as engine:
        client = client_of(server, "conversation")
        agent = Agent(client=client, engine=engine, context_providers=Counting())
        thread = (await agent.run("Tell me about a pirate.")).thread
        await check_requests(thread, await events_of(thread))
        positions = {event.type: event.recorded_at for event in await events_of(thread)}
        assert positions["context-provided"] == positions["context-state-recorded"] == positions["model-called"]


async def test_a_history_store_does_not_change_an_agent_on_remote_threads(any_url: str, server: StatefulServer) -> None:
    async with Engine.open(any_url) as engine:
        more: Any = {
            "history_store": FakeHistoryBackend().store,
            "read_history_from": "store",
            "on_changed_agent": "raise",
        }
        thread = (await Agent(client=client_of(server), engine=engine, **more).run("Tell me about a pirate.")).thread
        again = Agent(client=client_of(server), engine=engine, **more)
        assert (await again.run("Now a parrot.", thread=thread)).text == "It talks."


async def test_the_cache_weight_of_a_thread_includes_its_states(any_url: str) -> None:
    class Growing(ContextProvider):
        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            ctx.state = {"run": ctx.run_id, "text": "x" * 5_000}

    async with Engine.open(any_url) as engine:
        caches = engine._core.caches
        caches.histories = BoundedCache(CacheBudget(25_000))
        thread = await engine.start_thread()
        cached = []
        for _ in range(4):
            await agent_of(engine, "Yes.", context_providers=Growing()).run("Well?", thread=thread)
            cached.append(caches.histories.get(f"default/thread/{thread.id}") is not None)
        assert cached == [True, True, False, False]
