# Generated from src/clew/aio/batch.py by `make generate`. Do not edit it: edit the source.
"""Batches of Conversations: one commit over threads and scopes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from clew.domain.errors import BatchError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Fact
from clew.domain.messages import Message
from clew.domain.records import Record, ThreadRecord
from clew.service import batches
from clew.service.batches import BatchResult
from clew.service.core import Core
from clew.service.effects import run
from clew.service.memory.scope_view import Scope
from clew.sync.memory import MemoryScope
from clew.sync.threads import Thread


class Batch:
    """Appends to threads and facts of scopes, which the end of a ``with`` block stores in one commit.

    All of them are stored, or none: an error inside the block stores nothing. Each call checks its
    arguments at once. The parts are decided at the end, in their order, on the threads and scopes as they are then.
    Readers see no part before the others. Everything belongs to one tenant of one service; other threads and scopes
    raise BatchError.
    """

    def __init__(self, core: Core, idempotency_key: str | None) -> None:
        self._core = core
        self._parts = batches.Batch(core, idempotency_key)
        self._state = "new"

    def append(
        self,
        thread: Thread,
        messages: Message | Record | Sequence[Message | Record],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
    ) -> BatchResult[list[HistoryMessage | ThreadRecord]]:
        """Append messages and records to a thread, as ``thread.append`` does. The result is a list of them.

        ``expected_version`` is the version after the earlier parts of the batch. If the thread has another version, the
        end of the block raises ConflictError, which names the thread.
        """
        self._check_open()
        if not isinstance(thread, Thread):
            raise BatchError(
                f"append: {type(thread).__name__} is not a thread of this service. Give one of its threads."
            )
        return self._parts.append(
            thread._core,  # noqa: SLF001  # of the same package
            thread.id,
            messages,
            actor=actor,
            expected_version=expected_version,
            said_at=said_at,
            on_behalf_of=on_behalf_of,
        )

    def put(
        self,
        scope: MemoryScope,
        key: str,
        value: Json,
        *,
        text: str | None = None,
        expected: int | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
    ) -> BatchResult[Fact]:
        """Store a value under a key, as ``scope.put`` does. The result is the fact.

        If the key does not have its ``expected`` version, the end of the block raises FactConflictError.
        """
        part = self._scope(scope)
        return self._parts.put(part, key, value, text=text, expected=expected, source=source, actor=actor)

    def delete(
        self,
        scope: MemoryScope,
        key: str,
        *,
        expected: int | None = None,
        reason: str | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
    ) -> None:
        """Retract the live fact of a key if there is one, as ``scope.delete`` does."""
        part = self._scope(scope)
        self._parts.delete(part, key, expected=expected, reason=reason, source=source, actor=actor)

    def _scope(self, scope: MemoryScope) -> Scope:
        self._check_open()
        if not isinstance(scope, MemoryScope):
            raise BatchError(f"{type(scope).__name__} is not a memory scope of this service. Give one of its scopes.")
        return scope._scope  # noqa: SLF001  # of the same package

    def _check_open(self) -> None:
        if self._state != "open":
            raise BatchError("A batch takes parts only inside its block: with conversations.batch() as batch: …")

    def __enter__(self) -> Self:
        if self._state != "new":
            raise BatchError("A batch is written once. Begin another one with conversations.batch().")
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "ended"
        if kind is None:
            run(batches.write(self._parts))
