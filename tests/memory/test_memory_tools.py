"""Memory tools: a model stores, reads, updates and clears memories of its scope only."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew import Agent, Engine, MemoryTools, ScriptedChatClient
from clew.errors import ScopeError
from clew.testing import call

pytestmark = pytest.mark.anyio


async def test_a_model_stores_reads_updates_and_clears_memories_across_threads(any_url: str) -> None:
    results: list[Any] = []

    def then(*next_call: Any) -> Any:
        """Record the result of the previous call and return the next one."""

        def line(body: Any) -> Any:
            results.append(json.loads(body["messages"][-1]["content"]))
            name, arguments = next_call[0], next_call[1](results[-1]) if len(next_call) > 1 else {}
            return call(name, **arguments) if name else "Done."

        return line

    client = ScriptedChatClient(
        [
            call("store_memory", text="Likes tea", key="drink"),
            then(None),
            call("retrieve_memories", query="tea"),
            then("update_memory", lambda memories: {"id": memories[0]["id"], "text": "Likes coffee"}),
            then("clear_memories"),
            then("retrieve_memories"),
            then(None),
        ]
    )
    async with Engine.open(any_url) as engine:
        agent = Agent(client, engine=engine, context_providers=MemoryTools("user/1"))
        one = (await agent.run("I like tea.")).thread
        scope = await engine.memory("user/1")
        (fact,) = await scope.facts()
        assert (fact.text, fact.key) == ("Likes tea", "drink")
        assert fact.learned is not None
        assert fact.learned.thread == one.id
        await agent.run("And now?")
        assert [each["text"] for each in results[1]] == ["Likes tea"]
        assert (results[2]["text"], results[3], results[4]) == ("Likes coffee", {"cleared": 1, "unknown": []}, [])
        assert await scope.facts() == []
        assert [each.status for each in await scope.facts(history=True)] == ["superseded", "retracted"]
        assert await (await engine.memory("user/2")).facts(history=True) == []


@pytest.mark.parametrize("scope", [None, ""])
def test_refuses_a_missing_scope(scope: str | None) -> None:
    with pytest.raises(ScopeError):
        MemoryTools(scope)
