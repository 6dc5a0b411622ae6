"""History stores: copies of a thread's messages that an application stores elsewhere, and how the log feeds them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from clew.domain.context.events import HistoryReduced
from clew.domain.context.state import HISTORY_STORE
from clew.domain.errors import HistoryStoreError, InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, canonical
from clew.domain.messages import FunctionCall, FunctionResult, Message
from clew.domain.models.client import ThreadKind
from clew.domain.streams import digest, stream_name


class StoredMessage(NamedTuple):
    """A message with its id, which never changes and is the same in every fork."""

    id: str
    message: Message

    def to_text(self) -> str:
        """The message as one line of JSON."""
        return json.dumps({"id": self.id, "message": self.message.model_dump(mode="json")}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str | bytes) -> StoredMessage:
        """The message in the result of ``to_text``. Raises InvalidContentError."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        match value:
            case {"id": str(id_), "message": dict(message)}:
                return cls(id_, Message(**message))
            case _:
                raise InvalidContentError("Not a stored message: that is a JSON object with an id and a message.")


class StoreContext(NamedTuple):
    """The thread that a store is created for.

    ``state`` is the last state that this thread's store serialized, None if there is none yet.
    """

    tenant: str
    thread_id: str
    kind: ThreadKind = "local"
    state: Json = None


class HistoryStore(ABC):
    """A copy of the messages of one thread. The log feeds it, and repeats messages that it lost.

    A store that is down, slow or empty loses nothing: the log has every message, and the run continues. A message that
    is redacted later is no longer sent to a model, but the operator of the store must delete it there.
    """

    @abstractmethod
    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages in order. Skip a message whose id is already stored, because a message may come twice."""

    @abstractmethod
    async def list_messages(self) -> Sequence[StoredMessage]:
        """The messages, oldest first; a bounded store may have dropped the oldest."""

    async def serialize(self, **options: Any) -> Any:
        """The state by which another process finds this store, as JSON without secrets; None for no state.

        Two threads of a tenant with equal states raise HistoryStoreSharedError.
        """
        del options
        return None

    async def update_from_state(self, state: Any, **options: Any) -> None:
        """Use the same storage as the store that serialized this state."""
        del state, options


StoreFactory: TypeAlias = Callable[[StoreContext], HistoryStore | Awaitable[HistoryStore]]
"""Creates the store of a thread. It is called once per process for each local thread."""


def claim_stream(tenant: str, provider: str, state: Json) -> str:
    """The stream that records the thread of a state. Its name has the digest of the state, never the state."""
    return stream_name(tenant, "system", f"{provider}:{digest(canonical(state).encode()).hex()}")


def as_stored(messages: Iterable[HistoryMessage]) -> list[StoredMessage]:
    """The messages of a path for a store, without redacted ones."""
    return [StoredMessage(each.event_id, each.message) for each in messages if each.message is not None]


def to_feed(path: Sequence[HistoryMessage], listed: Iterable[str]) -> list[StoredMessage]:
    """The messages to feed to a store that lists these ids: all after the newest of them on the path.

    A bounded store drops older messages on purpose. A store that lists no message of the path gets all of them.
    """
    stored = set(listed)
    newest = next((place for place in range(len(path), 0, -1) if path[place - 1].event_id in stored), 0)
    return as_stored(path[newest:])


def counted(path: Sequence[HistoryMessage], listed: Iterable[str]) -> tuple[str, ...]:
    """The listed ids that are on the path, each once, in the order of the path."""
    stored = set(listed)
    return tuple(each.event_id for each in path if each.event_id in stored)


def ids_of(listing: object) -> list[str]:
    """The ids in the result of ``list_messages``. Raises HistoryStoreError unless it is a list of stored messages."""
    if not isinstance(listing, Sequence) or isinstance(listing, str | bytes):
        raise HistoryStoreError(f"list_messages returned {type(listing).__name__}. Return a list of StoredMessage.")
    ids = [getattr(each, "id", None) for each in listing]
    for place, (id_, each) in enumerate(zip(ids, listing, strict=True)):
        if not isinstance(id_, str):
            raise HistoryStoreError(
                f"list_messages()[{place}] is {type(each).__name__} without an id. Return a list of StoredMessage."
            )
    return [id_ for id_ in ids if id_ is not None]


def as_reduction(path: Sequence[HistoryMessage], listed: Iterable[str] | None, agent: str, upto: int) -> HistoryReduced:
    """The reduction that leaves messages which a store does not list out of an agent's requests.

    With None, for a store that cannot be read, nothing is left out.
    """
    stored = {each.event_id for each in path} if listed is None else set(listed)
    spans: list[tuple[int, int]] = []
    for left_out, messages in groupby(path, lambda each: each.event_id not in stored):
        versions = [each.version for each in messages]
        if left_out:
            spans.append((versions[0], versions[-1]))
    return HistoryReduced(agent=agent, reducer=HISTORY_STORE, upto=upto, left_out=tuple(spans))


def is_key(state: Json) -> bool:
    """Whether a state identifies a thread in a store; an empty state does not."""
    return state is not None and state not in ("", [], {})


class _Groups:
    """The groups of a list of messages that grows at its end and is cut at its front.

    A group begins with a message and ends with the last result of its calls. A result without a call belongs to the
    group before it. ``first`` is the place of the first remaining message.
    """

    def __init__(self) -> None:
        self.first = 0
        self._starts: deque[int] = deque()
        self._open: dict[str, list[list[int]]] = {}

    def add(self, place: int, message: Message) -> None:
        """Add the next message."""
        self._starts.append(place)
        for content in message.contents:
            if isinstance(content, FunctionCall):
                self._ask(place, content.call_id)
            elif isinstance(content, FunctionResult):
                self._answer(place, content.call_id)

    def cut(self, end: int, most: int) -> None:
        """Remove groups at the front until at most ``most`` messages are left before ``end``."""
        while end - self.first > most:
            self._starts.popleft()
            self.first = self._starts[0] if self._starts else end

    def _ask(self, place: int, call_id: str) -> None:
        waiting = self._open.setdefault(call_id, [])
        if waiting and waiting[-1][0] == place:
            waiting[-1][1] += 1
        else:
            waiting.append([place, 1])

    def _answer(self, place: int, call_id: str) -> None:
        """Pair as the model view does: with the newest message that has an open call with this id."""
        waiting = self._open.get(call_id)
        if not waiting or waiting[-1][0] < self.first:
            self._orphan(place)
            return
        caller = waiting[-1]
        caller[1] -= 1
        if not caller[1]:
            waiting.pop()
        while self._starts[-1] > caller[0]:
            self._starts.pop()

    def _orphan(self, place: int) -> None:
        if self._starts and self._starts[-1] == place:
            self._starts.pop()
        if not self._starts:
            self.first = place + 1


def kept_from(messages: Sequence[Message], most: int | None) -> int:
    """The place of the first message to keep in a store of at most ``most`` messages; 0 for no limit.

    The result depends only on the messages, not on how many arrive at once or on earlier cuts. The kept messages never
    begin with a result. A group larger than ``most`` is removed.
    """
    if most is None:
        return 0
    groups = _Groups()
    for place, message in enumerate(messages):
        groups.add(place, message)
        groups.cut(place + 1, most)
    return groups.first
