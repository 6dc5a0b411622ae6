"""Labels under any name: as a mapping, by keyword, or both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import InvalidContentError
from clew.engine import Engine

AWKWARD: dict[str, Any] = {"actor": "me", "self": "you", "labels": [1], "": "nameless", "two words": True}


def test_a_mapping_takes_labels_of_any_name(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.label(AWKWARD, actor="user:1", topic="refund")
    assert thread.summary().labels == {**AWKWARD, "topic": "refund"}
    assert list(thread.events())[-1].actor == "user:1"
    thread.label({"actor": None, "self": None}, labels=None)
    assert thread.summary().labels == {"": "nameless", "two words": True, "topic": "refund"}


def test_what_is_given_by_keyword_comes_after_the_mapping(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    given = {"topic": "a"}
    thread.label(given, topic="b")
    assert thread.summary().labels == {"topic": "b"}
    assert given == {"topic": "a"}


@pytest.mark.parametrize("given", [None, {}])
def test_refuses_no_label(conversations: Conversations, given: dict[str, Any] | None) -> None:
    with pytest.raises(InvalidContentError, match="no label was given"):
        conversations.start_thread().label(given)


@pytest.mark.parametrize("given", ["topic", 5, [("topic", "refund")], {1: "one"}])
def test_refuses_what_is_no_mapping_of_names(conversations: Conversations, given: Any) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError):
        thread.label(given)
    assert thread.version == 1


def test_the_engine_takes_them_too() -> None:
    async def label() -> dict[str, Any]:
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            await thread.label(AWKWARD, topic="refund")
            return (await thread.summary()).labels

    assert asyncio.run(label()) == {**AWKWARD, "topic": "refund"}
