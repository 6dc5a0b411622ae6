"""The contract of history stores, as a test: it uses a store for new threads."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Sequence

from clew.domain.credential_detection import check_no_credentials
from clew.domain.errors import ClewError, HistoryStoreContractError
from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage, StoreFactory, ids_of, is_key
from clew.domain.json_values import Json, check_json
from clew.domain.messages import FunctionCall, Message, Text

_MESSAGES = (
    Message.system("Be brief."),
    Message.user("Was it günstig?\n\t— 🪢", author="Zoë", metadata={"big": 10**300, "of": [None, 1.5, {}]}),
    Message.assistant("Let me look.", calls=[FunctionCall(call_id="call_1", name="look", arguments='{"at": "sky"}')]),
    Message.tool("call_1", {"found": ["a", {"b": None}]}, name="look"),
    Message(role="assistant", contents=(Text(text=""), Text(text="Yes.")), source={"refusal": None}),
)

_SEPARATORS = "/:-_."
"""Separators that stores put between the names of a tenant and a thread."""


async def check_history_store(factory: StoreFactory) -> None:
    """Use a history store for a few messages. Raises HistoryStoreContractError, which names the broken rule.

    ``factory`` is the function that an agent receives as ``history_store``. For the same thread it must always return a
    store of the same messages. A store with a limit may drop the oldest messages, but must keep the newest. Give it a
    limit of at least two, for a call and its result.
    """
    contract = _Contract(factory)
    for check in (_check_order, _check_repeats, _check_apart, _check_state):
        await check(contract)


class _Contract:
    """The factory and the messages of the checks. Each thread is used once."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self.messages = [StoredMessage(uuid.uuid4().hex, each) for each in _MESSAGES]

    def context(self, tenant: str = "check") -> StoreContext:
        """A new thread."""
        return StoreContext(tenant, f"check-{uuid.uuid4().hex}")

    async def store(self, context: StoreContext) -> HistoryStore:
        made = self._factory(context)
        store = await made if inspect.isawaitable(made) else made
        if not isinstance(store, HistoryStore):
            raise HistoryStoreContractError("the factory returns a HistoryStore", f"it returned {type(store).__name__}")
        return store

    async def held(self, store: HistoryStore, rule: str) -> list[StoredMessage]:
        listing = await store.list_messages()
        try:
            ids_of(listing)
        except ClewError as error:
            raise HistoryStoreContractError(rule, str(error)) from None
        return list(listing)


def _check_ends(held: Sequence[StoredMessage], sent: Sequence[StoredMessage], rule: str) -> None:
    """Raise unless a store holds the newest of the sent messages, equal and in order."""
    if not held or list(held) != list(sent[-len(held) :]):
        known = {each.id: number for number, each in enumerate(sent, 1)}
        found = [known.get(each.id, each.id) for each in held]
        changed = [known[each.id] for each in held if each.id in known and each != sent[known[each.id] - 1]]
        raise HistoryStoreContractError(
            rule, f"of messages 1 to {len(sent)} it lists {found}" + (f", {changed} changed" if changed else "")
        )


async def _check_order(contract: _Contract) -> None:
    rule = "it lists the newest messages, unchanged and in order"
    store = await contract.store(contract.context())
    if await contract.held(store, rule):
        raise HistoryStoreContractError("a new thread has no messages", "it lists some")
    await store.add_messages([])
    for number, message in enumerate(contract.messages, 1):
        await store.add_messages([message])
        _check_ends(await contract.held(store, rule), contract.messages[:number], rule)


async def _check_repeats(contract: _Contract) -> None:
    rule = "a message that it already holds is not added again"
    context = contract.context()
    store = await contract.store(context)
    await store.add_messages(contract.messages)
    first = await contract.held(store, rule)
    newest = first[-1:]
    await store.add_messages([*newest, *newest])
    again = await contract.store(context)
    await again.add_messages(newest)
    _check_ends(await contract.held(store, rule), contract.messages, rule)
    if await contract.held(again, rule) != first:
        raise HistoryStoreContractError(rule, "it lists other messages than before")


async def _check_apart(contract: _Contract) -> None:
    rule = "threads and tenants are kept apart"
    one = contract.context()
    contexts = [one, contract.context(), one._replace(tenant="check-other")]
    for separator in _SEPARATORS:  # the two joined names are equal
        contexts.append(StoreContext(f"check{separator}a", one.thread_id))
        contexts.append(StoreContext("check", f"a{separator}{one.thread_id}"))
    sent = [contract.messages[at % 2]._replace(id=f"apart-{at}") for at in range(len(contexts))]
    for context, message in zip(contexts, sent, strict=True):
        await (await contract.store(context)).add_messages([message])
    for context, message in zip(contexts, sent, strict=True):
        _check_ends(await contract.held(await contract.store(context), rule), [message], rule)


async def _check_state(contract: _Contract) -> None:
    rule = "its state is JSON without credentials, belongs to one thread, and leads to the messages"
    context = contract.context()
    store = await contract.store(context)
    await store.add_messages(contract.messages)
    state: Json = await store.serialize()
    try:
        check_json(state, "state")
        check_no_credentials(state, "state")
    except ClewError as error:
        raise HistoryStoreContractError(rule, str(error)) from None
    if is_key(state) and await (await contract.store(contract.context())).serialize() == state:
        raise HistoryStoreContractError(rule, "two threads have the same state")
    found = await contract.store(context._replace(state=state))
    if state is not None:
        await found.update_from_state(state)
    _check_ends(await contract.held(found, rule), contract.messages, rule)
