"""No scope reveals facts of another scope, for any writes of tenants, users and agents."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Engine, MemoryScope
from clew.agents.tools import ToolContext, call_tool
from clew.domain.errors import ScopeError, UnknownFactError
from clew.domain.memory.facts import Fact, FactOrigin
from clew.infrastructure.hashing_embedder import HashingEmbedder

CAMPAIGN = 80
"""The number of generated stores at full scale."""

TENANTS = ("a", "b", "a/memory", "%61")
NAMES = ("user/1", "user/11", "user", "user%2F1", "USER/1", "agent/1", "a/memory/user", "é", "e\u0301", "*", "_", "a")
WORD = re.compile(r"canary[0-9]+x")  # random bytes in an export do not match it

Place = tuple[str, str]
"""A tenant and a scope."""

_places = st.tuples(st.sampled_from(TENANTS), st.sampled_from(NAMES))
_writes = st.tuples(
    st.sampled_from(["remember", "remember", "supersede", "retract", "promote", "tool"]), _places, _places
)


class Model:
    """Scopes of several tenants in one store. Each fact has a unique word; ``homes`` maps it to its allowed scopes."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self.engines = engines
        self.homes: dict[str, set[Place]] = {}
        self.facts: dict[str, tuple[Place, Fact]] = {}
        self.calls = 0

    async def scope(self, place: Place, *, embedder: HashingEmbedder | None = None) -> MemoryScope:
        return await self.engines[place[0]].memory(place[1], embedder=embedder)

    def secret_for(self, place: Place) -> str:
        word = f"canary{len(self.homes)}x"
        self.homes[word] = {place}
        return f"the secret {word}"

    async def write(self, operation: str, place: Place, other: Place) -> None:
        scope = await self.scope(place)
        live = await scope.facts()
        if operation == "tool":
            await self.tool(scope, "store_memory", {"text": self.secret_for(place), "key": "units"})
        elif operation == "remember" or not live:
            await scope.remember(self.secret_for(place))
        elif operation == "supersede":
            await scope.supersede(live[0], self.secret_for(place))
        elif operation == "retract":
            await scope.retract(live[-1])
        else:
            await self.promote(live[0], place, other)
        self.facts |= {fact.id: (place, fact) for fact in await scope.facts(history=True)}

    async def promote(self, fact: Fact, place: Place, other: Place) -> None:
        scope, to = await self.scope(place), await self.scope(other)
        if place[0] == other[0] and place != other:
            await scope.promote(fact, to=to)
            self.homes[WORD.search(fact.text)[0]].add(other)  # type: ignore[index]  # each fact has a word
            return
        with pytest.raises(ScopeError):
            await scope.promote(fact, to=to)

    async def tool(self, scope: MemoryScope, name: str, arguments: dict[str, Any]) -> Any:
        [tool] = [each for each in scope.tools() if each.name == name]
        self.calls += 1
        context = ToolContext(None, None, None, "run-1", "c1", f"call-{self.calls}")
        return (await call_tool(tool, json.dumps(arguments), context)).result

    async def check(self, place: Place) -> None:
        """Check that a scope returns only its own facts and does not know others."""
        scope = await self.scope(place)
        by_meaning = await self.scope(place, embedder=HashingEmbedder(16))
        shown: list[Any] = [await scope.facts(), await scope.facts(history=True)]
        for each in (scope, by_meaning):
            shown += [await each.search("the secret", top=99), await each.search(" ".join(self.homes) or "x", top=99)]
        shown += [await self.tool(scope, "retrieve_memories", {"query": "secret", "top": 50})]
        shown += [await self.tool(scope, "retrieve_memories", {"top": 50})]
        own = [fact.id for fact in shown[1]]
        for home, fact in self.facts.values():
            assert (home == place) is (fact.id in own)
            if home == place:
                shown.append(with_origins(await scope.why(fact)))
                assert await scope.used_by(fact) == []
        foreign = [fact for home, fact in self.facts.values() if home != place]
        for fact in foreign[:2] + foreign[-1:]:
            await self.refuse(scope, fact)
        for word in WORD.findall(repr(shown)):
            assert place in self.homes[word]

    async def refuse(self, scope: MemoryScope, fact: Fact) -> None:
        """Check that a fact of another scope is unknown under any name."""
        forms: list[Fact | str] = [fact, fact.id, fact._replace(scope=scope.name)]
        foreign = forms[len(self.homes) % 3]
        for call in (scope.why(foreign), scope.used_by(foreign), scope.supersede(foreign, "x"), scope.retract(foreign)):
            with pytest.raises(UnknownFactError):
                await call
        assert "UnknownFactError" in await self.tool(scope, "update_memory", {"id": fact.id, "text": "x"})
        assert await self.tool(scope, "clear_memories", {"ids": [fact.id]}) == {"cleared": 0, "unknown": [fact.id]}


def with_origins(why: FactOrigin) -> list[Fact]:
    """Return the fact and the facts that it was promoted from; the promotion allowed this scope to see them."""
    return [why.fact, *([] if why.promoted_from is None else with_origins(why.promoted_from))]


async def _check(writes: Iterable[tuple[str, Place, Place]]) -> None:
    async with Engine.open("memory:", tenant=TENANTS[0]) as first:
        # One store for all: a store in memory belongs to one service, so the other tenants share its log.
        engines = {TENANTS[0]: first}
        for tenant in TENANTS[1:]:
            engines[tenant] = of_tenant(first, tenant)
        model = Model(engines)
        places: dict[Place, None] = {}
        for operation, place, other in writes:
            await model.write(operation, place, other)
            places |= {place: None, other: None}
        for place in places:
            await model.check(place)
        for tenant, engine in engines.items():
            listed = {(tenant, each.name) async for each in engine.scopes()}
            assert listed == {home for homes in model.homes.values() for home in homes if home[0] == tenant}
            exported = b"".join([line async for line in engine.export_events()]).decode()
            own = {word for word, homes in model.homes.items() if any(home[0] == tenant for home in homes)}
            assert model.homes.keys() & set(WORD.findall(exported)) == own


def of_tenant(engine: Engine, tenant: str) -> Engine:
    """Return the engine of another tenant on the same store."""
    return Engine(replace(engine._core, tenant=tenant))


def test_no_scope_reveals_a_fact_of_another(scale: float) -> None:
    @settings(max_examples=math.ceil(CAMPAIGN * scale))
    @given(st.lists(_writes, min_size=3, max_size=10))
    def check(writes: list[tuple[str, Place, Place]]) -> None:
        asyncio.run(_check(writes))

    check()


def test_tenants_of_one_store_do_not_see_each_others_scopes(shared_url: str) -> None:
    with Conversations.open(shared_url, tenant="a") as a, Conversations.open(shared_url, tenant="b") as b:
        mine = a.memory("user/42").remember("Likes tea")
        theirs = b.memory("user/42").remember("Likes jam")
        assert (a.memory("user/42").facts(), b.memory("user/42").facts()) == ([mine], [theirs])
        assert [hit.fact for hit in b.memory("user/42").search("likes tea jam")] == [theirs]
        with pytest.raises(UnknownFactError):
            b.memory("user/42").why(mine)
        with pytest.raises(ScopeError):
            a.memory("user/42").promote(mine, to=b.memory("app"))
        assert [[each.name for each in tenant.scopes()] for tenant in (a, b)] == [["user/42"], ["user/42"]]
        assert list(b.export()) == []
