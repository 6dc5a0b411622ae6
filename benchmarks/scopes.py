"""Memory scopes: lists of many, and facts by key in large scopes against small ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks.measurement import Setting, cpu, interleaved, median_ratio
from benchmarks.report import Figure, at_most, at_most_times
from clew import Conversations, Message

LISTED = 1_000
CALLS = 50
"""Calls that are measured together."""


def run(setting: Setting) -> Iterator[Figure]:
    """The figures of lists, of facts by key, and of a batch."""
    with Conversations.open(setting.url("scopes")) as conversations:
        yield from _lists(setting, conversations)
        yield from _keys(setting, conversations)
        yield from _batches(setting, conversations)


def _lists(setting: Setting, conversations: Conversations) -> Iterator[Figure]:
    scopes = setting.size(10_000, 2_000)
    for number in range(scopes):
        conversations.memory(f"{'listed' if number < LISTED else 'other'}/{number:05}").put("k", number)
    listed = len(list(conversations.scopes(prefix="listed/")))
    took = [cpu(lambda: list(conversations.scopes(prefix="listed/"))) * 1e3 for _ in range(setting.size(51, 11))]
    yield Figure(f"{listed:,} of {scopes:,} scopes by prefix", statistics.median(took), "ms", budget=at_most(2))


def _keys(setting: Setting, conversations: Conversations) -> Iterator[Figure]:
    sizes = 10, setting.size(10_000, 1_000)

    def scope_of(size: int) -> tuple[Callable[[], float], Callable[[], float]]:
        scope = conversations.memory(f"facts/{size}")
        for number in range(size):
            scope.put(f"key {number}", number)
        return _times(lambda: scope.get("key 5")), _times(lambda: scope.put("key 5", "changed"))

    (short_get, short_put), (long_get, long_put) = map(scope_of, sizes)
    for name, short, long in (("get", short_get, long_get), ("put", short_put, long_put)):
        measured = interleaved(setting.size(21, 5), {"short": short, "long": long})
        yield Figure(
            f"{name} in a scope of {sizes[1]:,} facts against one of {sizes[0]}",
            statistics.median(measured["long"]),
            "µs",
            baseline=statistics.median(measured["short"]),
            ratio=median_ratio(measured["long"], measured["short"]),
            budget=at_most_times(1.3),
        )


def _batches(setting: Setting, conversations: Conversations) -> Iterator[Figure]:
    threads = [conversations.start_thread() for _ in range(4)]

    def batch() -> None:
        with conversations.batch() as batch:
            for thread in threads:
                batch.append(thread, Message.user("Hello"))

    def alone() -> None:
        for thread in threads:
            thread.append(Message.user("Hello"))

    measured = interleaved(setting.size(21, 5), {"batch": _times(batch), "alone": _times(alone)})
    yield Figure(
        f"a batch of {len(threads)} threads against an append to each",
        statistics.median(measured["batch"]),
        "µs",
        baseline=statistics.median(measured["alone"]),
        ratio=median_ratio(measured["batch"], measured["alone"]),
        budget=at_most_times(1.0),
    )


def _times(call: Callable[[], object]) -> Callable[[], float]:
    """A measurement of CPU for one call, in microseconds."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return lambda: cpu(calls) / CALLS * 1e6
