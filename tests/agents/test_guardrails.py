"""Guardrails: a trip before, beside and after the model reaches no caller, and all of it is on the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.remote_turns import GROWS, bodies, client_of, engine_in, joker, service_ids
from tests.agents.turns import PATIENCE
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import Agent, Engine, Guardrail, Message, ScriptedChatClient, tool
from clew.agents.guardrails import GuardrailContext
from clew.agents.response import AgentUpdate
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import AgentConfigurationError, GuardrailTrippedError, RunNotCompletedError
from clew.domain.runs.events import GuardrailTripped, RunFailed
from clew.projections import Change, Directory, Recorded, Rows, Search
from clew.testing import call

pytestmark = pytest.mark.anyio

STOPPED = "The code is 4711."


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


def no_code(context: GuardrailContext) -> str | None:
    return "a code" if "4711" in context.text else None


async def no_code_later(context: GuardrailContext) -> str | None:
    await asyncio.sleep(0)
    return no_code(context)


def agent_of(engine: Engine, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name="Desk", **options)


def requests_of(agent: Agent) -> int:
    client = agent.client
    assert isinstance(client, ScriptedChatClient)
    return len(client.requests)


async def seen_of(agent: Agent, text: str, thread: Any, *, stream: bool) -> list[AgentUpdate]:
    """What the caller of a run sees before the run is stopped."""
    seen: list[AgentUpdate] = []

    async def read() -> None:
        if not stream:
            await agent.run(text, thread=thread)
            return
        async for update in agent.run(text, thread=thread, stream=True):
            seen.append(update)  # noqa: PERF401 # those before the error

    with pytest.raises(GuardrailTrippedError, match="a code"):
        await read()
    return seen


async def last_of(thread: Any) -> HistoryMessage:
    last: HistoryMessage = (await thread.history()).messages[-1]
    return last


async def trip_of(thread: Any) -> tuple[GuardrailTripped, list[str]]:
    """The trip on the log, and the types of the last events."""
    events = [event async for event in thread.events()]
    (tripped,) = [event.data for event in events if isinstance(event.data, GuardrailTripped)]
    return tripped, [event.type for event in events][-3:]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["before", "beside"])
@pytest.mark.parametrize("check", [no_code, no_code_later])
async def test_input_that_is_stopped_is_on_the_log_and_not_in_the_history(
    url: str, check: Any, stage: Any, *, stream: bool
) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = agent_of(engine, "Hello.", "No.", "Bye.", "Bye.", guardrails=[Guardrail(check, stage)])
        thread = await engine.start_thread()
        await agent.run("Hi.", thread=thread)
        assert await seen_of(agent, STOPPED, thread, stream=stream) == []
        tripped, types = await trip_of(thread)
        assert tripped == GuardrailTripped(guardrail=check.__name__, stage=stage, reason="a code")
        assert types == ["guardrail-tripped", "run-failed", "history-rewound"]
        assert [message.text for message in await thread.history()] == ["Hi.", "Hello."]
        assert await engine.search("4711") == []
        assert [hit.version for hit in await engine.search("h*", thread=thread.id)] == [5, 3]
        assert any(STOPPED in str(event.data) for event in [event async for event in thread.events()])
        assert requests_of(agent) <= (1 if stage == "before" else 2)
        await agent.run("Bye?", thread=thread)
        client = agent.client
        assert isinstance(client, ScriptedChatClient)
        assert STOPPED not in str(client.requests[-1])
        assert (await engine.verify()).first_bad is None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_stopped_reaches_nobody(url: str, *, stream: bool) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        look = tool(lambda: "looked", name="look")
        script = [["I look.", call("look")], STOPPED, "Bye."]
        agent = agent_of(engine, *script, guardrails=[Guardrail(no_code, "after")], tools=[look])
        thread = await engine.start_thread()
        seen = await seen_of(agent, "Hi.", thread, stream=stream)
        assert "is 4711" not in str(seen)
        if stream:
            assert "".join(update.text for update in seen if update.type == "text") == "I look."
            assert [update.type for update in seen if update.message] == ["answer", "result"]
        tripped, types = await trip_of(thread)
        assert (tripped.stage, types) == ("after", ["guardrail-tripped", "run-failed", "history-rewound"])
        assert [message.text for message in await thread.history()][:2] == ["Hi.", "I look."]
        assert len(await thread.history()) == 3
        events = [event async for event in thread.events()]
        assert any(STOPPED in str(event.data) for event in events), "the log has what the model answered"
        assert await engine.search("4711") == await engine.search("4711", thread=(await thread.fork()).id) == []
        assert [hit.role for hit in await engine.search("look*")] == ["tool", "assistant"]
        assert [STOPPED in each.message.text for each in await thread.variants(await last_of(thread))] == [False]
        assert isinstance(events[-2].data, RunFailed)
        run_id = events[-2].run_id
        followed: list[AgentUpdate] = []

        async def follow() -> None:
            async for update in thread.follow(run_id):
                followed.append(update)  # noqa: PERF401 # those before the error

        with pytest.raises(RunNotCompletedError, match="GuardrailTrippedError"):
            await follow()
        assert "is 4711" not in str(followed)


async def test_no_part_of_an_unchecked_answer_can_be_followed_or_survives_a_stop(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        client = ScriptedChatClient([f"{STOPPED} " * 30], delay=0.01)
        agent = Agent(client, engine=engine, name="Desk", guardrails=[Guardrail(no_code, "after")])
        run = await agent.run("Hi.", background=True)
        await asyncio.sleep(0.4)
        assert await run.thread.runs.draft() is None
        await run.stop()
        assert [message.text for message in await run.thread.history()] == ["Hi."]


async def test_answers_that_pass_are_streamed_and_recorded_as_without_guardrails(url: str) -> None:
    async with Engine.open(url) as engine:
        guardrails = [Guardrail(no_code), Guardrail(no_code_later, "beside", name="late"), Guardrail(no_code, "after")]
        for stages in (guardrails, guardrails[:2], guardrails[2:], []):
            agent = agent_of(engine, "Of tree bark.", guardrails=stages)
            stream = agent.run("What are they made of?", stream=True)
            updates = [update async for update in stream]
            assert [update.text for update in updates if update.type == "text"] == ["Of ", "tree ", "bark."]
            assert updates[-1].type == "answer"
            assert (await stream.get_final_response()).text == "Of tree bark."


async def test_a_trip_beside_the_model_does_not_wait_for_the_answer() -> None:
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        agent = Agent(
            ScriptedChatClient(["Too late."], delay=PATIENCE), engine=engine, guardrails=[Guardrail(no_code, "beside")]
        )
        thread = await engine.start_thread()
        with pytest.raises(GuardrailTrippedError):
            await agent.run(STOPPED, thread=thread)
        types = [event.type async for event in thread.events()]
        assert types[-4:] == ["answer-interrupted", "guardrail-tripped", "run-failed", "history-rewound"]


async def test_a_message_that_another_client_appends_meanwhile_stays(url: str) -> None:
    async with Engine.open(url) as engine:
        thread = await engine.start_thread()

        async def appends(context: GuardrailContext) -> str | None:
            await thread.append(Message.user("Meanwhile."))
            return no_code(context)

        agent = agent_of(engine, STOPPED, guardrails=[Guardrail(appends, "after")])
        with pytest.raises(GuardrailTrippedError):
            await agent.run("Hi.", thread=thread)
        assert [message.text for message in await thread.history()] == ["Hi.", "Meanwhile."]


async def test_a_check_that_fails_ends_the_run() -> None:
    def broken(context: GuardrailContext) -> str | None:
        raise LookupError(context)

    async with Engine.open("memory:") as engine:
        for stage in ("before", "beside", "after"):
            thread = await engine.start_thread()
            with pytest.raises(LookupError):
                await agent_of(engine, "No.", guardrails=[Guardrail(broken, stage)]).run("Hi.", thread=thread)
            assert [event.type async for event in thread.events()][-1] == "run-failed"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guardrail("no_code"),  # type: ignore[arg-type] # the fault
        lambda: Guardrail(no_code, "during"),  # type: ignore[arg-type] # the fault
        lambda: Agent(ScriptedChatClient(""), guardrails=[no_code]),  # type: ignore[list-item] # the fault
    ],
    ids=["check", "stage", "function"],
)
def test_refuses_what_is_no_guardrail(make: Any) -> None:
    with pytest.raises(AgentConfigurationError):
        make()


async def test_a_reason_that_is_no_text_ends_the_run() -> None:
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, "No.", guardrails=[Guardrail(lambda _: True, name="flag")])  # type: ignore[arg-type, return-value] # the fault
        with pytest.raises(AgentConfigurationError, match="'flag' returned bool"):
            await agent.run("Hi.")


class SearchVersion3(Search):
    """Version 3, which does not know what guardrails stopped."""

    version = 3
    tables: Any = ()

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        return () if event.type in {"guardrail-tripped", "history-rewound"} else super().project(event, rows)


async def test_a_search_in_tables_of_an_older_version_does_not_find_what_was_stopped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    async with Engine.open(url, projections=[Directory(), SearchVersion3()]) as engine:
        agent = agent_of(engine, "Hello.", STOPPED, "The code again.", guardrails=[Guardrail(no_code, "after")])
        thread = await engine.start_thread()
        await agent.run("Hi.", thread=thread)
        await seen_of(agent, "The code?", thread, stream=False)
        await agent.run("A code?", thread=thread)
        await thread.rewind(to=await thread.checkpoint("end"))
        assert len(await engine.search("code")) == 3
    async with Engine.open(url, embedded=False) as engine:  # nobody fills the tables of the new version
        found = [
            (await (await engine.thread(hit.thread_id)).history(at=hit.version)) for hit in await engine.search("code")
        ]
        assert [history.messages[-1].text for history in found] == ["The code again.", "A code?", "The code?"]


@pytest.mark.parametrize("stage", ["before", "beside", "after"])
async def test_a_thread_of_a_service_continues_before_what_was_stopped(
    stateful: StatefulServer, aimock: Aimock, tmp_path: Path, stage: Any
) -> None:
    aimock.reply("parrot", text="It talks.")
    aimock.reply("code", text=STOPPED)
    async with engine_in(tmp_path) as engine:
        agent = joker(engine, client_of(stateful), guardrails=[Guardrail(no_code, stage)])
        thread = await agent.get_remote_thread()
        await agent.run("Now a parrot.", thread=thread)
        (first,) = await service_ids(thread)
        await seen_of(agent, "A code?" if stage == "after" else "A code? 4711?", thread, stream=False)
        shown = ["Now a parrot.", "It talks.", *(["A code?"] if stage == "after" else [])]
        assert [message.text for message in await thread.history()] == shown
        assert await thread.service_thread_id == first
        await agent.run("Another parrot.", thread=thread)
        last = (await bodies(thread))[-1]
        assert last["previous_response_id"] == first
        assert "4711" not in str(last)
        assert (await engine.verify()).first_bad is None


async def test_a_conversation_of_a_service_has_what_was_sent_and_not_what_was_stopped_before(
    stateful: StatefulServer, aimock: Aimock, tmp_path: Path
) -> None:
    aimock.reply("parrot", text="It talks.")
    aimock.reply("code", text=STOPPED)
    async with engine_in(tmp_path) as engine:
        rules = [Guardrail(no_code, "before"), Guardrail(no_code, "after")]
        agent = joker(engine, client_of(stateful, GROWS), guardrails=rules)
        thread = await agent.get_remote_thread()
        await agent.run("Now a parrot.", thread=thread)
        await seen_of(agent, "A code? 4711?", thread, stream=False)
        assert [message.text for message in await thread.history()] == ["Now a parrot.", "It talks."]
        await seen_of(agent, "A code?", thread, stream=False)
        assert [message.text for message in await thread.history()][2:] == ["A code?", STOPPED]
        await agent.run("Another parrot.", thread=thread)
        assert (await thread.reconcile()).counts == (6, 0, 0, 0)
