"""What runs cost: recorded with each call, counted once, and unknown where nobody knows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from tests.agents.turns import events_of
from tests.servers.raw_server import RawServer, Reply, whole

from clew import Agent, Engine, Message, OpenAIChatClient, Price, PriceTable, ScriptedChatClient
from clew.domain.errors import InvalidContentError
from clew.domain.models.client import Answer, TokenUsage
from clew.domain.runs.errors import ModelError, PricesFailedWarning
from clew.domain.runs.events import ModelAnswered
from clew.infrastructure.scripted_client import Line
from clew.service.cost_queries import Costs, CostsBy
from clew.testing import call, fault
from clew.types import ThreadFilter

pytestmark = pytest.mark.anyio

INPUT, OUTPUT = Decimal(3), Decimal(15)
PRICES = PriceTable({"scripted": Price(input=INPUT, output=OUTPUT)})


def answer(text: str, tokens: tuple[int, int], **fields: Any) -> Answer:
    usage = TokenUsage(input_tokens=tokens[0], output_tokens=tokens[1])
    return Answer(Message.assistant(text), "stop", usage, **{"model": "scripted", **fields})


def spent(*tokens: tuple[int, int]) -> Decimal:
    """What the journal of a service with these prices says."""
    return sum((INPUT * read + OUTPUT * written for read, written in tokens), Decimal(0)) / 1_000_000


def agent_of(engine: Engine, name: str, *script: Line, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, id=name, **options)


def by_of(costs: list[Costs]) -> dict[Any, tuple[int, Decimal | None, int]]:
    return {each.of: (each.calls, each.cost, each.unpriced_calls) for each in costs}


async def test_every_call_has_its_cost_and_the_sums_are_what_was_spent(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)), answer("Two.", (200, 20)), answer("Three.", (7, 1)))
        clerk = agent_of(engine, "clerk", answer("Four.", (1_000, 5)))
        first = await desk.run("1", actor="user:ann")
        assert first.cost == spent((100, 10))
        branch = await first.thread.fork()
        second = await desk.run("2", thread=branch, actor="user:bob")
        await desk.run("3", thread=first.thread, actor="user:ann")
        await clerk.run("4", actor="user:ann")
        total = spent((100, 10), (200, 20), (7, 1), (1_000, 5))
        (whole,) = await engine.costs()
        assert (whole.calls, whole.cost, whole.unpriced_calls) == (4, total, 0)
        assert (whole.input_tokens, whole.output_tokens) == (1_307, 36)
        assert second.cost == spent((200, 20))
        # The branch does not count what it inherits, and the branches together are what was spent.
        by_thread = by_of(await engine.costs(by="thread"))
        assert by_thread[branch.id] == (1, spent((200, 20)), 0)
        assert by_thread[first.thread.id] == (2, spent((100, 10), (7, 1)), 0)
        assert sum((cost or 0 for _, cost, _ in by_thread.values()), Decimal(0)) == total
        assert by_of(await engine.costs(by="agent")) == {
            "clerk": (1, spent((1_000, 5)), 0),
            "desk": (3, spent((100, 10), (200, 20), (7, 1)), 0),
        }
        assert by_of(await engine.costs(by="actor")) == {
            "user:ann": (3, spent((100, 10), (7, 1), (1_000, 5)), 0),
            "user:bob": (1, spent((200, 20)), 0),
        }
        assert by_of(await engine.costs(by="model")) == {"scripted": (4, total, 0)}
        (today,) = await engine.costs(by="day")
        assert (today.of, today.cost) == (datetime.now(UTC).date(), total)
        assert await engine.costs(until=date(2020, 1, 1)) == [
            whole._replace(**dict.fromkeys(("calls", "input_tokens", "output_tokens"), 0), cost=Decimal(0))
        ]


async def test_a_repeated_and_a_replayed_answer_cost_nothing_twice(url: str, tmp_path: Any) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)))
        first = await desk.run("1", idempotency_key="k")
        again = await desk.run("1", idempotency_key="k")
        assert (again.run_id, again.cost) == (first.run_id, first.cost)
        async for _ in first.thread.replay():
            pass
        lines = [line async for line in engine.export_events()]
        copy = await engine.restore_thread(await first.thread.serialize(), as_new=True)
        assert copy.id != first.thread.id
        assert by_of(await engine.costs()) == {None: (1, spent((100, 10)), 0)}
        path = tmp_path / "events.jsonl"
        path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    async with Engine.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        for _ in range(2):
            await other.import_events(path)
        assert by_of(await other.costs()) == {None: (1, spent((100, 10)), 0)}


async def test_what_has_no_price_is_unknown_and_never_nothing(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)), answer("Two.", (5, 5), model="other"))
        await desk.run("1")
        unknown = await desk.run("2")
        assert unknown.cost is None
        assert by_of(await engine.costs()) == {None: (2, spent((100, 10)), 1)}
        assert by_of(await engine.costs(by="model")) == {"scripted": (1, spent((100, 10)), 0), "other": (1, None, 1)}


async def test_an_interrupted_answer_is_unknown_and_a_refused_call_costs_nothing(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        refused = agent_of(engine, "refused", fault("context-window"))
        cut = agent_of(engine, "cut", fault("cut", after="It is"), retries=0)
        with pytest.raises(ModelError):
            await refused.run("1")
        with pytest.raises(ModelError):
            await cut.run("1", stream=True).get_final_response()
        assert by_of(await engine.costs(by="agent")) == {"cut": (1, None, 1)}


async def test_an_outer_run_costs_what_the_inner_runs_cost_too_and_sums_count_them_once(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        expert = agent_of(engine, "expert", answer("Bark.", (50, 5)))
        desk = agent_of(engine, "desk", call("expert", input="What?"), answer("Bark.", (10, 1)), tools=[expert])
        response = await desk.run("What?", actor="user:ann")
        costs = by_of(await engine.costs(by="agent"))
        assert costs["expert"] == (1, spent((50, 5)), 0)
        (total,) = await engine.costs()
        assert response.cost == total.cost
        assert by_of(await engine.costs(by="actor")) == {"user:ann": (3, total.cost, 0)}


async def test_a_tree_of_agents_costs_for_the_thread_and_the_run_that_asked_it(url: str) -> None:
    def may(actor: str | None, _: str, thread: str | None) -> bool | ThreadFilter:
        return actor is None or (thread != "" and ThreadFilter({"owner": actor}))

    async with Engine.open(url, prices=PRICES, authorize=may) as engine:
        book = agent_of(engine, "book", answer("Bark.", (1_000, 1)))
        expert = agent_of(engine, "expert", call("book", input="?"), answer("Bark.", (100, 10)), tools=[book])
        desk = agent_of(engine, "desk", call("expert", input="?"), answer("Bark.", (10, 1)), tools=[expert])
        clerk = agent_of(engine, "clerk", answer("No.", (7, 7)))
        ann, bob = [await engine.start_thread(labels={"owner": each}) for each in ("ann", "bob")]
        response = await desk.run("What?", thread=ann, actor="ann")
        other = await clerk.run("What?", thread=bob, actor="bob")
        whole = (5, response.cost, 0)
        assert other.cost == spent((7, 7))
        for prices in (None, PRICES):
            spent_by = partial(engine.costs, prices=prices)
            assert by_of(await spent_by(by="thread")) == {ann.id: whole, bob.id: (1, other.cost, 0)}
            assert by_of(await spent_by(by="run")) == {response.run_id: whole, other.run_id: (1, other.cost, 0)}
            assert by_of(await spent_by(by="label", label="owner"))["ann"] == whole
            assert by_of(await spent_by(thread=ann.id)) == {None: whole}
            for by in ("total", "thread", "run", "agent", "day"):
                seen = [each.cost or 0 for each in await engine.acting_as("ann").costs(by=by, prices=prices)]
                assert sum(seen, Decimal(0)) == response.cost, by
        threads = [each.id async for each in engine.threads() if each.id not in {ann.id, bob.id}]
        inner = [(await engine.costs(thread=each, prices=prices))[0] for each in threads for prices in (None, PRICES)]
        assert sorted(each.calls for each in inner) == [1, 1, 2, 2]
        assert {each.cost for each in inner if each.calls == 1} == {spent((1_000, 1))}
        assert [each.id async for each in engine.acting_as("ann").threads()] == [ann.id]
        # An import has the same sums.
        exported = b"".join([line async for line in engine.export_events(ann.id, children=True)])
    async with Engine.open("memory:") as copy:
        await copy.import_events(BytesIO(exported))
        assert by_of(await copy.costs(by="run")) == {response.run_id: whole}


async def test_a_handoff_costs_for_the_first_run_and_each_agent_for_itself(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        refunds = agent_of(engine, "refunds", answer("Refunded.", (50, 5)))
        desk = agent_of(engine, "desk", call("transfer_to_refunds"), handoffs=[refunds])
        response = await desk.run("My money?", actor="user:ann")
        (total,) = await engine.costs()
        assert response.agent is refunds
        assert (total.calls, total.cost, total.unpriced_calls) == (2, response.cost, 0)
        groups: dict[CostsBy, str] = {"run": response.run_id, "thread": response.thread.id, "actor": "user:ann"}
        for by, of in groups.items():
            assert by_of(await engine.costs(by=by)) == {of: (2, total.cost, 0)}
        by_agent = by_of(await engine.costs(by="agent"))
        assert by_agent["refunds"] == (1, spent((50, 5)), 0)
        assert by_agent["desk"][0] == 1
        assert sum(each.cost or 0 for each in await engine.costs(by="agent")) == total.cost


async def test_other_prices_do_not_change_what_was_recorded_unless_asked(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)), answer("Two.", (100, 10), model="other"))
        await desk.run("1", actor="user:ann")
        thread = (await desk.run("2", actor="user:bob")).thread
    dearer = PriceTable({"other": Price(input=100, output=0), "scripted": [Price(input=10, output=0)]}, name="dearer")
    async with Engine.open(url, prices=dearer) as engine:
        assert by_of(await engine.costs()) == {None: (2, spent((100, 10)), 1)}
        assert by_of(await engine.costs(by="actor", prices=dearer)) == {
            "user:bob": (1, Decimal("0.01"), 0),
            "user:ann": (1, Decimal("0.001"), 0),
        }
        assert by_of(await engine.costs(thread=thread.id, prices=dearer)) == {None: (1, Decimal("0.01"), 0)}
        later = PriceTable({"scripted": Price(input=1, output=1, since=date(2999, 1, 1))})
        assert by_of(await engine.costs(prices=later)) == {None: (2, None, 2)}
        (event,) = [
            each.data
            for each in await events_of(await engine.thread(thread.id))
            if isinstance(each.data, ModelAnswered)
        ]
        assert event.cost is None


async def test_sums_by_label_are_those_of_the_threads_that_have_it_now(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", *(answer("One.", (100 * n, 10)) for n in (1, 2, 3)))
        red = await engine.start_thread(labels={"team": "red"})
        blue = await engine.start_thread(labels={"team": "blue"})
        for thread in (red, blue, None):
            await desk.run("1", thread=thread)
        by_label = by_of(await engine.costs(by="label", label="team"))
        assert by_label == {
            "red": (1, spent((100, 10)), 0),
            "blue": (1, spent((200, 10)), 0),
            None: (1, spent((300, 10)), 0),
        }
        await blue.label(team="red")
        assert by_of(await engine.costs(by="label", label="team"))["red"] == (2, spent((100, 10), (200, 10)), 0)
        wrong: list[dict[str, Any]] = [{"by": "label"}, {"label": "team"}, {"by": "week"}]
        for arguments in wrong:
            with pytest.raises(InvalidContentError):
                await engine.costs(**arguments)


async def test_a_purged_thread_costs_nothing_any_more_also_after_a_rebuild(url: str) -> None:
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)), answer("Two.", (200, 20)))
        gone = (await desk.run("1", actor="user:ann")).thread
        await desk.run("2", actor="user:bob")
        await engine.costs()
        await gone.purge()
        left = {None: (1, spent((200, 20)), 0)}
        assert by_of(await engine.costs()) == left
        assert by_of(await engine.costs(by="actor")) == {"user:bob": left[None]}
        await engine.rebuild("usage")
        assert by_of(await engine.costs()) == left
        assert by_of(await engine.costs(by="actor")) == {"user:bob": left[None]}


async def test_a_price_list_that_fails_makes_the_cost_unknown_and_the_run_complete(url: str) -> None:
    class Broken:
        name = "broken"

        def cost(self, usage: TokenUsage, **about: Any) -> Decimal | None:
            """Fail, or return an impossible amount."""
            del about
            if usage.input_tokens == 1:
                raise RuntimeError("no price today")
            return Decimal(-1)

    async with Engine.open(url, prices=Broken()) as engine:
        desk = agent_of(engine, "desk", answer("One.", (1, 1)), answer("Two.", (2, 1)))
        for _ in range(2):
            with pytest.warns(PricesFailedWarning):
                response = await desk.run("1")
            assert (response.text != "", response.cost) == (True, None)


async def test_the_list_prices_of_services_are_not_asked_for_a_client_without_one() -> None:
    class Services:
        name, needs_provider, asked = "services", True, 0

        def cost(self, usage: TokenUsage, **about: Any) -> Decimal | None:
            """Count the question."""
            del usage, about
            self.asked += 1
            return None

    prices = Services()
    async with Engine.open("memory:", prices=prices) as engine:
        assert (await agent_of(engine, "desk", answer("One.", (1, 1))).run("1")).cost is None
        assert prices.asked == 0
        prices.needs_provider = False
        assert (await agent_of(engine, "desk", answer("One.", (1, 1))).run("1")).cost is None
        assert prices.asked == 1


async def test_only_threads_that_the_actor_may_audit_are_counted(url: str) -> None:
    mine: set[str | None] = set()
    async with Engine.open(url, prices=PRICES) as engine:
        desk = agent_of(engine, "desk", answer("One.", (100, 10)), answer("Two.", (200, 20)))
        mine.add((await desk.run("1")).thread.id)
        await desk.run("2")
    async with Engine.open(url, authorize=lambda _, __, thread: thread in mine) as engine:
        for by in ("total", "day", "agent", "model", "thread"):
            assert [each.cost for each in await engine.costs(by=by)] == [spent((100, 10))]
        assert [each.cost for each in await engine.costs(prices=PRICES)] == [spent((100, 10))]


def reply_of(tokens: tuple[int, int], **message: Any) -> Reply:
    """A reply of a model service over HTTP that says how many tokens it read and wrote."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return whole({"id": "c", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage})


