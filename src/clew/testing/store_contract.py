"""The contract of history stores: what anybody's own must hold, tried on threads that nobody else has."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Sequence

from clew.domain.credentials import check_no_credentials
from clew.domain.errors import ClewError, HistoryStoreContractError
from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage, StoreFactory, ids_of, is_key
from clew.domain.json_values import Json, check_json
from clew.domain.messages import FunctionCall, Message, Text

_SAID = (
    Message.system("Be brief."),
    Message.user("Was it günstig?\n\t— 🪢", author="Zoë", metadata={"big": 10**300, "of": [None, 1.5, {}]}),
    Message.assistant("Let me look.", calls=[FunctionCall(call_id="call_1", name="look", arguments='{"at": "sky"}')]),
    Message.tool("call_1", {"found": ["a", {"b": None}]}, name="look"),
    Message(role="assistant", contents=(Text(text=""), Text(text="Yes.")), source={"refusal": None}),
)

_BETWEEN = "/:-_."
"""What stores put between the names of a tenant and a thread."""


async def check_history_store(factory: StoreFactory) -> None:
    """Try a history store with a few messages. Raises HistoryStoreContractError, which names the rule it breaks.

    ``factory`` is what an agent is given. It must make a store of the same place each time that it is given the same
    thread. A store that bounds itself may let go of the oldest messages, but has to keep the newest: give it room for
    two, a call and its result.
    """
    lab = _Lab(factory)
    for check in (_check_order, _check_repeats, _check_apart, _check_state):
        await check(lab)


class _Lab:
    """Where a store is tried: on threads with names that are used once."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self.messages = [StoredMessage(uuid.uuid4().hex, each) for each in _SAID]

    def context(self, tenant: str = "check") -> StoreContext:
        """A thread that nothing was kept of."""
        return StoreContext(tenant, f"check-{uuid.uuid4().hex}")

    async def store(self, context: StoreContext) -> HistoryStore:
        """The store of a thread."""
        made = self._factory(context)
        store = await made if inspect.isawaitable(made) else made
        if not isinstance(store, HistoryStore):
            raise HistoryStoreContractError("the factory makes a HistoryStore", f"it made {type(store).__name__}")
        return store

    async def held(self, store: HistoryStore, rule: str) -> list[StoredMessage]:
        """What a store lists."""
        listing = await store.list_messages()
        try:
            ids_of(listing)
        except ClewError as error:
            raise HistoryStoreContractError(rule, str(error)) from None
        return list(listing)


def _check_ends(held: Sequence[StoredMessage], said: Sequence[StoredMessage], rule: str) -> None:
    """Raise unless a store holds the newest of what was said, equal and in order."""
    if not held or list(held) != list(said[-len(held) :]):
        known = {each.id: number for number, each in enumerate(said, 1)}
        found = [known.get(each.id, each.id) for each in held]
        changed = [known[each.id] for each in held if each.id in known and each != said[known[each.id] - 1]]
        raise HistoryStoreContractError(
            rule, f"of messages 1 to {len(said)} it lists {found}" + (f", {changed} changed" if changed else "")
        )


async def _check_order(lab: _Lab) -> None:
    rule = "it lists the newest messages, equal to what they were, in the order in which they came"
    store = await lab.store(lab.context())
    if await lab.held(store, rule):
        raise HistoryStoreContractError("a thread that is new to it has no messages", "it lists some")
    await store.add_messages([])
    for number, message in enumerate(lab.messages, 1):
        await store.add_messages([message])
        _check_ends(await lab.held(store, rule), lab.messages[:number], rule)


async def _check_repeats(lab: _Lab) -> None:
    rule = "a message that it holds is passed over when it comes again"
    context = lab.context()
    store = await lab.store(context)
    await store.add_messages(lab.messages)
    first = await lab.held(store, rule)
    newest = first[-1:]
    await store.add_messages([*newest, *newest])
    again = await lab.store(context)
    await again.add_messages(newest)
    _check_ends(await lab.held(store, rule), lab.messages, rule)
    if await lab.held(again, rule) != first:
        raise HistoryStoreContractError(rule, "it lists others than before")


async def _check_apart(lab: _Lab) -> None:
    rule = "threads and tenants are kept apart"
    one = lab.context()
    contexts = [one, lab.context(), one._replace(tenant="check-other")]
    for between in _BETWEEN:  # both names are the same when they are but put together
        contexts.append(StoreContext(f"check{between}a", one.thread_id))
        contexts.append(StoreContext("check", f"a{between}{one.thread_id}"))
    said = [lab.messages[at % 2]._replace(id=f"apart-{at}") for at in range(len(contexts))]
    for context, message in zip(contexts, said, strict=True):
        await (await lab.store(context)).add_messages([message])
    for context, message in zip(contexts, said, strict=True):
        _check_ends(await lab.held(await lab.store(context), rule), [message], rule)


async def _check_state(lab: _Lab) -> None:
    rule = "its state is JSON without credentials, no other thread has it, and by it the messages are found again"
    context = lab.context()
    store = await lab.store(context)
    await store.add_messages(lab.messages)
    state: Json = await store.serialize()
    try:
        check_json(state, "state")
        check_no_credentials(state, "state")
    except ClewError as error:
        raise HistoryStoreContractError(rule, str(error)) from None
    if is_key(state) and await (await lab.store(lab.context())).serialize() == state:
        raise HistoryStoreContractError(rule, "two threads have the same state")
    found = await lab.store(context._replace(state=state))
    if state is not None:
        await found.update_from_state(state)
    _check_ends(await lab.held(found, rule), lab.messages, rule)
