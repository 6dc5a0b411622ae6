"""Approvals: a call runs at most once for any number of decisions and deciders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agents.run_checks import check_requests
from tests.agents.turns import PATIENCE, Child, Pipe, ShiftedClock, check_runs, events_of, types_of

from clew import Agent, Engine, Message, ScriptedChatClient, tool
from clew.agents import stream
from clew.agents.response import AgentResponse, Approval
from clew.aio.threads import Thread
from clew.domain.errors import ClewError, ThreadDeletedError, ThreadStatusError
from clew.domain.messages import FunctionCall
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    NoOpenRunError,
    RunInProgressError,
)
from clew.domain.runs.events import ApprovalGiven, RunAbandoned
from clew.infrastructure.scripted_client import Line, call

pytestmark = pytest.mark.anyio

DAYS = 3 * 24 * 3600.0


class Shop:
    """Records payments and look-ups, and makes an agent that does them."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.seen: list[int] = []

    def agent(self, engine: Engine, *script: Any) -> Agent:
        @tool(approval="always")
        async def pay(order: int) -> str:
            """Pay for an order."""
            await asyncio.sleep(0)
            self.paid.append(order)
            return f"paid {order}"

        @tool
        def look_up(order: int) -> str:
            """Look an order up."""
            self.seen.append(order)
            return f"seen {order}"

        return Agent(client=ScriptedChatClient(script), engine=engine, name="shop", tools=[pay, look_up])

    async def run_until_approval(self, engine: Engine, *calls: FunctionCall) -> AgentResponse[Thread]:
        """Run the agent until it waits for approvals."""
        return await self.agent(engine, list(calls or [call("pay", order=7)])).run("Pay.")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def decisions(events: list[Any]) -> list[tuple[int, bool]]:
    """Return the decided requests and whether each was approved."""
    return [(each.data.request, each.data.approved) for each in events if isinstance(each.data, ApprovalGiven)]


async def outcome(work: Any) -> Any:
    """Return the result, or the type of the error."""
    try:
        return await work
    except ClewError as error:
        return type(error)


