"""Feeding history stores with the messages of the log. A store that fails is recorded and does not stop the run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TypeVar

from clew.agents.journal import failure
from clew.domain.context.events import ContextFailed, Hook
from clew.domain.context.state import HISTORY_STORE
from clew.domain.credential_detection import check_no_credentials
from clew.domain.errors import HistoryStoreError
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import (
    HistoryStore,
    StoreContext,
    StoredMessage,
    StoreFactory,
    as_stored,
    counted,
    ids_of,
    to_feed,
)
from clew.domain.json_values import Json, check_json
from clew.domain.runs.errors import AgentConfigurationError

T = TypeVar("T")

SECONDS = 5.0
"""Seconds that a store may take for a call, unless another limit is given."""

_BATCH = 500
"""Messages in one ``add_messages``."""

_KEPT_FEEDS = 1_024
"""Threads of which an agent keeps the history store in memory."""


class _StoreFailedError(Exception):
    """The store failed, and the failure is noted."""


class StoreFeed:
    """The history store of one thread in this process, with the failures that are not recorded yet.

    After a failed or cancelled call, the store is not called until the next ``catch_up``, which adds in order what the
    store lacks. So a store never has a gap, and a run waits at most once for a store that hangs.
    """

    def __init__(self, factory: StoreFactory, context: StoreContext, seconds: float | None = None) -> None:
        self._factory = factory
        self._context = context
        self._seconds = SECONDS if seconds is None else seconds
        self._store: HistoryStore | None = None
        self._resting = True
        self._failures: list[ContextFailed] = []

    def failures(self) -> tuple[ContextFailed, ...]:
        """The failures since the last call of this method."""
        failed, self._failures = tuple(self._failures), []
        return failed

    async def open(self) -> bool:
        """Create the store and restore the state that it had serialized; returns whether that succeeded.

        The store is created once; after a failure, the next call tries again. Raises AgentConfigurationError for a
        factory that does not make a history store, or cannot make one here.
        """
        if self._store is not None:
            return True
        try:
            store = await self._call("history_store", self._make)
            if self._context.state is not None:
                await self._call("update_from_state", lambda: store.update_from_state(self._context.state))
        except _StoreFailedError:
            return False
        self._store, self._resting = store, False
        return True

    async def state(self) -> Json:
        """The serialized state of the store; None if it has none, failed, or may not be recorded."""
        store = self._store
        if store is None:
            return None
        try:
            return await self._call("serialize", lambda: _serialized(store))
        except _StoreFailedError:
            return None

    async def catch_up(self, path: Sequence[HistoryMessage]) -> tuple[str, ...] | None:
        """Add what the store lacks of the path; returns the ids of the path's messages that it then lists.

        None if the store failed.
        """
        store = self._store
        if store is None:
            return None
        self._resting = True  # also if this is cancelled
        try:
            listed = await self._listed(store)
            missing = to_feed(path, listed)
            if missing:
                await self._add_all(store, missing)
                listed = await self._listed(store)
        except _StoreFailedError:
            return None
        self._resting = False
        return counted(path, listed)

    async def add(self, messages: Sequence[HistoryMessage]) -> None:
        """Add messages that have just been recorded."""
        store, new = self._store, as_stored(messages)
        if store is None or self._resting or not new:
            return
        self._resting = True  # also if this is cancelled
        with suppress(_StoreFailedError):
            await self._add_all(store, new)
            self._resting = False

    async def _make(self) -> HistoryStore:
        created = self._factory(self._context)
        store = await created if inspect.isawaitable(created) else created
        if not isinstance(store, HistoryStore):
            raise AgentConfigurationError(
                f"history_store: the factory made {type(store).__name__}. Have it make a clew.HistoryStore."
            )
        return store

    async def _listed(self, store: HistoryStore) -> list[str]:
        async def listed() -> list[str]:
            return ids_of(await store.list_messages())

        return await self._call("list_messages", listed)

    async def _add_all(self, store: HistoryStore, messages: Sequence[StoredMessage]) -> None:
        for start in range(0, len(messages), _BATCH):
            part = messages[start : start + _BATCH]
            await self._call("add_messages", partial(store.add_messages, part))

    async def _call(self, hook: Hook, work: Callable[[], Awaitable[T]]) -> T:
        """Call the store. Raises _StoreFailedError if it fails or is too slow, which is noted."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await work()
        except TimeoutError as error:
            slow = HistoryStoreError(f"The history store took longer than {self._seconds:g} s.")
            self._note(hook, slow if limit.expired() else error)
        except Exception as error:
            if hook == "history_store" and isinstance(error, AgentConfigurationError):
                raise
            self._note(hook, error)
        raise _StoreFailedError

    def _note(self, hook: Hook, error: Exception) -> None:
        self._failures.append(ContextFailed(provider=HISTORY_STORE, hook=hook, error=failure(error)))


async def _serialized(store: HistoryStore) -> Json:
    state: Json = await store.serialize()
    check_json(state, "state of the history store")
    check_no_credentials(state, "state of the history store")
    return deepcopy(state)  # the store may change its own later


class HistoryStores:
    """The history stores of an agent: one for each of the threads that it last ran on, in this process."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self._feeds: dict[tuple[str, str], StoreFeed] = {}

    def feed(self, context: StoreContext) -> StoreFeed:
        """The feed of a thread's store."""
        key = (context.tenant, context.thread_id)
        feed = self._feeds.pop(key, None) or StoreFeed(self._factory, context)
        self._feeds[key] = feed
        if len(self._feeds) > _KEPT_FEEDS:
            del self._feeds[next(iter(self._feeds))]
        return feed
