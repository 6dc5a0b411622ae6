"""Setting labels with any name: by mapping, keyword or both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import InvalidContentError
from clew.engine import Engine

AWKWARD: dict[str, Any] = {"actor": "me", "self": "you", "labels": [1], "": "nameless", "two words": True}


def test_a_mapping_accepts_labels_of_any_name(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.label(AWKWARD, actor="user:1", topic="refund")
    assert thread.summary().labels == {**AWKWARD, "topic": "refund"}
    assert list(thread.events())[-1].actor == "user:1"
    thread.label({"actor": None, "self": None}, labels=None)
    assert thread.summary().labels == {"": "nameless", "two words": True, "topic": "refund"}


def test_keywords_override_the_mapping(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    labels = {"topic": "a"}
    thread.label(labels, topic="b")
    assert thread.summary().labels == {"topic": "b"}
    assert labels == {"topic": "a"}


@pytest.mark.parametrize("labels", [None, {}])
def test_refuses_an_empty_mapping(conversations: Conversations, labels: dict[str, Any] | None) -> None:
    with pytest.raises(InvalidContentError, match="no label was given"):
        conversations.start_thread().label(labels)


@pytest.mark.parametrize("labels", ["topic", 5, [("topic", "refund")], {1: "one"}])
def test_accepts_only_a_mapping_with_string_keys(conversations: Conversations, labels: Any) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError):
        thread.label(labels)
    assert thread.version == 1


def test_the_engine_accepts_the_same_labels() -> None:
    async def label() -> dict[str, Any]:
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            await thread.label(AWKWARD, topic="refund")
            return (await thread.summary()).labels

    assert asyncio.run(label()) == {**AWKWARD, "topic": "refund"}
