"""Standing approvals: given with a decision, used by later calls of the same tool, revoked, forked and rewound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.domain.decider import RecordEvents
from clew.domain.runs.events import ApprovalGiven, GivenBy, ToolStarted
from clew.domain.runs.standing_approvals import MOST, StandingApproval, standing_approvals, with_approval
from clew.errors import AgentConfigurationError, ApprovalNotPendingError
from clew.testing import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine.open(url) as engine:
        yield engine


@tool(approval="always")
def pay(order: int) -> str:
    """Pay for an order."""
    return f"paid {order}"


def shop(engine: Engine, *script: Any, tools: Any = (pay,)) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name="Shop", tools=tools)


async def started(thread: Any) -> list[GivenBy | None]:
    return [event.data.standing async for event in thread.events() if isinstance(event.data, ToolStarted)]


async def approved_always(engine: Engine) -> Any:
    """A thread on which the tool is always approved."""
    thread = (await shop(engine, call("pay", order=1)).run("Pay.")).thread
    (approval,) = await thread.approvals()
    await approval.approve(actor="user:boss", always=True)
    await shop(engine, call("pay", order=2), "Done.").continue_run(thread)
    return thread


async def test_later_calls_need_no_approval_and_the_log_says_whose_let_them_begin(engine: Engine) -> None:
    thread = await approved_always(engine)
    response = await shop(engine, [call("pay", order=3), call("pay", order=4)], "Done.").run("More.", thread=thread)
    assert response.text == "Done."
    (standing,) = await thread.standing_approvals()
    assert (standing.tool, standing.actor, standing.thread_id) == ("pay", "user:boss", None)
    given = GivenBy(actor="user:boss", request=standing.request)
    assert await started(thread) == [None, given, given, given]
    (decision,) = [event async for event in thread.events() if isinstance(event.data, ApprovalGiven)]
    assert (decision.data.request, decision.data.always) == (standing.request, True)
    assert (await engine.verify()).first_bad is None
    sentences = [entry.what async for entry in engine.audit(thread=thread.id)]
    assert any("always approved by user:boss" in each for each in sentences)
    assert any("standing approvals of the thread: pay" in each for each in sentences)


async def test_a_tool_with_another_schema_needs_its_own_approval(engine: Engine) -> None:
    thread = await approved_always(engine)
    other = tool(lambda order, tip: f"{order} {tip}", name="pay", schema={"type": "object"}, approval="always")
    response = await shop(engine, call("pay", order=3), tools=[other]).run("Pay.", thread=thread)
    assert [approval.call.name for approval in response.approvals] == ["pay"]
    await response.approvals[0].approve(always=True)
    assert [each.actor for each in await thread.standing_approvals()] == ["user:boss", None]


async def test_a_revoked_approval_holds_no_more(engine: Engine) -> None:
    thread = await approved_always(engine)
    assert await thread.revoke_standing_approval("pay", actor="user:boss")
    assert not await thread.revoke_standing_approval("pay")
    assert await thread.standing_approvals() == []
    response = await shop(engine, call("pay", order=3)).run("Pay.", thread=thread)
    assert len(response.approvals) == 1


async def test_an_approval_that_is_revoked_during_a_run_holds_no_more(engine: Engine) -> None:
    thread = await approved_always(engine)

    @tool
    async def stop_paying() -> str:
        """Revoke."""
        await thread.revoke_standing_approval("pay")
        return "revoked"

    agent = shop(engine, call("stop_paying"), call("pay", order=3), tools=[pay, stop_paying])
    assert len((await agent.run("Pay.", thread=thread)).approvals) == 1


async def test_forks_inherit_it_and_a_rewind_to_before_it_undoes_it(engine: Engine) -> None:
    thread = await approved_always(engine)
    (standing,) = await thread.standing_approvals()
    after, before = await thread.fork(), await thread.fork(at=standing.request - 1)
    assert await after.standing_approvals() == [standing]
    assert await before.standing_approvals() == []
    head = await thread.version
    await thread.rewind(to=1)
    assert await thread.standing_approvals() == []
    await thread.rewind(to=head)
    assert await thread.standing_approvals() == [standing]
    await thread.revoke_standing_approval("pay")
    assert await after.standing_approvals() == [standing]


async def test_an_export_has_it_and_a_new_thread_of_a_document_has_not(engine: Engine) -> None:
    thread = await approved_always(engine)
    exported = b"".join([part async for part in engine.export_events()])
    async with Engine.open("memory:") as copy:
        await copy.import_events(BytesIO(exported))
        assert len(await (await copy.thread(thread.id)).standing_approvals()) == 1
        again = await copy.restore_thread(await thread.serialize(), as_new=True)
        assert await again.standing_approvals() == []


async def test_always_of_an_inner_agent_holds_for_later_calls_through_the_outer_one(engine: Engine) -> None:
    def till(*script: Any) -> Agent:
        return Agent(ScriptedChatClient(script), engine=engine, name="Till", tools=[pay])

    desk = shop(engine, call("Till", input="Pay 1."), tools=[till(call("pay", order=1))])
    thread = (await desk.run("Pay.")).thread
    (approval,) = await thread.approvals()
    await approval.approve(actor="user:boss", always=True)
    inner = till("Paid.", call("pay", order=2), "Paid again.")
    desk = shop(engine, call("Till", input="Pay 2."), "All paid.", tools=[inner])
    assert (await desk.continue_run(thread)).text == "All paid."
    (standing,) = await thread.standing_approvals()
    assert standing.thread_id == approval.thread_id != thread.id


async def test_what_cannot_be_approved_always(engine: Engine) -> None:
    thread = (await shop(engine, call("pay", order=1)).run("Pay.")).thread
    (approval,) = await thread.approvals()
    await approval.reject()
    with pytest.raises(ApprovalNotPendingError):
        await approval.approve(always=True)
    assert await thread.standing_approvals() == []
    unknown = type(approval)(**{**{name: getattr(approval, name) for name in approval.__slots__}, "reason": "child"})
    with pytest.raises(AgentConfigurationError, match="this call only"):
        await unknown.approve(always=True)


async def test_a_forged_state_approves_nothing_and_the_number_is_bounded(engine: Engine) -> None:
    thread = await engine.start_thread()
    states: Any = {}
    for number in range(MOST + 5):
        event = with_approval(states, StandingApproval(tool="t", digest=f"{number:064}"))
        await thread.runs.record([RecordEvents((event,))])
        states = {each.digest: each for each in await thread.standing_approvals()}
    assert len(states) == MOST
    assert min(states) == f"{5:064}"
    forged = event.model_copy(update={"state": [{"tool": 7}]})
    await thread.runs.record([RecordEvents((forged,))])
    assert standing_approvals((await thread.runs.history()).context) == {}
