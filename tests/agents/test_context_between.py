"""Context providers between runs and processes: what is recorded by one and taken up by another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.agents.remote_turns import client_of, will_joke
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.agents.shelves import Cupboard
from tests.agents.watching import Watching, saying
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_server import StatefulServer

from clew import Agent, Context, ContextProvider, Engine, Message, ScriptedChatClient, ToolContext, tool
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import MissingProviderError, MissingProviderWarning
from clew.errors import InvalidContentError, ThreadStatusError
from clew.service.core import BoundedCache
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    """A server that keeps threads, in front of aimock."""
    will_joke(aimock)
    return stateful


@tool(approval="always")
def risk() -> str:
    """Take a risk."""
    return "taken"


@tool
def given_tool() -> str:
    """A tool of a provider's."""
    return "given"


def agent_of(engine: Engine, *lines: Any, **more: Any) -> Agent:
    return Agent(client=ScriptedChatClient(list(lines)), engine=engine, **more)


@pytest.mark.parametrize("supplied", ["nobody", "another", "without its tool"])
async def test_what_was_given_to_a_run_stays_with_it_though_who_gave_it_is_missing(supplied: str, url: str) -> None:
    given = Context(instructions="Think of Ariadne.", tools=[given_tool])
    async with Engine.open(url) as engine:
        agent = agent_of(engine, call("risk"), tools=[risk], context_providers=Watching(gives=lambda _: given))
        waiting = await agent.run("Well?")
        await waiting.approvals[0].approve(actor="somebody")
    others: dict[str, Any] = {
        "nobody": (),
        "another": Watching("other"),
        "without its tool": Watching(gives=saying("Something else.")),
    }
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "Yes.", tools=[risk], context_providers=others[supplied])
        thread = await engine.thread(waiting.thread.id)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert (await agent.continue_run(thread)).text == "Yes."
        missed = [each for each in told if each.category is MissingProviderWarning]
        assert bool(missed) is (supplied != "without its tool")
        first, second = await check_requests(thread, await events_of(thread))
        requests: list[Any] = [first.body, second.body]
        assert [each["messages"][0]["content"] for each in requests] == ["Think of Ariadne."] * 2
        assert [[each["function"]["name"] for each in body["tools"]] for body in requests] == [
            ["risk", "given_tool"],
            ["risk"],
        ]


async def test_a_provider_of_the_thread_that_is_missed_is_named_before_its_run_goes_on(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, call("risk"), "Yes.", tools=[risk], on_missing_provider="raise")
        thread = await engine.start_thread(context_providers=[Watching()])
        waiting = await agent.run("Well?", thread=thread)
        await waiting.approvals[0].approve(actor="somebody")
        elsewhere, before = await engine.thread(thread.id), (await thread.summary()).version
        with pytest.raises(MissingProviderError, match="watching"):
            await agent.continue_run(elsewhere)
        assert (await thread.summary()).version == before
        assert (await agent.continue_run(thread)).text == "Yes."


async def test_messages_given_between_calls_part_no_result_from_its_call(any_url: str) -> None:
    def give(_: Any) -> Context:
        return Context(messages=[Message.user("Remember.")])

    async with Engine.open(any_url) as engine:
        watching = Watching(gives=give, every_model_call=True)
        agent = agent_of(engine, call("given_tool"), "Yes.", tools=[given_tool], context_providers=watching)
        thread = (await agent.run("Well?")).thread
        _, request = await check_requests(thread, await events_of(thread))
        body: Any = request.body
        assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "user"]


async def test_tools_are_there_though_somebody_appended_before_the_model_was_asked(any_url: str) -> None:
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


async def test_a_thread_that_has_ended_is_deleted_and_given_checkpoints_with_its_providers_told(any_url: str) -> None:
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
        assert "invoking" not in {each[0] for each in watching.noted}
        await thread.delete()
        assert watching.noted[-1] == ("deleted",)


