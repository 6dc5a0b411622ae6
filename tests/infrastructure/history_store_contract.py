"""What every history store must do, as one suite: a class that inherits it says how a store is made."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from tests.domain.history_stores.made_paths import stored

from clew.domain.credentials import check_no_credentials
from clew.domain.history_stores import HistoryStore, StoreContext
from clew.domain.messages import FunctionCall, Message, Text
from clew.testing import check_history_store

CALL = FunctionCall(call_id="call_1", name="look", arguments='{"at": "the sky"}')

SAID = stored(
    [
        Message.system("Be brief."),
        Message.user("Was it günstig?\n\x00 — 🪢", author="Zoë", metadata={"big": 10**300, "of": [None, 1.5, {}]}),
        Message.assistant("Let me look.", calls=[CALL]),
        Message.tool("call_1", {"found": ["a", {"b": None}]}, name="look"),
        Message(role="assistant", contents=(Text(text=""), Text(text="Yes.")), source={"refusal": None}),
    ]
)


class HistoryStoreContract(ABC):
    """The suite. Each test is given threads of its own."""

    @abstractmethod
    def store(self, context: StoreContext) -> HistoryStore:
        """The store of a thread, empty the first time and the same afterwards."""

    def test_holds_the_contract_of_the_front_door(self) -> None:
        asyncio.run(check_history_store(self.store))

    def test_gives_back_what_it_was_given_in_order_and_equal(self) -> None:
        async def check() -> None:
            store = self.store(StoreContext("contract", "in-order"))
            assert list(await store.list_messages()) == []
            await store.add_messages(SAID[:1])
            await store.add_messages(SAID[1:])
            assert list(await store.list_messages()) == SAID

        asyncio.run(check())

    def test_passes_over_messages_that_it_holds(self) -> None:
        async def check() -> None:
            store = self.store(StoreContext("contract", "twice"))
            await store.add_messages(SAID[:3])
            await store.add_messages(SAID[:3])
            await store.add_messages([*SAID[1:], *SAID])
            await store.add_messages([])
            assert list(await store.list_messages()) == SAID

        asyncio.run(check())

    def test_keeps_threads_and_tenants_apart(self) -> None:
        async def check() -> None:
            stores = [
                self.store(StoreContext(*name)) for name in [("contract", "one"), ("contract", "two"), ("other", "one")]
            ]
            for number, store in enumerate(stores):
                await store.add_messages(SAID[number : number + 1])
            for number, store in enumerate(stores):
                assert list(await store.list_messages()) == SAID[number : number + 1]

        asyncio.run(check())

    def test_is_found_again_by_its_state_which_holds_no_credentials(self) -> None:
        async def check() -> None:
            context = StoreContext("contract", "again")
            store = self.store(context)
            await store.add_messages(SAID)
            state = await store.serialize()
            check_no_credentials(state, "state")
            assert await self.store(StoreContext("contract", "another")).serialize() != state
            found = self.store(context._replace(state=state))
            await found.update_from_state(state)
            assert list(await found.list_messages()) == SAID
            assert await found.serialize() == state

        asyncio.run(check())

    def test_takes_messages_of_several_at_once_and_holds_each_of_them_once(self) -> None:
        async def check() -> None:
            stores = [self.store(StoreContext("contract", "at-once")) for _ in range(4)]
            await asyncio.gather(*(store.add_messages(SAID[: 2 + number]) for number, store in enumerate(stores)))
            listed = await stores[0].list_messages()
            assert sorted(each.id for each in listed) == [each.id for each in SAID]

        asyncio.run(check())
