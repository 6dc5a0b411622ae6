"""Appending to and forking a thread of 10,000 events against one of 10: CPU, and the bytes of a fork."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measurement import Setting, cpu, interleaved, median_ratio, size_on_disk, store_url
from benchmarks.report import Figure, at_most, at_most_times
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY

SHORT = 10
EACH = SNAPSHOT_EVERY
"""Appends per round: one per version between two control snapshots, so each round writes one snapshot."""

FORKS = 64
TAIL = 120
"""Events since the last snapshot; the measured appends add a few more."""


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of a short and a long thread: warm, in a new process, and on disk."""
    long = setting.size(10_000, 2_000)
    yield from _warm(setting, long)
    yield from _in_a_new_process(setting, long)
    yield from _bytes_of_a_fork(setting, long)


def _warm(setting: Setting, long: int) -> Iterator[Figure]:
    generator = MessageGenerator()
    messages = generator.messages(EACH)
    with Conversations.open(setting.url("long")) as conversations:

        def start_thread(events: int) -> str:
            return conversations.start_thread(messages=generator.messages(events - 1)).id

        thread_ids = {SHORT: start_thread(SHORT), long: start_thread(long)}

        def append_round(events: int) -> Callable[[], float]:
            def one_round() -> float:
                # Appends make a short thread longer, so each round starts a new one.
                thread = conversations.thread(start_thread(SHORT) if events == SHORT else thread_ids[long])
                return cpu(lambda: [thread.append(message) for message in messages]) / EACH * 1e6

            return one_round

        def fork_round(events: int) -> Callable[[], float]:
            thread = conversations.thread(thread_ids[events])
            return lambda: cpu(lambda: [thread.fork() for _ in range(FORKS)]) / FORKS * 1e6

        for name, contender in (("append", append_round), ("fork", fork_round)):
            for events in (SHORT, long):
                contender(events)()  # fills the caches
            measured = interleaved(setting.size(9, 3), {"short": contender(SHORT), "long": contender(long)})
            yield Figure(
                f"{name}, warm, a thread of {long:,} events against {SHORT}",
                statistics.median(measured["long"]),
                "µs",
                baseline=statistics.median(measured["short"]),
                ratio=median_ratio(measured["long"], measured["short"]),
                budget=at_most_times(1.2),
            )


def _in_a_new_process(setting: Setting, long: int) -> Iterator[Figure]:
    """The worst case: nearly as many events as there can be since the last snapshot of the control."""
    path = setting.fresh("new-process")
    generator = MessageGenerator()
    snapshot = long // SNAPSHOT_EVERY * SNAPSHOT_EVERY
    cases = [(operation, first) for operation in ("append", "fork") for first in (True, False)]
    with Conversations.open(store_url(path)) as conversations:
        conversations.start_thread(thread_id="other", messages=generator.messages(1))
        for number in range(len(cases)):
            conversations.start_thread(thread_id=f"short-{number}", messages=generator.messages(SHORT - 1))
            thread = conversations.start_thread(thread_id=f"long-{number}", messages=generator.messages(snapshot - 1))
            thread.append(generator.messages(TAIL))
    for number, (operation, first) in enumerate(cases):
        names = {name: f"{name}-{number}" for name in ("short", "long")}
        measured = interleaved(
            setting.size(5, 3), {name: _process(path, operation, id_, first=first) for name, id_ in names.items()}
        )
        counted = "the first call of the process" if first else "after one on another thread"
        yield Figure(
            f"{operation}, new process, {snapshot + TAIL:,} events against {SHORT}: {counted}",
            statistics.median(measured["long"]),
            "ms",
            baseline=statistics.median(measured["short"]),
            ratio=median_ratio(measured["long"], measured["short"]),
            budget=at_most(2),
        )


def _process(path: Path, operation: str, thread_id: str, *, first: bool) -> Callable[[], float]:
    before = "none" if first else "other"
    command = [sys.executable, "-m", "benchmarks.long_threads_process", store_url(path), operation, thread_id, before]
    return lambda: float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def _bytes_of_a_fork(setting: Setting, long: int) -> Iterator[Figure]:
    forks = setting.size(512, 128)
    deep = setting.size(100, 20)
    shapes = {
        f"a thread of {SHORT} events": (SHORT, 0),
        f"one of {long:,}": (long, 0),
        f"one {deep} deep": (SHORT, deep),
    }
    for shape, (events, levels) in shapes.items():
        path = setting.fresh("fork")
        url = store_url(path)
        with Conversations.open(url) as conversations:
            thread = conversations.start_thread(messages=MessageGenerator().messages(events - 1))
            for _ in range(levels):
                thread = thread.fork()
        before = size_on_disk(path)
        with Conversations.open(url) as conversations:
            forked = conversations.thread(thread.id)
            for _ in range(forks):
                forked.fork()
        yield Figure(f"bytes of a fork of {shape}", (size_on_disk(path) - before) / forks, "B", budget=at_most(1_024))
