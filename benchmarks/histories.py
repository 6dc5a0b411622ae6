"""Typed histories: long ones against reading and validating rows, and 1,000 nested forks against one thread."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from benchmarks.measurement import Setting, cpu, interleaved, median_ratio, store_url
from benchmarks.report import Figure, at_most, at_most_times
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations
from clew.domain.events import MessageAppended
from clew.sync.threads import Thread

NEWEST = 50
SHORT = 100
"""Messages of a page, and of a short thread."""


class _Stored(TypedDict):
    id: str
    time: int
    number: int
    data: MessageAppended


_STORED = TypeAdapter(_Stored)


def run(setting: Setting) -> Iterator[Figure]:
    """The figures of long histories, of the newest messages, then those of nested forks."""
    yield from _typed(setting, setting.size(1_000, 300), 1.3)
    yield from _typed(setting, setting.size(20_000, 2_000), 1.0)
    yield from _newest(setting)
    yield from _deep(setting)


def _newest(setting: Setting) -> Iterator[Figure]:
    """The newest messages of a long thread against those of a short one, from the store and not from a cache."""
    lengths = SHORT, setting.size(20_000, 2_000)
    generator = MessageGenerator()
    with Conversations.open(setting.url("newest"), cache_bytes=0, embedded=False) as conversations:

        def newest(length: int) -> Callable[[], float]:
            thread = conversations.start_thread(messages=generator.messages(length))
            return lambda: cpu(lambda: thread.history(last=NEWEST)) * 1e3

        short, long = map(newest, lengths)
        measured = interleaved(setting.size(51, 11), {"short": short, "long": long})
    yield Figure(
        f"the newest {NEWEST} of {lengths[1]:,} messages against those of {SHORT}",
        statistics.median(measured["long"]),
        "ms",
        baseline=statistics.median(measured["short"]),
        ratio=median_ratio(measured["long"], measured["short"]),
        budget=at_most(1.5),
    )


def _typed(setting: Setting, messages: int, budget: float) -> Iterator[Figure]:
    path = setting.fresh("history")
    generator = MessageGenerator()
    with Conversations.open(store_url(path)) as conversations:
        conversations.start_thread(thread_id="long", messages=generator.messages(messages))
        conversations.start_thread(thread_id="other", messages=generator.messages(1))
        _write_plain_rows(path.with_name("plain.db"), conversations.thread("long"))
    after_append: list[float] = []

    def cold() -> float:
        with Conversations.open(store_url(path)) as conversations:
            conversations.thread("other").history()  # opens the read connection: the baseline also has an open one
            thread = conversations.thread("long")
            took = cpu(lambda: len(thread.history().messages))
            if len(after_append) % 2 == 0:
                fork = thread.fork(thread_id=f"fork-{len(after_append)}")  # keeps the thread itself unchanged
                fork.history()
                fork.append(generator.message())
                after_append.append(cpu(lambda: len(fork.history().messages)))
            else:
                after_append.append(after_append[-1])
            return took

    with closing(sqlite3.connect(path.with_name("plain.db"))) as connection:
        measured = interleaved(
            setting.size(15, 5), {"cold": cold, "rows": lambda: cpu(lambda: _read_and_validate(connection))}
        )
    yield Figure(
        f"history of {messages:,} messages, cold, against reading and validating the rows",
        statistics.median(measured["cold"]) * 1e3,
        "ms",
        baseline=statistics.median(measured["rows"]) * 1e3,
        ratio=median_ratio(measured["cold"], measured["rows"]),
        budget=at_most_times(budget),
    )
    yield Figure(
        "the same after one append, against cold",
        statistics.median(after_append) * 1e3,
        "ms",
        baseline=statistics.median(measured["cold"]) * 1e3,
        ratio=median_ratio(after_append, measured["cold"]),
        budget=at_most_times(0.1),
    )


def _write_plain_rows(path: Path, thread: Thread) -> None:
    """The same messages as rows of plain JSON, as a program without Clew would store them."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE event (stream INTEGER, version INTEGER, type TEXT, state BLOB, hash BLOB)")
        connection.execute("CREATE INDEX of_stream ON event (stream, version)")
        for event in thread.events():
            if isinstance(event.data, MessageAppended):
                row = _Stored(id=event.event_id, time=event.recorded_at, number=event.messages, data=event.data)
                state = _STORED.dump_json(row, exclude_none=True)
                connection.execute(
                    "INSERT INTO event VALUES (1, ?, ?, ?, ?)", (event.version, event.type, state, event.hash)
                )


def _read_and_validate(connection: sqlite3.Connection) -> list[_Stored]:
    rows = connection.execute("SELECT version, type, state, hash FROM event WHERE stream = 1 ORDER BY version")
    return [_STORED.validate_json(state) for _, _, state, _ in rows.fetchall()]


def _deep(setting: Setting) -> Iterator[Figure]:
    levels = setting.size(1_000, 200)
    path = setting.fresh("deep")
    with Conversations.open(store_url(path)) as conversations:
        generator = MessageGenerator()
        deep = conversations.start_thread(messages=generator.messages(9))
        for _ in range(levels - 1):
            deep = deep.fork()
            deep.append(generator.messages(9))
        flat = conversations.start_thread()
        for _ in range(levels):
            # As many messages and as many other events as in the nested forks.
            flat.append(generator.messages(9))
            flat.label(topic="a label is about as long as a fork is")
        bare = conversations.start_thread()
        for _ in range(levels - 1):
            bare = bare.fork()
        labels = conversations.start_thread()
        for number in range(levels - 1):
            labels.label(topic=f"number {number} is about as long as a fork is", more="which names its parent's hash")
    shapes = ((10, deep.id, flat.id), (1, bare.id, labels.id))
    for events, fork, thread in shapes:
        measured = interleaved(
            setting.size(7, 3), {"deep": _cold_history(path, fork), "flat": _cold_history(path, thread)}
        )
        many = "10 events" if events == 10 else "1 event"
        yield Figure(
            f"history {levels:,} forks deep, {many} a level, against a flat thread",
            statistics.median(measured["deep"]) * 1e3,
            "ms",
            baseline=statistics.median(measured["flat"]) * 1e3,
            ratio=median_ratio(measured["deep"], measured["flat"]),
            budget=at_most_times(1.3),
        )


def _cold_history(path: Path, thread_id: str) -> Callable[[], float]:
    def once() -> float:
        with Conversations.open(store_url(path)) as conversations:
            thread = conversations.thread(thread_id)
            return cpu(lambda: len(thread.history().messages))

    return once
