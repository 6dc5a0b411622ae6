"""The caches of a service: one budget in bytes for all of them, which keeps what was used last."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.conversations import Conversations
from clew.domain.errors import InvalidContentError
from clew.domain.events import Event, MessageAppended
from clew.domain.history import HistoryBuilder
from clew.domain.messages import FunctionCall, Message
from clew.service.core import CACHE_BYTES, BoundedCache, CacheBudget, Caches

names = st.sampled_from("abcd")
uses = st.lists(st.tuples(st.booleans(), names, st.integers(0, 12)), max_size=40)


@given(uses)
def test_two_caches_hold_at_most_their_budget_and_the_newest_values(done: list[tuple[bool, str, int]]) -> None:
    budget = CacheBudget(10)
    caches: list[BoundedCache[int]] = [BoundedCache(budget), BoundedCache(budget)]
    expected: dict[tuple[int, str], int] = {}
    for which, name, weight in done:
        expected.pop((which, name), None)
        if weight == 0:
            caches[which].drop(name)
            continue
        caches[which].put(name, weight, weight)
        if weight <= 10:
            expected[which, name] = weight
        while sum(expected.values()) > 10:
            del expected[next(iter(expected))]
        held = {(number, each): caches[number].get(each) for number in (False, True) for each in "abcd"}
        assert {key: value for key, value in held.items() if value is not None} == expected
        assert budget.weight == sum(expected.values())


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Conversations], list[int]]:
    """Return the list of how many events each later read of a lineage returns."""

    def watch(conversations: Conversations) -> list[int]:
        counts: list[int] = []
        recorder = conversations._core.log.recorder  # type: ignore[attr-defined]  # the log is an application
        lineage = recorder.lineage

        def counting(*arguments: Any, **options: Any) -> Any:
            events = lineage(*arguments, **options)
            counts.append(len(events))
            return events

        monkeypatch.setattr(recorder, "lineage", counting)
        return counts

    return watch


def test_a_thousand_threads_of_sixty_messages_stay_cached(
    file_url: str, rows: Callable[[Conversations], list[int]]
) -> None:
    with Conversations.open(file_url, embedded=False) as conversations:
        texts = [Message.user(f"{number} " + "x" * 200) for number in range(60)]
        threads = [conversations.start_thread(messages=texts) for _ in range(1_000)]
        for thread in threads:
            thread.history()
        counts = rows(conversations)
        assert [len(thread.history()) for thread in threads] == [60] * 1_000
        threads[0].append(texts[0])
        assert len(threads[0].history()) == 61
    assert sum(counts) == 0


def test_a_history_of_more_than_100_000_messages_is_cached_within_the_budget(
    file_url: str, rows: Callable[[Conversations], list[int]]
) -> None:
    with Conversations.open(file_url, embedded=False) as conversations:
        thread = conversations.start_thread()
        texts = [Message.user("x")] * 5_001
        for _ in range(20):
            thread.append(texts)
        assert len(thread.history()) == 100_020
        counts = rows(conversations)
        assert len(thread.history()) == 100_020
        assert sum(counts) == 0


def test_large_contents_count_as_their_bytes(file_url: str, rows: Callable[[Conversations], list[int]]) -> None:
    with Conversations.open(file_url, embedded=False, cache_bytes=1_000_000) as conversations:
        large = [Message.tool(str(number), "x" * 100_000) for number in range(6)]
        threads = [conversations.start_thread(messages=large) for _ in range(3)]
        for thread in threads:
            thread.history()
        counts = rows(conversations)
        threads[2].history()
        assert sum(counts) == 0, "the newest one is cached"
        threads[0].history()
        assert sum(counts) >= 7, "together they are more than the budget"
        assert conversations._core.caches.budget.weight <= 1_000_000
        threads[0].append(large)
        assert len(threads[0].history()) == 12, "this one alone is"
        assert conversations._core.caches.histories.get(f"default/thread/{threads[0].id}") is None
        assert conversations._core.caches.budget.weight <= 1_000_000


@pytest.mark.parametrize(
    "messages",
    [
        [Message.user("x" * 200) for _ in range(300)],
        [Message.user("\u4f60\u597d" * 1_000) for _ in range(300)],
        [Message.tool("1", {"rows": [{"id": number, "name": f"name {number}"} for number in range(50)]})] * 100,
        [Message.assistant("Yes.", calls=[FunctionCall(call_id="1", name="f", arguments="y" * 5_000)])] * 300,
        [Message.user("short", metadata={"tags": [str(number) for number in range(100)]})] * 300,
    ],
    ids=["text", "wide text", "JSON", "calls", "metadata"],
)
def test_the_weight_of_a_history_is_near_its_memory(messages: list[Message]) -> None:
    events = [(number, message.model_dump_json()) for number, message in enumerate(messages, 1)]

    def read() -> HistoryBuilder:
        builder = HistoryBuilder("one")
        for version, text in events:
            data = MessageAppended(message=Message.model_validate_json(text))
            event_id = f"{version:036}"
            builder.add((Event("s", version, "message-appended", event_id, 10**15 + version, version, data),))
        return builder

    read()
    gc.collect()
    tracemalloc.start()
    builder = read()
    measured = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 < builder.weight / measured < 2, (builder.weight, measured)


def test_a_service_without_a_cache_reads_and_writes(file_url: str) -> None:
    with Conversations.open(file_url, cache_bytes=0) as conversations:
        thread = conversations.start_thread(messages=[Message.user("one")])
        thread.append(Message.user("two"))
        fork = thread.fork(at=2)
        fork.append(Message.user("other"))
        assert [message.text for message in fork.history()] == ["one", "other"]
        assert conversations._core.caches.budget.weight == 0


def test_refuses_a_number_of_bytes_that_is_none() -> None:
    for wrong in (-1, True, "1 GB", 1.5):
        with pytest.raises(InvalidContentError, match=r"cache_bytes=.* is not a number of bytes"):
            Conversations.open("memory:", cache_bytes=wrong)  # type: ignore[arg-type]


def test_the_budget_is_that_of_the_service() -> None:
    with Conversations.open("memory:") as conversations:
        assert conversations._core.caches.budget.max_weight == CACHE_BYTES
        assert conversations.acting_as("user:1")._core.caches is conversations._core.caches
    caches = Caches(7)
    caches.clear()
    assert caches.budget.max_weight == 7
