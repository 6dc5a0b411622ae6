"""Handoffs: another agent continues the conversation on the same thread, with its own rules, and after a kill, too."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.run_checks import check_requests, events_of
from tests.agents.scripted_wires import WIRES
from tests.agents.services import calls, service_of
from tests.agents.turns import PATIENCE

from clew import (
    Agent,
    Engine,
    Guardrail,
    Handoff,
    KeepLast,
    Message,
    Middleware,
    Record,
    ScriptedChatClient,
    ToolContext,
    tool,
)
from clew.agents.context_assembly import ContextAssembly
from clew.agents.response import AgentResponse
from clew.domain.json_values import JsonObject
from clew.domain.models.client import TokenUsage
from clew.domain.runs.events import HandedOff, ModelAnswered, RunAbandoned, RunStarted
from clew.errors import (
    AgentConfigurationError,
    ApprovalPendingError,
    GuardrailTrippedError,
    InvalidToolError,
    NoOpenRunError,
    RunLimitError,
    RunNotCompletedError,
)
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(any_url: str) -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE), Engine.open(any_url) as engine:
        yield engine


def agent_of(engine: Engine, name: str, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name=name, **options)


TRANSFER = call("transfer_to_refunds", reason="wants money back")


def desk(engine: Engine, refunds: Any, *script: Any, **options: Any) -> Agent:
    return agent_of(engine, "Desk", *(script or (TRANSFER,)), handoffs=[refunds], **options)


async def started(thread: Any) -> list[RunStarted]:
    return [event.data for event in await events_of(thread) if isinstance(event.data, RunStarted)]


async def output_tokens(thread: Any) -> int:
    """The tokens of all answers on a thread."""
    answers: list[Any] = [event.data for event in await events_of(thread) if isinstance(event.data, ModelAnswered)]
    return sum(answer.usage.output_tokens for answer in answers)


async def check(engine: Engine, thread: Any) -> None:
    await check_requests(thread, await events_of(thread))
    assert (await engine.verify()).first_bad is None


async def test_the_other_agent_answers_on_the_same_thread(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.", "Again.", instructions="Refund.", description="Refunds.")
    agent = desk(engine, refunds, TRANSFER, "Hello again.", instructions="Greet.")
    response = await agent.run("I want my money back.", actor="user:42")
    thread = response.thread
    assert (response.text, response.agent) == ("You get it back.", refunds)
    assert [(message.role, message.author) for message in response.messages] == [
        ("assistant", "Desk"),
        ("tool", None),
        ("assistant", "Refunds"),
    ]
    (asked,) = refunds.client.requests  # type: ignore[attr-defined] # the scripted client
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "tool"]
    assert asked["messages"][0]["content"] == "Refund."
    first, second = await started(thread)
    assert (first.agent.id, second.agent.id) == ("Desk", "Refunds")
    assert second.handed_from is not None
    assert (second.handed_from.run_id, second.handed_from.rounds) == (response.run_id, 1)
    (handed,) = [event.data for event in await events_of(thread) if isinstance(event.data, HandedOff)]
    assert (handed.agent.id, handed.reason) == ("Refunds", "wants money back")
    assert response.usage.output_tokens == await output_tokens(thread)
    sentences = [entry.what async for entry in engine.audit(thread=thread.id)]
    assert any("handed the conversation to" in each for each in sentences)
    # The next turn is of the agent that is asked.
    assert (await agent.run("Hello.", thread=thread)).agent is agent
    assert (await response.agent.run("And?", thread=thread)).text == "Again."
    await check(engine, thread)


async def test_a_stream_and_its_followers_go_on_with_the_other_agent(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    stream = desk(engine, refunds).run("Refund!", stream=True)
    updates = [update async for update in stream]
    response = await stream.get_final_response()
    assert [each.type for each in updates if each.type in {"answer", "result", "handoff"}] == [
        *("answer", "result", "handoff", "answer")
    ]
    (handoff,) = [each for each in updates if each.type == "handoff"]
    assert (handoff.name, handoff.text) == ("Refunds", "wants money back")
    followed = [update async for update in response.thread.follow(response.run_id)]
    assert [each.type for each in followed] == ["call", "answer", "result", "handoff", "text", "answer"]
    place = [each.type for each in followed].index("handoff")
    rest = [update async for update in response.thread.follow(response.run_id, after=followed[place].position)]
    assert rest == followed[place + 1 :]


async def test_a_conversation_is_stopped_and_followed_by_the_id_of_its_first_run(engine: Engine) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")
    refunds = agent_of(engine, "Refunds", call("pay"), tools=[pay])
    response = await desk(engine, refunds).run("Refund!")
    thread = response.thread
    followed = await thread.follow(response.run_id).response()
    assert (followed.run_id, followed.usage, len(followed.messages)) == (response.run_id, response.usage, 3)
    assert [each.call.name for each in followed.approvals] == ["pay"]
    assert not await thread.stop_run("another")
    assert await thread.stop_run(response.run_id)
    assert [event.type for event in await events_of(thread)][-1] == "run-abandoned"


async def test_a_repeated_run_returns_the_answer_of_the_other_agent(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    agent = desk(engine, refunds)
    first = await agent.run("Refund!", idempotency_key="turn-1")
    again = await agent.run("Refund!", idempotency_key="turn-1")
    assert (again.text, again.run_id, again.agent) == (first.text, first.run_id, refunds)
    assert (again.usage, len(again.messages)) == (first.usage, 3)


async def test_approvals_of_the_other_agent_are_in_the_response_and_either_agent_continues(engine: Engine) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")
    for continues in ("desk", "refunds"):
        refunds = agent_of(engine, "Refunds", call("pay"), "Paid.", tools=[pay])
        agent = desk(engine, refunds)
        response = await agent.run("Refund!")
        (approval,) = response.approvals
        with pytest.raises(ApprovalPendingError):
            await agent.continue_run(response.thread)
        await approval.approve()
        done = await (agent if continues == "desk" else refunds).continue_run(response.thread)
        assert (done.text, done.agent) == ("Paid.", refunds)
        await check(engine, response.thread)


async def test_a_handoff_may_need_an_approval_itself_and_waits_for_other_calls(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    agent = desk(engine, Handoff(refunds, name="escalate", approval="always"), call("escalate"))
    response = await agent.run("Refund!")
    assert [each.call.name for each in response.approvals] == ["escalate"]
    await response.approvals[0].approve()
    assert (await agent.continue_run(response.thread)).text == "You get it back."

    pay = tool(lambda: "paid", name="pay", approval="always")
    refunds = agent_of(engine, "Refunds", "It is paid.")
    agent = desk(engine, refunds, [call("pay"), TRANSFER], tools=[pay])
    response = await agent.run("Refund!")
    await response.approvals[0].approve()
    done = await agent.continue_run(response.thread)
    assert (done.text, done.agent) == ("It is paid.", refunds)
    await check(engine, response.thread)


async def test_of_two_handoffs_in_one_answer_one_is_carried_out(engine: Engine) -> None:
    refunds, lamps = agent_of(engine, "Refunds", "R."), agent_of(engine, "Lamps", "L.")
    both = [TRANSFER, call("transfer_to_lamps")]
    response = await agent_of(engine, "Desk", both, handoffs=[refunds, lamps]).run("Both!")
    results = [str(each.results[0].result) for each in response.messages if each.results]
    assert sorted(result.startswith("Error") for result in results) == [False, True]
    assert response.text in {"R.", "L."}
    await check(engine, response.thread)


async def test_a_rejected_or_unknown_handoff_hands_nothing_over(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "R.")
    script = [call("escalate"), call("transfer_to_nobody"), "Still here."]
    agent = desk(engine, Handoff(refunds, name="escalate", approval="always"), *script)
    response = await agent.run("Refund!")
    await response.approvals[0].reject("no")
    done = await agent.continue_run(response.thread)
    assert (done.text, done.agent) == ("Still here.", agent)
    assert len(await started(response.thread)) == 1


async def test_the_guardrails_of_the_other_agent_hold_and_a_trip_rewinds_the_whole_conversation(engine: Engine) -> None:
    def no_cards(context: Any) -> str | None:
        return "a card" if "4711" in context.text else None

    refunds = agent_of(engine, "Refunds", "Hm.", guardrails=[Guardrail(no_cards)])
    thread = await engine.start_thread(messages=[Message.user("Hi."), Message.assistant("Hello.")])
    with pytest.raises(GuardrailTrippedError):
        await desk(engine, refunds).run("My card is 4711.", thread=thread)
    assert [message.text for message in await thread.history()] == ["Hi.", "Hello."]
    answering = agent_of(engine, "Refunds", "It is 4711.", guardrails=[Guardrail(no_cards, "after")])
    with pytest.raises(GuardrailTrippedError):
        await desk(engine, answering).run("Refund!", thread=thread)
    assert [message.role for message in await thread.history()][-3:] == ["user", "assistant", "tool"]
    await check(engine, thread)


async def test_a_reducer_chooses_what_the_other_agent_sees(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    thread = await engine.start_thread(messages=[Message.user(f"Old {n}.") for n in range(6)])
    await desk(engine, Handoff(refunds, reducer=KeepLast(2))).run("Refund!", thread=thread)
    (asked,) = refunds.client.requests  # type: ignore[attr-defined] # the scripted client
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "tool"]
    await check(engine, thread)


async def test_max_rounds_counts_the_answers_of_all_agents(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", *[call("transfer_to_desk")] * 9)
    agent = desk(engine, refunds, *[TRANSFER] * 9)
    refunds.handoffs = [agent]
    thread = await engine.start_thread()
    with pytest.raises(RunLimitError):
        await agent.run("Refund!", thread=thread, max_rounds=5)
    runs = await started(thread)
    assert [run.agent.id for run in runs] == ["Desk", "Refunds", "Desk", "Refunds", "Desk", "Refunds"]
    assert [run.handed_from.rounds for run in runs if run.handed_from] == [1, 2, 3, 4, 5]
    await check(engine, thread)


async def test_a_failure_of_the_other_agent_is_that_of_its_run(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", fault("refused"), "Now it works.", retries=0)
    agent, thread = desk(engine, refunds), await engine.start_thread()
    with pytest.raises(Exception, match="refused"):
        await agent.run("Refund!", thread=thread, idempotency_key="turn-1")
    types = [event.type for event in await events_of(thread) if event.type.startswith("run-")]
    assert types == ["run-started", "run-completed", "run-started", "run-failed"]
    with pytest.raises(RunNotCompletedError):
        await agent.run("Refund!", thread=thread, idempotency_key="turn-1")
    assert (await refunds.run(thread=thread)).text == "Now it works."


async def test_an_inner_agent_may_hand_over_and_all_tokens_count(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    boss = agent_of(engine, "Boss", call("Desk", input="Refund!"), "Done.", tools=[desk(engine, refunds)])
    response = await boss.run("Go.")
    assert [each.results[0].result for each in response.messages if each.results] == ["You get it back."]
    threads = [await engine.thread(summary.id) async for summary in engine.threads()]
    assert response.usage.output_tokens == sum([await output_tokens(thread) for thread in threads])
    failing = agent_of(engine, "Refunds", fault("refused"), retries=0)
    boss = agent_of(engine, "Boss", call("Desk", input="Refund!"), "Done.", tools=[desk(engine, failing)])
    failed = await boss.run("Go.")
    assert failed.usage.output_tokens > len(["Done."])


async def test_a_caller_that_goes_between_the_runs_leaves_no_open_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    agent, thread = desk(engine, refunds), await engine.start_thread()
    complete = ContextAssembly.complete

    async def interrupted(self: ContextAssembly, last: Any, successor: Any = None) -> None:
        await complete(self, last, successor)
        if successor is not None:
            raise asyncio.CancelledError

    monkeypatch.setattr(ContextAssembly, "complete", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await agent.run("Refund!", thread=thread)
    (end,) = [event.data for event in await events_of(thread) if isinstance(event.data, RunAbandoned)]
    assert end.reason == "cancelled"
    monkeypatch.undo()
    with pytest.raises(NoOpenRunError):
        await agent.continue_run(thread)
    assert (await refunds.run(thread=thread)).text == "You get it back."


async def test_the_log_with_a_handoff_is_exported_and_verifies(engine: Engine) -> None:
    refunds = agent_of(engine, "Refunds", "You get it back.")
    thread = (await desk(engine, refunds).run("Refund!")).thread
    exported = b"".join([part async for part in engine.export_events(definitions=True)])
    async with Engine.open("memory:") as copy:
        await copy.import_events(BytesIO(exported))
        assert (await copy.verify()).first_bad is None
        copied = await copy.thread(thread.id)
        assert len(await started(copied)) == 2
        await check(copy, copied)


async def test_others_may_append_and_the_thread_may_be_suspended_meanwhile(engine: Engine) -> None:
    thread = await engine.start_thread()

    @tool
    async def suspend() -> str:
        await thread.append(Record("note", {"from": "another client"}))
        await thread.suspend()
        return "suspended"

    refunds = agent_of(engine, "Refunds", "You get it back.")
    agent = desk(engine, refunds, [call("suspend"), TRANSFER], tools=[suspend])
    assert (await agent.run("Refund!", thread=thread)).text == "You get it back."
    await check(engine, thread)


@pytest.mark.parametrize("kind", WIRES)
async def test_each_service_accepts_the_history_of_another_agents_call(kind: str, engine: Engine) -> None:
    with service_of(kind) as service:
        service.add_replies(calls(("transfer_to_refunds", '{"reason": "money"}')), "You get it back.", streams=False)
        refunds = Agent(service.client(), engine=engine, name="Refunds", instructions="Refund.")
        agent = Agent(service.client(), engine=engine, name="Desk", handoffs=[refunds])
        response = await agent.run("Refund!")
        assert response.text == "You get it back."
        assert service.received(await check_requests(response.thread, await events_of(response.thread)))


async def test_a_remote_thread_is_handed_over_with_its_service_state(engine: Engine) -> None:
    client = ScriptedChatClient([TRANSFER, "You get it back."], thread_kinds=["remote"])
    refunds = Agent(client, engine=engine, name="Refunds")
    agent = Agent(client, engine=engine, name="Desk", handoffs=[refunds])
    thread = await agent.get_remote_thread()
    assert (await agent.run("Refund!", thread=thread)).text == "You get it back."
    assert [body.get("previous_response_id") for body in client.requests] == [None, "resp_1"]
    local = agent_of(engine, "Refunds", "Never.")
    client = ScriptedChatClient([TRANSFER, "Then not."], thread_kinds=["remote"])
    agent = Agent(client, engine=engine, name="Desk", handoffs=[local])
    thread = await agent.get_remote_thread()
    response = await agent.run("Refund!", thread=thread)
    assert "UnsupportedThreadError" in str(response.messages[1].results[0].result)


async def test_what_handoffs_may_be(engine: Engine) -> None:
    for wrong in (["Refunds"], "Refunds", [len]):
        with pytest.raises(AgentConfigurationError, match="handoffs"):
            agent_of(engine, "Desk", "x", handoffs=wrong)
    refunds = agent_of(engine, "Refund desk!", "R.")
    assert Handoff(refunds).as_tool().name == "transfer_to_refund_desk"
    with pytest.raises(AgentConfigurationError, match="on_handoff=3"):
        desk(engine, Handoff(refunds, on_handoff=3))  # type: ignore[arg-type]  # the fault
    taken = tool(lambda: 1, name="transfer_to_refund_desk")
    with pytest.raises(InvalidToolError, match="Two tools"):
        await agent_of(engine, "Desk", "x", tools=[taken], handoffs=[refunds]).run("Hi.")


class Pair:
    """A desk with a tool and a handoff, and the agent that it hands the conversation to, with a tool of its own."""

    def __init__(self, folder: Path) -> None:
        self.effects = folder / "effects"
        self._url = f"sqlite:///{folder}/clew.db?synchronous=OFF"

    def desk(self, engine: Engine, pass_point: PassPoint) -> Agent:
        def effect(name: str, context: ToolContext) -> str:
            pass_point(f"before {name}")
            with self.effects.open("a") as file:
                file.write(f"{name} {context.idempotency_key}\n")
            return f"{name} done"

        @tool(idempotent=True)
        def look(context: ToolContext) -> str:
            return effect("look", context)

        @tool(approval="always", idempotent=True)
        def pay(context: ToolContext) -> str:
            return effect("pay", context)

        def made(name: str, made_calls: list[Any], **options: Any) -> Agent:
            def line(body: JsonObject) -> Line:
                pass_point("asked")
                messages: Any = body["messages"]
                done = sum(message["role"] == "tool" for message in messages)
                answer: Line = made_calls[done] if done < len(made_calls) else f"{name} is done."
                return answer

            return Agent(ScriptedChatClient(line), engine=engine, name=name, retries=0, **options)

        refunds = made("Refunds", [None, None, call("pay")], tools=[pay])
        return made("Desk", [call("look"), TRANSFER], tools=[look], handoffs=[refunds])

    async def live(self, number: int, now: Callable[[], int], pass_point: PassPoint) -> AgentResponse[Any]:
        """Answer a turn, and approve whatever is asked for."""
        async with Engine.open(self._url, embedded=False, now=now) as engine:
            agent = self.desk(engine, pass_point)
            response = await agent.run("Go.", idempotency_key=f"turn-{number}")
            while response.approvals:
                for approval in response.approvals:
                    await approval.approve()
                response = await agent.continue_run(response.thread)
            response = await agent.run("Go.", idempotency_key=f"turn-{number}")
            assert response.agent.name == "Refunds"
            return response

    async def die(self, number: int, pass_point: PassPoint) -> None:
        await self.live(number, clock.now, pass_point)


def test_a_handoff_that_is_killed_at_any_point_is_continued_by_the_right_agent(tmp_path: Path, scale: float) -> None:
    pair, usages, shapes = Pair(tmp_path), set(), set()
    for point in itertools.count(1, 1 if scale >= 1 else 3):
        pair.effects.unlink(missing_ok=True)
        passed = run_until(point, partial(pair.die, point))
        later = clock.now() + point * 60_000_000
        response = asyncio.run(pair.live(point, lambda: later, lambda _: None))  # noqa: B023 # used at once
        assert response.text == "Refunds is done."
        done = Counter(pair.effects.read_text().splitlines())
        assert sorted(line.split()[0] for line in done) == ["look", "pay"], "a repeated call has the same key"
        assert max(done.values()) <= 2, "only the call that was in progress is repeated"
        usages.add(response.usage.output_tokens)
        shapes.add(tuple(message.role for message in response.messages))
        if not passed.killed:
            break
    assert point > 15
    assert (len(usages), len(shapes)) == (1, 1)


class Hooks(Middleware):
    """The lifecycle of a run as hooks see it, in the names of openai-agents."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    async def run(self, context: Any, proceed: Any) -> Any:
        self._seen.append(f"on_agent_start {context.agent_name}")
        response = await proceed()
        self._seen.append(f"on_agent_end {context.agent_name}")
        return response

    async def model_call(self, context: Any, proceed: Any) -> Any:
        self._seen.append(f"on_llm_start {context.agent_name}")
        answer = await proceed()
        self._seen.append(f"on_llm_end {context.agent_name}")
        return answer

    async def tool_call(self, context: Any, proceed: Any) -> Any:
        is_handoff = context.name.startswith("transfer_to_")
        self._seen.append(f"on_handoff {context.name}" if is_handoff else f"on_tool_start {context.name}")
        outcome = await proceed()
        if not is_handoff:
            self._seen.append(f"on_tool_end {context.name}")
        return outcome


