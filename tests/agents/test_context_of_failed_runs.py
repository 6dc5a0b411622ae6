"""Context providers at the end of a failed run: each is notified once, and nothing stays open or gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.agents.fake_history_stores import FakeHistoryBackend, FakeHistoryStore
from tests.agents.recording_providers import HookCall, Watching
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.agents.turns import Gate

from clew import Agent, Context, ContextProvider, Engine, Message, ScriptedChatClient, tool
from clew.domain.context.events import ContextFailed, ContextProvided
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import StoredMessage
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextProviderError,
    RunLimitError,
    RunTakenOverError,
    ToolFailedError,
)
from clew.domain.runs.events import RunAbandoned, RunFailed
from clew.errors import CheckpointExistsError, InvalidNameError
from clew.testing import call

pytestmark = pytest.mark.anyio


def agent_of(engine: Engine, *lines: Any, **more: Any) -> Agent:
    return Agent(client=ScriptedChatClient(list(lines)), engine=engine, **more)


async def check_run_is_over(engine: Engine, thread: Any) -> list[Any]:
    """Check that the run is over and has no lease; return the data of the events."""
    events = await events_of(thread)
    assert (await check_store(engine, thread, events)).run is None
    assert await thread.runs.lease() is None
    await check_requests(thread, events)
    return [event.data for event in events]


def ends(calls: Sequence[HookCall]) -> list[Any]:
    """Return the notified providers and the error that each received."""
    return [(each[0], each[-1]) for each in calls if "invoked" in each]


class ActingProvider(ContextProvider):
    """Calls a function in one of its hooks."""

    def __init__(self, hook: str, act: Callable[[Any], Any], id: str = "bad", **settings: Any) -> None:
        self.id = id
        setattr(self, hook, lambda ctx, *_: act(ctx))
        for name, value in settings.items():
            setattr(self, name, value)


def broken(*_: Any) -> Any:
    raise RuntimeError


async def test_providers_after_a_failing_one_are_notified_of_the_end(any_url: str) -> None:
    calls: list[HookCall] = []
    providers = [Watching("first", calls), ActingProvider("invoked", broken), Watching("last", calls)]
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(ContextProviderError):
            await agent_of(engine, "Yes.", context_providers=providers).run("Well?", thread=thread)
        assert ends(calls) == [("first", None), ("last", "ContextProviderError")]
        await check_run_is_over(engine, thread)


async def test_providers_after_a_failing_one_are_notified_of_thread_events(any_url: str) -> None:
    calls: list[HookCall] = []
    bad = ActingProvider("on_thread_created", broken, on_resume=broken)
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Yes.", context_providers=[bad, Watching("last", calls)])
        with pytest.raises(ContextProviderError):
            await agent.run("Well?")
        assert ("last", "created", "Well?") in calls
        thread = await engine.start_thread()
        thread.context_providers.add(bad, Watching("last", calls))
        await thread.suspend()
        with pytest.raises(ContextProviderError):
            await thread.resume()
        assert calls[-1] == ("last", "resume")


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_pending_providers_are_notified_when_a_run_is_interrupted_at_its_end(any_url: str, how: str) -> None:
    calls: list[HookCall] = []
    reached = asyncio.Event()

    async def hang(ctx: Any) -> None:
        ctx.state["half"] = True
        reached.set()
        await asyncio.Event().wait()

    slow = ActingProvider("invoked", hang, initial_state=lambda _: {"whole": True})
    providers = [Watching("first", calls), slow, Watching("last", calls)]
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", context_providers=providers)
        if how == "late":
            with pytest.raises(RunLimitError):
                await agent.run("Well?", thread=thread, max_seconds=1)
        else:
            run = asyncio.ensure_future(agent.run("Well?", thread=thread))
            await reached.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        assert ends(calls) == [("first", None), ("last", "CancelledError" if how == "cancelled" else "RunLimitError")]
        assert (await thread.state()).states["bad"] == {"whole": True}
        await check_run_is_over(engine, thread)


async def test_an_interrupted_hook_does_not_change_its_state(any_url: str) -> None:
    seen: list[Any] = []

    class Half(ContextProvider):
        def initial_state(self, ctx: ProviderContext) -> Any:
            del ctx
            return {"lines": []}

        async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> None:
            del messages
            ctx.state["lines"].append("half of it")
            await asyncio.Event().wait()

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            seen.append(list(ctx.state["lines"]))
            ctx.state["lines"].append("invoked")

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(RunLimitError):
            await agent_of(engine, context_providers=Half()).run("Well?", thread=thread, max_seconds=1)
        assert seen == [[]]
        assert (await thread.state()).states == {"half": {"lines": ["invoked"]}}
        await check_run_is_over(engine, thread)


async def test_a_provider_whose_hook_was_not_called_keeps_its_state(any_url: str) -> None:
    class Counting(ContextProvider):
        def initial_state(self, ctx: ProviderContext) -> Any:
            del ctx
            return {"runs": 0}

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del args
            ctx.state = {"runs": (ctx.state or {"runs": 0})["runs"] + 1}

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await agent_of(engine, "Yes.", context_providers=Counting()).run("Well?", thread=thread)
        agent = agent_of(engine, "No.", context_providers=[ActingProvider("initial_state", broken), Counting()])
        with pytest.raises(ContextProviderError):
            await agent.run("Well?", thread=thread)
        assert (await thread.state()).states == {"counting": {"runs": 2}}
        await check_run_is_over(engine, thread)


@pytest.mark.parametrize("hook", ["initial_state", "on_message", "invoking", "invoked"])
@pytest.mark.parametrize("on_failure", ["fail", "continue"])
async def test_a_cancelled_task_inside_a_hook_is_a_failure_of_the_hook(
    any_url: str, hook: str, on_failure: str
) -> None:
    async def awaits_what_was_cancelled(_: Any) -> None:
        work = asyncio.ensure_future(asyncio.sleep(10))
        work.cancel()
        await work

    kind = type("Watches", (ActingProvider,), {"on_message": lambda *_: None})  # only defined hooks are called
    provider = kind(hook, awaits_what_was_cancelled, on_failure=on_failure)
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", "No.", context_providers=provider)
        if on_failure == "fail":
            with pytest.raises(ContextProviderError):
                await agent.run("Well?", thread=thread)
        else:
            assert (await agent.run("Well?", thread=thread)).text == "Yes."
        data = await check_run_is_over(engine, thread)
        assert "CancelledError" in {each.error.kind for each in data if isinstance(each, ContextFailed)}


@pytest.mark.parametrize("on_failure", ["fail", "continue"])
async def test_a_run_is_cancelled_although_a_hook_raises_another_error(any_url: str, on_failure: str) -> None:
    reached = asyncio.Event()

    async def stubborn(_: Any) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError from None

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, context_providers=ActingProvider("invoking", stubborn, on_failure=on_failure))
        run = asyncio.ensure_future(agent.run("Well?", thread=thread))
        await reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert isinstance((await check_run_is_over(engine, thread))[-1], RunAbandoned)


BIG = "x" * (17 * 1024 * 1024)


@pytest.mark.parametrize("hook", ["on_thread_created", "invoking", "invoked"])
@pytest.mark.parametrize("on_failure", ["fail", "continue"])
async def test_a_state_too_large_to_store_is_a_failure_of_its_hook(any_url: str, hook: str, on_failure: str) -> None:
    def grow(ctx: Any) -> None:
        ctx.state = {"all": BIG}

    provider = ActingProvider(hook, grow, on_failure=on_failure, initial_state=lambda _: {"small": True})
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Yes.", context_providers=provider)
        if on_failure == "fail":
            with pytest.raises(ContextProviderError, match="15,728,640"):
                await agent.run("Well?")
        else:
            assert (await agent.run("Well?")).text == "Yes."
        async for summary in engine.threads():
            thread = await engine.thread(summary.id)
        assert (await thread.state()).states == {"bad": {"small": True}}
        assert (await thread.history()).messages[0].text == "Well?"
        assert any(isinstance(each, ContextFailed) for each in await check_run_is_over(engine, thread))


@pytest.mark.parametrize("on_failure", ["fail", "continue"])
async def test_a_context_too_large_to_store_is_a_failure_of_its_provider(any_url: str, on_failure: str) -> None:
    def give(ctx: Any) -> Context:
        ctx.state = {"provided": True}
        return Context(instructions=BIG, tools=[lambda_tool])

    @tool
    def lambda_tool() -> str:
        """Do nothing."""
        return ""

    provider = ActingProvider("invoking", give, on_failure=on_failure)
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", context_providers=provider)
        if on_failure == "fail":
            with pytest.raises(ContextProviderError, match="15,728,640"):
                await agent.run("Well?", thread=thread)
        else:
            assert (await agent.run("Well?", thread=thread)).text == "Yes."
        data = await check_run_is_over(engine, thread)
        assert not any(isinstance(each, ContextProvided) for each in data)
        assert (await thread.state()).states == {}


async def test_a_context_is_ignored_if_the_provider_state_is_invalid(any_url: str) -> None:
    def give(ctx: Any) -> Context:
        ctx.state = {"n": float("nan")}
        return Context(instructions="Do not say this.")

    provider = ActingProvider("invoking", give, on_failure="continue")
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", context_providers=provider)
        await agent.run("Well?", thread=thread)
        data = await check_run_is_over(engine, thread)
        assert [each.hook for each in data if isinstance(each, ContextFailed)] == ["invoking"]
        assert not any(isinstance(each, ContextProvided) for each in data)


async def test_each_message_of_a_failed_run_is_shown_once(any_url: str) -> None:
    @tool(errors="raise")
    def explode() -> str:
        """Fail."""
        raise RuntimeError

    watching = Watching()
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, call("explode"), "Yes.", context_providers=watching, tools=[explode])
        with pytest.raises(ToolFailedError):
            await agent.run("Well?", thread=thread)
        await agent.run("Again?", thread=thread)
        shown = [each[1] for each in watching.calls if each[0] == "message"]
        assert shown == [each.text or "→" for each in await thread.history()]
        assert (await thread.state()).states["watching"] == {"shown": len(shown)}


async def test_a_message_appended_at_the_end_of_a_run_is_shown(any_url: str) -> None:
    calls: list[HookCall] = []

    class Appending(Watching):
        async def invoked(self, ctx: ProviderContext, *args: Any, **more: Any) -> None:
            await super().invoked(ctx, *args, **more)
            if len(await thread.history()) == 2:
                await thread.append(Message.user("One more thing."))

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, "Yes.", "Fine.", context_providers=Appending("watching", calls))
        await agent.run("Well?", thread=thread)
        await agent.run(thread=thread)
        shown = [each[1] for each in calls if each[0] == "message"]
        assert shown == ["Well?", "Yes.", "One more thing.", "Fine."]
        assert len(ends(calls)) == 2
        await check_run_is_over(engine, thread)


async def test_an_abandoned_run_is_closed_although_a_provider_fails(any_url: str) -> None:
    calls: list[HookCall] = []

    @tool(approval="always")
    def risk() -> str:
        """Take a risk."""
        return ""

    bad = ActingProvider("initial_state", lambda _: {}, id="bad")
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, call("risk"), "Yes.", tools=[risk], context_providers=[bad, Watching("good", calls)])
        await agent.run("Well?", thread=thread)
        bad.initial_state = broken  # type: ignore[assignment, method-assign]  # it fails from now on
        with pytest.raises(ContextProviderError):
            await agent.run("Never mind.", thread=thread, abandon_run=True)
        assert ends(calls) == [("good", "RunAbandonedError"), ("good", "ContextProviderError")]
        data = await check_run_is_over(engine, thread)
        assert [type(each) for each in data if isinstance(each, RunAbandoned | RunFailed)] == [RunAbandoned, RunFailed]
        assert [each.text for each in await thread.history() if each.role == "user"] == ["Well?", "Never mind."]


async def test_a_rewound_run_notifies_its_providers_and_leaves_no_state(any_url: str) -> None:
    gate, watching = Gate(), Watching()

    async def line(_: Any) -> str:
        await gate()
        return "Too late."

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = Agent(ScriptedChatClient(line), engine=engine, context_providers=watching)
        run = asyncio.ensure_future(agent.run("Well?", thread=thread))
        await gate.reached.wait()
        await thread.rewind(to=1, abandon_run=True)
        gate.opened.set()
        with pytest.raises(RunTakenOverError):
            await run
        assert watching.calls[-1] == ("invoked", ["Well?"], None, "RunTakenOverError")
        assert (await thread.state()).states == {}
        await check_run_is_over(engine, thread)


async def test_a_message_is_shown_once_although_its_run_waits_for_approval(any_url: str) -> None:
    @tool(approval="always")
    def risk() -> str:
        """Take a risk."""
        return "taken"

    shown: list[str] = []

    class ShowingProvider(ContextProvider):
        async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
            del ctx
            shown.append(message.text or message.role)

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        agent = agent_of(engine, call("risk"), "Yes.", tools=[risk], context_providers=ShowingProvider())
        waiting = await agent.run("Well?", thread=thread)
        await waiting.approvals[0].approve(actor="approver")
        await agent.continue_run(thread)
        assert shown == ["Well?", "assistant", "tool", "Yes."]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "soon", True])
async def test_refuses_an_invalid_timeout(any_url: str, seconds: Any) -> None:
    async with Engine.open(any_url) as engine:
        with pytest.raises(AgentConfigurationError, match="timeout"):
            agent_of(engine, context_providers=Watching(timeout=seconds))


async def test_messages_are_recorded_although_a_reducer_takes_too_long(any_url: str) -> None:
    class Hanging(Reducer):
        name, when = "hanging", "before_retrieval"

        async def reduce(self, history: Reducible) -> Reduction:
            del history
            await asyncio.Event().wait()
            return Reduction(())

    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        with pytest.raises(RunLimitError, match="log has its steps"):
            await agent_of(engine, reducer=Hanging()).run("Well?", thread=thread, max_seconds=1)
        assert [each.text for each in await thread.history()] == ["Well?"]
        assert isinstance((await check_run_is_over(engine, thread))[-1], RunFailed)


async def test_a_refused_checkpoint_notifies_no_provider(any_url: str) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread(context_providers=[watching])
        await thread.checkpoint("one")
        for name, error in (("one", CheckpointExistsError), ("5", InvalidNameError)):
            with pytest.raises(error):
                await thread.checkpoint(name)
        assert [each for each in watching.calls if each[0] == "checkpoint"] == [("checkpoint", "one")]


async def test_a_removed_provider_is_not_missing_on_forks(any_url: str) -> None:
    watching = Watching()
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "Yes.", "No.", on_missing_provider="raise")
        thread = await engine.start_thread(context_providers=[watching])
        await agent.run("Well?", thread=thread)
        thread.context_providers.remove(watching)
        assert (await agent.run("And now?", thread=await thread.fork())).text == "No."


async def test_a_store_interrupted_while_reading_gets_messages_in_order(any_url: str) -> None:
    class Hanging(FakeHistoryStore):
        async def list_messages(self) -> list[StoredMessage]:
            if hangs:
                await asyncio.Event().wait()
            return await super().list_messages()

    hangs, backend = False, FakeHistoryBackend(most=2)
    async with Engine.open(any_url) as engine:
        agent = agent_of(engine, "1", "2", "3", history_store=lambda ctx: Hanging(backend, f"default/{ctx.thread_id}"))
        thread = await engine.start_thread()
        await agent.run("One?", thread=thread)
        await agent.run("Two?", thread=thread)
        hangs = True
        with pytest.raises(RunLimitError):
            await agent.run("Three?", thread=thread, max_seconds=1)
        assert backend.texts(thread) == ["Two?", "2"]
        hangs = False
        await agent.run("Four?", thread=thread)
        assert backend.texts(thread) == ["Four?", "3"]


async def test_a_store_interrupted_while_writing_has_no_gap_afterwards(any_url: str) -> None:
    hangs, backend = True, FakeHistoryBackend()

    class Hanging(FakeHistoryStore):
        async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
            nonlocal hangs
            if hangs and messages[0].message.text == "Two?":
                hangs = False
                await asyncio.Event().wait()
            await super().add_messages(messages)

    class Late(ContextProvider):
        every_model_call = True

        async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
            del ctx, args
            await thread.append(Message.user("By the way."))

    async with Engine.open(any_url) as engine:
        agent = agent_of(
            engine,
            call("unknown"),
            "2",
            context_providers=Late(),
            history_store=lambda ctx: Hanging(backend, f"default/{ctx.thread_id}"),
        )
        thread = await engine.start_thread(messages=[Message.user("One?"), Message.assistant("1")])
        with pytest.raises(RunLimitError):
            await agent.run("Two?", thread=thread, max_seconds=1)
        await agent.run("Three?", thread=thread)
        stored, logged = backend.ids(thread), [each.event_id for each in await thread.history()]
        assert stored == logged[: len(stored)]
        assert len(stored) >= len(logged) - 1  # a message appended at the end waits for the next run
