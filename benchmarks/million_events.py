"""A million events in PostgreSQL: read times, the speed of its read models, and its size."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

from tests.servers.postgres_server import PostgresServer, ask

from benchmarks.measurement import Setting, interleaved, percentile, wall
from benchmarks.report import Figure, at_least, at_most
from benchmarks.synthetic_data import corpus_texts, repeated_in
from clew import Conversations
from clew.domain.projection import Projection
from clew.infrastructure.stores import store_at
from clew.projections import Directory, Search, Usage

VERSION = 18
PAGE = 100
HITS = 20
LIMIT = 20
"""Budget of a page, a history or a search: median in milliseconds."""

PARTITIONS = 16
PROJECTIONS: tuple[Projection, ...] = (Directory(), Usage(), Search())

SIZES = (
    "SELECT sum(pg_table_size(oid))::int8, sum(pg_indexes_size(oid))::int8 FROM pg_class "
    "WHERE relkind = 'r' AND relname LIKE 'clew\\_%'"
)


def run(setting: Setting) -> Iterator[Figure]:
    """The figures of a normal store, then the reads of a partitioned one."""
    events = setting.data_size(1_000_000)
    with PostgresServer(VERSION) as server:
        with server.database() as url:
            yield from _store(setting, url, events)
        with server.database() as url:
            store_at(url).migrate(partitions=PARTITIONS)
            filled = wall(lambda: repeated_in(url, events))
            ask(url, "VACUUM ANALYZE")
            note = f"the log was created in {filled:.0f} s"
            with Conversations.open(url, embedded=False) as conversations:
                yield from _log(setting, conversations, _some_ids(url), f"in {PARTITIONS} partitions: ", note)


def _store(setting: Setting, url: str, events: int) -> Iterator[Figure]:
    filled = wall(lambda: repeated_in(url, events))
    ask(url, "VACUUM ANALYZE")
    log = _sizes(url)
    with Conversations.open(url, projections=PROJECTIONS) as conversations:
        caught_up = wall(conversations.wait)
        yield Figure(
            f"directory, usage and search catching up with {events:,} events",
            events / caught_up,
            "/s",
            budget=at_least(25_000),
            note=f"wall clock, in one process; the log was created in {filled:.0f} s",
        )
        ask(url, "VACUUM ANALYZE")
        ids = _some_ids(url)
        yield from _log(setting, conversations, ids)
        yield from _read_models(setting, conversations, ids)
        seen: list[int] = []
        took = wall(lambda: conversations.rebuild("usage", progress=lambda done, _: seen.append(done)))
        yield Figure(
            f"rebuilding usage over {events:,} events",
            events / took,
            "/s",
            note=f"wall clock; {len(seen):,} progress reports",
        )
    rows, indexes = log
    both = sum(_sizes(url))
    yield Figure("bytes of the log per event, with indexes", (rows + indexes) / events, "B")
    yield Figure("of which in indexes", indexes / events, "B")
    yield Figure("bytes of the log and three read models per event", both / events, "B")


def _sizes(url: str) -> tuple[int, int]:
    """The bytes of the tables and of their indexes."""
    [(rows, indexes)] = ask(url, SIZES)
    return rows, indexes


def _log(
    setting: Setting, conversations: Conversations, ids: list[str], where: str = "", note: str = ""
) -> Iterator[Figure]:
    """Reads that need no read model."""
    chance = random.Random(1)
    took = interleaved(
        setting.size(101, 21),
        {
            "the history of one thread": _timed(lambda: conversations.thread(chance.choice(ids)).history()),
            "the events of one thread": _timed(lambda: list(conversations.thread(chance.choice(ids)).events())),
        },
    )
    yield from _figures(took, where, note)


def _some_ids(url: str) -> list[str]:
    """Thread ids from random places of the log."""
    chance = random.Random(3)
    with closing(store_at(url).open_log()) as log:
        last = log.last_position()
        pages = [log.streams(prefix="default/thread/", after=chance.randrange(last), limit=20) for _ in range(100)]
    return [info.name.rpartition("/")[2] for page in pages for info in page]


def _read_models(setting: Setting, conversations: Conversations, ids: list[str]) -> Iterator[Figure]:
    chance = random.Random(2)
    frequencies = Counter(word for text in corpus_texts() for word in set(text.lower().split()) if word.isalpha())
    ranked = [word for word, _ in frequencies.most_common() if len(word) > 3]
    frequent, rare = ranked[:20], ranked[-500:]

    def search(words: Callable[[], str], *, within: bool = False) -> Callable[[], float]:
        def once() -> object:
            return conversations.search(words(), thread=chance.choice(ids) if within else None, limit=HITS)

        return _timed(once)

    def page(**options: object) -> Callable[[], object]:
        return lambda: list(conversations.threads(limit=PAGE, **options))  # type: ignore[arg-type] # forwards named options

    yield from _figures(
        interleaved(
            setting.size(51, 11),
            {
                f"a page of {PAGE} threads, newest first": _timed(page(newest_first=True)),
                f"a page of {PAGE} threads, last changed first": _timed(page(order="updated")),
                "a search for a rare word": search(lambda: chance.choice(rare)),
                "a search for a frequent word": search(lambda: chance.choice(frequent)),
                "a search for two frequent words": search(lambda: " ".join(chance.sample(frequent, 2))),
                "a search within a thread": search(lambda: chance.choice(frequent), within=True),
            },
        ),
    )


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds by the wall clock."""

    def once() -> float:
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) * 1e3

    return once


def _figures(took: dict[str, list[float]], where: str = "", note: str = "") -> Iterator[Figure]:
    for name, each in took.items():
        p95 = f"p95 {percentile(each, 95):.2f} ms"
        yield Figure(
            where + name,
            statistics.median(each),
            "ms",
            budget=at_most(LIMIT),
            note=f"{p95}; {note}" if note else p95,
        )