async def test_middleware_sees_the_lifecycle_of_all_agents(engine: Engine) -> None:
    seen: list[str] = []
    look = tool(lambda: "looked", name="look")
    refunds = agent_of(engine, "Refunds", call("look"), "You get it back.", tools=[look], middleware=[Hooks(seen)])
    response = await desk(engine, refunds, middleware=[Hooks(seen)]).run("Refund!")
    assert seen == [
        *("on_agent_start Desk", "on_llm_start Desk", "on_llm_end Desk", "on_handoff transfer_to_refunds"),
        *("on_agent_start Refunds", "on_llm_start Refunds", "on_llm_end Refunds"),
        *("on_tool_start look", "on_tool_end look", "on_llm_start Refunds", "on_llm_end Refunds"),
        *("on_agent_end Refunds", "on_agent_end Desk"),
    ]
    assert (response.text, response.agent, len(response.messages)) == ("You get it back.", refunds, 5)


async def test_the_other_agents_middleware_surrounds_its_run_that_continues(engine: Engine) -> None:
    seen: list[str] = []
    pay = tool(lambda: "paid", name="pay", approval="always")
    refunds = agent_of(engine, "Refunds", call("pay"), "Paid.", tools=[pay], middleware=[Hooks(seen)])
    agent = desk(engine, refunds, middleware=[Hooks(seen)])
    response = await agent.run("Refund!")
    await response.approvals[0].approve()
    seen.clear()
    again = await agent.continue_run(response.thread)
    assert (seen[:2], seen[-2:]) == (
        ["on_agent_start Desk", "on_agent_start Refunds"],
        ["on_agent_end Refunds", "on_agent_end Desk"],
    )
    assert (again.text, again.agent) == ("Paid.", refunds)


