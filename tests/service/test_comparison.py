"""Comparing threads, forks and versions with both APIs, and real conversations of one task."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from tests.domain.difference_strategies import history, mirrored_rows, plain_rows

from clew.conversations import Conversations
from clew.domain.differences.diff import Diff, diff
from clew.domain.errors import (
    InvalidTimeError,
    ThreadDeletedError,
    UnknownCheckpointError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.messages import Message
from clew.engine import Engine

PAIRS = 200
"""Pairs of conversations of one task to compare at full scale; more than the corpus holds."""


def kinds(result: Diff) -> list[str]:
    return [row.kind for row in result.rows]


def test_a_fork_shares_its_past_with_its_parent(conversations: Conversations) -> None:
    parent = conversations.start_thread(messages=[Message.user("Where is it?"), Message.assistant("Let me look.")])
    fork = parent.fork()
    deeper = fork.fork()
    parent.append(Message.assistant("It is in Rome, on its way to you."))
    deeper.append(Message.assistant("It is in Oslo, on its way to you."))
    result = conversations.diff(parent.id, deeper.id)
    assert (result.shared, result.shared_version) == (2, 3)
    assert kinds(result) == ["same", "same", "changed"]
    assert (result.a.thread_id, result.a.version, result.b.thread_id, result.b.version) == (parent.id, 4, deeper.id, 6)
    assert plain_rows(conversations.diff(deeper.id, parent.id).rows) == mirrored_rows(result.rows)
    assert kinds(conversations.diff(parent.id, fork.id)) == ["same", "same", "only-a"]


def test_two_versions_of_a_thread_share_the_messages_before_a_rewind(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("One"), Message.user("Two"), Message.user("Three")])
    thread.checkpoint("three", at=4)
    thread.rewind(to=2)
    thread.append(Message.user("Four"))
    result = conversations.diff(thread.id, at="three")
    assert result.shared == 1
    assert [(row.kind, (row.a or row.b or result.a.messages[0]).text) for row in result.rows] == [
        ("same", "One"),
        ("only-a", "Two"),
        ("only-a", "Three"),
        ("only-b", "Four"),
    ]
    assert kinds(conversations.diff(thread.id)) == ["same", "same"]
    assert kinds(conversations.diff(thread.id, at_message=0, other_at_message=1)) == ["only-b"]
    assert kinds(conversations.diff(thread.id, thread.id, at=4, other_at=3)) == ["same", "same", "only-a"]
    began = thread.summary().created_at
    assert kinds(conversations.diff(thread.id, other_at=began + timedelta(days=10**4))) == ["same", "same"]


def test_a_redacted_message_is_redacted_on_both_sides_of_a_fork(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("My card is 4111"), Message.user("Thanks")])
    fork = thread.fork()
    thread.redact(2)
    result = conversations.diff(thread.id, fork.id)
    assert kinds(result) == ["same", "same"]
    assert all(side is not None and side.redacted for side in result.rows[0][1:3])


def test_refuses_incomparable_threads_and_versions(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("Hello")])
    ended = conversations.start_thread(messages=[Message.user("Hello")])
    ended.delete()
    refused: list[tuple[type[Exception], Callable[[], Diff]]] = [
        (UnknownThreadError, lambda: conversations.diff("missing")),
        (UnknownThreadError, lambda: conversations.diff(thread.id, "missing")),
        (ThreadDeletedError, lambda: conversations.diff(thread.id, ended.id)),
        (ThreadDeletedError, lambda: conversations.diff(ended.id, thread.id)),
        (UnknownVersionError, lambda: conversations.diff(thread.id, other_at=9)),
        (UnknownVersionError, lambda: conversations.diff(thread.id, at=1, at_message=1)),
        (UnknownVersionError, lambda: conversations.diff(thread.id, other_at_message=2)),
        (UnknownCheckpointError, lambda: conversations.diff(thread.id, at="never")),
        (InvalidTimeError, lambda: conversations.diff(thread.id, other_at=datetime(2026, 1, 1))),  # noqa: DTZ001  # the test refuses it
    ]
    for error, call in refused:
        with pytest.raises(error):
            call()


def test_the_engine_gives_the_same_result(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="a", messages=[Message.user("One"), Message.user("Two")])
        fork = thread.fork(thread_id="b", at=2)
        fork.append(Message.user("Three"))
        thread.checkpoint("here", at=2)
        expected = [conversations.diff("a", "b"), conversations.diff("a", at="here", other_at_message=2)]

    async def compared() -> list[Diff]:
        async with Engine.open(shared_url) as engine:
            with pytest.raises(UnknownThreadError):
                await engine.diff("a", "missing")
            return [await engine.diff("a", "b"), await engine.diff("a", at="here", other_at_message=2)]

    assert asyncio.run(compared()) == expected


def test_comparing_in_both_directions_gives_mirrored_results(corpus: list[dict[str, Any]], scale: float) -> None:
    tasks: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for value in corpus:
        tasks[value.get("metadata", {}).get("task_id")].append(value)
    pairs = [pair for values in tasks.values() for pair in combinations(values, 2)]
    assert pairs
    same = 0
    for values in pairs[: max(20, round(PAIRS * scale))]:
        a, b = (
            history(read_conversation(value).messages, side) for side, value in zip(("a", "b"), values, strict=True)
        )
        result = diff(a, b)
        assert plain_rows(diff(b, a).rows) == mirrored_rows(result.rows)
        assert tuple(row.a for row in result.rows if row.a is not None) == a.messages
        assert tuple(row.b for row in result.rows if row.b is not None) == b.messages
        same += result.counts.same
    assert same
