"""A model stores, looks up, updates and clears memories, in its own scope and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew import Agent, Engine, MemoryTools, ScriptedChatClient
from clew.errors import ScopeError
from clew.testing import call

pytestmark = pytest.mark.anyio


async def test_a_model_stores_looks_up_updates_and_clears_what_later_threads_know(any_url: str) -> None:
    found: list[Any] = []

    def then(*next_call: Any) -> Any:
        """The next call, when the result of the one before is noted."""

        def line(body: Any) -> Any:
            found.append(json.loads(body["messages"][-1]["content"]))
            name, arguments = next_call[0], next_call[1](found[-1]) if len(next_call) > 1 else {}
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
        assert [each["text"] for each in found[1]] == ["Likes tea"]
        assert (found[2]["text"], found[3], found[4]) == ("Likes coffee", {"cleared": 1, "unknown": []}, [])
        assert await scope.facts() == []
        assert [each.status for each in await scope.facts(history=True)] == ["superseded", "retracted"]
        assert await (await engine.memory("user/2")).facts(history=True) == []


@pytest.mark.parametrize("scope", [None, ""])
def test_there_is_no_scope_for_everyone(scope: str | None) -> None:
    with pytest.raises(ScopeError):
        MemoryTools(scope)
