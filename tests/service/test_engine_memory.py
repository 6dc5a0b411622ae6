"""Memory scopes of the engine: search by meaning, scopes of a thread, and memory tools of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew import Agent, Context, ContextProvider, Engine, MemoryScope, Message, ScriptedChatClient, tool
from clew.agents.tools import ToolContext, ToolOutcome, call_tool
from clew.aio.memory import scope_of_thread
from clew.domain.context.provider import ProviderContext
from clew.domain.errors import EmbeddingError, EmbeddingMismatchError, InvalidNameError, ScopeError, UnknownFactError
from clew.domain.history import HistoryMessage
from clew.domain.memory.events import Provenance, ScopeRead
from clew.domain.memory.facts import Fact
from clew.infrastructure.hashing_embedder import HashingEmbedder
from clew.testing import call as called

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine.open(url) as opened:
        yield opened


def of_thread(
    thread: Any, *, name: str = "user/42", run_id: str | None = "run-1", provider: str | None = "facts"
) -> MemoryScope:
    return scope_of_thread(thread._core, name, thread_id=thread.id, run_id=run_id, actor="agent:a", provider=provider)


def texts(facts: Sequence[Fact]) -> list[str]:
    return [fact.text for fact in facts]


@pytest.mark.parametrize("name", [None, "", " ", 5])
async def test_refuses_an_invalid_scope_at_once(engine: Engine, name: Any) -> None:
    with pytest.raises(ScopeError):
        await engine.memory(name)
    thread = await engine.start_thread()
    with pytest.raises(ScopeError):
        of_thread(thread, name=name)
    with pytest.raises(InvalidNameError):
        of_thread(thread, name="x" * 201)


# With an embedder


async def test_a_scope_records_its_embedder(engine: Engine) -> None:
    scope = await engine.memory("user/42", embedder=HashingEmbedder(64))
    await scope.remember("Prefers kilometres")
    [listed] = [each async for each in engine.scopes()]
    assert (listed.embedder, listed.dimensions) == ("hashing-1", 64)
    with pytest.raises(EmbeddingMismatchError, match="'hashing-1', of 64 numbers"):
        await engine.memory("user/42", embedder=HashingEmbedder(32))
    plain = await engine.memory("user/42")
    assert texts(await plain.facts()) == ["Prefers kilometres"]
    again = await engine.memory("user/42", embedder=HashingEmbedder(64))
    assert texts([hit.fact for hit in await again.search("kilometre")]) == ["Prefers kilometres"]
    assert await plain.search("kilometre") == []  # a search by words finds whole words only


async def test_refuses_a_scope_that_another_embedder_opened_meanwhile(engine: Engine) -> None:
    first = await engine.memory("user/42", embedder=HashingEmbedder(64))
    second = await engine.memory("user/42", embedder=HashingEmbedder(32))
    await first.remember("one")
    for call in (second.remember("two"), second.facts(), second.search("one")):
        with pytest.raises(EmbeddingMismatchError):
            await call
    assert texts(await first.facts(history=True)) == ["one"]


async def test_accepts_only_an_embedder(engine: Engine) -> None:
    wrong: Any = "text-embedding-3-small"
    with pytest.raises(EmbeddingError):
        await engine.memory("user/42", embedder=wrong)


async def test_a_search_by_meaning_finds_only_live_facts_of_its_scope(engine: Engine) -> None:
    embedder = HashingEmbedder()
    scope = await engine.memory("user/42", embedder=embedder)
    other = await engine.memory("user/7", embedder=embedder)
    old = await scope.remember("Has a labrador called Bran")
    await other.remember("Has a labrador called Conn")
    assert texts([hit.fact for hit in await scope.search("labradors")]) == [old.text]
    await scope.supersede(old, "Has a labrador called Rua")
    assert texts([hit.fact for hit in await scope.search("labradors")]) == ["Has a labrador called Rua"]
    assert texts([hit.fact for hit in await scope.search("labradors", at=2)]) == [old.text]
    assert texts([hit.fact for hit in await other.search("labradors")]) == ["Has a labrador called Conn"]


class CallCounter(HashingEmbedder):
    """Counts its calls."""

    calls = 0

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls += 1
        return await super().embed(texts)


async def test_uses_the_given_embedder(engine: Engine) -> None:
    first, second = CallCounter(), CallCounter()
    scope = await engine.memory("user/42", embedder=first)
    await scope.remember("Likes tea")
    await scope.search("tea")
    before = first.calls
    assert len(await (await engine.memory("user/42", embedder=second)).search("tea")) == 1
    assert (first.calls, second.calls) == (before, 1)  # the fact has its vector already


# Scopes of a thread


async def test_a_fact_learned_in_a_thread_has_it_as_provenance(engine: Engine) -> None:
    thread = await engine.start_thread(messages=[Message.user("I like tea"), Message.user("and jam")])
    scope = of_thread(thread)
    [tea, _] = (await thread.history()).messages
    fact = await scope.remember("Likes tea", source=tea)
    assert (fact.learned, fact.actor) == (Provenance(thread=thread.id, version=2), "agent:a")
    assert (await scope.why(fact)).message == tea
    newest = await scope.remember("Likes jam")
    assert newest.learned == Provenance(thread=thread.id, version=3)
    superseding = await scope.supersede(
        newest, "Likes honey", source=Provenance(thread="t", version=1), actor="user:42"
    )
    assert (superseding.learned, superseding.actor) == (Provenance(thread="t", version=1), "user:42")


async def test_repeated_hooks_of_a_run_write_a_fact_only_once(engine: Engine) -> None:
    thread = await engine.start_thread()
    before = await (await engine.memory("user/42")).remember("Likes milk")
    written: list[Any] = []
    for _ in range(2):
        await thread.append(Message.user("More."))  # the thread has a newer version now
        scope = of_thread(thread)
        tea = await scope.remember("Likes tea", kind="taste")
        coffee = await scope.supersede(before, "Likes coffee")
        await scope.retract(coffee, reason="no more")
        written.append((tea, coffee.id))
    assert written[0] == written[1]
    assert len(await scope.facts(history=True)) == 3
    for other in (
        of_thread(thread, run_id="run-2"),
        of_thread(thread, provider="other"),
        of_thread(thread, run_id=None),
    ):
        await other.remember("Likes tea", kind="taste")
    assert texts(await scope.facts()) == ["Likes tea"] * 4
    assert await scope.remember("Likes tea", idempotency_key="k") != written[0][0]


async def test_a_scope_of_a_thread_records_the_versions_read(engine: Engine) -> None:
    thread = await engine.start_thread()
    scope = of_thread(thread)
    assert list(scope.reads) == []
    await scope.facts()
    await scope.remember("Likes tea")
    await scope.search("tea")
    await scope.facts()
    assert scope.reads == (ScopeRead(scope="user/42", version=0), ScopeRead(scope="user/42", version=2))
    plain = await engine.memory("user/42")
    await plain.facts()
    assert plain.reads == ()


async def test_a_fork_with_as_of_memory_searches_facts_up_to_its_cut_and_its_own(engine: Engine) -> None:
    thread = await engine.start_thread()
    fork = await thread.fork(memory="as-of")
    await of_thread(thread).remember("Likes tea")
    await of_thread(fork).remember("Likes green tea")
    assert texts([hit.fact for hit in await of_thread(fork).search("tea")]) == ["Likes green tea"]
    with pytest.raises(UnknownFactError):
        await of_thread(fork).why((await of_thread(thread).facts())[0])


async def test_a_thread_promotes_facts_as_its_actor(engine: Engine) -> None:
    thread = await engine.start_thread()
    fact = await of_thread(thread).remember("Returns take 5 days")
    app = await engine.memory("app")
    first, second = [await of_thread(thread).promote(fact, to=app) for _ in range(2)]
    assert (first, first.actor, first.learned) == (second, "agent:a", fact.learned)
    no_scope: Any = None
    with pytest.raises(ScopeError):
        await of_thread(thread).promote(fact, to=no_scope)


async def test_many_tasks_write_to_one_scope(engine: Engine) -> None:
    scope = await engine.memory("user/42")
    await asyncio.gather(*(scope.remember(str(number)) for number in range(30)))
    assert sorted(map(int, texts(await scope.facts()))) == list(range(30))


# Uses


class Passing(ContextProvider):
    """Provides the facts of a scope."""

    scope = "user/42"

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        facts = await ctx.scope.facts()
        return Context(instructions=" ".join(texts(facts)), facts=facts)


async def test_used_by_names_the_model_calls_that_received_a_fact(engine: Engine) -> None:
    scope = await engine.memory("user/42")
    fact, other = await scope.remember("Likes tea"), await (await engine.memory("user/7")).remember("Likes jam")
    assert await scope.used_by(fact) == []
    client = ScriptedChatClient(lambda _: "Yes.")
    agent = Agent(client, engine=engine, context_providers=Passing())
    first, second = await engine.start_thread(), await engine.start_thread()
    for thread in (first, second, first):
        await agent.run("What do I like?", thread=thread)
    fork = await first.fork()
    uses = await scope.used_by(fact)
    assert [use.thread_id for use in uses] == [first.id, second.id, first.id]
    for use in uses:
        events = {event.version: event async for event in (await engine.thread(use.thread_id)).events()}
        assert (events[use.provided].type, events[use.version].type) == ("context-provided", "model-called")
        assert {events[use.provided].run_id, events[use.version].run_id} == {use.run_id}
    assert await (await engine.memory("user/7")).used_by(other) == []
    await engine.rebuild("memory")
    assert await scope.used_by(fact.id) == uses
    await agent.run("And now?", thread=fork)
    assert [use.thread_id for use in await scope.used_by(fact)] == [first.id, second.id, first.id, fork.id]


@pytest.mark.parametrize("every", [False, True])
async def test_used_by_names_every_model_call_of_a_run(engine: Engine, every: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    scope, thread = await engine.memory("user/42"), await engine.start_thread()
    fact = await scope.remember("Likes tea")

    class EveryCall(Passing):
        every_model_call = every

    async def boil() -> str:
        """Boil water."""
        return "boiling"

    client = ScriptedChatClient([called("boil"), called("boil"), "Here you are."])
    agent = Agent(client, engine=engine, name="Host", tools=[tool(boil)], context_providers=EveryCall())
    await agent.run("Tea, please", thread=thread)
    events = [event async for event in thread.events()]
    calls = [event.version for event in events if event.type == "model-called"]
    uses = await scope.used_by(fact)
    assert [use.version for use in uses] == calls
    assert len({use.provided for use in uses}) == (3 if every else 1)
    assert len(calls) == 3


# Tools


class Tools:
    """Calls the tools of a scope as a run does."""

    def __init__(self, scope: MemoryScope, thread: Any = None) -> None:
        self.tools = {each.name: each for each in scope.tools()}
        self.thread = thread
        self.calls = 0

    async def __call__(self, name: str, arguments: str = "{}", *, again: bool = False) -> Any:
        self.calls += not again
        context = ToolContext(None, self.thread, "user:42", "run-1", "c1", f"run-1/{self.calls}")
        outcome: ToolOutcome = await call_tool(self.tools[name], arguments, context)
        assert outcome.error is None or outcome.raised is not None
        return outcome.result if outcome.error is None else outcome.raised


async def test_a_model_stores_looks_up_changes_and_clears_memories(engine: Engine) -> None:
    scope, other = await engine.memory("user/42"), await engine.memory("user/7")
    secret = await other.remember("Likes tea in secret")
    call = Tools(scope, await engine.start_thread())
    tea = await call("store_memory", '{"text": "Likes tea"}')
    units = await call("store_memory", '{"text": "Prefers miles", "key": "units"}')
    assert await call("retrieve_memories", '{"query": "tea"}') == [tea]
    assert await call("retrieve_memories") == [units, tea]
    changed = await call("update_memory", f'{{"id": "{tea["id"]}", "text": "Likes coffee"}}')
    new_units = await call("store_memory", '{"text": "Prefers kilometres", "key": "units"}')
    assert await call("retrieve_memories", '{"top": 99}') == [new_units, changed]
    assert await call("clear_memories", f'{{"ids": ["{changed["id"]}", "{secret.id}"]}}') == {
        "cleared": 1,
        "unknown": [secret.id],
    }
    assert await call("clear_memories") == {"cleared": 1, "unknown": []}
    assert (await scope.facts(), await other.facts()) == ([], [secret])
    assert len(await scope.facts(history=True)) == 4
    assert isinstance(await call("update_memory", f'{{"id": "{secret.id}", "text": "x"}}'), UnknownFactError)


async def test_a_memory_stored_by_a_model_names_its_thread(engine: Engine) -> None:
    thread = await engine.start_thread(messages=[Message.user("I like tea")])
    scope = await engine.memory("user/42")
    await Tools(scope, thread)("store_memory", '{"text": "Likes tea"}')
    [fact] = await scope.facts()
    assert (fact.learned, fact.actor) == (Provenance(thread=thread.id, version=2), "user:42")
    assert (await scope.why(fact)).message == (await thread.history()).messages[0]


async def test_a_memory_stored_in_a_run_leads_to_the_users_message(engine: Engine) -> None:
    scope, thread = await engine.memory("user/42"), await engine.start_thread()
    client = ScriptedChatClient([called("store_memory", text="Likes tea"), "Noted."])
    agent = Agent(client, engine=engine, name="Keeper", tools=scope.tools())
    await agent.run("I like tea", thread=thread)
    [fact] = await scope.facts()
    message = (await thread.history()).messages[0]
    why = await scope.why(fact)
    assert (why.message, why.version, why.redacted) == (message, message.version, False)
    await thread.redact(message)
    why = await scope.why(fact)
    assert (why.message, why.version, why.redacted) == (None, message.version, True)


async def test_a_model_clears_facts_with_future_validity(engine: Engine) -> None:
    scope, ahead = await engine.memory("user/42"), datetime.now(UTC) + timedelta(days=9)
    call = Tools(scope, await engine.start_thread())
    old = await scope.remember("Lives in Oslo", key="town")
    await scope.supersede(old, "Lives in Rome", valid_from=ahead)
    await scope.remember("Has a dog")
    assert texts(await scope.facts()) == ["Lives in Oslo", "Has a dog"]
    assert await call("clear_memories") == {"cleared": 3, "unknown": []}
    assert await scope.facts() == await scope.facts(valid_at=ahead) == []
    assert await call("clear_memories") == {"cleared": 0, "unknown": []}


async def test_a_model_stores_a_fact_next_to_one_with_a_planned_end(engine: Engine) -> None:
    scope, ahead = await engine.memory("user/42"), datetime.now(UTC) + timedelta(days=9)
    await scope.retract(await scope.remember("Lives in Oslo", key="town"), valid_to=ahead)
    await Tools(scope, await engine.start_thread())("store_memory", '{"text": "Lives in Rome", "key": "town"}')
    assert texts(await scope.facts()) == ["Lives in Oslo", "Lives in Rome"]


@pytest.mark.parametrize("before", [False, True])
async def test_concurrent_calls_leave_one_memory_of_a_key(engine: Engine, *, before: bool) -> None:
    scope = await engine.memory("user/42")
    call = Tools(scope)
    if before:
        await call("store_memory", '{"text": "Prefers feet", "key": "units"}')
    read_facts, both_read = scope.facts, asyncio.Barrier(2)

    async def facts(**options: Any) -> list[Fact]:
        result = await read_facts(**options)
        await both_read.wait()  # neither call sees the other's write
        return result

    scope.facts = facts  # type: ignore[method-assign]
    stated = ("Prefers miles", "Prefers kilometres")
    stored = await asyncio.gather(*[call("store_memory", f'{{"text": "{text}", "key": "units"}}') for text in stated])
    assert [each["text"] for each in stored] == list(stated)
    del scope.facts
    assert len(await scope.facts(key="units")) == 1
    assert {*stated} <= {*texts(await scope.facts(history=True))}


async def test_a_repeated_call_after_another_write_stores_nothing(engine: Engine) -> None:
    scope = await engine.memory("user/42")
    call, other = Tools(scope), Tools(scope)
    other.calls = 9
    miles = '{"text": "Prefers miles", "key": "units"}'
    stored = await call("store_memory", miles)
    await other("store_memory", '{"text": "Prefers kilometres", "key": "units"}')
    assert await call("store_memory", miles, again=True) == stored
    assert texts(await scope.facts()) == ["Prefers kilometres"]


async def test_a_repeated_call_stores_once(engine: Engine) -> None:
    scope = await engine.memory("user/42")
    call = Tools(scope)
    for arguments in ('{"text": "Likes tea"}', '{"text": "Prefers miles", "key": "units"}'):
        assert await call("store_memory", arguments) == await call("store_memory", arguments, again=True)
    changed = '{"text": "Prefers kilometres", "key": "units"}'
    assert await call("store_memory", changed) == await call("store_memory", changed, again=True)
    assert texts(await scope.facts(history=True)) == ["Likes tea", "Prefers miles", "Prefers kilometres"]
