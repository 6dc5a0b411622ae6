"""Threads with many checkpoints: the state stays small, and a name is found by an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Message
from clew.domain import event_index
from clew.domain.decider_state import SNAPSHOT_EVERY, Control, advance
from clew.domain.event_index import CHECKPOINTS, number_of_checkpoint
from clew.domain.ports import Row
from clew.errors import CheckpointExistsError, UnknownCheckpointError
from clew.infrastructure.recorder_ports import Recorder

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


class ReadRows:
    """Counts the rows that the store of a thread reads. With a filter of types it reads all rows of the range."""

    def __init__(self, thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        self._recorder: Recorder = thread._core.log._recorder
        self._lineage, self._indexed = self._recorder.lineage, self._recorder.indexed
        monkeypatch.setattr(self._recorder, "lineage", self.lineage)
        monkeypatch.setattr(self._recorder, "indexed", self.indexed)

    def lineage(self, stream: str, **options: Any) -> list[Row]:
        rows: list[Row] = self._lineage(stream, **options)
        self.rows += options["upto"] - options["after"] if options.get("types") else len(rows)
        return rows

    def indexed(self, stream: str, number: int, **options: Any) -> list[Row]:
        rows: list[Row] = self._indexed(stream, number, **options)
        self.rows += len(rows)
        return rows


def test_a_name_is_found_without_reading_the_others(
    any_url: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = max(600, int(10_000 * scale))
    with opened(any_url, count) as thread:
        reads = ReadRows(thread, monkeypatch)
        for number in (7, count // 2, count) * 2:  # the second time, the service knows the thread
            reads.rows = 0
            assert thread.fork(at=name(number)).version == number + 2
            assert reads.rows <= 2 * SNAPSHOT_EVERY + 1
        reads.rows = 0
        assert thread.rewind(to=name(9)) == count + 3
        assert reads.rows <= 2


def test_a_checkpoint_after_many_messages_reads_none_of_them(
    any_url: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = max(1_000, int(20_000 * scale))
    with opened(any_url, 1) as thread:
        for _ in range(10):
            thread.append([Message.user("x")] * (count // 10))
        thread.checkpoint("newest")
        thread._core.caches.clear()
        reads = ReadRows(thread, monkeypatch)
        for at, version in (("newest", count + 3), (name(1), 2), ("newest", count + 3)):
            assert thread.history(at=at, last=1).version == version
        assert thread.summary().checkpoints == {name(1): 2, "newest": count + 3}
        with pytest.raises(CheckpointExistsError):
            thread.checkpoint(name(1))
        thread.checkpoint("other")
        assert reads.rows <= 3 * SNAPSHOT_EVERY


def test_all_names_are_read_once(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(any_url, 300) as thread:
        reads = ReadRows(thread, monkeypatch)
        thread.append(Message.user("one"))
        thread.fork().append(Message.user("two"))
        with pytest.raises(CheckpointExistsError):
            thread.checkpoint(name(9))
        thread.checkpoint("new")
        assert reads.rows <= 2 * SNAPSHOT_EVERY
        assert thread.summary().checkpoints["new"] == 303
        reads.rows = 0
        assert len(thread.summary().checkpoints) == 301
        assert thread.fork(at=name(7)).version == 9
        assert reads.rows <= 8


def test_an_unknown_name_is_reported_with_the_newest(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(any_url, 300) as thread:
        reads = ReadRows(thread, monkeypatch)
        names = ", ".join(repr(name(number)) for number in range(291, 301))
        for unknown in ("nowhere", "other"):
            with pytest.raises(UnknownCheckpointError, match=f"It has: {names}."):
                thread.history(at=unknown)
        assert reads.rows <= SNAPSHOT_EVERY + 20


def test_names_with_the_same_number_are_told_apart(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_index, "number_of", lambda *_: 7)
    with opened(any_url, 300) as thread:
        assert [thread.history(at=name(number), last=1).version for number in (1, 150, 300)] == [2, 151, 301]
        with pytest.raises(UnknownCheckpointError):
            thread.history(at="nowhere")
        thread.checkpoint("new")


def test_nothing_that_depends_on_a_redacted_or_purged_name_remains(any_url: str) -> None:
    with opened(any_url, 200) as thread:
        recorder, stream = thread._core.log._recorder, thread._core.stream(thread.id)
        fork = thread.fork(at=name(150))
        assert {(number, 8) for number in (CHECKPOINTS, number_of_checkpoint(name(6)))} <= recorder.entries(stream)
        thread.redact(8)
        assert {number for number, version in recorder.entries(stream) if version == 8} == {CHECKPOINTS}
        for each in (thread, fork):
            with pytest.raises(UnknownCheckpointError):
                each.history(at=name(6))
        thread.checkpoint(name(6), at=5)
        assert thread.history(at=name(6)).version == 5
        assert len(thread.summary().checkpoints) == 200
        thread.delete()
        thread.purge(forks=True)
        assert {number for number, _ in recorder.entries(stream)} == {CHECKPOINTS}
        assert thread._core.log.verify().first_bad is None


CHANGES = st.lists(st.tuples(st.sampled_from("mmcccffrx"), st.integers(0, 99)), max_size=30)


@settings(max_examples=30)
@given(changes=CHANGES, clears=st.booleans())
def test_names_are_those_of_the_folded_events(changes: list[tuple[str, int]], *, clears: bool) -> None:
    with patch("clew.service.core.SNAPSHOT_EVERY", 4), Conversations.open("memory:") as conversations:
        threads: list[Any] = [conversations.start_thread()]
        for number, (kind, choice) in enumerate(changes):
            change(threads, kind, choice, name(number))
        for thread in threads:
            log, stream = thread._core.log, thread._core.stream(thread.id)
            expected = reduce(advance, log.lineage(stream), Control()).checkpoints
            found = {}
            for each in map(name, range(len(changes))):
                if clears:
                    thread._core.caches.clear()
                with suppress(UnknownCheckpointError):
                    found[each] = thread.history(at=each).version
            assert found == thread.summary().checkpoints == expected


def change(threads: list[Any], kind: str, choice: int, new: str) -> None:
    thread = threads[choice % len(threads)]
    version = 1 + choice % thread.version
    if kind == "m":
        thread.append(Message.user("x"))
    elif kind == "c":
        thread.checkpoint(new, at=version)
    elif kind == "f":
        threads.append(thread.fork(at=version))
    elif kind == "r":
        thread.rewind(to=version)
    elif made := [each.version for each in thread.events(types=["checkpoint-made"]) if each.data.name]:
        thread.redact(made[choice % len(made)])


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
