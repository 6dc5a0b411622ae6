"""The contract of history stores accepts correct stores and names the rule that another store breaks."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agents.fake_history_stores import FakeHistoryBackend, FakeHistoryStore

from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage
from clew.testing import HistoryStoreContractError, check_history_store


class ChangesMessages(FakeHistoryStore):
    async def list_messages(self) -> list[StoredMessage]:
        return [
            each._replace(message=each.message.model_copy(update={"metadata": {}}))
            for each in await super().list_messages()
        ]


class ReversesOrder(FakeHistoryStore):
    async def list_messages(self) -> list[StoredMessage]:
        return (await super().list_messages())[::-1]


class KeepsOldest(FakeHistoryStore):
    async def list_messages(self) -> list[StoredMessage]:
        return (await super().list_messages())[:2]


class AddsAgain(FakeHistoryStore):
    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        self.backend.rows.setdefault(self.key, []).extend(messages)


class ListsPlainMessages(FakeHistoryStore):
    async def list_messages(self) -> Any:
        return [each.message for each in await super().list_messages()]


class StoresPassword(FakeHistoryStore):
    async def serialize(self, **_: Any) -> Any:
        return {"url": f"redis://:password@cache/{self.key}"}


class StateIsNotJson(FakeHistoryStore):
    async def serialize(self, **_: Any) -> Any:
        return {"key": object()}


class SharedState(FakeHistoryStore):
    async def serialize(self, **_: Any) -> Any:
        return {"name": "history"}

    async def update_from_state(self, state: Any, **_: Any) -> None:
        pass


class LosesState(FakeHistoryStore):
    async def update_from_state(self, state: Any, **_: Any) -> None:
        self.key = f"somewhere else than {state}"


class WithoutState(FakeHistoryStore):
    async def serialize(self, **_: Any) -> Any:
        return None


@pytest.mark.parametrize("most", [None, 3, 1])
def test_a_correct_store_passes_with_and_without_a_limit(most: int | None) -> None:
    backend = FakeHistoryBackend(most=most, key=lambda context: repr((context.tenant, context.thread_id)))
    asyncio.run(check_history_store(backend.store))


def test_a_store_without_a_state_passes() -> None:
    backend = FakeHistoryBackend()

    async def make(context: StoreContext) -> HistoryStore:
        await asyncio.sleep(0)
        return WithoutState(backend, repr((context.tenant, context.thread_id)))

    asyncio.run(check_history_store(make))


@pytest.mark.parametrize(
    ("kind", "rule", "reason"),
    [
        (ChangesMessages, "unchanged", r"\[2\] changed"),
        (ReversesOrder, "in order", r"lists \[2, 1\]"),
        (KeepsOldest, "the newest", r"lists \[1, 2\]"),
        (AddsAgain, "not added again", r"\[1, 2, 3, 4, 5, 5"),
        (ListsPlainMessages, "it lists", "Return a list of StoredMessage"),
        (StoresPassword, "without credentials", "a URL with a password"),
        (StateIsNotJson, "is JSON", "object is not JSON"),
        (SharedState, "belongs to one thread", "the same state"),
        (LosesState, "leads to the messages", r"lists \[\]"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_names_the_rule_that_a_store_breaks(kind: type[FakeHistoryStore], rule: str, reason: str) -> None:
    backend = FakeHistoryBackend()
    with pytest.raises(HistoryStoreContractError, match=reason) as broken:
        asyncio.run(check_history_store(lambda context: kind(backend, repr((context.tenant, context.thread_id)))))
    assert rule in broken.value.rule
    assert pickle.loads(pickle.dumps(broken.value)).rule == broken.value.rule  # noqa: S301  # made here


@pytest.mark.parametrize(
    "key",
    [
        lambda _: "one for all",
        lambda context: context.thread_id,
        lambda context: f"{context.tenant}/{context.thread_id}",
        lambda context: f"clew:{context.tenant}:{context.thread_id}",
    ],
    ids=["one key for all threads", "one key for all tenants", "ambiguous joined names", "ambiguous with a prefix"],
)
def test_detects_threads_that_share_a_key(key: Any) -> None:
    with pytest.raises(HistoryStoreContractError, match="kept apart"):
        asyncio.run(check_history_store(FakeHistoryBackend(key=key).store))


def test_refuses_a_factory_that_returns_no_store() -> None:
    with pytest.raises(HistoryStoreContractError, match="it returned NoneType"):
        asyncio.run(check_history_store(lambda _: None))  # type: ignore[arg-type,return-value]  # the test passes a wrong factory
