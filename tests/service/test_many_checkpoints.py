"""Threads with many checkpoints: the state stays small, and the names are read from the log when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from clew import Conversations, Message
from clew.errors import CheckpointExistsError, UnknownCheckpointError
from clew.infrastructure.event_log import ConversationLog

KIBIBYTE = 1_024


def name(number: int) -> str:
    return f"checkpoint number {number}"


@contextmanager
def opened(url: str, count: int) -> Iterator[Any]:
    """A thread with many checkpoints, the n-th of version n + 1, in a service that has read nothing yet."""
    if url == "memory:":
        with Conversations.open(url) as conversations:
            thread = filled(conversations, count)
            conversations._core.caches.clear()
            yield thread
        return
    with Conversations.open(url) as conversations:
        filled(conversations, count)
    with Conversations.open(url) as conversations:
        yield conversations.thread("many")


def filled(conversations: Conversations, count: int) -> Any:
    thread = conversations.start_thread(thread_id="many", messages=[Message.user("Hello")])
    for number in range(1, count + 1):
        thread.checkpoint(name(number))
    return thread


def test_a_snapshot_of_many_checkpoints_is_small(any_url: str, scale: float) -> None:
    count = max(600, int(10_000 * scale))
    with opened(any_url, count) as thread:
        recorder = thread._core.log._recorder
        stream = thread._core.stream(thread.id)
        upto, sizes = None, []
        while (snapshot := recorder.snapshot(stream, upto)) is not None:
            sizes.append(len(snapshot.state))
            upto = snapshot.version - 1
        assert len(sizes) == (count + 2) // 128
        assert max(sizes) < 2 * KIBIBYTE
        assert thread.summary().checkpoints == {name(number): number + 1 for number in range(1, count + 1)}


def test_the_names_are_read_once_and_only_if_they_are_needed(any_url: str) -> None:
    read: list[Any] = []
    lineage = ConversationLog.lineage

    def counted(self: ConversationLog, stream: str, **options: Any) -> Any:
        if options.get("types") == ("checkpoint-made",):
            read.append((options["after"], options["upto"]))
        return lineage(self, stream, **options)

    with opened(any_url, 300) as thread, patch.object(ConversationLog, "lineage", counted):
        thread.append(Message.user("one"))
        thread.fork().append(Message.user("two"))
        thread.history(last=2, at=10)
        assert thread.history(at=name(299)).version == 300  # made after the newest snapshot
        assert read == []
        assert thread.history(at=name(7)).version == 8
        assert read == [(2, 256)]
        assert thread.history(at=name(8)).version == 9
        with pytest.raises(CheckpointExistsError):
            thread.checkpoint(name(9))
        thread.checkpoint("new")
        assert thread.summary().checkpoints["new"] == 303
        assert read == [(2, 256)]


def test_old_names_are_taken_in_forks_and_in_other_processes(any_url: str) -> None:
    with opened(any_url, 300) as thread:
        early, late = thread.fork(at=140), thread.fork()
        for each, taken in ((thread, 300), (late, 300), (early, 138)):
            thread._core.caches.clear()
            with pytest.raises(CheckpointExistsError, match="at version 2"):
                each.checkpoint(name(1))
            assert len(each.summary().checkpoints) == taken
            assert len(each.state().checkpoints) == taken
        assert early.step(at=140).checkpoints == ()
        assert thread.step(at=140).checkpoints == (name(139),)
        with pytest.raises(UnknownCheckpointError):
            early.history(at=name(200))
        early.checkpoint(name(200))
        assert early.history(at=name(200)).version == 141
        assert thread.verify().first_bad is None


def test_of_two_services_one_makes_a_checkpoint(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        mine = filled(one, 200)
        theirs = other.thread("many")
        mine.append(Message.user("one"))
        for number in range(201, 400):
            mine.checkpoint(name(number))
            with pytest.raises(CheckpointExistsError):
                theirs.checkpoint(name(number))