async def test_a_tool_that_makes_a_checkpoint_takes_nothing_from_the_state_of_its_run(any_url: str) -> None:
    watching = Watching()

    @tool
    async def save(ctx: ToolContext) -> str:
        """Make a checkpoint."""
        await ctx.thread.checkpoint("saved")
        return "saved"

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(context_providers=[watching])
        await agent_of(engine, call("save"), "Yes.", tools=[save]).run("Well?", thread=thread)
        assert [each[1] for each in watching.noted if each[0] == "message"] == ["Well?", "→", "→", "Yes."]
        assert (await thread.state()).states["watching"] == {"shown": 4, "checkpoint": "saved"}
        await check_store(engine, thread, await events_of(thread))


@pytest.mark.parametrize(
    ("before", "after"),
    [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 1.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"n": 0}, {"n": False})],
)
async def test_states_that_only_python_takes_for_equal_are_two(any_url: str, before: Any, after: Any) -> None:
    class Turning(ContextProvider):
        def initial_state(self, ctx: ProviderContext) -> Any:
            del ctx
            return dict(before)

        async def invoked(self, ctx: ProviderContext, *given: Any) -> None:
            del given
            ctx.state = after

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await agent_of(engine, "Yes.", context_providers=Turning()).run("Well?", thread=thread)
        assert repr((await thread.state()).states["turning"]) == repr(after)


class Named(BaseModel):
    """A state with a field of another name outside."""

    model_config = ConfigDict(strict=True)
    shown_to: tuple[str, ...] = Field(default=(), alias="shownTo")


class Naming(ContextProvider):
    state_model = Named

    async def invoked(self, ctx: ProviderContext, *given: Any) -> None:
        del given
        ctx.state = Named(shownTo=(*ctx.state.shown_to, str(ctx.run_id)))


async def test_a_model_with_other_names_outside_comes_back_as_it_was(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", "No.", context_providers=Naming())
        runs = [(await agent.run("Well?", thread=thread)).run_id for _ in range(2)]
        assert (await thread.state()).states["naming"] == {"shownTo": runs}


async def test_nothing_to_answer_is_refused_on_a_remote_thread_before_any_provider_is_asked(
    any_url: str,
    server: StatefulServer,
) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        agent = Agent(client=client_of(server), engine=engine, context_providers=watching)
        thread = (await agent.run("Tell me about a pirate.")).thread
        before, told = await thread.version, len(watching.noted)
        with pytest.raises(InvalidContentError, match="nothing to answer"):
            await agent.run(thread=thread)
        assert (await thread.version, len(watching.noted)) == (before, told)


async def test_what_is_given_on_a_remote_thread_is_recorded_with_the_call_it_is_for(
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


async def test_an_agent_with_a_store_for_local_threads_is_the_same_on_a_remote_one(
    any_url: str, server: StatefulServer
) -> None:
    async with Engine.open(any_url) as engine:
        more: Any = {"history_store": Cupboard().store, "read_history_from": "store", "on_changed_agent": "raise"}
        thread = (await Agent(client=client_of(server), engine=engine, **more).run("Tell me about a pirate.")).thread
        again = Agent(client=client_of(server), engine=engine, **more)
        assert (await again.run("Now a parrot.", thread=thread)).text == "It talks."


async def test_what_is_remembered_of_a_thread_weighs_what_its_states_do(any_url: str) -> None:
    class Growing(ContextProvider):
        async def invoked(self, ctx: ProviderContext, *given: Any) -> None:
            del given
            ctx.state = {"run": ctx.run_id, "text": "x" * 5_000}

    async with Engine.open(any_url) as engine:
        known = engine._core.caches
        known.histories = BoundedCache(10, 30)
        thread = await engine.start_thread()
        remembered = []
        for _ in range(4):
            await agent_of(engine, "Yes.", context_providers=Growing()).run("Well?", thread=thread)
            remembered.append(known.histories.get(f"default/thread/{thread.id}") is not None)
        assert remembered == [True, True, False, False]
