"""The contract of history stores lets good ones pass and names the rule that a bad one breaks."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agents.shelves import Cupboard, Shelf

from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage
from clew.testing import HistoryStoreContractError, check_history_store


class Changing(Shelf):
    async def list_messages(self) -> list[StoredMessage]:
        return [
            each._replace(message=each.message.model_copy(update={"metadata": {}}))
            for each in await super().list_messages()
        ]


class Reversing(Shelf):
    async def list_messages(self) -> list[StoredMessage]:
        return (await super().list_messages())[::-1]


class KeepingTheOldest(Shelf):
    async def list_messages(self) -> list[StoredMessage]:
        return (await super().list_messages())[:2]


class Doubling(Shelf):
    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        self.cupboard.rows.setdefault(self.key, []).extend(messages)


class Listless(Shelf):
    async def list_messages(self) -> Any:
        return [each.message for each in await super().list_messages()]


class Careless(Shelf):
    async def serialize(self, **_: Any) -> Any:
        return {"url": f"redis://:password@cache/{self.key}"}


class Vague(Shelf):
    async def serialize(self, **_: Any) -> Any:
        return {"key": object()}


class Alike(Shelf):
    async def serialize(self, **_: Any) -> Any:
        return {"name": "history"}

    async def update_from_state(self, state: Any, **_: Any) -> None:
        pass


class Lost(Shelf):
    async def update_from_state(self, state: Any, **_: Any) -> None:
        self.key = f"somewhere else than {state}"


class Stateless(Shelf):
    async def serialize(self, **_: Any) -> Any:
        return None


@pytest.mark.parametrize("most", [None, 3, 1])
def test_a_correct_store_passes_with_and_without_a_limit(most: int | None) -> None:
    cupboard = Cupboard(most=most, key=lambda context: repr((context.tenant, context.thread_id)))
    asyncio.run(check_history_store(cupboard.store))


def test_a_store_without_a_state_passes() -> None:
    cupboard = Cupboard()

    async def make(context: StoreContext) -> HistoryStore:
        await asyncio.sleep(0)
        return Stateless(cupboard, repr((context.tenant, context.thread_id)))

    asyncio.run(check_history_store(make))


@pytest.mark.parametrize(
    ("kind", "rule", "found"),
    [
        (Changing, "unchanged", r"\[2\] changed"),
        (Reversing, "in order", r"lists \[2, 1\]"),
        (KeepingTheOldest, "the newest", r"lists \[1, 2\]"),
        (Doubling, "not added again", r"\[1, 2, 3, 4, 5, 5"),
        (Listless, "it lists", "Return a list of StoredMessage"),
        (Careless, "without credentials", "a URL with a password"),
        (Vague, "is JSON", "object is not JSON"),
        (Alike, "belongs to one thread", "the same state"),
        (Lost, "leads to the messages", r"lists \[\]"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_names_the_rule_that_a_store_breaks(kind: type[Shelf], rule: str, found: str) -> None:
    cupboard = Cupboard()
    with pytest.raises(HistoryStoreContractError, match=found) as broken:
        asyncio.run(check_history_store(lambda context: kind(cupboard, repr((context.tenant, context.thread_id)))))
    assert rule in broken.value.rule
    assert pickle.loads(pickle.dumps(broken.value)).rule == broken.value.rule  # noqa: S301  # our own


@pytest.mark.parametrize(
    "key",
    [
        lambda _: "one for all",
        lambda context: context.thread_id,
        lambda context: f"{context.tenant}/{context.thread_id}",
        lambda context: f"clew:{context.tenant}:{context.thread_id}",
    ],
    ids=["one key for all threads", "one key for all tenants", "names that run together", "with a prefix, too"],
)
def test_threads_that_share_a_place_are_found(key: Any) -> None:
    with pytest.raises(HistoryStoreContractError, match="kept apart"):
        asyncio.run(check_history_store(Cupboard(key=key).store))


def test_a_factory_that_returns_no_store_breaks_a_rule() -> None:
    with pytest.raises(HistoryStoreContractError, match="it returned NoneType"):
        asyncio.run(check_history_store(lambda _: None))  # type: ignore[arg-type,return-value]  # on purpose
