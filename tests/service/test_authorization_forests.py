"""For any forest of forks, an actor sees what an operator sees, without the unreadable threads."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.grants import Grants

from clew import Conversations, Message
from clew.domain.events import Event
from clew.errors import NotAuthorizedError
from clew.service.message_search import Hit
from clew.service.thread_directory import Order


class Forest(NamedTuple):
    """Threads as numbers: the parent of each, and those that Ada may read."""

    parents: list[int | None]
    granted: set[int]


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    parents = [
        draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(draw(st.integers(1, 9)))
    ]
    return Forest(parents, draw(st.sets(st.integers(0, len(parents) - 1))))


@given(forests())
def test_an_actor_sees_exactly_the_readable_threads(forest: Forest) -> None:
    grants = Grants(ada={f"t{number}" for number in forest.granted})
    with Conversations.open("memory:", authorize=grants) as service:
        operator, ada = service.acting_as("operator"), service.acting_as("ada")
        for number, parent in enumerate(forest.parents):
            thread_id = f"t{number}"
            if parent is None:
                operator.start_thread(thread_id=thread_id)
            else:
                operator.thread(f"t{parent}").fork(thread_id=thread_id)
            operator.thread(thread_id).append(Message.user(f"word {number}"))
        granted = grants.threads["ada"]
        for order in get_args(Order):
            assert list(ada.threads(order=order)) == [
                each for each in operator.threads(order=order) if each.id in granted
            ]
        assert [_readers_of(hit) for hit in ada.search("word", limit=99)] == [
            (hit.position, tuple(readers))
            for hit in operator.search("word", limit=99)
            if (readers := [each for each in (hit.thread_id, *hit.forks) if each in granted])
        ]
        assert list(ada.audit()) == [entry for entry in operator.audit() if entry.thread_id in granted]
        assert list(ada.export(forks=True)) == [each for each in operator.export(forks=True) if each["id"] in granted]
        assert ada.usage(by="thread") == [each for each in operator.usage(by="thread") if each.thread_id in granted]
        assert {branch.thread.id for branch in ada.tree()} == granted
        assert _events(ada) == [event for event in _events(operator) if event.thread_id in granted]
        for number, thread_id in enumerate(f"t{number}" for number in range(len(forest.parents))):
            if number not in forest.granted:
                with pytest.raises(NotAuthorizedError):
                    ada.thread(thread_id)
            else:
                assert ada.thread(thread_id).history() == operator.thread(thread_id).history()
                whole = _lineage(forest, number) <= granted
                assert (f'thread/{thread_id}"'.encode() in b"".join(ada.export_events())) == whole


def _readers_of(hit: Hit) -> tuple[int, tuple[str, ...]]:
    assert hit.fork_count == len(hit.forks)
    return hit.position, (hit.thread_id, *hit.forks)


def _events(service: Conversations) -> list[Event]:
    with closing(service.subscribe()) as subscription:
        return list(iter(lambda: subscription.wait(0), None))


def _lineage(forest: Forest, number: int | None) -> set[str]:
    ancestors = set()
    while number is not None:
        ancestors.add(f"t{number}")
        number = forest.parents[number]
    return ancestors
