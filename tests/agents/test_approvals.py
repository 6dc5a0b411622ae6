"""Approvals: whoever decides, wherever and however often, a call is made once or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agents.run_checks import check_requests
from tests.agents.turns import PATIENCE, Child, ShiftedClock, Wire, check_runs, events_of, types_of

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
    """What is paid and looked up, and an agent that does it."""

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

    async def asked(self, engine: Engine, *calls: FunctionCall) -> AgentResponse[Thread]:
        """A run that waits for approvals."""
        return await self.agent(engine, list(calls or [call("pay", order=7)])).run("Pay.")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def given(events: list[Any]) -> list[tuple[int, bool]]:
    """What was decided."""
    return [(each.data.request, each.data.approved) for each in events if isinstance(each.data, ApprovalGiven)]


async def outcome(work: Any) -> Any:
    """What comes of something, also when it is an error."""
    try:
        return await work
    except ClewError as error:
        return type(error)


async def test_an_approval_of_days_later_and_another_process_is_gone_on_with(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        thread_id = (await shop.asked(engine)).thread.id
    async with Engine.open(url, now=ShiftedClock(DAYS)) as engine:
        thread = await engine.thread(thread_id)
        (approval,) = await thread.approvals()
        assert (approval.call.name, approval.call.arguments) == ("pay", '{"order": 7}')
        assert approval.reason == "approval"
        await approval.approve(actor="user:42")
        assert shop.paid == []
        events = await events_of(thread)
        assert (events[-1].actor, given(events)) == ("user:42", [(approval.version, True)])
    async with Engine.open(url, now=ShiftedClock(2 * DAYS)) as engine:
        thread = await engine.thread(thread_id)
        with pytest.raises(ApprovalPendingError, match="continue_run"):
            await shop.agent(engine, "no").run("Again.", thread=thread)
        assert (await shop.agent(engine, "Done.").continue_run(thread)).text == "Done."
        assert shop.paid == [7]
        await check_requests(thread, await events_of(thread))
        assert (await thread.runs.control(fresh=True)).run is None


async def test_a_rejected_call_is_not_made_and_the_model_is_told_why(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        await response.approvals[0].reject("too dear", actor="user:42")
        agent = shop.agent(engine, "Then not.")
        await agent.continue_run(response.thread)
        client: Any = agent.client
        assert client.requests[0]["messages"][-1]["content"] == "The call was rejected: too dear"
        assert shop.paid == []
        types = types_of(await events_of(response.thread))
        assert types[-6:] == [
            "approval-given", "run-resumed", "tool-failed", "model-called", "model-answered", "run-completed",
        ]  # fmt: skip


async def test_of_several_calls_those_that_need_no_approval_are_made_at_once(url: str, shop: Shop) -> None:
    calls = [call("pay", order=1), call("look_up", order=2), call("pay", order=3), call("look_up", order=4)]
    async with Engine.open(url) as engine:
        response = await shop.asked(engine, *calls)
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


@pytest.mark.parametrize("what", ["approve", "reject"])
async def test_of_two_decisions_at_once_one_counts(url: str, shop: Shop, what: str) -> None:
    async with Engine.open(url) as engine, Engine.open(url) as other:
        for _ in range(5):
            response = await shop.asked(engine)
            (here,) = response.approvals
            there: Approval
            (there,) = await (await other.thread(response.thread.id)).approvals()
            found = await asyncio.gather(outcome(here.approve()), outcome(getattr(there, what)()))
            assert sorted(map(str, found)) == sorted(["None", str(ApprovalNotPendingError)])
            approved = found[0] is None or what == "approve"
            events = await events_of(response.thread)
            assert given(events) == [(here.version, approved)]
            shop.paid.clear()
            await shop.agent(engine, "Done.").continue_run(response.thread)
            assert shop.paid == ([7] if approved else [])


async def _decides(url: str, thread_id: str, wire: Wire) -> None:
    async with Engine.open(url) as engine:
        (approval,) = await (await engine.thread(thread_id)).approvals()
        wire.say("ready")
        await wire.hear()
        found = await outcome(approval.approve())
        wire.say("approved" if found is None else found.__name__)


async def _goes_on(url: str, thread_id: str, wire: Wire) -> None:
    async def answer(_: Any) -> Line:
        wire.say("asked")
        await wire.hear()
        return "Done."

    shop = Shop()
    async with Engine.open(url) as engine:
        thread = await engine.thread(thread_id)
        agent = shop.agent(engine, answer)
        wire.say("ready")
        await wire.hear()
        found = await outcome(agent.continue_run(thread))
        wire.say("refused" if isinstance(found, type) else found.text, shop.paid)


async def test_two_processes_that_approve_and_go_on_at_once_make_the_call_once(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        thread_id = (await shop.asked(engine)).thread.id
    two = [Child(lambda wire: _decides(url, thread_id, wire)) for _ in range(2)]
    assert [child.heard() for child in two] == [["ready"]] * 2
    for child in two:
        child.say("go")
    assert sorted(child.heard()[0] for child in two) == ["ApprovalNotPendingError", "approved"]
    assert [child.wait() for child in two] == [0, 0]

    two = [Child(lambda wire: _goes_on(url, thread_id, wire)) for _ in range(2)]
    assert [child.heard() for child in two] == [["ready"]] * 2
    for child in two:
        child.say("go")
    said = [child.heard() for child in two]
    assert sorted(said) == [["asked"], ["refused", []]]
    winner = two[said.index(["asked"])]
    winner.say("go")
    assert winner.heard() == ["Done.", [7]]
    assert [child.wait() for child in two] == [0, 0]
    async with Engine.open(url) as engine:
        await check_runs(await engine.thread(thread_id))


async def test_whoever_waits_while_another_goes_on_finds_the_run_over(url: str, shop: Shop) -> None:
    begun, let = asyncio.Event(), asyncio.Event()

    async def answer(_: Any) -> Line:
        begun.set()
        await let.wait()
        return "Done."

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        response = await shop.asked(engine)
        await response.approvals[0].approve()
        first = asyncio.create_task(shop.agent(engine, answer).continue_run(response.thread))
        await begun.wait()
        there = await other.thread(response.thread.id)
        with pytest.raises(RunInProgressError):
            await shop.agent(other, "no").continue_run(there)
        second = asyncio.create_task(shop.agent(other, "no").continue_run(there, on_conflict="wait"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        let.set()
        assert (await first).text == "Done."
        with pytest.raises(NoOpenRunError):
            await second
        assert shop.paid == [7]


async def test_what_waited_cannot_be_approved_in_a_fork(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
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
async def test_what_waited_cannot_be_approved_after_a_rewind(url: str, shop: Shop, to: str) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        (approval,) = response.approvals
        await response.thread.rewind(to=1 if to == "before" else approval.version)
        for decide in (approval.approve, approval.reject):
            with pytest.raises(ApprovalNotPendingError):
                await decide()
        assert await response.thread.approvals() == []
        await response.thread.rewind(to=approval.version)  # not even when it is on the path once more
        with pytest.raises(ApprovalNotPendingError):
            await approval.approve()
        with pytest.raises(NoOpenRunError):
            await shop.agent(engine, "no").continue_run(response.thread)
        await shop.agent(engine, "Hello.").run("Hi.", thread=response.thread)
        assert shop.paid == []
        await check_requests(response.thread, await events_of(response.thread))


async def test_what_was_approved_before_a_rewind_is_not_done_after_it(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
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


async def test_what_waited_cannot_be_approved_when_the_run_was_given_up(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
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


@pytest.mark.parametrize(("does", "error"), [("end", ThreadStatusError), ("delete", ThreadDeletedError)])
async def test_nothing_is_approved_on_a_thread_that_is_over(
    url: str, shop: Shop, does: str, error: type[ClewError]
) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        await getattr(response.thread, does)()
        with pytest.raises(error):
            await response.approvals[0].approve()
        if does == "end":
            assert await response.thread.approvals() == []
            with pytest.raises(NoOpenRunError):
                await shop.agent(engine, "no").continue_run(response.thread)
        assert shop.paid == []


async def test_a_suspended_thread_takes_decisions_and_goes_on_when_it_is_resumed(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
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


async def test_what_is_said_while_a_call_waits_comes_after_it(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        await response.thread.append(Message.user("Hurry."))
        await response.approvals[0].approve()
        await shop.agent(engine, "Done.").continue_run(response.thread)
        assert shop.paid == [7]
        await check_requests(response.thread, await events_of(response.thread))


@pytest.mark.parametrize("approved", [False, True])
async def test_a_call_that_was_redacted_while_it_waited_is_never_made(url: str, shop: Shop, approved: bool) -> None:  # noqa: FBT001  # a parameter
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        thread = response.thread
        if approved:
            await response.approvals[0].approve()
        await thread.redact((await thread.history()).messages[-1])
        assert await thread.approvals() == []
        found = await outcome(shop.agent(engine, "no").continue_run(thread))
        assert found is NoOpenRunError
        assert shop.paid == []
        events = await events_of(thread)
        assert events[-1].data == RunAbandoned(reason="redacted")
        await shop.agent(engine, "Hello.").run("Hi.", thread=thread)
        await check_requests(thread, (await events_of(thread))[len(events) :])


async def test_a_new_run_closes_one_whose_waiting_call_was_redacted(url: str, shop: Shop) -> None:
    async with Engine.open(url) as engine:
        response = await shop.asked(engine)
        await response.thread.redact((await response.thread.history()).messages[-1])
        assert (await shop.agent(engine, "Hello.").run("Hi.", thread=response.thread)).text == "Hello."
        with pytest.raises(ApprovalNotPendingError):
            await response.approvals[0].approve()


async def test_a_run_that_waits_is_not_ended_by_whoever_leaves_its_stream(url: str) -> None:
    """Somebody else may have approved by then, and lost is what they approved."""
    paid: list[str] = []

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        paid.append("once")
        return "paid"

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()
        said = "word " * stream._BUFFERED  # one more than what may wait is a call, and the next the answer
        agent = Agent(client=ScriptedChatClient([[said, call("pay")], "done"]), engine=engine, tools=[pay])
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
