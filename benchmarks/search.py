"""Searching a million messages: rare and common words, phrases, prefixes, and within one thread."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeAlias

from benchmarks.measurement import Setting, cpu, percentile, size_on_disk, store_url, wall
from benchmarks.report import Figure, at_most
from benchmarks.synthetic_data import WORDS, corpus_texts, many_messages, thread_id_of, vocabulary
from clew import Conversations
from clew.infrastructure import code_digest
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.stores import store_at
from clew.projections import Directory, Search
from clew.service.projector import Projector

HITS = 20
PROJECTIONS = (Directory(), Search())

Kinds: TypeAlias = dict[str, Callable[[], tuple[str, str | None]]]
"""By kind of search: a function that returns the next query, and a thread to search within."""


def run(setting: Setting) -> Iterator[Figure]:
    """Milliseconds of a search for the newest 20 hits in everything that was written."""
    messages = setting.data_size(1_000_000)
    path = setting.fresh("messages")
    events = 0

    def build() -> None:
        nonlocal events
        events = many_messages(path, messages)

    built = wall(build)
    tables = path.with_name(path.name + ".projections")
    with closing(store_at(store_url(path)).open_log()) as log, closing(SQLiteProjections(str(tables))) as store:
        projector = Projector(log, store, PROJECTIONS, code_digest.code)
        indexed = cpu(projector.drain)
    kinds = _kinds(random.Random(2), vocabulary(), messages // 100)
    took: dict[str, list[float]] = {name: [] for name in kinds}
    with Conversations.open(store_url(path), projections=PROJECTIONS) as conversations:

        def search(text: str, thread: str | None) -> float:
            return wall(lambda: conversations.search(text, thread=thread, limit=HITS)) * 1e3

        first = search(*kinds["a rare word"]())
        for _ in range(setting.size(40, 20)):
            for name, next_query in kinds.items():
                took[name].append(search(*next_query()))
    mixed = [each for times in took.values() for each in times]
    yield Figure(
        f"a search of {messages:,} messages, a mix of the kinds below, median",
        statistics.median(mixed),
        "ms",
        budget=at_most(50),
        note=f"p95 {percentile(mixed, 95):.2f} ms, longest {max(mixed):.1f} ms, first of a process {first:.1f} ms\n"
        f"created in {built:.0f} s; indexed at {events / indexed:,.0f} events/s of CPU",
    )
    for name, times in took.items():
        yield Figure(name, statistics.median(times), "ms", note=f"p95 {percentile(times, 95):.2f} ms")
    yield Figure("bytes of the index and the directory per message", size_on_disk(tables) / messages, "B")


def _kinds(chance: random.Random, words: list[str], threads: int) -> Kinds:
    """Kinds of search. Word number n of the vocabulary has the frequency 1/n."""
    phrases = [match[0] for text in corpus_texts() if (match := re.search("[a-z]{4,} [a-z]{4,}", text))]

    def one(first: int, last: int) -> str:
        return words[chance.randrange(first, last)]

    def common() -> str:
        return one(0, 20)

    def uncommon() -> str:
        return one(200, 2_000)

    def rare() -> str:
        return one(WORDS // 2, WORDS)

    def thread() -> str:
        return thread_id_of(chance.randrange(threads))

    return {
        "a rare word": lambda: (rare(), None),
        "a common word": lambda: (common(), None),
        "two common words": lambda: (f"{common()} {common()}", None),
        "two uncommon words, rarely together": lambda: (f"{uncommon()} {uncommon()}", None),
        "a phrase of two common words": lambda: (f'"{common()} {common()}"', None),
        "a phrase of the corpus'": lambda: (f'"{chance.choice(phrases)}"', None),
        "a common word without another": lambda: (f"{common()} -{common()}", None),
        "an unknown word": lambda: (f"{rare()}x", None),
        "a common and an unknown word": lambda: (f"{common()} {rare()}x", None),
        "a prefix of many words": lambda: (f"{common()[:5]}*", None),
        "a prefix of a few words": lambda: (f"{rare()[:7]}*", None),
        "a common word within a thread": lambda: (common(), thread()),
        "a rare word within a thread": lambda: (rare(), thread()),
    }
