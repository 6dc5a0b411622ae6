"""Feeding a history store: it is given what the log has, and what fails there is told and changes nothing here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TypeVar

from clew.agents.failing import failure
from clew.domain.context.events import ContextFailed, Hook
from clew.domain.context.provider_state import HISTORY_STORE
from clew.domain.credentials import check_no_credentials
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
"""How long a store may take for what it is asked, unless something else is said."""

_AT_ONCE = 500
"""Messages that a store is given in one go."""


class _GaveUpError(Exception):
    """The store failed, and the failure is noted."""


class StoreFeed:
    """The history store of one thread in this process, and what failed there since it was last asked for.

    A store that has failed, or was being asked when its run was cancelled, is left alone until the next ``before``,
    which gives it in order what it missed: so it never has a gap, and one that hangs is waited for once in a run.
    """

    def __init__(self, factory: StoreFactory, context: StoreContext, seconds: float | None = None) -> None:
        self._factory = factory
        self._context = context
        self._seconds = SECONDS if seconds is None else seconds
        self._store: HistoryStore | None = None
        self._resting = True
        self._failures: list[ContextFailed] = []

    def failures(self) -> tuple[ContextFailed, ...]:
        """What failed since this was last asked."""
        failed, self._failures = tuple(self._failures), []
        return failed

    async def open(self) -> bool:
        """Have the store made, and make it the one that serialized the thread's state. False when that failed.

        It is made once; where that failed, this tries again. Raises AgentConfigurationError for a factory that makes no
        history store, or cannot make any here.
        """
        if self._store is not None:
            return True
        try:
            store = await self._ask("history_store", self._make)
            if self._context.state is not None:
                await self._ask("update_from_state", lambda: store.update_from_state(self._context.state))
        except _GaveUpError:
            return False
        self._store, self._resting = store, False
        return True

    async def state(self) -> Json:
        """What the store is found again by; None when that is nothing, was not to be had, or must not be kept."""
        store = self._store
        if store is None:
            return None
        try:
            return await self._ask("serialize", lambda: _serialized(store))
        except _GaveUpError:
            return None

    async def before(self, path: Sequence[HistoryMessage]) -> tuple[str, ...] | None:
        """Give the store what it lacks of the path, and say which of the path's messages it then lists, by id.

        None when it could not be given that, or not be read.
        """
        store = self._store
        if store is None:
            return None
        self._resting = True  # also when this is cancelled
        try:
            listed = await self._listed(store)
            missing = to_feed(path, listed)
            if missing:
                await self._give(store, missing)
                listed = await self._listed(store)
        except _GaveUpError:
            return None
        self._resting = False
        return counted(path, listed)

    async def add(self, messages: Sequence[HistoryMessage]) -> None:
        """Give the store messages that have just been stored."""
        store, new = self._store, as_stored(messages)
        if store is None or self._resting or not new:
            return
        self._resting = True  # the same
        with suppress(_GaveUpError):
            await self._give(store, new)
            self._resting = False

    async def _make(self) -> HistoryStore:
        made = self._factory(self._context)
        store = await made if inspect.isawaitable(made) else made
        if not isinstance(store, HistoryStore):
            raise AgentConfigurationError(
                f"history_store: the factory made {type(store).__name__}. Have it make a clew.HistoryStore."
            )
        return store

    async def _listed(self, store: HistoryStore) -> list[str]:
        async def listed() -> list[str]:
            return ids_of(await store.list_messages())

        return await self._ask("list_messages", listed)

    async def _give(self, store: HistoryStore, messages: Sequence[StoredMessage]) -> None:
        for start in range(0, len(messages), _AT_ONCE):
            part = messages[start : start + _AT_ONCE]
            await self._ask("add_messages", lambda part=part: store.add_messages(part))  # type: ignore[misc]  # the part

    async def _ask(self, hook: Hook, asked: Callable[[], Awaitable[T]]) -> T:
        """What the store says. Raises _GaveUpError when it fails, or is too slow, which is then noted."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await asked()
        except TimeoutError as error:
            slow = HistoryStoreError(f"The history store took longer than {self._seconds:g} s.")
            self._note(hook, slow if limit.expired() else error)
        except Exception as error:
            if hook == "history_store" and isinstance(error, AgentConfigurationError):
                raise
            self._note(hook, error)
        raise _GaveUpError

    def _note(self, hook: Hook, error: Exception) -> None:
        self._failures.append(ContextFailed(provider=HISTORY_STORE, hook=hook, error=failure(error)))


async def _serialized(store: HistoryStore) -> Json:
    state: Json = await store.serialize()
    check_json(state, "state of the history store")
    check_no_credentials(state, "state of the history store")
    return deepcopy(state)  # the store may go on changing its own
