"""Tools with which a model stores, looks up, changes and clears what is in one memory scope, and in no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from clew.agents.tools import Tool, ToolContext, tool
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryPort
from clew.service.memory.scope_commands import WriteOptions

MOST = 50
"""The most memories that a model receives at once."""


def memory_tools(scope: MemoryPort, store: Callable[[str, WriteOptions], Awaitable[Fact]]) -> list[Tool]:
    """The tools of a scope. What they write has the call as its provenance.

    They are idempotent: a call that is made again after a crash acts once. ``store`` lets the scope know something in
    place of what is live of its key.
    """

    async def store_memory(  # noqa: D417  # the model does not give the context
        context: ToolContext, text: str, key: str | None = None
    ) -> JsonObject:
        """Remember something for later conversations.

        Args:
            text: What is to be remembered, in a sentence that can be understood by itself.
            key: What it is about, in a word or two, where there is one answer at a time, such as "units".
        """
        source, actor, once = await _source(context), context.actor, context.idempotency_key
        there = [] if key is None else [fact for fact in await scope.facts(key=key) if fact.status == "live"]
        if there and there[-1].text == text:
            return _shown(there[-1])
        return _shown(await store(text, WriteOptions(key, source=source, actor=actor, idempotency_key=once)))

    async def retrieve_memories(query: str = "", top: int = 5) -> list[JsonObject]:
        """Look up what was remembered.

        Args:
            query: Words that have to do with what is looked for; none for the newest memories.
            top: How many memories are wanted at the most.
        """
        most = max(1, min(top, MOST))
        if not query.strip():
            return [_shown(fact) for fact in reversed((await scope.facts())[-most:])]
        return [_shown(found.fact) for found in await scope.search(query, top=most)]

    async def update_memory(  # noqa: D417  # the same
        context: ToolContext,
        id: str,  # noqa: A002  # the model's word
        text: str,
    ) -> JsonObject:
        """Put something else in the place of a memory that is no longer right.

        Args:
            id: The id of the memory, as it was given when it was stored or looked up.
            text: What is to be remembered instead.
        """
        key = context.idempotency_key
        fact = await scope.supersede(id, text, source=await _source(context), actor=context.actor, idempotency_key=key)
        return _shown(fact)

    async def clear_memories(  # noqa: D417  # the same
        context: ToolContext, ids: list[str] | None = None
    ) -> JsonObject:
        """Forget memories.

        Args:
            ids: The ids of the memories that are to be forgotten; without ids all of them are.
        """
        # With what is yet to hold, and what is to end some day.
        coming = [fact for fact in await scope.facts(history=True) if fact.status == "live"]
        there = list(dict.fromkeys(fact.id for fact in (*await scope.facts(), *coming)))
        cleared = [id_ for id_ in there if ids is None or id_ in ids]
        for id_ in cleared:
            await scope.retract(id_, reason="cleared by the model", actor=context.actor)
        return {"cleared": len(cleared), "unknown": [id_ for id_ in ids or () if id_ not in there]}

    functions: list[Any] = [store_memory, update_memory, clear_memories]
    return [*(tool(each, idempotent=True) for each in functions), tool(retrieve_memories, idempotent=True)]


async def _source(context: ToolContext) -> Provenance | None:
    """The thread of the call, at its newest version; None for a call outside a thread."""
    if context.thread is None:
        return None
    return Provenance(thread=context.thread.id, version=await context.thread.version)


def _shown(fact: Fact) -> JsonObject:
    shown: JsonObject = {"id": fact.id, "text": fact.text}
    return shown if fact.key is None else {**shown, "key": fact.key}
