"""Context providers: the order of their hooks, their context and state, and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from tests.agents.recording_providers import HookCall, Watching, instructions_of
from tests.agents.remote_turns import client_of
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import Agent, Context, ContextProvider, Engine, Message, ScriptedChatClient, tool
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextProviderError,
    MissingProviderError,
    MissingProviderWarning,
    ModelError,
    RunStoppedError,
)
from clew.errors import InvalidContentError, ThreadStatusError
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(stateful: StatefulServer, aimock: Aimock) -> StatefulServer:
    """A server that stores threads, in front of aimock."""
    del aimock
    return stateful


@tool
def lookup(word: str) -> str:
    """Look a word up."""
    return f"{word} means much"


def agent_of(engine: Engine, *lines: Any, **more: Any) -> Agent:
    """Return an agent that answers with these lines."""
    return Agent(client=ScriptedChatClient(list(lines)), engine=engine, **{"instructions": "Be kind.", **more})


async def systems(thread: Any) -> list[str]:
    """Return the first message of each request on a thread, rebuilt from the log."""
    requests: list[Any] = [request.body for request in await check_requests(thread, await events_of(thread))]
    return [body["messages"][0]["content"] for body in requests]


def _sent(request: Any) -> list[Any]:
    return list(request.body["messages"])


async def of_type(thread: Any, kind: type) -> list[Any]:
    return [event.data for event in await events_of(thread) if isinstance(event.data, kind)]


TURN: list[HookCall] = [
    ("initial_state",),
    ("created", "What is a clew?"),
    ("message", "What is a clew?"),
    ("invoking", "What is a clew?"),
    ("message", "→"),
    ("message", "→"),
    ("message", "A ball of thread."),
    ("invoked", ["What is a clew?"], ["", "", "A ball of thread."], None),
]
"""The hooks of a run that starts its thread and calls a tool once."""


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_hooks_of_a_run_are_called_in_order(streamed: bool, url: str) -> None:  # noqa: FBT001  # pytest passes it by name
    watching = Watching(gives=instructions_of("Think of Ariadne."))
    async with Engine.open(url) as engine:
        agent = agent_of(
            engine, call("lookup", word="clew"), "A ball of thread.", context_providers=watching, tools=[lookup]
        )
        if streamed:
            response = await agent.run("What is a clew?", stream=True).get_final_response()
        else:
            response = await agent.run("What is a clew?")
        assert watching.calls == TURN
        thread = response.thread
        assert await systems(thread) == ["Be kind.\n\nThink of Ariadne."] * 2
        types = [event.type for event in await events_of(thread)]
        assert types.index("run-started") < types.index("message-appended") < types.index("context-provided")
        assert types[-3:] == ["model-answered", "context-state-recorded", "run-completed"]
        assert [each.text for each in await thread.history() if each.text] == ["What is a clew?", "A ball of thread."]
        assert (await thread.state()).states == {"watching": {"shown": 4}}
        await check_store(engine, thread, await events_of(thread))


@pytest.mark.parametrize("streamed", [False, True])
async def test_remote_threads_call_the_same_hooks_as_local_ones(
    any_url: str,
    server: StatefulServer,
    aimock: Aimock,
    streamed: bool,  # noqa: FBT001  # pytest passes it by name
) -> None:
    aimock.reply("clew", text="A ball of thread.")
    provided = Context(instructions="Think of Ariadne.", messages=[Message.user("She waits.")])
    watching = Watching(gives=lambda _: provided)
    async with Engine.open(any_url) as engine:
        agent = Agent(client=client_of(server), engine=engine, instructions="Be kind.", context_providers=watching)
        if streamed:
            response = await agent.run("What is a clew?", stream=True).get_final_response()
        else:
            response = await agent.run("What is a clew?")
        assert watching.calls == [*TURN[:4], TURN[6], ("invoked", ["What is a clew?"], ["A ball of thread."], None)]
        (request,) = await check_requests(response.thread, await events_of(response.thread))
        assert request.body["instructions"] == "Be kind.\n\nThink of Ariadne.\n\nShe waits."
        assert request.body["input"] == [{"role": "user", "content": "What is a clew?"}]
        assert len(await response.thread.history()) == 2


async def test_hooks_are_called_in_the_order_agent_thread_run(any_url: str) -> None:
    calls: list[HookCall] = []
    ids = ("first", "second", "third", "fourth")
    first, second, third, fourth = (Watching(id_, calls, instructions_of(f"By the {id_}.")) for id_ in ids)
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Yes.", "Yes.", "No.", context_providers=[first])
        thread = await engine.start_thread(context_providers=[second])
        thread.context_providers.add(third)
        await agent.run("Hello.", thread=thread, context_providers=[fourth])
        assert [each[0] for each in calls if each[1] == "invoking"] == list(ids)
        await agent.run("Again.", thread=thread)
        other = agent_of(engine, "Other.", name="other", instructions=None)
        await other.run("And you?", thread=thread)
        assert await systems(thread) == [
            "Be kind.\n\nBy the first.\n\nBy the second.\n\nBy the third.\n\nBy the fourth.",
            "Be kind.\n\nBy the first.\n\nBy the second.\n\nBy the third.",
            "By the second.\n\nBy the third.",
        ]
        # An agent's own providers see only that agent's runs.
        assert not [each for each in calls if each[:2] == ("first", "invoking") and "And you?" in each]


async def test_refuses_two_providers_with_one_id(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        with pytest.raises(AgentConfigurationError, match="two providers have the id 'watching'"):
            agent_of(engine, context_providers=[Watching(), Watching()])
        agent = agent_of(engine, "Yes.", context_providers=[Watching()])
        thread = await engine.start_thread(context_providers=Watching())
        with pytest.raises(AgentConfigurationError, match="two providers have the id 'watching'"):
            await agent.run("Hello.", thread=thread)
        with pytest.raises(AgentConfigurationError, match="two providers have the id 'watching'"):
            thread.context_providers.add(Watching())
        with pytest.raises(AgentConfigurationError, match="the class Watching is not a context provider"):
            agent_of(engine, context_providers=[Watching])
        assert len(await events_of(thread)) <= 2  # it started, and its provider was notified


async def test_context_applies_to_one_run_and_its_messages_precede_the_new_ones(any_url: str) -> None:
    gives = iter([Context(messages=[Message.user("You met Ada.")], instructions="Greet."), None])
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Hello, Ada.", "Bye.", context_providers=Watching(gives=lambda _: next(gives)))
        thread = (await agent.run("Hello.")).thread
        await agent.run("Bye.", thread=thread)
        first, second = [_sent(request) for request in await check_requests(thread, await events_of(thread))]
        assert [each["content"] for each in first] == ["Be kind.\n\nGreet.", "You met Ada.", "Hello."]
        assert [each["content"] for each in second] == ["Be kind.", "Hello.", "Hello, Ada.", "Bye."]
        (provided,) = await of_type(thread, ContextProvided)
        assert (provided.instructions, [each.text for each in provided.messages]) == ("Greet.", ["You met Ada."])


async def test_persisted_context_messages_belong_to_the_thread(any_url: str) -> None:
    gives = iter([Context(messages=[Message.user("You met Ada.")], persist=True), None])
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Hello, Ada.", "Bye.", context_providers=Watching(gives=lambda _: next(gives)))
        thread = (await agent.run("Hello.")).thread
        await agent.run("Bye.", thread=thread)
        history = [each.text for each in await thread.history()]
        assert history == ["Hello.", "You met Ada.", "Hello, Ada.", "Bye.", "Bye."]
        _, second = await check_requests(thread, await events_of(thread))
        messages: Any = second.body["messages"]
        assert [each["content"] for each in messages[1:]] == history[:-1]


async def test_a_provider_for_every_model_call_is_called_before_each(any_url: str) -> None:
    count = iter(range(1, 9))
    every = Watching(gives=lambda _: Context(instructions=f"Call {next(count)}."), every_model_call=True)
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, call("lookup", word="a"), "Done.", tools=[lookup], context_providers=[every])
        thread = (await agent.run("Look.")).thread
        assert await systems(thread) == ["Be kind.\n\nCall 1.", "Be kind.\n\nCall 2."]
        assert [each for each in every.calls if each[0] == "invoking"] == [("invoking", "Look."), ("invoking", "←")]


async def test_tools_of_a_provider_are_available_in_one_run_only(any_url: str) -> None:
    called: list[str] = []

    def recall(what: str) -> str:
        """Recall something."""
        called.append(what)
        return "It was blue."

    gives = iter([Context(tools=[recall]), None])
    async with Engine.open(any_url) as engine:
        provider = Watching(gives=lambda _: next(gives))
        agent = agent_of(engine, call("recall", what="sky"), "Blue.", "No.", tools=[lookup], context_providers=provider)
        thread = (await agent.run("Colour?")).thread
        await agent.run("And now?", thread=thread)
        bodies: list[Any] = [request.body for request in await check_requests(thread, await events_of(thread))]
        names = [[each["function"]["name"] for each in body["tools"]] for body in bodies]
        assert names == [["lookup", "recall"], ["lookup", "recall"], ["lookup"]]
        assert called == ["sky"]


async def test_a_run_continued_in_another_process_has_the_tools_of_its_providers(url: str) -> None:
    called: list[str] = []

    @tool(approval="always")
    def forget(what: str) -> str:
        """Forget something."""
        called.append(what)
        return "Forgotten."

    def agent(engine: Engine, *lines: Any) -> Agent:
        provider = Watching(gives=lambda _: Context(instructions="Careful.", tools=[forget]))
        return agent_of(engine, *lines, context_providers=provider)

    async with Engine.open(url) as engine:
        response = await agent(engine, call("forget", what="all")).run("Forget it.")
        thread_id = response.thread.id
        await response.approvals[0].approve()
    async with Engine.open(url) as engine:
        second = agent(engine, "Done.")
        thread = await second.thread(thread_id)
        assert (await second.continue_run(thread)).text == "Done."
        assert called == ["all"]
        assert await systems(thread) == ["Be kind.\n\nCareful."] * 2
        assert len(await of_type(thread, ContextProvided)) == 1
        hooks = [each[0] for each in second.context_providers[0].calls]  # type: ignore[attr-defined]  # it is Watching
        assert hooks.count("invoked") == 1


async def test_invoked_is_called_once_after_a_failure_and_the_input_is_recorded(any_url: str) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, fault("context-window"), "Better.", context_providers=watching)
        thread = await agent.get_local_thread()
        with pytest.raises(ModelError):
            await agent.run("Hello.", thread=thread)
        assert [each for each in watching.calls if each[0] == "invoked"] == [
            ("invoked", ["Hello."], None, "ContextWindowError")
        ]
        assert [each.text for each in await thread.history()] == ["Hello."]
        assert (await thread.state()).states == {"watching": {"shown": 1}}
        await agent.run("Again.", thread=thread)
        assert [each for each in watching.calls if each[0] == "message"] == [
            ("message", "Hello."),
            ("message", "Again."),
            ("message", "Better."),
        ]


async def test_invoked_is_called_when_a_run_is_cancelled_or_its_stream_is_abandoned(any_url: str) -> None:
    watching, reached = Watching(), asyncio.Event()

    async def waits(_body: Any) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async with Engine.open(any_url) as engine:
        agent = Agent(client=ScriptedChatClient(waits), engine=engine, context_providers=watching)
        task = asyncio.ensure_future(agent.run("Hello."))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert watching.calls[-1] == ("invoked", ["Hello."], None, "CancelledError")

        other = Agent(client=ScriptedChatClient(["Some words."]), engine=engine, context_providers=watching)
        async with other.run("Hello.", stream=True) as stream:
            async for _update in stream:
                break
        assert watching.calls[-1][0] == "invoked"
        assert [each[0] for each in watching.calls].count("invoked") == 2
        with pytest.raises(RunStoppedError):
            await stream.get_final_response()


class _Failing(Watching):
    """Fails in one hook, after changing its state."""

    def __init__(self, hook: str, **settings: Any) -> None:
        super().__init__("failing", **settings)
        self.hook = hook

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        del messages
        await self._fail("invoking", ctx)
        return None

    async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
        del args
        await self._fail("invoked", ctx)

    async def _fail(self, hook: str, ctx: ProviderContext) -> None:
        if hook == self.hook:
            ctx.state["broken"] = True
            raise ValueError("sk-secret")


@pytest.mark.parametrize("hook", ["invoking", "invoked"])
async def test_a_failing_provider_fails_the_run_or_is_skipped(any_url: str, hook: str) -> None:
    async with Engine.open(any_url) as engine:
        for policy in ("fail", "continue"):
            failing, other = _Failing(hook, on_failure=policy), Watching()
            agent = agent_of(engine, "Hello.", context_providers=[other, failing])
            thread = await agent.get_local_thread()
            if policy == "fail":
                with pytest.raises(ContextProviderError, match=f"'failing' failed in {hook}: ValueError"):
                    await agent.run("Hi.", thread=thread)
            else:
                assert (await agent.run("Hi.", thread=thread)).text == "Hello."
            events = await events_of(thread)
            (failed,) = [event.data for event in events if isinstance(event.data, ContextFailed)]
            assert (failed.provider, failed.hook, failed.error.kind) == ("failing", hook, "ValueError")
            assert events[-1].type == ("run-failed" if policy == "fail" else "run-completed")
            assert not [event for event in events if "sk-secret" in str(event.data)]
            state: Any = (await thread.state()).states["failing"]
            assert "broken" not in state
            assert [each[0] for each in other.calls].count("invoked") == 1
            if hook == "invoked":  # the answer was stored before
                assert [each.text for each in await thread.history()] == ["Hi.", "Hello."]


async def test_refuses_a_provider_with_the_id_of_history_stores(any_url: str) -> None:
    class HistoryStore(ContextProvider):
        """Derives its id from the class name."""

    async with Engine.open(any_url) as engine:
        with pytest.raises(AgentConfigurationError, match="'history-store'"):
            agent_of(engine, "Hello.", context_providers=HistoryStore())
        with pytest.raises(AgentConfigurationError, match="'history-store'"):
            await engine.start_thread(context_providers=[Watching("history-store")])


async def test_a_slow_provider_is_a_failure(any_url: str) -> None:
    class Slow(ContextProvider):
        timeout = 0.01
        on_failure = "continue"

        async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
            del ctx, messages
            await asyncio.Event().wait()
            return None

    async with Engine.open(any_url) as engine:
        thread = (await agent_of(engine, "Hello.", context_providers=Slow()).run("Hi.")).thread
        (failed,) = await of_type(thread, ContextFailed)
        assert (failed.provider, failed.error.kind) == ("slow", "TimeoutError")
        slow = Slow()
        slow.on_failure = "fail"  # type: ignore[assignment]  # the class declares a literal
        with pytest.raises(ContextProviderError, match=r"it took longer than 0.01 s"):
            await agent_of(engine, "Hello.", context_providers=slow).run("Hi.")


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (lambda _: "words", "str, which is not a Context"),
        (lambda _: Context(instructions=7), "instructions"),  # type: ignore[arg-type]  # the test passes a wrong type
        (lambda _: Context(messages="words"), "messages of a Context"),  # type: ignore[arg-type]  # the test passes a wrong type
        (lambda _: Context(tools=[7]), "cannot be a tool"),
        (lambda _: Context(tools=[lookup]), "Its tool 'lookup' has the name of another tool"),
        (lambda ctx: setattr(ctx, "state", {1: 2}), "state of watching"),
        (lambda ctx: setattr(ctx, "state", object()), "state of watching"),
    ],
    ids=["words", "instructions", "messages", "no-tool", "taken-tool", "keys", "object"],
)
async def test_refuses_an_invalid_context_and_records_nothing_of_it(any_url: str, invalid: Any, reason: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Hello.", tools=[lookup], context_providers=Watching(gives=invalid))
        thread = await agent.get_local_thread()
        with pytest.raises(ContextProviderError, match="watching") as caught:
            await agent.run("Hi.", thread=thread)
        assert reason in str(caught.value)
        assert [each.text for each in await thread.history()] == ["Hi."]
        assert not await of_type(thread, ContextProvided)
        await check_store(engine, thread, await events_of(thread))


class Board(BaseModel):
    notes: list[str] = []


class BoardProvider(ContextProvider):
    """Has a model as its state and adds notes to it."""

    id = "board"
    state_model = Board

    async def invoked(self, ctx: ProviderContext, request_messages: Sequence[HistoryMessage], *args: Any) -> None:
        del args
        ctx.state.notes += [message.text for message in request_messages]

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        assert isinstance(ctx.state, Board)
        return Context(instructions="Notes: " + ", ".join(ctx.state.notes))


async def test_a_pydantic_state_follows_forks_and_rewinds(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, *map(str, range(9)), context_providers=BoardProvider(), instructions=None)
        thread = (await agent.run("a")).thread
        await thread.checkpoint("one")
        await agent.run("b", thread=thread)
        branch = await thread.fork(at="one")
        await agent.run("c", thread=branch)
        await agent.run("d", thread=branch)
        await thread.rewind("one")
        await agent.run("e", thread=thread)
        await agent.run("f", thread=thread)
        assert (await systems(branch))[-2:] == ["Notes: a", "Notes: a, c"]
        assert (await systems(thread))[-2:] == ["Notes: a", "Notes: a, e"]
        assert (await thread.state(at="one")).states == {"board": {"notes": ["a"]}}
        assert (await thread.state()).states == {"board": {"notes": ["a", "e", "f"]}}


async def test_a_stored_state_that_does_not_fit_the_model_is_reported_and_kept(any_url: str) -> None:
    class ListProvider(ContextProvider):
        id = "board"

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            ctx.state = ["not a board"]

    pinning = BoardProvider()
    pinning.on_failure = "continue"
    async with Engine.open(any_url) as engine:
        thread = (await agent_of(engine, "Yes.", context_providers=ListProvider()).run("a")).thread
        await agent_of(engine, "Yes.", context_providers=pinning).run("b", thread=thread)
        (failed,) = await of_type(thread, ContextFailed)
        assert (failed.hook, failed.error.kind) == ("initial_state", "InvalidContentError")
        assert (await thread.state()).states == {"board": ["not a board"]}


async def test_the_lifecycle_hooks_of_a_thread_are_called(any_url: str) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(messages=[Message.user("Hi.")], context_providers=watching)
        await thread.append(Message.assistant("Hello."))
        await thread.checkpoint("here")
        await thread.suspend()
        with pytest.raises(ThreadStatusError):
            await thread.suspend()
        await thread.resume()
        await thread.end()
        with pytest.raises(ThreadStatusError):
            await thread.end()
        await thread.delete()
        assert [each for each in watching.calls if each != ("initial_state",)] == [
            ("created", "Hi."),
            ("message", "Hi."),
            ("message", "Hello."),
            ("checkpoint", "here"),
            ("suspend",),
            ("resume",),
            ("ended",),
            ("deleted",),
        ]
        states = await of_type(thread, ContextStateRecorded)
        assert states[-1].state == {"shown": 2, "checkpoint": "here", "suspended": False, "ended": True}


async def test_thread_context_combines_the_context_of_all_providers(any_url: str) -> None:
    first = Watching("first", gives=lambda _: Context(instructions="One.", tools=[lookup]))
    second = Watching("second", gives=lambda _: Context(instructions="Two.", messages=[Message.user("Three.")]))
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(context_providers=[first, second])
        await thread.append(Message.user("Before."))
        context = await thread.context("What now?")
        assert context.instructions == "One.\n\nTwo."
        assert [each.text for each in context.messages] == ["Three."]
        assert [each.name for each in context.tools] == ["lookup"]
        assert ("first", "invoking", "What now?") in first.calls
        assert [each.provider for each in await of_type(thread, ContextProvided)] == ["first", "second"]
        await thread.context("And now?")
        assert [each for each in first.calls if each[1] == "message"] == [("first", "message", "Before.")]
        assert await (await engine.start_thread()).context("Nothing.") == Context(
            messages=[], tools=(), facts=[], citations=[]
        )
        with pytest.raises(InvalidContentError):
            await thread.context(7)  # type: ignore[arg-type]  # the test passes a wrong type


async def test_a_missing_provider_is_reported_and_its_state_is_kept(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "Yes.", name="Guide", context_providers=[Watching("own")])
        first = await agent.run("Hi.", context_providers=[Watching("attached")])
        thread = first.thread
        assert [provider.id for provider in thread.context_providers] == ["attached"]
        await agent_of(engine, "Yes.", name="Other").run("Hello.", thread=thread)
        states = (await thread.state()).states
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "Yes.", "Yes.", name="Guide")
        thread = await agent.thread(first.thread.id)
        with pytest.warns(MissingProviderWarning, match="'attached', 'own'"):
            await agent.run("Again.", thread=thread)
        await agent.run("Once more.", thread=thread)  # the warning comes once
        assert (await thread.state()).states == states
        strict = agent_of(engine, "Yes.", name="Guide", on_missing_provider="raise")
        before = len(await events_of(thread))
        with pytest.raises(MissingProviderError, match="'attached', 'own'"):
            await strict.run("Again.", thread=thread)
        assert len(await events_of(thread)) == before
        thread.context_providers.add(Watching("attached"))
        # A provider of one agent is missing only for that agent.
        await agent_of(engine, "Yes.", name="Other", on_missing_provider="raise").run("And you?", thread=thread)
        with pytest.raises(MissingProviderError, match="'own'") as caught:
            await strict.run("Again.", thread=thread)
        assert caught.value.providers == ["own"]
        supplied = agent_of(
            engine, "Yes.", "Yes.", name="Guide", on_missing_provider="raise", context_providers=Watching("own")
        )
        await supplied.run("Again.", thread=thread)
        thread.context_providers.remove("attached")
        await supplied.run("Without it, on purpose.", thread=thread)


async def test_a_provider_writes_only_to_its_own_scope(any_url: str) -> None:
    class OtherScopeWriter(ContextProvider):
        scope = "user/1"

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            assert await ctx.memory("group/g").facts() == []
            await ctx.scope.remember("Likes tea.")
            await ctx.memory("group/g").remember("Likes tea.")

    async with Engine.open(any_url) as engine:
        with pytest.raises(ContextProviderError, match=r"promote\(fact, to=…\)"):
            await agent_of(engine, "Yes.", context_providers=OtherScopeWriter()).run("Hi.")
        assert [fact.text for fact in await (await engine.memory("user/1")).facts()] == ["Likes tea."]
        assert await (await engine.memory("group/g")).facts(history=True) == []


async def test_a_rewind_past_a_waiting_run_notifies_its_providers(any_url: str) -> None:
    @tool(approval="always")
    def risk() -> str:
        """Risk something."""
        return "done"

    actors: list[str | None] = []

    class WatchingActors(Watching):
        async def invoked(self, ctx: ProviderContext, *arguments: Any, **more: Any) -> None:
            actors.append(ctx.actor)
            await super().invoked(ctx, *arguments, **more)

    watching = WatchingActors()
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Hello.", call("risk"), "Fine.", tools=[risk], context_providers=watching)
        thread = (await agent.run("Hi.")).thread
        await thread.checkpoint("before")
        await agent.run("Risk it.", thread=thread)
        states = (await thread.state(at="before")).states
        await thread.rewind("before", abandon_run=True, actor="ada")
        assert actors == [None, "ada"]
        assert [each for each in watching.calls if each[0] == "invoked"] == [
            ("invoked", ["Hi."], ["Hello."], None),
            ("invoked", ["Risk it."], [""], "RunAbandonedError"),
        ]
        assert (await thread.state()).states == states
        assert (await agent.run("Again.", thread=thread)).text == "Fine."
        assert [each[0] for each in watching.calls].count("invoked") == 3
