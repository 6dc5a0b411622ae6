"""Agents that use other agents as tools: linked threads, added usage, inner approvals, and what a kill leaves."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.turns import PATIENCE
from tests.servers.mcp_server import http_server

from clew import Agent, Engine, MCPTools, Price, PriceTable, ScriptedChatClient, ToolContext, tool
from clew.agents.response import AgentResponse
from clew.domain.errors import InvalidContentError, NotAuthorizedError, NotRedactableError, ThreadHasForksError
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionResult
from clew.domain.models.client import TokenUsage
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    InvalidToolError,
    ModelError,
    NoOpenRunError,
)
from clew.domain.runs.events import ChildThread, ModelAnswered, RunStarted
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
from clew.service.cost_queries import Costs
from clew.testing import call, fault
from clew.types import ThreadFilter

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


def agent_of(engine: Engine, name: str, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name=name, **options)


async def children_of(thread: Any) -> list[str]:
    return [event.data.thread_id async for event in thread.events() if isinstance(event.data, ChildThread)]


def results_of(response: AgentResponse[Any]) -> list[FunctionResult]:
    return [
        result for message in response.messages if message.message is not None for result in message.message.results
    ]


async def usage_of(thread: Any) -> TokenUsage:
    total = TokenUsage()
    async for event in thread.events():
        if isinstance(event.data, ModelAnswered) and event.data.usage is not None:
            total += event.data.usage
    return total


async def test_an_agent_is_a_tool_with_a_linked_thread_and_added_usage(url: str) -> None:
    async with Engine.open(url) as engine:
        expert = agent_of(engine, "Lamp expert", "Of tree bark.", description="Knows lamps.")
        desk = agent_of(engine, "Desk", call("Lamp_expert", input="What are they made of?"), "Bark.", tools=[expert])
        (schema,) = (each.schema for each in desk.tools)
        assert (schema.name, schema.description) == ("Lamp_expert", "Knows lamps.")
        assert schema.parameters["properties"] == {"input": {"type": "string"}}
        response = await desk.run("What?", actor="user:ann")
        assert [result.result for result in results_of(response)] == ["Of tree bark."]
        (child_id,) = await children_of(response.thread)
        child = await engine.thread(child_id)
        assert [message.text for message in await child.history()] == ["What are they made of?", "Of tree bark."]
        (started,) = [event.data async for event in child.events() if isinstance(event.data, RunStarted)]
        assert started.caller is not None
        assert (started.caller.thread_id, started.caller.run_id) == (response.thread.id, response.run_id)
        asked = [message for message in response.messages if message.calls]
        assert (started.caller.message, started.caller.index) == (asked[0].version, 0)
        assert response.usage == await usage_of(child) + await usage_of(response.thread)
        assert (await usage_of(child)).output_tokens == len(["Of", "tree", "bark."])
        assert (await engine.verify()).first_bad is None


async def test_who_may_use_a_thread_may_use_those_of_its_inner_agents_in_its_runs(url: str) -> None:
    def may(actor: str | None, _action: str, _thread: str | None) -> bool | ThreadFilter:
        return ThreadFilter({"owner": actor or "nobody"})

    pay = tool(lambda: "paid", name="pay", approval="always")
    async with Engine.open(url, authorize=may) as engine:
        inner = agent_of(engine, "Inner", call("pay"), "Paid.", tools=[pay])
        middle = agent_of(engine, "Middle", call("Inner", input="Pay."), "Middle is done.", tools=[inner])
        outer = agent_of(engine, "Outer", call("Middle", input="Pay."), "Done.", tools=[middle])
        chat = (await engine.acting_as("ann").start_thread(labels={"owner": "ann"})).bound_to(outer)
        (approval,) = (await chat.run("Pay.")).approvals
        assert [each.call.name for each in await chat.approvals()] == ["pay"]
        await approval.approve(always=True)
        done = await chat.continue_run()
        assert (done.text, results_of(done)[0].result) == ("Done.", "Middle is done.")
        (child,) = await children_of(chat)
        for actor in ("ann", "ben"):
            with pytest.raises(NotAuthorizedError):
                await (await engine.acting_as(actor).thread(child)).history()


async def test_an_inner_approval_is_decided_in_the_outer_response(url: str) -> None:
    paid: list[str] = []

    @tool(approval="always")
    def pay(invoice: int) -> str:
        """Pay an invoice."""
        paid.append(str(invoice))
        return "paid"

    async with Engine.open(url) as engine:

        def agents() -> Agent:
            payer = agent_of(engine, "Payer", call("pay", invoice=7), "It is paid.", tools=[pay])
            clerk = agent_of(engine, "Clerk", call("Payer", input="Pay 7."), "The payer paid.", tools=[payer])
            return agent_of(engine, "Boss", call("Clerk", input="See to 7."), "All is paid.", tools=[clerk])

        boss = agents()
        response = await boss.run("Invoice 7 must be paid.")
        thread = response.thread
        (approval,) = response.approvals
        assert (approval.call.name, paid, response.text) == ("pay", [], "")
        assert approval.thread_id != thread.id
        assert [each.version for each in await thread.approvals()] == [approval.version]
        with pytest.raises(ApprovalPendingError):
            await boss.continue_run(thread)
        with pytest.raises(ApprovalPendingError):
            await boss.run("And 8?", thread=thread)
        await approval.approve(actor="user:ann")
        assert await thread.approvals() == []
        done = await boss.continue_run(thread)
        assert (done.text, paid, done.approvals) == ("All is paid.", ["7"], [])
        (clerk_id,) = await children_of(thread)
        (payer_id,) = await children_of(await engine.thread(clerk_id))
        assert [message.text for message in await (await engine.thread(payer_id)).history()][-1] == "It is paid."
        assert payer_id == approval.thread_id
        with pytest.raises(NoOpenRunError):
            await boss.continue_run(thread)
        assert (await engine.verify()).first_bad is None


async def test_a_rejected_inner_call_is_told_to_the_inner_agent(url: str) -> None:
    async with Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        payer = agent_of(engine, "Payer", call("pay"), "It was not allowed.", tools=[pay])
        boss = agent_of(engine, "Boss", call("Payer", input="Pay."), "Not paid.", tools=[payer])
        response = await boss.run("Pay.")
        await response.approvals[0].reject("too much")
        done = await boss.continue_run(response.thread)
        assert done.text == "Not paid."
        assert [result.result for result in results_of(done)] == ["It was not allowed."]


async def test_an_abandoned_run_abandons_the_agents_that_it_asked(url: str) -> None:
    async with Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        payer = agent_of(engine, "Payer", call("pay"), tools=[pay])
        boss = agent_of(engine, "Boss", call("Payer", input="Pay."), "Never mind.", tools=[payer])
        response = await boss.run("Pay.")
        again = await boss.run("Forget it.", thread=response.thread, abandon_run=True)
        assert again.text == "Never mind."
        child = await engine.thread(response.approvals[0].thread_id)
        assert await child.approvals() == []
        assert [event.type async for event in child.events()][-1] == "run-abandoned"


async def test_the_tokens_of_an_inner_run_that_fails_count_too(url: str) -> None:
    async with Engine.open(url) as engine:
        look = tool(lambda: "looked", name="look")
        inner = agent_of(engine, "Inner", call("look"), fault("context-window"), tools=[look])
        outer = agent_of(engine, "Outer", call("Inner", input="one two three"), "It failed.", tools=[inner])
        response = await outer.run("Go")
        (result,) = results_of(response)
        assert str(result.result).startswith("Error: ContextWindowError")
        (child_id,) = await children_of(response.thread)
        child = await engine.thread(child_id)
        assert response.usage == await usage_of(child) + await usage_of(response.thread)


@pytest.mark.parametrize("how", ["rewind", "end", "delete"])
async def test_a_rewind_or_an_end_of_the_callers_thread_abandons_the_agents_that_wait(url: str, how: str) -> None:
    async with Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        payer = agent_of(engine, "Payer", call("pay"), tools=[pay])
        clerk = agent_of(engine, "Clerk", call("Payer", input="Pay."), tools=[payer])
        thread = (await agent_of(engine, "Boss", call("Clerk", input="Pay."), tools=[clerk]).run("Pay.")).thread
        (approval,) = await thread.approvals()
        (clerk_id,) = await children_of(thread)
        if how == "rewind":
            await thread.rewind(to=1, actor="user:ann")
        elif how == "end":
            await thread.end()
        else:
            await thread.delete()
        for child_id in (clerk_id, approval.thread_id):
            child = await engine.thread(child_id)
            assert [event.type async for event in child.events()][-1] == "run-abandoned"
            assert await child.approvals() == []
        with pytest.raises(ApprovalNotPendingError):
            await approval.approve()
        assert (await engine.verify()).first_bad is None


async def test_a_purge_destroys_the_texts_of_inner_agents_too(url: str) -> None:
    def may(actor: str | None, _: str, thread: str | None) -> bool | ThreadFilter:
        return actor is None or (thread != "" and ThreadFilter({"owner": actor}))

    async with Engine.open(url, authorize=may) as engine:
        payer = agent_of(engine, "Payer", "unmistakable")
        clerk = agent_of(engine, "Clerk", call("Payer", input="unmistakable"), "Paid.", tools=[payer])
        boss = agent_of(engine, "Boss", call("Clerk", input="unmistakable"), "Paid.", tools=[clerk])
        thread = await engine.acting_as("ann").start_thread(labels={"owner": "ann"})
        await boss.run("unmistakable", thread=thread)
        (clerk_id,) = await children_of(await engine.thread(thread.id))
        (payer_id,) = await children_of(await engine.thread(clerk_id))
        looked_at = await (await engine.thread(clerk_id)).fork()
        with pytest.raises(ThreadHasForksError, match=clerk_id):
            await thread.purge(forks=False)
        assert len(await engine.search("unmistakable")) > 0
        purged = await thread.purge(forks=True, reason="asked")
        assert purged.children == (payer_id, clerk_id)
        for each in (thread.id, clerk_id, payer_id):
            events = [event async for event in (await engine.thread(each)).events()]
            assert events[-1].type == "thread-purged"
            assert "unmistakable" not in str(events)
        assert await engine.search("unmistakable") == []
        assert next(message.redacted for message in await looked_at.history())
        assert (await engine.verify(thread.id, children=True)).first_bad is None
        with pytest.raises(NotRedactableError, match="already purged"):
            await (await engine.thread(thread.id)).purge(forks=True)


async def test_a_purge_of_a_fork_follows_no_inherited_link(url: str) -> None:
    async with Engine.open(url) as engine:
        payer = agent_of(engine, "Payer", "Paid.")
        boss = agent_of(engine, "Boss", call("Payer", input="Pay."), "Paid.", tools=[payer])
        thread = (await boss.run("Pay.")).thread
        (payer_id,) = await children_of(thread)
        branch = await thread.fork()
        assert await children_of(branch) == [payer_id]
        assert (await branch.purge()).children == ()
        assert len(await (await engine.thread(payer_id)).history()) == 2


async def test_verify_and_export_follow_the_links_and_find_a_cut_one(url: str) -> None:
    async with Engine.open(url) as engine:
        payer = agent_of(engine, "Payer", "It is paid.")
        clerk = agent_of(engine, "Clerk", call("Payer", input="Pay 7."), "The payer paid.", tools=[payer])
        boss = agent_of(engine, "Boss", call("Clerk", input="See to 7."), "All is paid.", tools=[clerk])
        thread = (await boss.run("Invoice 7 must be paid.")).thread
        await engine.start_thread(thread_id="another")
        verdict = await engine.verify(thread.id, children=True)
        assert (verdict.threads, verdict.first_bad) == (3, None)
        assert (await engine.verify(thread.id)).threads == 1
        with pytest.raises(InvalidContentError, match="needs a thread"):
            await engine.verify(children=True)
        tree = b"".join([line async for line in engine.export_events(thread.id, children=True)])
        alone = b"".join([line async for line in engine.export_events(thread.id)])
    for exported, threads in ((tree, 3), (alone, 1)):
        async with Engine.open("memory:") as copy:
            await copy.import_events(BytesIO(exported))
            verdict = await copy.verify(thread.id, children=True)
            assert verdict.threads == threads
            assert (verdict.first_bad is None) == (threads == 3)
    assert verdict.first_bad is not None
    assert "does not exist" in verdict.first_bad.reason


async def test_parallel_inner_agents_wait_for_their_own_approvals(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        one = agent_of(engine, "One", call("pay"), "One paid.", tools=[pay])
        two = agent_of(engine, "Two", call("pay"), "Two paid.", tools=[pay])
        three = agent_of(engine, "Three", "Three is done.")
        asked = [call("One", input="a"), call("Two", input="b"), call("Three", input="c")]
        boss = agent_of(engine, "Boss", asked, "Done.", tools=[one, two, three])
        response = await boss.run("Go.")
        assert len(response.approvals) == 2
        await response.approvals[1].approve()
        with pytest.raises(ApprovalPendingError):
            await boss.continue_run(response.thread)
        await response.approvals[0].approve()
        done = await boss.continue_run(response.thread)
        assert done.text == "Done."
        results = {result.name: result.result for result in results_of(done)}
        assert results == {"One": "One paid.", "Two": "Two paid.", "Three": "Three is done."}


@pytest.mark.parametrize("is_async", [False, True])
async def test_functions_make_the_input_of_an_inner_agent_and_the_result_of_its_answer(
    url: str, *, is_async: bool
) -> None:
    def asks(city: str, days: int = 1) -> str:
        return f"Weather of {city} for {days} days?"

    async def asks_later(city: str, context: ToolContext, days: int = 1) -> str:
        return asks(city, days) if context.child_thread_id else ""

    def counts(response: AgentResponse[Any]) -> dict[str, int]:
        return {"words": len(response.text.split())}

    async def counts_later(response: AgentResponse[Any]) -> dict[str, int]:
        return counts(response)

    look = tool(lambda: "rain", name="look", approval="always")
    async with Engine.open(url) as engine:
        inner = agent_of(engine, "Weather", call("look"), "It will rain.", tools=[look])
        made = inner.as_tool(input=asks_later if is_async else asks, result=counts_later if is_async else counts)
        outer = agent_of(engine, "Boss", call("Weather", city="Ulm", days=2), "Rain.", tools=[made])
        response = await outer.run("Go.")
        (approval,) = response.approvals
        await approval.approve()
        done = await outer.continue_run(response.thread)
        assert [result.result for result in results_of(done)] == [{"words": 3}]
        (child,) = await children_of(done.thread)
        assert (await (await engine.thread(child)).history()).messages[0].text == "Weather of Ulm for 2 days?"
        answers = [
            event.data
            for thread in (done.thread, await engine.thread(child))
            async for event in thread.events()
            if isinstance(event.data, ModelAnswered)
        ]
        spent = sum(each.usage.output_tokens for each in answers if each.usage)
        assert (len(answers), done.usage.output_tokens) == (4, spent), "with those of the inner agent"
        assert list(made.schema.parameters["properties"]) == ["city", "days"]  # type: ignore[arg-type] # a dict


async def test_an_agent_tool_is_refused_outside_of_a_run() -> None:
    async with Engine.open("memory:") as engine:
        made = agent_of(engine, "Inner", "Hi.").as_tool(name="ask", description="Asks.", approval="always")
        assert (made.name, made.description, made.approval) == ("ask", "Asks.", "always")
        context = ToolContext(None, None, None, "r", "c", "k")
        with pytest.raises(InvalidToolError, match="result=3"):
            agent_of(engine, "Inner", "Hi.").as_tool(result=3)  # type: ignore[arg-type]  # the fault
        with pytest.raises(InvalidToolError, match="outside of a run"):
            await made("Hello", context)
        with pytest.raises(ModelError):
            await agent_of(engine, "Outer", fault("refused"), tools=[made], retries=0).run("Go")


PRICES = PriceTable({"scripted": Price(input=0, output=1_000_000)})


class Tree:
    """Three agents: the innermost needs an approval, the middle one has a tool of an MCP server.

    ``effects`` is the file to which the server writes, too.
    """

    def __init__(self, url: str, effects: Path, server: str) -> None:
        self.effects = effects
        self._server = server
        self._url = url

    def outer(self, engine: Engine, pass_point: PassPoint) -> Agent:
        def effect(name: str, context: ToolContext) -> str:
            pass_point(f"before {name}")
            with self.effects.open("a") as file:
                file.write(f"{name} {context.idempotency_key}\n")
            return f"{name} done"

        @tool(approval="always", idempotent=True)
        def pay(context: ToolContext) -> str:
            return effect("pay", context)

        def made(name: str, calls: list[Any], *tools: Any) -> Agent:
            def line(body: JsonObject) -> Line:
                pass_point("asked")
                messages: Any = body["messages"]
                done = sum(message["role"] == "tool" for message in messages)
                answer: Line = calls[done] if done < len(calls) else "Done."
                return answer

            return Agent(ScriptedChatClient(line), engine=engine, name=name, tools=tools, retries=0)

        inner = made("Inner", [call("pay")], pay)
        notes = MCPTools.http(self._server, allowed=["note"], idempotent=["note"])
        middle = made("Middle", [call("note", text="look"), call("Inner", input="Pay.")], notes, inner)
        return made("Outer", [call("Middle", input="See to it.")], middle)

    async def live(self, number: int, now: Callable[[], int], pass_point: PassPoint) -> AgentResponse[Any]:
        """Answer a turn, and approve whatever it asks for."""
        async with Engine.open(self._url, embedded=False, now=now, prices=PRICES) as engine:
            outer = self.outer(engine, pass_point)
            response = await outer.run("Go.", idempotency_key=f"turn-{number}")
            while response.approvals:
                for approval in response.approvals:
                    await approval.approve()
                response = await outer.continue_run(response.thread)
            assert await response.thread.approvals() == []
            return response

    async def die(self, number: int, pass_point: PassPoint) -> None:
        await self.live(number, clock.now, pass_point)

    async def costs(self) -> list[Costs]:
        async with Engine.open(self._url) as engine:
            return await engine.costs(by="run")


@pytest.fixture
def tree(shared_url: str, tmp_path: Path) -> Iterator[Tree]:
    import_module("mcp")  # once, and not in each process
    effects = tmp_path / "effects"
    with http_server({"EFFECTS": str(effects)}) as server:
        yield Tree(shared_url, effects, f"{server.url}/mcp")


def test_a_tree_that_is_killed_at_any_point_calls_nothing_twice_and_adds_up(
    tree: Tree, shared_url: str, scale: float
) -> None:
    usages = set()
    every = 1 if scale >= 1 else 3 if shared_url.startswith("sqlite") else 11
    for point in itertools.count(1, every):
        tree.effects.unlink(missing_ok=True)
        passed = run_until(point, partial(tree.die, point))
        later = clock.now() + point * 60_000_000
        response = asyncio.run(tree.live(point, lambda: later, lambda _: None))  # noqa: B023 # used at once
        assert response.text == "Done."
        done = Counter(tree.effects.read_text().splitlines())
        assert sorted(line.split()[0] for line in done) == ["look", "pay"], "a repeated call has the same key"
        assert max(done.values()) <= 2, "only the call that was in progress is repeated"
        usages.add(response.usage.output_tokens)
        if not passed.killed:
            break
    assert point > 20
    assert len(usages) == 1
    costs = asyncio.run(tree.costs())
    assert len(costs) == len(range(1, point + 1, every))
    assert {(each.output_tokens, each.cost) for each in costs} == {(*usages, Decimal(usages.pop()))}, "counted once"
    assert max(each.unpriced_calls for each in costs) == 1, "a call that was in progress may have cost something"


async def test_an_imported_thread_has_no_part_in_a_thread_that_it_names(url: str) -> None:
    """The link is real, but not in this store: here another's thread has the id of the inner agent's."""
    paid: list[str] = []

    def pay(parcel: str) -> str:
        paid.append(parcel)
        return "paid"

    def clerk_of(engine: Engine) -> Agent:
        tools = [tool(pay, approval="always")]
        return agent_of(engine, "Clerk", call("pay", parcel="7"), "Paid.", tools=tools, description="Pays.")

    async with Engine.open("memory:") as elsewhere:
        desk = agent_of(elsewhere, "Desk", call("Clerk", input="Pay."), "Done.", tools=[clerk_of(elsewhere)])
        forged = (await desk.run("Pay.")).thread
        [inner] = await children_of(forged)
        assert len(await forged.approvals()) == 1
        content = BytesIO(b"".join([line async for line in elsewhere.export_events(forged.id)]))
    async with Engine.open(url) as engine:
        victim = await engine.start_thread(thread_id=inner)
        await clerk_of(engine).run("Pay.", thread=victim)
        await engine.import_events(content)
        thread = await engine.thread(forged.id)
        assert await thread.approvals() == []
        await thread.end()
        assert len(await victim.approvals()) == 1  # its run was not abandoned
        assert (await thread.purge()).children == ()
        assert (await victim.history()).messages[0].text == "Pay."
        assert paid == []


async def test_an_imported_thread_costs_nothing_for_a_thread_that_it_names(url: str) -> None:
    """The run of the forged caller has the id that the imported thread names, and has no call of it."""
    async with Engine.open("memory:", prices=PRICES) as elsewhere:
        clerk = agent_of(elsewhere, "Clerk", "Paid.", description="Pays.")
        desk = agent_of(elsewhere, "Desk", call("Clerk", input="Pay."), "Done.", tools=[clerk])
        asking = (await desk.run("Pay.")).thread
        [inner] = await children_of(asking)
        (spent,) = [each for each in await elsewhere.costs(by="agent") if each.of == "Clerk"]
        content = b"".join([line async for line in elsewhere.export_events(inner)])
    async with Engine.open(url, prices=PRICES) as engine:
        victim = await engine.start_thread(thread_id=asking.id)
        before = await agent_of(engine, "Desk", "No.").run("Hi.", thread=victim)
        await engine.import_events(BytesIO(content))
        assert (await engine.costs())[0].cost == (spent.cost or 0) + (before.cost or 0)
        for listed in (None, PRICES):
            by_thread = {each.of: each.cost for each in await engine.costs(by="thread", prices=listed)}
            assert by_thread == {victim.id: before.cost, inner: spent.cost}
            assert (await engine.costs(thread=victim.id, prices=listed))[0].cost == before.cost