async def test_an_approval_days_later_and_in_another_process_is_executed(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        thread_id = (await shop.run_until_approval(engine)).thread.id
    async with Engine.open(url, now=ShiftedClock(DAYS)) as engine:
        thread = await engine.thread(thread_id)
        (approval,) = await thread.approvals()
        assert (approval.call.name, approval.call.arguments) == ("pay", '{"order": 7}')
        assert approval.reason == "approval"
        await approval.approve(actor="user:42")
        assert shop.paid == []
        events = await events_of(thread)
        assert (events[-1].actor, decisions(events)) == ("user:42", [(approval.version, True)])
    async with Engine.open(url, now=ShiftedClock(2 * DAYS)) as engine:
        thread = await engine.thread(thread_id)
        with pytest.raises(ApprovalPendingError, match="continue_run"):
            await shop.agent(engine, "no").run("Again.", thread=thread)
        assert (await shop.agent(engine, "Done.").continue_run(thread)).text == "Done."
        assert shop.paid == [7]
        await check_requests(thread, await events_of(thread))
        assert (await thread.runs.control(fresh=True)).run is None


async def test_the_model_gets_the_reason_of_a_rejected_call(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await response.approvals[0].reject("too expensive", actor="user:42")
        agent = shop.agent(engine, "Then not.")
        await agent.continue_run(response.thread)
        client: Any = agent.client
        assert client.requests[0]["messages"][-1]["content"] == "The call was rejected: too expensive"
        assert shop.paid == []
        types = types_of(await events_of(response.thread))
        assert types[-6:] == [
            "approval-given", "run-resumed", "tool-failed", "model-called", "model-answered", "run-completed",
        ]  # fmt: skip


async def test_calls_without_approval_are_executed_at_once(url: str, shop: Shop) -> None:
    calls = [call("pay", order=1), call("look_up", order=2), call("pay", order=3), call("look_up", order=4)]
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine, *calls)
        assert (shop.paid, shop.seen) == ([], [2, 4])
        first, second = response.approvals
        await first.approve()
        agent = shop.agent(engine, "Done.")
        with pytest.raises(ApprovalPendingError) as raised:
            await agent.continue_run(response.thread)
        assert raised.value.pending == (second.version,)
        assert [each.version for each in await response.thread.approvals()] == [second.version]
        await second.reject()
        await agent.continue_run(response.thread)
        assert (shop.paid, sorted(shop.seen)) == ([1], [2, 4])
        history = await response.thread.history()
        results = {result.call_id: result.result for each in history if each.message for result in each.message.results}
        assert results == {
            "call_1": "paid 1", "call_2": "seen 2", "call_3": "The call was rejected.", "call_4": "seen 4",
        }  # fmt: skip
        await check_requests(response.thread, await events_of(response.thread))


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_only_one_of_two_concurrent_decisions_counts(url: str, shop: Shop, decision: str) -> None:
    async with Engine.open(url) as engine, Engine.open(url) as other:
        for _ in range(5):
            response = await shop.run_until_approval(engine)
            (here,) = response.approvals
            elsewhere: Approval
            (elsewhere,) = await (await other.thread(response.thread.id)).approvals()
            outcomes = await asyncio.gather(outcome(here.approve()), outcome(getattr(elsewhere, decision)()))
            assert sorted(map(str, outcomes)) == sorted(["None", str(ApprovalNotPendingError)])
            approved = outcomes[0] is None or decision == "approve"
            events = await events_of(response.thread)
            assert decisions(events) == [(here.version, approved)]
            shop.paid.clear()
            await shop.agent(engine, "Done.").continue_run(response.thread)
            assert shop.paid == ([7] if approved else [])


async def _approve_in_process(url: str, thread_id: str, pipe: Pipe) -> None:
    async with Engine.open(url) as engine:
        (approval,) = await (await engine.thread(thread_id)).approvals()
        pipe.say("ready")
        await pipe.hear()
        result = await outcome(approval.approve())
        pipe.say("approved" if result is None else result.__name__)


async def _continue_in_process(url: str, thread_id: str, pipe: Pipe) -> None:
    async def answer(_: Any) -> Line:
        pipe.say("asked")
        await pipe.hear()
        return "Done."

    shop = Shop()
    async with Engine.open(url) as engine:
        thread = await engine.thread(thread_id)
        agent = shop.agent(engine, answer)
        pipe.say("ready")
        await pipe.hear()
        result = await outcome(agent.continue_run(thread))
        pipe.say("refused" if isinstance(result, type) else result.text, shop.paid)


async def test_two_processes_that_approve_and_continue_make_the_call_once(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        thread_id = (await shop.run_until_approval(engine)).thread.id
    children = [Child(lambda pipe: _approve_in_process(url, thread_id, pipe)) for _ in range(2)]
    assert [child.heard() for child in children] == [["ready"]] * 2
    for child in children:
        child.say("go")
    assert sorted(child.heard()[0] for child in children) == ["ApprovalNotPendingError", "approved"]
    assert [child.wait() for child in children] == [0, 0]

    children = [Child(lambda pipe: _continue_in_process(url, thread_id, pipe)) for _ in range(2)]
    assert [child.heard() for child in children] == [["ready"]] * 2
    for child in children:
        child.say("go")
    answers = [child.heard() for child in children]
    assert sorted(answers) == [["asked"], ["refused", []]]
    winner = children[answers.index(["asked"])]
    winner.say("go")
    assert winner.heard() == ["Done.", [7]]
    assert [child.wait() for child in children] == [0, 0]
    async with Engine.open(url) as engine:
        await check_runs(await engine.thread(thread_id))


async def test_a_waiting_continuation_finds_the_run_completed(url: str, shop: Shop) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def answer(_: Any) -> Line:
        started.set()
        await released.wait()
        return "Done."

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        response = await shop.run_until_approval(engine)
        await response.approvals[0].approve()
        first = asyncio.create_task(shop.agent(engine, answer).continue_run(response.thread))
        await started.wait()
        elsewhere = await other.thread(response.thread.id)
        with pytest.raises(RunInProgressError):
            await shop.agent(other, "no").continue_run(elsewhere)
        second = asyncio.create_task(shop.agent(other, "no").continue_run(elsewhere, on_conflict="wait"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        released.set()
        assert (await first).text == "Done."
        with pytest.raises(NoOpenRunError):
            await second
        assert shop.paid == [7]


async def test_a_fork_does_not_inherit_pending_approvals(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        branch = await response.thread.fork()
        assert await branch.approvals() == []
        with pytest.raises(NoOpenRunError):
            await shop.agent(engine, "no").continue_run(branch)
        again = await shop.agent(engine, call("pay", order=7)).run("Pay after all.", thread=branch)
        assert [each.version for each in again.approvals] != [each.version for each in response.approvals]
        await response.approvals[0].approve()
        assert len(await branch.approvals()) == 1
        with pytest.raises(ApprovalPendingError):
            await shop.agent(engine, "no").continue_run(branch)
        await shop.agent(engine, "Done.").continue_run(response.thread)
        assert shop.paid == [7]
        await again.approvals[0].reject()
        await shop.agent(engine, "Then not.").continue_run(branch)
        assert shop.paid == [7]
        await check_requests(branch, (await events_of(branch))[response.approvals[0].version :])


@pytest.mark.parametrize("to", ["before", "request"])
async def test_refuses_an_approval_after_a_rewind(url: str, shop: Shop, to: str) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        (approval,) = response.approvals
        await response.thread.rewind(to=1 if to == "before" else approval.version)
        for decide in (approval.approve, approval.reject):
            with pytest.raises(ApprovalNotPendingError):
                await decide()
        assert await response.thread.approvals() == []
        await response.thread.rewind(to=approval.version)  # not even when it is on the path again
        with pytest.raises(ApprovalNotPendingError):
            await approval.approve()
        with pytest.raises(NoOpenRunError):
            await shop.agent(engine, "no").continue_run(response.thread)
        await shop.agent(engine, "Hello.").run("Hi.", thread=response.thread)
        assert shop.paid == []
        await check_requests(response.thread, await events_of(response.thread))


async def test_a_call_approved_before_a_rewind_is_not_executed_after_it(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await response.approvals[0].approve()
        approved = (await response.thread.summary()).version
        await response.thread.rewind(to=1)
        await response.thread.rewind(to=approved)
        with pytest.raises(NoOpenRunError):
            await shop.agent(engine, "no").continue_run(response.thread)
        branch = await response.thread.fork(at=approved)
        with pytest.raises(NoOpenRunError):
            await shop.agent(engine, "no").continue_run(branch)
        assert shop.paid == []


async def test_refuses_an_approval_of_an_abandoned_run(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        agent = shop.agent(engine, "Hello.")
        with pytest.raises(ApprovalPendingError):
            await agent.run("Hi.", thread=response.thread)
        with pytest.raises(ApprovalPendingError):
            await agent.run("Hi.", thread=response.thread, on_conflict="wait")
        assert (await agent.run("Hi.", thread=response.thread, abandon_run=True)).text == "Hello."
        with pytest.raises(ApprovalNotPendingError):
            await response.approvals[0].approve()
        events = await events_of(response.thread)
        assert [each.data.reason for each in events if isinstance(each.data, RunAbandoned)] == ["superseded"]
        await check_requests(response.thread, events)
        assert shop.paid == []


@pytest.mark.parametrize(("method", "error"), [("end", ThreadStatusError), ("delete", ThreadDeletedError)])
async def test_refuses_an_approval_on_an_ended_or_deleted_thread(
    url: str, shop: Shop, method: str, error: type[ClewError]
) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await getattr(response.thread, method)()
        with pytest.raises(error):
            await response.approvals[0].approve()
        if method == "end":
            assert await response.thread.approvals() == []
            with pytest.raises(NoOpenRunError):
                await shop.agent(engine, "no").continue_run(response.thread)
        assert shop.paid == []


async def test_a_suspended_thread_accepts_decisions_and_continues_after_resuming(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await response.thread.suspend()
        await response.approvals[0].approve()
        agent = shop.agent(engine, "Done.")
        with pytest.raises(ThreadStatusError):
            await agent.continue_run(response.thread)
        assert shop.paid == []
        assert await response.thread.runs.lease() is None
        await response.thread.resume()
        await agent.continue_run(response.thread)
        assert shop.paid == [7]


async def test_messages_appended_while_a_call_waits_come_after_it(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await response.thread.append(Message.user("Hurry."))
        await response.approvals[0].approve()
        await shop.agent(engine, "Done.").continue_run(response.thread)
        assert shop.paid == [7]
        await check_requests(response.thread, await events_of(response.thread))


@pytest.mark.parametrize("approved", [False, True])
async def test_a_call_redacted_while_it_waits_is_never_executed(url: str, shop: Shop, approved: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        thread = response.thread
        if approved:
            await response.approvals[0].approve()
        await thread.redact((await thread.history()).messages[-1])
        assert await thread.approvals() == []
        result = await outcome(shop.agent(engine, "no").continue_run(thread))
        assert result is NoOpenRunError
        assert shop.paid == []
        events = await events_of(thread)
        assert events[-1].data == RunAbandoned(reason="redacted")
        await shop.agent(engine, "Hello.").run("Hi.", thread=thread)
        await check_requests(thread, (await events_of(thread))[len(events) :])


async def test_a_new_run_closes_one_whose_waiting_call_was_redacted(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.run_until_approval(engine)
        await response.thread.redact((await response.thread.history()).messages[-1])
        assert (await shop.agent(engine, "Hello.").run("Hi.", thread=response.thread)).text == "Hello."
        with pytest.raises(ApprovalNotPendingError):
            await response.approvals[0].approve()


async def test_leaving_the_stream_of_a_waiting_run_does_not_end_it(url: str) -> None:
    """Another caller may have approved the call already; the approval must not be lost."""
    paid: list[str] = []

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        paid.append("once")
        return "paid"

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        words = "word " * stream._BUFFERED  # the stream's buffer is full before the call
        agent = Agent(client=ScriptedChatClient([[words, call("pay")], "done"]), engine=engine, tools=[pay])
        followed = agent.run("Pay.", thread=thread, stream=True)
        await anext(followed)
        events = thread.subscribe()
        while (await anext(events)).type != "approval-requested":
            pass
        waiting = await thread.approvals()
        await waiting[0].approve(actor="user:ada")
        await followed.aclose()
        assert (await agent.continue_run(thread)).text == "done"
        assert paid == ["once"]
        await check_runs(thread)
