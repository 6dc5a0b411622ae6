"""History stores for tests: they keep messages in a dict, may limit their number, and fail on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage
from clew.domain.json_values import Json


class FakeHistoryBackend:
    """The shared backend of several stores: messages by key, the contexts of the stores, and simulated failures."""

    def __init__(self, *, most: int | None = None, key: Callable[[StoreContext], str] | None = None) -> None:
        self.most = most
        self.rows: dict[str, list[StoredMessage]] = {}
        self.made: list[StoreContext] = []
        self.restored_states: list[Json] = []
        self.error: Exception | None = None
        self.hangs = False
        self._key = key or (lambda context: f"{context.tenant}/{context.thread_id}")

    def store(self, context: StoreContext) -> HistoryStore:
        """Create a store; an agent uses this method as its factory."""
        self.made.append(context)
        return FakeHistoryStore(self, self._key(context))

    async def check_available(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def ids(self, thread: Any) -> list[str]:
        """Return the ids of the stored messages of a thread."""
        return [each.id for each in self.rows.get(f"default/{thread.id}", [])]

    def texts(self, thread: Any) -> list[str]:
        """Return the texts of the stored messages of a thread."""
        return [each.message.text for each in self.rows.get(f"default/{thread.id}", [])]


class FakeHistoryStore(HistoryStore):
    """Stores the messages of one key; the backend may keep only the newest ones."""

    def __init__(self, backend: FakeHistoryBackend, key: str) -> None:
        self.backend = backend
        self.key = key

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        await self.backend.check_available()
        stored = self.backend.rows.setdefault(self.key, [])
        known = {each.id for each in stored}
        stored += [each for each in messages if each.id not in known]
        if self.backend.most is not None:
            del stored[: max(0, len(stored) - self.backend.most)]

    async def list_messages(self) -> list[StoredMessage]:
        await self.backend.check_available()
        return list(self.backend.rows.get(self.key, []))

    async def serialize(self, **_: Any) -> Json:
        return {"key": self.key}

    async def update_from_state(self, state: Any, **_: Any) -> None:
        self.backend.restored_states.append(state)
        self.key = state["key"]
