"""The approvals that all threads wait for: found in a read model, for those who may read the threads."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.projections import Query
from clew.testing import call
from clew.types import ThreadFilter

pytestmark = pytest.mark.anyio


@tool(approval="always")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


def payer(engine: Engine, *script: Any, name: str = "Payer") -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name=name, tools=[pay])


async def waiting(engine: Engine) -> list[str]:
    return [each.call.arguments async for each in engine.approvals()]


async def test_a_request_is_listed_until_it_is_decided_or_its_run_ends(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        both = [call("pay", invoice=1), call("pay", invoice=2)]
        decided = await payer(engine, both, "Paid.").run("Pay 1 and 2.")
        abandoned = (await payer(engine, call("pay", invoice=3)).run("Pay 3.")).thread
        deleted = (await payer(engine, call("pay", invoice=4)).run("Pay 4.")).thread
        fork = await deleted.fork()
        assert await waiting(engine) == [f'{{"invoice": {number}}}' for number in range(1, 5)]
        await decided.approvals[0].approve()
        assert await waiting(engine) == [f'{{"invoice": {number}}}' for number in range(2, 5)]
        await decided.approvals[1].reject()
        await abandoned.stop_run()
        await deleted.delete()
        ended = (await payer(engine, call("pay", invoice=5)).run("Pay 5.")).thread
        await ended.end()
        rewound = (await payer(engine, call("pay", invoice=6)).run("Pay 6.")).thread
        await rewound.rewind(to=1, abandon_run=True)
        assert await waiting(engine) == []
        assert await fork.approvals() == []
        assert await engine.rows("approvals", Query("waiting")) == []


async def test_everybody_sees_what_waits_on_threads_that_they_may_read(any_url: str) -> None:
    def may(actor: str | None, _action: str, _thread: str | None) -> bool | ThreadFilter:
        return actor == "root" or ThreadFilter({"owner": actor or "nobody"})

    async with Engine.open(any_url, authorize=may) as engine:
        for owner, invoice in (("ann", 1), ("ben", 2)):
            inner = payer(engine, call("pay", invoice=invoice))
            boss = Agent(ScriptedChatClient([call("Payer", input="Pay.")]), name="Boss", tools=[inner])
            thread = await engine.acting_as(owner).start_thread(labels={"owner": owner})
            await boss.run("Pay.", thread=thread)
        assert await waiting(engine.acting_as("ann")) == ['{"invoice": 1}']
        assert await waiting(engine.acting_as("eve")) == []
        asked = [(each.agent, each.on_behalf_of) async for each in engine.acting_as("root").approvals()]
        assert asked == [("Payer", "ann"), ("Payer", "ben")]
        (of_ben,) = [each async for each in engine.acting_as("ben").approvals()]
        assert of_ben.outer_thread_id == thread.id != of_ben.thread_id
        await of_ben.approve(actor="ben")
        assert await waiting(engine.acting_as("ben")) == []
