"""History stores of tests: they keep threads in a dict, bound themselves, and fail as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage
from clew.domain.json_values import Json


class Cupboard:
    """What several stores share: the messages of each key, for whom stores were made, and whether it can be reached."""

    def __init__(self, *, most: int | None = None, key: Callable[[StoreContext], str] | None = None) -> None:
        self.most = most
        self.rows: dict[str, list[StoredMessage]] = {}
        self.made: list[StoreContext] = []
        self.taken_up: list[Json] = []
        self.error: Exception | None = None
        self.hangs = False
        self._key = key or (lambda context: f"{context.tenant}/{context.thread_id}")

    def store(self, context: StoreContext) -> HistoryStore:
        """What a factory gives."""
        self.made.append(context)
        return Shelf(self, self._key(context))

    async def reached(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def ids(self, thread: Any) -> list[str]:
        """The ids of what is kept of a thread."""
        return [each.id for each in self.rows.get(f"default/{thread.id}", [])]

    def texts(self, thread: Any) -> list[str]:
        """The words of what is kept of a thread."""
        return [each.message.text for each in self.rows.get(f"default/{thread.id}", [])]


class Shelf(HistoryStore):
    """The messages of one key, the newest only when the cupboard has room for no more."""

    def __init__(self, cupboard: Cupboard, key: str) -> None:
        self.cupboard = cupboard
        self.key = key

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        await self.cupboard.reached()
        held = self.cupboard.rows.setdefault(self.key, [])
        known = {each.id for each in held}
        held += [each for each in messages if each.id not in known]
        if self.cupboard.most is not None:
            del held[: max(0, len(held) - self.cupboard.most)]

    async def list_messages(self) -> list[StoredMessage]:
        await self.cupboard.reached()
        return list(self.cupboard.rows.get(self.key, []))

    async def serialize(self, **_: Any) -> Json:
        return {"key": self.key}

    async def update_from_state(self, state: Any, **_: Any) -> None:
        self.cupboard.taken_up.append(state)
        self.key = state["key"]
