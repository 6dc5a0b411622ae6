"""Who did what in a run, and for whom: the agent for its words, the caller for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.agents.turns import PATIENCE, events_of

from clew import (
    Agent,
    ContextProvider,
    Engine,
    Guardrail,
    Message,
    ProviderContext,
    ScriptedChatClient,
    ToolContext,
    tool,
)
from clew.domain.events import Event
from clew.domain.runs.errors import GuardrailTrippedError, ModelError
from clew.domain.runs.events import ChildThread
from clew.testing import call, fault

pytestmark = pytest.mark.anyio

ANN, BOB = "user:ann", "user:bob"


class Row(NamedTuple):
    """One event: its type, who did it, and for whom."""

    type: str
    actor: str | None
    on_behalf_of: str | None = None


def rows_of(events: list[Event]) -> list[Row]:
    return [Row(event.type, event.actor, event.on_behalf_of) for event in events]


def rows(actor: str | None, *types: str, behalf: str | None = None) -> list[Row]:
    return [Row(type_, actor, behalf) for type_ in types]


BEGUN = ("thread-started", "run-started", "message-appended")
ASKED = ("model-called", "message-appended", "model-answered")
CALLED = ("tool-started", "message-appended", "tool-finished")


def agent_of(engine: Engine, name: str, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, id=name, **options)


async def test_the_agent_does_what_it_does_for_the_caller(url: str) -> None:
    seen: list[str | None] = []

    @tool
    def look(context: ToolContext) -> str:
        """Look."""
        seen.append(context.actor)
        return "a depot"

    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", call("look"), "In a depot.", tools=[look])
        response = await desk.run("Where?", actor=ANN)
        expected = [*rows(ANN, *BEGUN), *rows("desk", *ASKED, *CALLED, *ASKED, "run-completed", behalf=ANN)]
        assert rows_of(await events_of(response.thread)) == expected
        assert seen == [ANN]
        (asked, *answers) = await response.thread.history()
        assert (asked.actor, {(each.actor, each.on_behalf_of) for each in answers}) == (ANN, {("desk", ANN)})


@pytest.mark.parametrize(
    ("acting", "actor", "caller"), [(None, None, None), (BOB, None, BOB), (BOB, ANN, ANN)], ids=["no", "own", "given"]
)
async def test_the_caller_is_the_actor_of_the_run_or_else_of_the_service(
    url: str, acting: str | None, actor: str | None, caller: str | None
) -> None:
    async with Engine.open(url) as engine:
        desk = agent_of(engine.acting_as(acting), "desk", "Hello.")
        run = await desk.run("Hi.", actor=actor, background=True)
        response = await run.response()
        expected = [*rows(caller, *BEGUN), *rows("desk", *ASKED, "run-completed", behalf=caller)]
        assert rows_of(await events_of(response.thread)) == expected


async def test_an_inner_agent_is_asked_by_the_outer_one_for_the_same_user(url: str) -> None:
    seen: list[str | None] = []
    look = tool(_looks_into(seen), name="look")
    async with Engine.open(url) as engine:
        expert = agent_of(engine, "expert", call("look"), "Of bark.", tools=[look])
        clerk = agent_of(engine, "clerk", call("expert", input="What?"), "Bark.", tools=[expert])
        desk = agent_of(engine, "desk", call("clerk", input="What?"), "Bark.", tools=[clerk])
        response = await desk.run("What?", actor=ANN)
        outer = response.thread
        for asking, agent in (("desk", "clerk"), ("clerk", "expert")):
            events = await events_of(outer)
            (child,) = [event.data.thread_id for event in events if isinstance(event.data, ChildThread)]
            outer = await engine.thread(child)
            inner = rows_of(await events_of(outer))
            assert inner[:3] == rows(asking, *BEGUN, behalf=ANN)
            assert {(each.actor, each.on_behalf_of) for each in inner[3:]} == {(agent, ANN)}
        assert seen == [ANN]  # a tool decides what its caller may do, and that is the user


def _looks_into(seen: list[str | None]) -> Callable[[ToolContext], str]:
    def look(context: ToolContext) -> str:
        seen.append(context.actor)
        return "looked"

    return look


@pytest.mark.parametrize("continued_by", [BOB, None])
async def test_an_approval_is_the_deciders_and_the_run_stays_the_callers(url: str, continued_by: str | None) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", call("pay"), "Paid.", tools=[pay])
        response = await desk.run("Pay.", actor=ANN)
        paused = await events_of(response.thread)
        assert rows_of(paused)[-1] == Row("approval-requested", "desk", ANN)
        await response.approvals[0].approve(actor="boss")
        await desk.continue_run(response.thread, actor=continued_by)
        rest = rows_of(await events_of(response.thread))[len(paused) :]
        assert rest[:2] == [Row("approval-given", "boss"), Row("run-resumed", continued_by)]
        assert {(each.actor, each.on_behalf_of) for each in rest[2:]} == {("desk", ANN)}


async def test_a_partial_answer_is_the_agents_and_its_end_the_callers(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        desk = agent_of(engine, "desk", fault("stall", after="It is"))
        async for update in desk.run("Where?", actor=ANN, stream=True):
            if "is" in update.text:
                break
        (thread,) = [each async for each in engine.threads()]
        last = rows_of(await events_of(await engine.thread(thread.id)))[-3:]
        assert last[:2] == rows("desk", "message-appended", "answer-interrupted", behalf=ANN)
        assert last[2] == Row("run-abandoned", ANN)


async def test_a_failure_is_the_agents(url: str) -> None:
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", fault("context-window"))
        thread = await engine.start_thread(actor=BOB)
        with pytest.raises(ModelError):
            await desk.run("Where?", thread=thread, actor=ANN)
        assert rows_of(await events_of(thread)) == [
            *rows(BOB, "thread-started"),
            *rows(ANN, *BEGUN[1:]),
            *rows("desk", "model-called", "model-failed", "run-failed", behalf=ANN),
        ]


async def test_what_a_guardrail_stops_is_rewound_by_the_agent(url: str) -> None:
    async with Engine.open(url) as engine:
        guards = [Guardrail(lambda context: "a code" if "4711" in context.text else None, "after")]
        desk = agent_of(engine, "desk", "It is 4711.", guardrails=guards)
        thread = await engine.start_thread(actor=ANN)
        with pytest.raises(GuardrailTrippedError):
            await desk.run("Which?", thread=thread, actor=ANN)
        last = rows_of(await events_of(thread))[-3:]
        assert last == rows("desk", "guardrail-tripped", "run-failed", "history-rewound", behalf=ANN)


async def test_the_input_of_a_run_is_the_callers_whatever_its_role(url: str) -> None:
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", "Yes.")
        response = await desk.run([Message.assistant("Shall I?"), Message.user("Do.")], actor=ANN)
        assert [each.actor for each in await response.thread.history()] == [ANN, ANN, "desk"]


async def test_an_abandoned_run_is_abandoned_by_who_asked_for_it(url: str) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", call("pay"), "Never mind.", tools=[pay])
        response = await desk.run("Pay.", actor=ANN)
        await desk.run("Forget it.", thread=response.thread, actor=BOB, abandon_run=True)
        events = rows_of(await events_of(response.thread))
        assert events[events.index(Row("run-abandoned", BOB)) + 1] == Row("run-started", BOB)


class Remembering(ContextProvider):
    """Remembers every message."""

    scope = "user/ann"

    async def invoked(self, ctx: ProviderContext, request_messages: Any, *rest: Any, **more: Any) -> None:
        """Remember the first message."""
        del rest, more
        await ctx.scope.remember(request_messages[0].text, key="said")


async def test_a_fact_is_learned_by_the_agent_for_the_user(url: str) -> None:
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", "Noted.", context_providers=[Remembering()])
        await desk.run("I eat no meat.", actor=ANN)
        learned = [entry async for entry in engine.audit(scope="user/ann")]
        assert [(entry.type, entry.actor, entry.on_behalf_of) for entry in learned] == [
            ("scope-opened", "desk", ANN),
            ("fact-remembered", "desk", ANN),
        ]


async def test_the_audit_finds_what_was_done_for_somebody(url: str) -> None:
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "desk", "Hello.", "Hello.")
        await desk.run("Hi.", actor=ANN)
        await desk.run("Hi.", actor=BOB)
        own = [entry async for entry in engine.audit(actor=ANN)]
        for_ann = [entry async for entry in engine.audit(on_behalf_of=ANN)]
        by_desk = [entry async for entry in engine.audit(actor="desk")]
        assert [entry.type for entry in own] == list(BEGUN)
        assert [entry.type for entry in for_ann] == [*ASKED, "run-completed"]
        assert len(by_desk) == 2 * len(for_ann)
