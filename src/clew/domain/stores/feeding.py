"""Feeding a history store from the log: what it is to be given, and what of that which it lists counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clew.domain.context.events import HistoryReduced
from clew.domain.context.provider_state import HISTORY_STORE
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json
from clew.domain.stores.errors import HistoryStoreError
from clew.domain.stores.store import StoredMessage


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