async def test_branches_and_inner_agents_cost_what_the_journal_of_the_server_says(url: str) -> None:
    asked = {"id": "call_1", "type": "function", "function": {"name": "Clerk", "arguments": '{"input": "Look."}'}}
    answers: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
        "outer": ((100, 10), {"content": None, "tool_calls": [asked]}),
        "inner": ((50, 5), {"content": "Found."}),
        "done": ((120, 12), {"content": "It is there."}),
        "edited": ((80, 8), {"content": "Where?"}),
        "branch": ((90, 9), {"content": "Here."}),
    }
    with RawServer() as server:
        server.add_replies(*(reply_of(tokens, **message) for tokens, message in answers.values()))
        server.replies.insert(1, whole({}, status=500))
        client = OpenAIChatClient("scripted", base_url=server.url, api_key="k")
        async with Engine.open(url, prices=PRICES) as engine:
            clerk = Agent(client, engine=engine, name="Clerk")
            desk = Agent(client, engine=engine, name="Desk", tools=[clerk])
            first = await desk.run("Where is it?", idempotency_key="k")
            await desk.run("Where is it?", idempotency_key="k")
            await desk.run("And now?", thread=first.thread, rewind_to=1)
            await desk.run("Again.", thread=await first.thread.fork())
            journal = spent(*(tokens for tokens, _ in answers.values()))
            assert (len(server.requests), len(server.replies)) == (len(answers) + 1, 0)
            assert first.cost == spent((100, 10), (50, 5), (120, 12))
            for by in ("total", "thread", "agent", "model", "day"):
                costs = [each.cost for each in await engine.costs(by=by)]
                assert sum((each for each in costs if each is not None), Decimal(0)) == journal, by
        await client.aclose()
