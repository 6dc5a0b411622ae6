"""History stores: copies of a thread's messages that an application keeps elsewhere, and how the log feeds them."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from clew.domain.context.events import HistoryReduced
from clew.domain.context.state import HISTORY_STORE
from clew.domain.errors import HistoryStoreError, InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json
from clew.domain.messages import FunctionCall, FunctionResult, Message
from clew.domain.models.client import ThreadKind
from clew.domain.names import stream_name


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


def claim_stream(tenant: str, provider: str, state: Json) -> str:
    """The stream that says whose a state is. It holds the digest of the state, never the state itself."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return stream_name(tenant, "system", f"{provider}:{hashlib.sha256(canonical.encode()).hexdigest()}")


def as_stored(messages: Iterable[HistoryMessage]) -> list[StoredMessage]:
    """Messages of a path as a store is given them; of redacted ones there is nothing to give."""
    return [StoredMessage(each.event_id, each.message) for each in messages if each.message is not None]


def to_feed(path: Sequence[HistoryMessage], listed: Iterable[str]) -> list[StoredMessage]:
    """What a store that lists these ids is to be given: all that comes after the newest of them on the path.

    What is older and missing was let go of by the store, which may bound itself. One that lists nothing of the path has
    lost it, or never had it, and is given all of it.
    """
    held = set(listed)
    given = next((place for place in range(len(path), 0, -1) if path[place - 1].event_id in held), 0)
    return as_stored(path[given:])


def counted(path: Sequence[HistoryMessage], listed: Iterable[str]) -> tuple[str, ...]:
    """What counts of the ids that a store lists: those on the path, each once, in the order of the path."""
    held = set(listed)
    return tuple(each.event_id for each in path if each.event_id in held)


def ids_of(listing: object) -> list[str]:
    """The ids in what ``list_messages`` gave. Raises HistoryStoreError for what is no list of stored messages."""
    if not isinstance(listing, Sequence) or isinstance(listing, str | bytes):
        raise HistoryStoreError(f"list_messages gave {type(listing).__name__}. Give a list of StoredMessage.")
    ids = [getattr(each, "id", None) for each in listing]
    for place, (id_, each) in enumerate(zip(ids, listing, strict=True)):
        if not isinstance(id_, str):
            raise HistoryStoreError(
                f"list_messages()[{place}] is {type(each).__name__} without an id. Give a list of StoredMessage."
            )
    return [id_ for id_ in ids if id_ is not None]


def as_reduction(path: Sequence[HistoryMessage], listed: Iterable[str] | None, agent: str, upto: int) -> HistoryReduced:
    """A store's list as what is left out of the requests of an agent: all on the path that is not in it.

    With None, for a store that cannot be read, nothing is left out.
    """
    held = {each.event_id for each in path} if listed is None else set(listed)
    spans: list[tuple[int, int]] = []
    going = False
    for each in path:
        out = each.event_id not in held
        if out and going:
            spans[-1] = (spans[-1][0], each.version)
        elif out:
            spans.append((each.version, each.version))
        going = out
    return HistoryReduced(agent=agent, reducer=HISTORY_STORE, upto=upto, left_out=tuple(spans))


def is_key(state: Json) -> bool:
    """Whether a state says where a store keeps a thread; an empty one does not."""
    return state is not None and state not in ("", [], {})


class _Groups:
    """The groups in a list that grows at its end and is cut at its front.

    A group begins with a message and holds all up to the last result of a call in it. A result without its call is in
    the group before it. ``first`` is the place of the first message that is left.
    """

    def __init__(self) -> None:
        self.first = 0
        self._starts: deque[int] = deque()
        self._open: dict[str, list[list[int]]] = {}

    def add(self, place: int, message: Message) -> None:
        """Take in the next message."""
        self._starts.append(place)
        for content in message.contents:
            if isinstance(content, FunctionCall):
                self._ask(place, content.call_id)
            elif isinstance(content, FunctionResult):
                self._answer(place, content.call_id)

    def cut(self, end: int, most: int) -> None:
        """Let go of groups at the front until there are at most so many messages before ``end``."""
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
        """Pair as the model view does: with the newest message that has an open call of that id."""
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
    """The place of the first message to keep when a store holds at most so many; with None all are kept.

    Messages are looked at one after the other, as they come to a store: so it does not matter how many come at once, or
    whether what is left is cut again. What is left never begins with a result. A group larger than ``most`` goes whole.
    """
    if most is None:
        return 0
    groups = _Groups()
    for place, message in enumerate(messages):
        groups.add(place, message)
        groups.cut(place + 1, most)
    return groups.first