async def test_middleware_of_the_other_agent_that_refuses_its_run_fails_it(engine: Engine) -> None:
    class Refusing(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            del context, proceed
            raise PermissionError("not now")

    thread = await engine.start_thread()
    refunds = agent_of(engine, "Refunds", "Never.", middleware=[Refusing()])
    with pytest.raises(PermissionError, match="not now"):
        await desk(engine, refunds).run("Refund!", thread=thread)
    assert [event.type for event in await events_of(thread)][-2:] == ["run-started", "run-failed"]
    assert await engine.threads_with_lease() == []
    await check(engine, thread)


async def test_max_seconds_counts_the_time_of_all_agents(engine: Engine) -> None:
    async def look() -> str:
        await asyncio.sleep(0.4)
        return "looked"

    tools = [tool(look)]
    refunds = agent_of(engine, "Refunds", call("look"), "Late.", tools=tools)
    agent = desk(engine, refunds, call("look"), TRANSFER, tools=tools)
    with pytest.raises(RunLimitError, match="max_seconds"):
        await agent.run("Refund!", max_seconds=0.6)


async def test_middleware_of_the_other_agent_may_answer_itself(engine: Engine) -> None:
    class Closed(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            del context, proceed
            return AgentResponse("none", thread, [], TokenUsage(), "closed", agent="nobody")

    thread = await engine.start_thread()
    refunds = agent_of(engine, "Refunds", "Never.", middleware=[Closed()])
    response = await desk(engine, refunds).run("Refund!", thread=thread)
    assert (response.finish_reason, response.agent, len(response.messages)) == ("closed", "nobody", 2)
    assert [event.type for event in await events_of(thread)][-1] == "run-abandoned"
    await check(engine, thread)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_is_called_with_what_the_model_says_before_the_handoff(
    engine: Engine, *, is_async: bool
) -> None:
    seen: list[tuple[int, Any, bool]] = []

    def note(priority: int, context: ToolContext) -> None:
        """Note it."""
        if priority > 3:
            raise ValueError("at most 3")
        seen.append((priority, context.deps, bool(context.idempotency_key)))

    async def note_later(context: ToolContext, priority: int) -> None:
        note(priority, context)

    refunds = agent_of(engine, "Refunds", "You get it back.")
    handoff = Handoff(refunds, on_handoff=note_later if is_async else note)
    script = [call("transfer_to_refunds", priority=number) for number in ("high", 4, 2)]
    agent = desk(engine, handoff, *script)
    response = await agent.run("My money.", deps="shop")
    assert (seen, response.agent) == ([(2, "shop", True)], refunds)
    (tool_schema,) = agent.client.requests[0]["tools"]  # type: ignore[attr-defined] # the scripted client
    assert list(tool_schema["function"]["parameters"]["properties"]) == ["priority"]
    (handed,) = [event.data for event in await events_of(response.thread) if isinstance(event.data, HandedOff)]
    assert handed.reason == ""
