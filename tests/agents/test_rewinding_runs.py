"""Runs that rewind their thread: an edited turn or a second answer, in the same thread and exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.turns import PATIENCE, ShiftedClock, types_of

from clew import Agent, Conversations, Engine, Guardrail, Message, ScriptedChatClient, tool
from clew.aio.threads import Thread
from clew.domain.runs.errors import AgentConfigurationError, ApprovalPendingError, GuardrailTrippedError
from clew.errors import IdempotencyKeyReusedError, UnknownVersionError
from clew.testing import call
from clew.types import GuardrailContext, RunOptions

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


def agent_of(engine: Engine, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name="Desk", **options)


def requests_of(agent: Agent) -> list[Any]:
    client = agent.client
    assert isinstance(client, ScriptedChatClient)
    return client.requests


async def texts(thread: Thread) -> list[str]:
    return [message.text for message in await thread.history()]


async def test_an_edited_turn_and_a_second_answer_stay_in_their_thread(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "One.", "Two.", "Deux.", "Dos.")
        thread = await engine.start_thread()
        await agent.run("1", thread=thread)
        await agent.run("2", thread=thread)
        second = (await thread.history()).messages[2]
        edited = await agent.run("deux", thread=thread, rewind_to=second.version - 1)
        assert await texts(thread) == ["1", "One.", "deux", "Deux."]
        question = (await thread.history()).messages[2]
        again = await agent.run(thread=thread, rewind_to=question.version)
        assert await texts(thread) == ["1", "One.", "deux", "Dos."]
        assert (edited.thread.id, again.thread.id, again.text) == (thread.id, thread.id, "Dos.")
        assert [m["content"] for m in requests_of(agent)[3]["messages"]] == ["1", "One.", "deux"]
        variants = await thread.variants(question)
        assert [each.message.text for each in variants] == ["2", "deux"]
        await thread.rewind(to=variants[0].newest)
        assert await texts(thread) == ["1", "One.", "2", "Two."]
        assert types_of([each async for each in thread.events(after=edited.messages[0].version + 2)])[:2] == [
            "history-rewound",
            "run-started",
        ]
        assert (await thread.verify()).first_bad is None


async def test_a_repeated_edit_stores_nothing_and_keeps_what_came_later(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = agent_of(engine, "One.", "Uno.", "Two.")
        thread = await engine.start_thread(messages=[Message.system("Count.")])
        await agent.run("1", thread=thread)
        both = await asyncio.gather(
            *(agent.run("uno", thread=thread, rewind_to=2, idempotency_key="edit") for _ in range(4))
        )
        await agent.run("2", thread=thread)
        version = await thread.version
        late = await agent.run("uno", thread=thread, rewind_to=2, idempotency_key="edit")
        assert {(each.run_id, each.text) for each in (*both, late)} == {(late.run_id, "Uno.")}
        assert (await thread.version, len(requests_of(agent))) == (version, 3)
        assert await texts(thread) == ["Count.", "uno", "Uno.", "2", "Two."]
        with pytest.raises(IdempotencyKeyReusedError):
            await agent.run("uno", thread=thread, rewind_to=1, idempotency_key="edit")


async def test_what_others_append_before_the_rewind_is_left_behind(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = agent_of(engine, "One.", *(f"Answer {number}" for number in range(3)))
        thread = await engine.start_thread()
        await agent.run("1", thread=thread)
        first = (await thread.history()).messages[0]
        run = agent.run("uno", thread=thread, rewind_to=first.version - 1)
        await asyncio.gather(run, *(thread.append(Message.user("Hello?")) for _ in range(5)))
        kept = await texts(thread)
        assert (kept[0], [each for each in kept if each.startswith("Answer")]) == ("uno", ["Answer 0"])


async def test_a_rewinding_run_is_refused_where_a_rewind_or_a_run_is(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, call("pay"), "Paid.", tools=[tool(lambda: "paid", name="pay", approval="always")])
        thread = await engine.start_thread()
        await agent.run("Pay.", thread=thread)
        with pytest.raises(ApprovalPendingError):
            await agent.run("No.", thread=thread, rewind_to=1)
        refused: list[RunOptions] = [{}, {"thread": thread, "fork": True}, {"thread": thread, "at": 1}]
        for options in refused:
            options["rewind_to"] = 1
            with pytest.raises(AgentConfigurationError, match="rewind_to"):
                await agent.run("No.", **options)
        with pytest.raises(UnknownVersionError):
            await agent.run("No.", thread=thread, rewind_to=99, abandon_run=True)
        response = await agent.run("Never mind.", thread=thread, rewind_to=1, abandon_run=True)
        assert await texts(response.thread) == ["Never mind.", "Paid."]


async def test_what_a_guardrail_stopped_is_no_variant(url: str) -> None:
    def rude(context: GuardrailContext) -> str | None:
        return "rude" if "!" in context.text else None

    async with Engine.open(url) as engine:
        agent = agent_of(engine, "One.", "Uno!", "Uno.", guardrails=[Guardrail(rude), Guardrail(rude, "after")])
        thread = await engine.start_thread()
        await agent.run("1", thread=thread)
        first, answer = (await thread.history()).messages
        with pytest.raises(GuardrailTrippedError):
            await agent.run("1!", thread=thread, rewind_to=first.version - 1)
        assert await texts(thread) == []
        with pytest.raises(GuardrailTrippedError):
            await agent.run(thread=thread, rewind_to=first.version)
        assert await texts(thread) == ["1"]
        await agent.run(thread=thread, rewind_to=first.version)
        assert [each.message.text for each in await thread.variants(first)] == ["1"]
        assert [each.message.text for each in await thread.variants(answer)] == ["One.", "Uno."]


async def test_a_remote_thread_continues_from_the_services_id_at_that_version() -> None:
    async with Engine.open("memory:") as engine:
        client = ScriptedChatClient(["One.", "Two.", "Deux."], thread_kinds=["remote"])
        agent = Agent(client, engine=engine, name="Desk")
        thread = await agent.get_remote_thread()
        await thread.run("1")
        await thread.run("2")
        second = (await thread.history()).messages[2]
        await thread.run("deux", rewind_to=second.version - 1)
        assert [body.get("previous_response_id") for body in client.requests] == [None, "resp_1", "resp_1"]
        assert await texts(thread) == ["1", "One.", "deux", "Deux."]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_killed_edit_that_is_sent_again_is_answered_once(tmp_path: Any, *, streamed: bool) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    point, killed = 1, True
    while killed:
        thread_id = f"thread-{point}"

        async def begin(thread_id: str = thread_id) -> None:
            async with Engine.open(url) as engine:
                await agent_of(engine, "One.").run("1", thread=await engine.open_thread(thread_id))

        asyncio.run(begin())

        async def edit(_: PassPoint, thread_id: str = thread_id) -> None:
            await send(url, thread_id, streamed=streamed)

        killed = run_until(point, edit).killed
        asyncio.run(send(url, thread_id, streamed=streamed, later=31))
        with Conversations.open(url) as conversations:
            thread = conversations.thread(thread_id)
            assert [each.text for each in thread.history()] == ["uno", "Uno."]
            assert [each.message.text for each in thread.variants(thread.history().messages[0])] == ["1", "uno"]
            assert thread.verify().first_bad is None
        point += 1
    assert point > 3


async def send(url: str, thread_id: str, *, streamed: bool, later: float = 0.0) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=ShiftedClock(later)) as engine:
        agent, thread = agent_of(engine, "Uno."), await engine.thread(thread_id)
        if streamed:
            run = agent.run("uno", thread=thread, rewind_to=1, idempotency_key="e", stream=True)
            await run.get_final_response()
        else:
            await agent.run("uno", thread=thread, rewind_to=1, idempotency_key="e")
