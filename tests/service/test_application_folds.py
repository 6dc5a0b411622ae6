"""Folds: an application's own states of a thread, which equal folding all events of the path, however they are read."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Engine, Event, Fold, Message, Record
from clew.domain.application_folds import KnownStates, weight
from clew.domain.errors import InvalidContentError, InvalidNameError, ThreadDeletedError, UnknownVersionError
from clew.domain.events import HistoryRewound, MessageAppended, Shredded
from clew.domain.ports import FoldState, Write
from clew.sync.threads import Thread

State = tuple[Any, ...]


def seen(event: Event) -> Any:
    """What a state shows of an event: its version, and the text if it is a message."""
    if isinstance(event.data, MessageAppended):
        return event.version, event.data.message.text
    return event.version, "redacted" if isinstance(event.data, Shredded) else event.type


def add(state: State, event: Event) -> State:
    return (*state, seen(event))


ALL = Fold[State]("all", 1, (), add)
TEXTS = Fold[State]("texts", 1, (), add, types=["message-appended"])


def folded_from_the_start(fold: Fold[State], thread: Thread, version: int) -> State:
    """The definition: the events that are met when walking back from a version, folded in order."""
    events = {event.version: event for event in thread.events()}
    path = []
    while version:
        event = events[version]
        path.append(event)
        version = event.data.to if isinstance(event.data, HistoryRewound) else version - 1
    state = fold.initial
    for event in reversed(path):
        if fold.types is None or event.type in fold.types:
            state = fold.evolve(state, event)
    return state


class CountedReads:
    """Counts the events that are read from a log."""

    def __init__(self, conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        self._lineage = conversations._core.log.lineage
        monkeypatch.setattr(conversations._core.log, "lineage", self)

    def __call__(
        self, stream: str, *, after: int = 0, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Event]:
        found = self._lineage(stream, after=after, upto=upto)
        self.events += len(found)
        return [event for event in found if types is None or event.type in types]

    def of(self, thread: Thread, fold: Fold[Any], at: int | None = None) -> int:
        self.events = 0
        thread.fold(fold, at=at)
        return self.events


def change(conversations: Conversations, threads: list[Thread], step: str, thread: Thread, number: int) -> None:
    version = 1 + number % thread.version
    match step:
        case "append":
            items: list[Message | Record] = [Message.user(f"text {number}"), Record("note", number)]
            thread.append(items[: 1 + number % 2])
        case "rewind":
            thread.rewind(version)
        case "fork":
            threads.append(thread.fork(at=version))
        case "redact":
            redactable = [each.version for each in thread.history() if not each.redacted]
            if redactable:
                thread.redact(redactable[number % len(redactable)])
        case "drop":
            conversations._core.caches.clear()
        case "drop stored":
            recorder: Any = conversations._core.log
            for stream in recorder.recorder._events._streams.values():
                stream.folds.clear()
        case _:
            check(thread, version)


def check(thread: Thread, version: int) -> None:
    for fold in (ALL, TEXTS, STORED, STORED_TEXTS):
        assert thread.fold(fold, at=version) == folded_from_the_start(fold, thread, version)


STORED = Fold[State]("stored", 1, (), add, state_type=tuple[tuple[int, str], ...])
STORED_TEXTS = Fold[State]("stored", 2, (), add, types=["message-appended"], state_type=tuple[tuple[int, str], ...])


def stored(conversations: Conversations, thread: Thread, fold: Fold[State] = STORED) -> list[int]:
    """The versions whose states the store has, the newest first."""
    log, versions = conversations._core.log, []
    found = log.fold_state(f"default/thread/{thread.id}", fold.name, thread.version)
    while found is not None:
        versions.append(found[0])
        found = log.fold_state(f"default/thread/{thread.id}", fold.name, found[0] - 1)
    return versions


STEPS = ["append"] * 4 + ["rewind", "fork", "redact", "drop", "drop", "drop stored", "fold", "fold", "fold"]


@pytest.mark.parametrize("every", [1, 4, 128])
@settings(max_examples=25)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 9_999)), max_size=40))
def test_a_fold_equals_folding_all_events_at_every_version(every: int, steps: list[tuple[str, int, int]]) -> None:
    with Conversations.open("memory:") as conversations, pytest.MonkeyPatch.context() as patch:
        patch.setattr("clew.service.application_folds.SNAPSHOT_EVERY", every)
        threads: list[Thread] = [conversations.start_thread()]
        for step, choice, number in steps:
            change(conversations, threads, step, threads[choice % len(threads)], number)
        for thread in threads:
            for version in range(thread.version, 0, -1):
                check(thread, version)


def test_a_fold_follows_forks_rewinds_and_past_versions(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Message.user("one"), Message.user("two"), Message.user("three")])
    assert thread.fold(TEXTS) == ((2, "one"), (3, "two"), (4, "three"))
    fork = thread.fork(at=3)
    fork.append(Message.user("four"))
    assert fork.fold(TEXTS) == ((2, "one"), (3, "two"), (5, "four"))
    thread.rewind(2)
    thread.append(Message.user("five"))
    assert thread.fold(TEXTS) == ((2, "one"), (6, "five"))
    assert thread.fold(TEXTS, at=4) == ((2, "one"), (3, "two"), (4, "three"))
    assert thread.fold(TEXTS, at_message=2) == thread.fold(TEXTS)
    assert [kind for _, kind in thread.fold(ALL)] == ["thread-started", "one", "history-rewound", "five"]
    for version in range(1, thread.version + 1):
        assert thread.fold(ALL, at=version) == folded_from_the_start(ALL, thread, version)


def test_a_redaction_is_not_in_any_state(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    secret, other = thread.append([Message.user("secret"), Message.user("other")])
    fork = thread.fork()
    for each in (thread, fork):
        assert each.fold(TEXTS) == ((2, "secret"), (3, "other"))
    fork.redact(secret)
    assert "secret" not in str(vars(conversations._core.caches.folds))
    for each in (thread, fork):
        assert each.fold(TEXTS) == ((2, "redacted"), (3, "other"))
        assert each.fold(TEXTS, at=2) == ((2, "redacted"),)
    thread.redact(other)
    assert fork.fold(TEXTS) == ((2, "redacted"), (3, "redacted"))


def test_a_redaction_by_another_process_is_not_in_any_state(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        thread = one.start_thread()
        thread.append(Message.user("secret"))
        assert thread.fold(TEXTS) == ((2, "secret"),)
        other.thread(thread.id).redact(2)
        assert thread.fold(TEXTS) == ((2, "redacted"),)


def test_a_fold_continues_from_what_it_knows(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = conversations.start_thread()
    thread.append([Message.user(str(number)) for number in range(2_000)])
    reads = CountedReads(conversations, monkeypatch)
    assert reads.of(thread, ALL) == 2_001
    assert reads.of(thread, ALL) == 0
    thread.append(Message.user("more"))
    assert reads.of(thread, ALL) == 1
    assert reads.of(thread, ALL, at=1_990) <= 16
    thread.rewind(1_980)
    assert reads.of(thread, ALL) <= 64
    fork = thread.fork(at=1_900)
    assert reads.of(fork, ALL) <= 256
    assert reads.of(fork, ALL) == 0


def test_a_look_back_displaces_no_newer_state_and_is_known_itself(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread()
    thread.append([Message.user(str(number)) for number in range(2_000)])
    reads = CountedReads(conversations, monkeypatch)
    thread.fold(ALL)
    for back in (1_000, 1_001, 300):
        assert reads.of(thread, ALL, at=back) <= 1_000
        assert reads.of(thread, ALL, at=back) == 0
        assert reads.of(thread, ALL) == 0
        thread.append(Message.user("more"))
        assert reads.of(thread, ALL) == 1
        check(thread, back)


def with_messages(conversations: Conversations, count: int) -> Thread:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Message.user(f"secret {number}") for number in range(count)])
    return thread


def test_a_new_process_continues_from_stored_states(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(shared_url) as before:
        thread = with_messages(before, 1_000)
        thread.fold(STORED)
        for number in range(300):
            thread.append(Message.user(str(number)))
            thread.fold(STORED)
        thread.fork(at=1_200, thread_id="fork").append(Message.user("fork"))
        expected = thread.fold(STORED)
    with Conversations.open(shared_url) as conversations:
        thread, fork = conversations.thread("t"), conversations.thread("fork")
        assert stored(conversations, thread) == [1_257, 1_129]
        reads = CountedReads(conversations, monkeypatch)
        assert reads.of(thread, STORED) <= 256
        assert reads.of(fork, STORED) <= 512
        assert reads.of(thread, STORED, at=1_150) <= 256
        for each, version in ((thread, 1_301), (thread, 1_100), (fork, 1_202), (thread, 900)):
            assert each.fold(STORED, at=version) == folded_from_the_start(STORED, each, version)
        assert thread.fold(STORED) == expected


def test_a_look_back_leaves_the_newest_stored_state(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = with_messages(conversations, 900)
        thread.fold(STORED)
        conversations.start_thread(thread_id="writes what waits")
        newest = stored(conversations, thread)
        assert newest == [901]
    for version in (400, 130, 700):
        with Conversations.open(shared_url) as conversations:
            thread = conversations.thread("t")
            assert thread.fold(STORED, at=version) == folded_from_the_start(STORED, thread, version)
            conversations.start_thread()
            assert stored(conversations, thread)[0] == 901


def test_a_look_far_back_in_a_new_process_folds_little(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Fold[int]("count", 1, 0, lambda number, _: number + 1, state_type=int)
    with Conversations.open(shared_url) as before:
        grown = before.start_thread(thread_id="t")
        for _ in range(40):
            grown.append([Message.user("text")] * 130)
            grown.fold(count)
    with Conversations.open(shared_url) as conversations:
        thread, reads = conversations.thread("t"), CountedReads(conversations, monkeypatch)
        for back in (4_000, 2_700, 1_000):
            assert reads.of(thread, count, at=back) <= 512
            assert thread.fold(count, at=back) == back
        fork = thread.fork(at=3_500)
        assert reads.of(fork, count) <= 512


def test_states_of_another_version_types_or_history_are_not_used(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = with_messages(conversations, 200)
        other = conversations.start_thread(thread_id="other")
        other.append([Message.user(str(number)) for number in range(200)])
        of_other = other.fold(STORED)
        conversations.start_thread(thread_id="writes what waits")
        core = conversations._core
        copied = core.log.fold_state(core.stream("other"), "stored", 201)
        assert copied is not None
        state = FoldState(core.stream("t"), "stored", copied[0], 1, copied[1], core.log.shredded())
        core.log.submit(Write((), {}, folds=[state])).outcome.result()
        assert stored(conversations, thread) == [201]
        for fold in (STORED, STORED_TEXTS, replace(STORED, types=["thread-started"])):
            core.caches.clear()
            assert thread.fold(fold) == folded_from_the_start(fold, thread, 201) != of_other


@pytest.mark.parametrize(
    "change", ["substr(state, 1, length(state) - 1)", "state || '0'", "CAST('text' AS TEXT)", "5", "substr(state, 33)"]
)
def test_a_stored_state_that_was_changed_is_not_used(tmp_path: Path, change: str) -> None:
    with Conversations.open(tmp_path / "clew.db") as conversations:
        thread = with_messages(conversations, 600)
        assert thread.fold(Fold("count", 1, 0, count, state_type=int)) == 601
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        assert connection.execute(f"UPDATE fold_state SET state = {change}").rowcount == 1  # noqa: S608 - of constants
    connection.close()
    with Conversations.open(tmp_path / "clew.db") as conversations:
        assert conversations.thread("t").fold(Fold("count", 1, 0, count, state_type=int)) == 601


def test_no_byte_of_a_redacted_text_remains_in_stored_states(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread = with_messages(conversations, 400)
        fork = thread.fork(thread_id="fork")
        small = Fold[State]("small", 1, (), lambda state, event: add(state[-2:], event), state_type=STORED.state_type)
        for each in (thread, fork):
            for version in range(130, 402, 3):
                each.fold(small, at=version)
            each.fold(STORED)
            each.append(Message.user("writes what waits"))
        for name in ("stored", "small"):
            found = conversations._core.log.fold_state("default/thread/fork", name, 402)
            assert found is not None
            assert b"secret 3" in found[1]
        for number in range(390, 400):
            thread.redact(2 + number)
            text = f"secret {number}".encode()
            assert [file.name for file in tmp_path.iterdir() if text in file.read_bytes()] == []
        for each in (thread, fork):
            assert each.fold(STORED) == folded_from_the_start(STORED, each, each.version)


def test_a_redaction_drops_the_stored_states_of_all_forks(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = with_messages(conversations, 200)
        early, late = thread.fork(at=100, thread_id="early"), thread.fork(thread_id="late")
        for each in (thread, early, late):
            each.append([Message.user(str(number)) for number in range(200)])
            each.fold(STORED)
        conversations.start_thread(thread_id="writes what waits")
        assert [len(stored(conversations, each)) for each in (thread, early, late)] == [1, 1, 1]
        thread.redact(150)
        assert [len(stored(conversations, each)) for each in (thread, early, late)] == [0, 1, 0]


def test_large_states_are_stored_less_often(conversations: Conversations) -> None:
    grows = Fold[str]("grows", 1, "", lambda text, _: text + "x" * 1_000, state_type=str)
    thread = with_messages(conversations, 100)
    sizes: list[int] = []
    log: Any = conversations._core.log
    submit = log.submit

    def measure(write: Write) -> Any:
        sizes.extend(len(each.state) for each in write.folds)
        return submit(write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "submit", measure)
        for number in range(600):
            thread.append(Message.user(str(number)))
            thread.fold(grows)
    assert [round(size, -3) for size in sizes] == [128_000, 628_000]


def test_a_state_that_does_not_survive_is_not_stored(conversations: Conversations) -> None:
    thread = with_messages(conversations, 200)
    for kind in (list[tuple[int, str]], int, float):
        fold = Fold[Any]("lossy", 1, (), add, state_type=kind)
        assert thread.fold(fold) == folded_from_the_start(fold, thread, 201)
    assert thread.fold(Fold("nan", 1, 0.0, lambda _, __: math.nan, state_type=float)) is not None
    thread.append(Message.user("writes what waits"))
    assert stored(conversations, thread, fold) == stored(conversations, thread, replace(fold, name="nan")) == []


def test_a_store_that_is_only_read_is_folded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as before:
        with_messages(before, 200)
    with Conversations.open(url, read_only=True) as conversations:
        thread = conversations.thread("t")
        assert thread.fold(STORED) == folded_from_the_start(STORED, thread, 201)


def test_folds_are_told_apart_by_name_version_and_code(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.append(Message.user("one"))
    assert thread.fold(Fold("count", 1, 0, lambda number, _: number + 1)) == 2
    assert thread.fold(Fold("count", 1, 0, lambda number, _: number + 2)) == 4
    assert thread.fold(Fold("count", 2, 10, lambda number, _: number + 1)) == 12
    assert thread.fold(Fold("count", 1, 0, lambda number, _: number + 1, types={"message-appended"})) == 1


def test_a_cache_without_room_keeps_no_state() -> None:
    with Conversations.open("memory:", cache_bytes=0) as conversations:
        thread = conversations.start_thread()
        thread.append(Message.user("one"))
        assert thread.fold(TEXTS) == thread.fold(TEXTS) == ((2, "one"),)
        assert conversations._core.caches.budget.weight == 0


def test_few_states_are_kept_and_near_the_end_most() -> None:
    known = KnownStates(Fold("count", 1, 0, lambda number, _: number + 1))
    for version in range(1, 10_001):
        known.put(version, version)
    kept = sorted({known.last(version) for version in range(1, 10_001)} - {0})
    assert len(kept) <= 15
    assert all(10_000 - known.last(10_000 - back) <= max(16, 5 * back) for back in range(5_000))
    assert known.upto(9_000).last(10_000) <= 9_000


class Slotted:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (0, 20, 40),
        ("x" * 1_000, 1_000, 1_100),
        (["x" * 1_000] * 1_000, 1_000_000, 1_200_000),
        (dict.fromkeys(range(1_000), "x" * 1_000), 1_000_000, 1_400_000),
        (Message.user("x" * 10_000), 10_000, 20_000),
        ([Message.user("x" * 10_000)] * 100, 1_000_000, 1_200_000),
        (Slotted("x" * 10_000), 10_000, 11_000),
        (int, 0, 5_000),
    ],
    ids=["integer", "text", "list", "dict", "message", "messages", "slots", "class"],
)
def test_the_weight_of_a_state_is_estimated_from_a_few_objects(value: object, least: int, most: int) -> None:
    assert least <= weight(value) <= most


def test_the_weight_of_a_cycle_is_estimated() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert weight(cycle) > 0


def count(number: int, _: Event) -> int:
    return number + 1


@pytest.mark.parametrize(
    ("fold", "error"),
    [
        ("texts", InvalidContentError),
        (Fold("", 1, 0, count), InvalidNameError),
        (Fold("a", version=True, initial=0, evolve=count), InvalidContentError),
        (Fold("a", "1", 0, count), InvalidContentError),  # type: ignore[arg-type]
        (Fold("a", 1, 0, None), InvalidContentError),  # type: ignore[arg-type]
        (Fold("a", 1, 0, count, types="message-appended"), InvalidNameError),
    ],
    ids=["text", "name", "bool", "version", "evolve", "types"],
)
def test_refuses_what_is_not_a_fold(conversations: Conversations, fold: Any, error: type[Exception]) -> None:
    thread = conversations.start_thread()
    with pytest.raises(error):
        thread.fold(fold)


@pytest.mark.parametrize("state_type", [object(), Slotted, 5, list["Undefined"]])  # type: ignore[name-defined]  # noqa: F821
def test_refuses_a_state_type_that_pydantic_does_not_know_when_the_fold_is_made(state_type: Any) -> None:
    with pytest.raises(InvalidContentError, match=r"fold 'a': state_type=.* is not a type that pydantic can write"):
        Fold("a", 1, 0, count, state_type=state_type)


def test_errors_of_evolve_and_of_versions_are_raised(conversations: Conversations) -> None:
    def refuse(_: int, event: Event) -> int:
        raise LookupError(event.type)

    thread = conversations.start_thread()
    with pytest.raises(LookupError, match="thread-started"):
        thread.fold(Fold("a", 1, 0, refuse))
    with pytest.raises(UnknownVersionError):
        thread.fold(ALL, at=2)
    thread.delete()
    with pytest.raises(ThreadDeletedError):
        thread.fold(ALL)


@pytest.mark.anyio
async def test_an_engine_folds_threads(any_url: str) -> None:
    async with Engine.open(any_url) as engine:
        thread = await engine.start_thread()
        await thread.append([Message.user("one"), Message.user("two")])
        assert await thread.fold(TEXTS) == ((2, "one"), (3, "two"))
        assert await thread.fold(TEXTS, at=2) == ((2, "one"),)
