"""Two faults at once: another process appends, and the caller is cancelled at the same moment."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from tests.agents.faults import lookup
from tests.agents.run_checks import check_requests, check_store, events_of, short_history

from clew.agents.tool_calls import STOPPED
from clew.agents.tools import tool
from clew.domain.decider import Advance
from clew.domain.messages import Message
from clew.domain.runs.events import ModelCalled, ToolFailed, ToolStarted
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient, call
from clew.service.run_log import ThreadRuns


@pytest.mark.parametrize(
    ("name", "result"),
    [("lookup", "order 7 is on its way"), ("find", "Error: there is no tool 'find'. There are: lookup.")],
    ids=["a result waits to be recorded", "an answer waits to be recorded"],
)
def test_records_pending_events_of_a_cancelled_run(name: str, result: str) -> None:
    async def converse() -> None:
        client = ScriptedChatClient([call(name, order=7), "Fine."])
        async with Engine.open("memory:") as engine:
            agent = Agent(client, engine=engine, tools=[lookup])
            thread = await agent.get_local_thread()
            record_steps = ThreadRuns.record
            times = 0

            async def record(log: ThreadRuns, intents: Any, **options: Any) -> Any:
                nonlocal times
                asks = any(isinstance(each, Advance) and isinstance(each.steps[-1], ModelCalled) for each in intents)
                times += asks
                if asks and times == 2:
                    await thread.append(Message.user("By the way."))
                    run.cancel()
                return await record_steps(log, intents, **options)

            with patch.object(ThreadRuns, "record", record):
                run = asyncio.ensure_future(agent.run("Where is it?", thread=thread))
                with pytest.raises(asyncio.CancelledError):
                    await run
            assert (await agent.run(thread=thread)).text == "Fine."
            history = await short_history(thread)
            assert sorted(history[1:4]) == [
                ("assistant", f'{name}{{"order": 7}}'),
                ("tool", result),
                ("user", "By the way."),
            ]
            events = await events_of(thread)
            types = [event.type for event in events]
            assert "answer-interrupted" not in types
            assert types.count("run-abandoned") == 1
            await check_requests(thread, events)
            await check_store(engine, thread, events)

    asyncio.run(converse())


def test_a_call_that_did_not_start_is_recorded_as_stopped() -> None:
    started: list[int] = []

    @tool
    async def once(order: int) -> str:
        """Do something that must not be repeated."""
        started.append(order)
        return "done"

    async def converse() -> None:
        client = ScriptedChatClient([[call("once", order=7), call("once", order=8)], "Fine."])
        async with Engine.open("memory:") as engine:
            agent = Agent(client, engine=engine, tools=[once])
            thread = await agent.get_local_thread()
            record_steps = ThreadRuns.record

            async def record(log: ThreadRuns, intents: Any, **options: Any) -> Any:
                if any(isinstance(each, Advance) and isinstance(each.steps[-1], ToolStarted) for each in intents):
                    run.cancel()
                return await record_steps(log, intents, **options)

            with patch.object(ThreadRuns, "record", record):
                run = asyncio.ensure_future(agent.run("Do it.", thread=thread))
                with pytest.raises(asyncio.CancelledError):
                    await run
            assert (await agent.run("And now?", thread=thread)).text == "Fine."
            events = await events_of(thread)
            failed = [event.data for event in events if isinstance(event.data, ToolFailed)]
            assert [(each.index, each.reason) for each in failed] == [(0, "stopped"), (1, "stopped")]
            assert [result for role, result in await short_history(thread) if role == "tool"] == [STOPPED, STOPPED]
            assert started == []
            await check_requests(thread, events)
            await check_store(engine, thread, events)

    asyncio.run(converse())
