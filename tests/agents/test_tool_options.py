"""Options of tools: forced calls, approval by a function, retries and concurrency."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.turns import PATIENCE

from clew import Agent, Engine, Guardrail, Handoff, ScriptedChatClient, ToolContext, tool
from clew.agents import tools
from clew.agents.tool_use import ToolResult
from clew.domain.errors import InvalidContentError
from clew.domain.runs.errors import AgentConfigurationError, GuardrailTrippedError, InvalidToolError, ToolFailedError
from clew.domain.runs.events import ModelCalled, ToolFailed, ToolFinished
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_RETRY_SECONDS", 0.0)


async def test_a_forced_call_is_forced_once() -> None:
    async with Engine.open("memory:") as engine:
        look = tool(lambda: "looked", name="look")
        client = ScriptedChatClient([call("look"), "Done.", call("look"), "Done."], options={"tool_choice": "required"})
        agent = Agent(client, engine=engine, tools=[look])
        response = await agent.run("Go")
        await agent.run("Again", thread=response.thread)
        assert [request.get("tool_choice") for request in client.requests] == ["required", None, "required", None]
        async for event in response.thread.events():
            if isinstance(event.data, ModelCalled):
                assert (await response.thread.request(event.version)).verified
        kept = Agent(
            ScriptedChatClient([call("look"), "Done."], options={"tool_choice": "required"}),
            engine=engine,
            tools=[look],
            reset_tool_choice=False,
        )
        await kept.run("Go")
        assert [request["tool_choice"] for request in kept.client.requests] == ["required", "required"]  # type: ignore[attr-defined] # the scripted client
        with pytest.raises(InvalidContentError, match="reset_tool_choice"):
            Agent(client, engine=engine, reset_tool_choice="no")  # type: ignore[arg-type] # the fault


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_of_the_arguments_says_whether_a_call_needs_approval(*, is_async: bool) -> None:
    seen: list[tuple[dict[str, Any], Any]] = []

    def large(arguments: dict[str, Any], context: ToolContext) -> bool:
        seen.append((arguments, context.deps))
        return bool(arguments["amount"] > context.deps)

    async def large_later(arguments: dict[str, Any], context: ToolContext) -> bool:
        return large(arguments, context)

    @tool(approval=large_later if is_async else large)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    async with Engine.open("memory:") as engine:
        calls = [call("pay", amount=5), call("pay", amount=500), call("pay", amount="no")]
        agent = Agent(ScriptedChatClient([calls, "Done."]), engine=engine, tools=[pay])
        response = await agent.run("Pay.", deps=100)
        (approval,) = response.approvals
        assert approval.call.arguments == '{"amount": 500}'
        assert seen == [({"amount": 5}, 100), ({"amount": 500}, 100)]
        await approval.approve()
        done = await agent.continue_run(response.thread, deps=100)
        results = [result.result for message in done.messages if message.message for result in message.message.results]
        assert sorted(map(str, results))[1:] == ["paid 5", "paid 500"]


async def test_a_function_that_fails_ends_the_run_before_the_tool_is_called() -> None:
    def broken(arguments: dict[str, Any], context: ToolContext) -> bool:
        raise LookupError(arguments, context)

    called: list[int] = []
    pay = tool(lambda: called.append(1), name="pay", approval=broken)
    async with Engine.open("memory:") as engine:
        thread = await engine.start_thread()
        with pytest.raises(LookupError):
            await Agent(ScriptedChatClient([call("pay")]), engine=engine, tools=[pay]).run("Go", thread=thread)
        assert called == []
        assert [event.type async for event in thread.events()][-1] == "run-failed"


async def test_a_tool_is_called_again_after_it_raised_or_took_too_long() -> None:
    attempts: list[str] = []

    @tool(retries=2, timeout=0.05)
    async def flaky(context: ToolContext) -> str:
        attempts.append(context.idempotency_key)
        if len(attempts) == 1:
            raise ConnectionError
        if len(attempts) == 2:
            await asyncio.sleep(PATIENCE)
        return "there"

    @tool(retries=1)
    def broken() -> str:
        raise ValueError("again")

    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        script: list[Any] = [[call("flaky"), call("broken"), call("flaky", nothing=1)], "Done."]
        agent = Agent(ScriptedChatClient(script), engine=engine, tools=[flaky, broken])
        response = await agent.run("Go")
        outcomes = [
            event.data async for event in response.thread.events() if isinstance(event.data, ToolFinished | ToolFailed)
        ]
        assert {(type(each).__name__, each.index, each.attempts) for each in outcomes} == {
            ("ToolFinished", 0, 3),
            ("ToolFailed", 1, 2),
            ("ToolFailed", 2, 1),
        }
        assert len(attempts) == 3
        assert len(set(attempts)) == 1, "each attempt has the key of the call"


async def test_calls_of_a_tool_are_limited_over_all_runs_of_a_loop() -> None:
    running, most = 0, 0

    @tool(concurrency=2)
    async def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "done"

    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        agents = [
            Agent(ScriptedChatClient([[call("slow")] * 4, "Done."]), engine=engine, name=f"A{number}", tools=[slow])
            for number in range(3)
        ]
        await asyncio.gather(*(agent.run("Go") for agent in agents))
        assert most == 2


@pytest.mark.parametrize("options", [{"retries": -1}, {"retries": True}, {"concurrency": 0}, {"concurrency": 1.5}])
def test_refuses_counts_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolError, match="not a number of calls"):
        tool(lambda: 1, name="one", **options)


def total(results: Sequence[ToolResult]) -> str | None:
    """Return the sum of two results."""
    return str(sum(int(each.text) for each in results)) if len(results) > 1 else None


@pytest.mark.parametrize(
    ("behavior", "text", "rounds"),
    [
        ("run_llm_again", "Six.", 3),
        ("stop_on_first_tool", "1", 1),
        (["double"], "2", 2),
        (total, "6", 2),
    ],
)
async def test_a_run_ends_with_the_result_of_a_tool(url: str, behavior: Any, text: str, rounds: int) -> None:
    def double(number: int) -> int:
        return 2 * number

    one = tool(lambda: 1, name="one")
    script: list[Line] = [call("one"), [call("double", number=1), call("double", number=2)], "Six."]
    async with Engine.open(url) as engine:
        client = ScriptedChatClient(script)
        agent = Agent(client, engine=engine, tools=[one, double], tool_use_behavior=behavior)
        response = await agent.run("Count.")
        assert (response.text, len(client.requests)) == (text, rounds)
        assert response.finish_reason == ("stop" if text == "Six." else "tool-result")
        assert (await response.thread.history()).messages[-1].text == text
        assert (await engine.verify()).first_bad is None
        with pytest.raises(AgentConfigurationError, match="tool_use_behavior"):
            Agent(client, engine=engine, tool_use_behavior="stop")


async def test_failed_calls_end_no_run_and_a_guardrail_checks_the_result(url: str) -> None:
    async def fails() -> str:
        raise OSError("no")

    options: Any = {"tool_use_behavior": "stop_on_first_tool"}
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient([call("fails"), "It failed."]), engine=engine, tools=[fails], **options)
        assert (await agent.run("Go.")).text == "It failed."
        one = tool(lambda: "secret", name="one")
        guard = Guardrail(lambda context: "no" if "secret" in context.text else None, "after")
        agent = Agent(ScriptedChatClient([call("one")]), engine=engine, tools=[one], guardrails=[guard], **options)
        with pytest.raises(GuardrailTrippedError):
            await agent.run("Go.")


async def test_a_run_that_was_killed_before_its_last_step_ends_with_the_result(url: str) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient([call("pay")]), engine=engine, tools=[pay], tool_use_behavior=["pay"])
        response = await agent.run("Pay.")
        await response.approvals[0].approve()
        assert (await agent.continue_run(response.thread)).text == "paid"


async def test_a_tool_is_called_as_often_as_a_run_allows(url: str) -> None:
    made: list[int] = []

    @tool(max_invocations=2)
    def count(number: int) -> str:
        """Count."""
        made.append(number)
        return "counted"

    script: list[Line] = [call("count", number=1), [call("count", number=2), call("count", number=3)], "Done."] * 2
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient(script), engine=engine, tools=[count])
        response = await agent.run("Count.")
        failed = [event.data async for event in response.thread.events() if isinstance(event.data, ToolFailed)]
        assert (made, [each.reason for each in failed]) == ([1, 2], ["limit"])
        await agent.run("Again.", thread=response.thread)
        assert made == [1, 2, 1, 2]
    with pytest.raises(InvalidToolError, match="max_invocations"):
        tool(lambda: 1, name="one", max_invocations=0)


def offered(client: ScriptedChatClient) -> list[list[str]]:
    """The names of the tools in each request."""
    requests: Any = client.requests
    return [[each["function"]["name"] for each in request["tools"]] for request in requests]


async def test_a_tool_that_is_not_enabled_is_not_offered_and_its_call_is_that_of_an_unknown_tool(url: str) -> None:
    asked: list[tuple[Any, str]] = []
    made: list[str] = []

    async def for_staff(context: ToolContext) -> bool:
        asked.append((context.deps, context.call_id))
        return bool(context.deps == "staff")

    refund = tool(lambda: made.append("refund"), name="refund", is_enabled=for_staff)
    secret = tool(lambda: made.append("secret"), name="secret", is_enabled=False)
    look = tool(lambda: "looked", name="look")
    till = Agent(ScriptedChatClient(["Paid."]), name="Till")
    async with Engine.open(url) as engine:
        script: list[Line] = [[call("refund"), call("secret"), call("Till", input="?"), call("look")], "No."]
        client = ScriptedChatClient([*script, call("refund"), "Yes."])
        tools = [refund, secret, look, till.as_tool(is_enabled=False)]
        agent = Agent(client, engine=engine, tools=tools, handoffs=[Handoff(till, is_enabled=lambda _: False)])
        response = await agent.run("Go.", deps="guest")
        assert asked == [("guest", "")] * 2, "before each request"
        assert offered(client) == [["look"]] * 2
        failed = [event.data async for event in response.thread.events() if isinstance(event.data, ToolFailed)]
        assert [each.reason for each in failed] == ["unknown-tool"] * 3
        assert "There are: look." in str(client.requests[-1]["messages"])
        await agent.run("Go.", deps="staff", thread=response.thread)
        assert offered(client)[-1] == ["refund", "look"]
        assert made == ["refund"]
        called = [event async for event in response.thread.events() if isinstance(event.data, ModelCalled)]
        assert [(await response.thread.request(event.version)).verified for event in called] == [True] * 4
    with pytest.raises(InvalidToolError, match="is_enabled"):
        tool(lambda: 1, name="one", is_enabled="no")  # type: ignore[call-overload]  # the fault


async def test_a_tool_can_offer_another_one_with_the_next_request() -> None:
    def unlock(context: ToolContext) -> str:
        context.deps.add("vault")
        return "unlocked"

    vault = tool(lambda: "gold", name="vault", is_enabled=lambda context: "vault" in context.deps)
    async with Engine.open("memory:") as engine:
        client = ScriptedChatClient([call("unlock"), call("vault"), "Done."])
        await Agent(client, engine=engine, tools=[unlock, vault]).run("Go.", deps=set())
        assert offered(client) == [["unlock"], ["unlock", "vault"], ["unlock", "vault"]]


async def test_a_call_is_judged_by_what_was_offered_and_not_by_what_is_enabled_now(url: str) -> None:
    open_ = [True]
    pay = tool(lambda: "paid", name="pay", approval="always", is_enabled=lambda _: open_[0])
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient([call("pay"), "Paid."]), engine=engine, tools=[pay])
        response = await agent.run("Pay.")
        open_[0] = False
        await response.approvals[0].approve()
        done = await agent.continue_run(response.thread)
        assert [result.result for each in done.messages if each.message for result in each.message.results] == ["paid"]


async def test_a_function_that_cannot_say_whether_a_tool_is_enabled_ends_the_run() -> None:
    answers = [True]

    def broken(_: ToolContext) -> bool:
        return answers.pop()

    look = tool(lambda: "looked", name="look", is_enabled=broken)
    async with Engine.open("memory:") as engine:
        thread = await engine.start_thread()
        with pytest.raises(IndexError):
            await Agent(ScriptedChatClient([call("look")]), engine=engine, tools=[look]).run("Go", thread=thread)
        assert [event.type async for event in thread.events()][-1] == "run-failed"


async def test_a_tool_is_not_called_again_after_it_has_failed_as_often_as_a_run_allows(url: str) -> None:
    made: list[int] = []

    @tool(max_invocation_exceptions=2)
    def fetch(number: int) -> str:
        made.append(number)
        if number:
            raise ConnectionError
        return "there"

    script: list[Line] = [call("fetch", number="x"), *(call("fetch", number=each) for each in (1, 0, 2, 3)), "Done."]
    async with Engine.open(url) as engine:
        agent = Agent(ScriptedChatClient(script * 2), engine=engine, tools=[fetch])
        response = await agent.run("Fetch.")
        failed = [event.data async for event in response.thread.events() if isinstance(event.data, ToolFailed)]
        assert (made, [each.reason for each in failed]) == (
            [1, 0, 2], ["invalid-arguments", "raised", "raised", "limit"],
        )  # fmt: skip
        await agent.run("Again.", thread=response.thread)
        assert made == [1, 0, 2] * 2
    with pytest.raises(InvalidToolError, match="max_invocation_exceptions"):
        tool(lambda: 1, name="one", max_invocation_exceptions=0)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_words_the_errors_of_a_tool_for_the_model(*, is_async: bool) -> None:
    def words(context: ToolContext, error: Exception) -> str:
        return f"{context.deps}: {type(error).__name__}"

    async def words_later(context: ToolContext, error: Exception) -> str:
        return words(context, error)

    def broken(context: ToolContext, error: Exception) -> str:
        raise LookupError(context.call_id, error)

    @tool(errors=words_later if is_async else words, timeout=0.001)
    async def slow(number: int) -> str:
        if number:
            raise ValueError("secret")
        await asyncio.sleep(PATIENCE)
        return ""

    worse = tool(slow.function, name="worse", errors=broken)
    calls = [call("slow", number=1), call("slow", number=0), call("worse", number=1)]
    async with Engine.open("memory:") as engine:
        agent = Agent(ScriptedChatClient([calls, "Done."]), engine=engine, tools=[slow, worse])
        response = await agent.run("Go.", deps="Sorry")
        results = [result.result for each in response.messages if each.message for result in each.message.results]
        assert set(map(str, results)) == {
            "Sorry: ValueError",
            "Sorry: TimeoutError",
            "Error: LookupError: ('call_3', ValueError('secret'))",
        }
        failed = [event.data async for event in response.thread.events() if isinstance(event.data, ToolFailed)]
        assert {each.kind for each in failed} == {"ValueError", "TimeoutError", "LookupError"}


@pytest.mark.parametrize("kind", [ValueError, TimeoutError])
async def test_an_error_or_a_timeout_of_a_tool_can_end_the_run(kind: type[Exception]) -> None:
    @tool(errors="raise", timeout=0.001)
    async def slow() -> None:
        if kind is ValueError:
            raise ValueError
        await asyncio.sleep(PATIENCE)

    async with Engine.open("memory:") as engine:
        thread = await engine.start_thread()
        with pytest.raises(ToolFailedError) as raised:
            await Agent(ScriptedChatClient([call("slow")]), engine=engine, tools=[slow]).run("Go.", thread=thread)
        assert isinstance(raised.value.__cause__, kind)
        assert [event.type async for event in thread.events()][-2:] == ["tool-failed", "run-failed"]


def limited(engine: Engine, effects: Path) -> Agent:
    """An agent that calls two tools as often as it may, once more, and ends with the result of a third."""

    def note(what: str) -> None:
        with effects.open("a") as file:
            file.write(f"{what}\n")

    @tool(max_invocations=2, idempotent=True)
    def count(context: ToolContext) -> str:
        note(f"count {context.idempotency_key}")
        return "counted"

    @tool(max_invocation_exceptions=1, idempotent=True)
    def fetch(context: ToolContext) -> None:
        note(f"fetch {context.idempotency_key}")
        raise ConnectionError

    def line(body: Any) -> Line:
        answers = len([each for each in body["messages"] if each["role"] == "assistant"])
        script: list[Line] = [
            [call("count"), call("count"), call("fetch")],
            [call("count"), call("fetch")],
            call("sum"),
        ]
        return script[answers]

    tools = [count, fetch, tool(lambda: "3", name="sum", idempotent=True)]
    return Agent(ScriptedChatClient(line), engine=engine, name="Counter", tools=tools, tool_use_behavior=["sum"])


def test_limits_and_the_result_that_ends_a_run_are_those_of_the_log_after_a_kill_at_any_point(tmp_path: Path) -> None:
    async def work(url: str, effects: Path, _: PassPoint) -> None:
        async with Engine.open(url, embedded=False) as engine:
            await limited(engine, effects).run("Count.", thread=await engine.open_thread("counting"))

    async def check(url: str, effects: Path) -> None:
        async with Engine.open(url, embedded=False, now=lambda: clock.now() + 60_000_000) as engine:
            thread, agent = await engine.open_thread("counting"), limited(engine, effects)
            events = [event async for event in thread.events()]
            if not any(event.type == "run-started" for event in events):
                return
            if events[-1].type != "run-completed":
                response = await agent.continue_run(thread)
                assert (response.text, response.finish_reason) == ("3", "tool-result")
                events = [event async for event in thread.events()]
            failed = [event.data for event in events if isinstance(event.data, ToolFailed)]
            assert [each.reason for each in failed] == ["raised", "limit", "limit"]
            assert [event.type for event in events].count("tool-finished") == 3
            assert [event.type for event in events].count("model-answered") == 3
            assert (await thread.history()).messages[-1].text == "3"

    for point in itertools.count(1):
        url, effects = f"sqlite:///{tmp_path}/{point}.db?synchronous=OFF", tmp_path / f"{point}.effects"
        passed = run_until(point, partial(work, url, effects))
        asyncio.run(check(url, effects))
        made = set(effects.read_text().splitlines()) if effects.exists() else set()
        assert sorted(each.split()[0] for each in made) in (["count", "count", "fetch"], [])
        if not passed.killed:
            break
    assert point > 2 * 6
