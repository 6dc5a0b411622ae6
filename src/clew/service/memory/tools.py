"""Tools that let a model store, look up, change and clear memories in one memory scope only."""

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
    """The tools of a scope. The call is the provenance of the facts that they write.

    They are idempotent: a call that is repeated after a crash has one effect. ``store`` stores a fact in place of the
    live fact with the same key.
    """

    async def store_memory(  # noqa: D417  # the model does not give the context
        context: ToolContext, text: str, key: str | None = None
    ) -> JsonObject:
        """Remember something for later conversations.

        Args:
            text: What to remember, in a sentence that can be understood by itself.
            key: Its subject in one or two words, if there is one answer at a time, such as "units".
        """
        live = [] if key is None else [fact for fact in await scope.facts(key=key) if fact.status == "live"]
        if live and live[-1].text == text:
            return _as_json(live[-1])
        source, idempotency_key = await _source(context), context.idempotency_key
        options = WriteOptions(key, source=source, actor=context.actor, idempotency_key=idempotency_key)
        return _as_json(await store(text, options))

    async def retrieve_memories(query: str = "", top: int = 5) -> list[JsonObject]:
        """Look up memories.

        Args:
            query: Words related to what you look for; none for the newest memories.
            top: How many memories to return at most.
        """
        most = max(1, min(top, MOST))
        if not query.strip():
            return [_as_json(fact) for fact in reversed((await scope.facts())[-most:])]
        return [_as_json(found.fact) for found in await scope.search(query, top=most)]

    async def update_memory(  # noqa: D417  # the same
        context: ToolContext,
        id: str,
        text: str,
    ) -> JsonObject:
        """Replace a memory that is no longer right.

        Args:
            id: The id of the memory, as returned when it was stored or looked up.
            text: What to remember instead.
        """
        key = context.idempotency_key
        fact = await scope.supersede(id, text, source=await _source(context), actor=context.actor, idempotency_key=key)
        return _as_json(fact)

    async def clear_memories(  # noqa: D417  # the same
        context: ToolContext, ids: list[str] | None = None
    ) -> JsonObject:
        """Forget memories.

        Args:
            ids: The ids of the memories to forget; without ids, all of them.
        """
        # Including facts that become true later, and facts that have a set end.
        live = [fact for fact in await scope.facts(history=True) if fact.status == "live"]
        known = list(dict.fromkeys(fact.id for fact in (*await scope.facts(), *live)))
        cleared = [id_ for id_ in known if ids is None or id_ in ids]
        for id_ in cleared:
            await scope.retract(id_, reason="cleared by the model", actor=context.actor)
        return {"cleared": len(cleared), "unknown": [id_ for id_ in ids or () if id_ not in known]}

    functions: list[Any] = [store_memory, update_memory, clear_memories, retrieve_memories]
    return [tool(each, idempotent=True) for each in functions]


async def _source(context: ToolContext) -> Provenance | None:
    """The thread of the call, at its newest version; None for a call outside a thread."""
    if context.thread is None:
        return None
    return Provenance(thread=context.thread.id, version=await context.thread.version)


def _as_json(fact: Fact) -> JsonObject:
    value: JsonObject = {"id": fact.id, "text": fact.text}
    return value if fact.key is None else {**value, "key": fact.key}
