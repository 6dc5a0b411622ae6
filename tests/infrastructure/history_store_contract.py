"""The contract of every history store. A subclass of the suite opens the store."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from tests.domain.history_stores.store_histories import stored

from clew.domain.credential_detection import check_no_credentials
from clew.domain.history_stores import HistoryStore, StoreContext
from clew.domain.messages import FunctionCall, Message, Text
from clew.testing import check_history_store

CALL = FunctionCall(call_id="call_1", name="look", arguments='{"at": "the sky"}')

MESSAGES = stored(
    [
        Message.system("Be brief."),
        Message.user("Was it günstig?\n\x00 — 🪢", author="Zoë", metadata={"big": 10**300, "of": [None, 1.5, {}]}),
        Message.assistant("Let me look.", calls=[CALL]),
        Message.tool("call_1", {"found": ["a", {"b": None}]}, name="look"),
        Message(role="assistant", contents=(Text(text=""), Text(text="Yes.")), source={"refusal": None}),
    ]
)


class HistoryStoreContract(ABC):
    """The suite. Each test uses different threads."""

    @abstractmethod
    def store(self, context: StoreContext) -> HistoryStore:
        """Open the store of a thread. It is empty the first time, and the same store afterwards."""

    def test_passes_the_public_check(self) -> None:
        asyncio.run(check_history_store(self.store))

    def test_returns_equal_messages_in_order(self) -> None:
        async def check() -> None:
            store = self.store(StoreContext("contract", "in-order"))
            assert list(await store.list_messages()) == []
            await store.add_messages(MESSAGES[:1])
            await store.add_messages(MESSAGES[1:])
            assert list(await store.list_messages()) == MESSAGES

        asyncio.run(check())

    def test_ignores_messages_that_it_already_has(self) -> None:
        async def check() -> None:
            store = self.store(StoreContext("contract", "twice"))
            await store.add_messages(MESSAGES[:3])
            await store.add_messages(MESSAGES[:3])
            await store.add_messages([*MESSAGES[1:], *MESSAGES])
            await store.add_messages([])
            assert list(await store.list_messages()) == MESSAGES

        asyncio.run(check())

    def test_separates_threads_and_tenants(self) -> None:
        async def check() -> None:
            stores = [
                self.store(StoreContext(*name)) for name in [("contract", "one"), ("contract", "two"), ("other", "one")]
            ]
            for number, store in enumerate(stores):
                await store.add_messages(MESSAGES[number : number + 1])
            for number, store in enumerate(stores):
                assert list(await store.list_messages()) == MESSAGES[number : number + 1]

        asyncio.run(check())

    def test_reopens_from_its_state_which_has_no_credentials(self) -> None:
        async def check() -> None:
            context = StoreContext("contract", "again")
            store = self.store(context)
            await store.add_messages(MESSAGES)
            state = await store.serialize()
            check_no_credentials(state, "state")
            assert await self.store(StoreContext("contract", "another")).serialize() != state
            reopened = self.store(context._replace(state=state))
            await reopened.update_from_state(state)
            assert list(await reopened.list_messages()) == MESSAGES
            assert await reopened.serialize() == state

        asyncio.run(check())

    def test_stores_each_message_of_concurrent_calls_once(self) -> None:
        async def check() -> None:
            stores = [self.store(StoreContext("contract", "at-once")) for _ in range(4)]
            await asyncio.gather(*(store.add_messages(MESSAGES[: 2 + number]) for number, store in enumerate(stores)))
            listed = await stores[0].list_messages()
            assert sorted(each.id for each in listed) == [each.id for each in MESSAGES]

        asyncio.run(check())
