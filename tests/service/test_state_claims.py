from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import jsons

from clew.domain.events import Event, StateClaimed
from clew.domain.history_stores import claim_stream
from clew.domain.json_values import Json
from clew.engine import Engine
from clew.errors import HistoryStoreSharedError

KEY: Json = {"key": "history", "of": [1, 2]}


async def claim(engine: Engine, thread_id: str, state: Json = KEY, provider: str = "history-store") -> None:
    await (await engine.open_thread(thread_id)).runs.claim_state(provider, state)


async def claims(engine: Engine, state: Json = KEY) -> list[Event]:
    return engine._core.log.lineage(claim_stream(engine._core.tenant, "history-store", state))


def test_a_state_belongs_to_the_thread_that_claimed_it_first(url: str) -> None:
    async def check() -> None:
        async with Engine.open(url) as engine:
            await claim(engine, "one")
            await claim(engine, "one", {"of": [1, 2], "key": "history"})
            with pytest.raises(HistoryStoreSharedError, match="thread 'one'") as refused:
                await claim(engine, "two")
            assert (refused.value.thread_id, refused.value.other) == ("two", "one")
            await claim(engine, "two", {"key": "history", "of": [2, 1]})
            await claim(engine, "two", provider="another")
            [claimed] = await claims(engine)
            assert claimed.data == StateClaimed(provider="history-store", thread_id="one")
            assert (await engine.verify()).first_bad is None

    asyncio.run(check())


def test_tenants_do_not_see_each_others_claims(shared_url: str) -> None:
    async def check() -> None:
        for tenant in ("acme", "globex"):
            async with Engine.open(shared_url, tenant=tenant) as engine:
                await claim(engine, "one" if tenant == "acme" else "two")

    asyncio.run(check())


def test_another_process_finds_the_claim(shared_url: str) -> None:
    async def check() -> None:
        async with Engine.open(shared_url) as engine:
            await claim(engine, "one")
        async with Engine.open(shared_url) as engine:
            await claim(engine, "one")
            with pytest.raises(HistoryStoreSharedError):
                await claim(engine, "two")
            assert len(await claims(engine)) == 1

    asyncio.run(check())


def test_one_of_many_concurrent_claims_wins(url: str) -> None:
    async def check() -> None:
        async with Engine.open(url) as engine:
            outcomes = await asyncio.gather(
                *(claim(engine, f"thread-{number % 4}") for number in range(12)), return_exceptions=True
            )
            [claimed] = await claims(engine)
            assert isinstance(claimed.data, StateClaimed)
            winner = int(claimed.data.thread_id.removeprefix("thread-"))
            for number, outcome in enumerate(outcomes):
                if number % 4 == winner:
                    assert outcome is None
                else:
                    assert isinstance(outcome, HistoryStoreSharedError)

    asyncio.run(check())


def test_an_unstarted_thread_keeps_its_claim_until_another_thread_starts(url: str) -> None:
    async def check() -> None:
        async with Engine.open(url) as engine:
            unstarted = engine.unstarted_thread("local")
            await unstarted.runs.claim_state("history-store", KEY)
            with pytest.raises(HistoryStoreSharedError):
                await claim(engine, "two")
            assert [each.id async for each in engine.threads()] == ["two"]

    asyncio.run(check())


def test_states_that_are_equal_only_in_python_have_separate_streams() -> None:
    states: list[Json] = [1, 1.0, True, "1", [1], {"1": 1}, {"1": True}, {"1": None}]
    assert len({claim_stream("default", "history-store", state) for state in states}) == len(states)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), jsons, max_size=4))
def test_the_stream_name_ignores_key_order_and_hides_the_state(state: dict[str, Json]) -> None:
    name = claim_stream("default", "history-store", state)
    assert name == claim_stream("default", "history-store", dict(reversed(state.items())))
    assert name.startswith("default/system/history-store:")
    assert len(name) == len("default/system/history-store:") + 64
