"""The port of history stores: where an application keeps the messages of a thread beside the log."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind


class StoredMessage(NamedTuple):
    """A message with its id, which is the same for good and in every fork."""

    id: str
    message: Message

    def to_text(self) -> str:
        """The same as JSON in one line."""
        return json.dumps({"id": self.id, "message": self.message.model_dump(mode="json")}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str | bytes) -> StoredMessage:
        """What ``to_text`` gave. Raises InvalidContentError."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        match value:
            case {"id": str(id_), "message": dict(message)}:
                return cls(id_, Message(**message))
            case _:
                raise InvalidContentError("A stored message is a JSON object of an id and a message: this is none.")


class StoreContext(NamedTuple):
    """What a store is made for: a thread of a tenant.

    ``state`` is what the store of this very thread serialized last, None when there is none yet.
    """

    tenant: str
    thread_id: str
    kind: ThreadKind = "local"
    state: Json = None


class HistoryStore(ABC):
    """Keeps the messages of one thread, beside the log: that feeds it, and feeds it again what it lost.

    A store that is down, slow or empty costs nothing: what it did not take is on the log, and the run goes on. What it
    took it keeps: a message that is redacted later is not shown to a model any more, but to delete it there is up to
    whoever runs the store.
    """

    @abstractmethod
    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages in their order. One whose id is there already is to be passed over: it may come twice."""

    @abstractmethod
    async def list_messages(self) -> Sequence[StoredMessage]:
        """The messages, oldest first; a store that bounds itself may have let go of the oldest."""

    async def serialize(self, **options: Any) -> Any:
        """What a store is found again by in another process, as JSON values without secrets; None for nothing.

        No two threads of a tenant may have the same: that is HistoryStoreSharedError.
        """
        del options
        return None

    async def update_from_state(self, state: Any, **options: Any) -> None:
        """Be the store that serialized this."""
        del state, options


StoreFactory: TypeAlias = Callable[[StoreContext], HistoryStore | Awaitable[HistoryStore]]
"""Makes the store of a thread: called once for each local thread in a process."""
