"""Listing threads: a page of 100 of 100,000 summaries, from both ends, from the middle, and by label."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.measurement import Setting, interleaved, percentile, store_url, wall
from benchmarks.report import Figure, at_most
from benchmarks.synthetic_data import VALUES, many_threads, thread_id_of
from clew import Conversations
from clew.projections import Directory

PAGE = 100


def run(setting: Setting) -> Iterator[Figure]:
    """Milliseconds of a page that includes everything written before."""
    threads = setting.size(100_000, 10_000)
    path = setting.fresh("threads")
    built = wall(lambda: many_threads(path, threads))
    with Conversations.open(store_url(path), projections=(Directory(),)) as conversations:
        page = partial(conversations.threads, newest_first=True, limit=PAGE)
        filled = wall(lambda: list(page()))
        middle = thread_id_of(threads // 2)
        team, channel = {"team": f"team {VALUES // 2}"}, {"channel": "web"}
        pages: dict[str, Callable[[], Iterator[object]]] = {
            "newest first": page,
            "oldest first": partial(page, newest_first=False),
            "newest first, from the middle": partial(page, after=middle),
            "last changed first, from the middle": partial(page, order="updated", after=middle),
            f"newest first, with a label of {threads // VALUES:,} threads": partial(page, labels=team),
            f"newest first, with a label of {threads:,} threads": partial(page, labels=channel),
            f"last changed first, with a label of {threads // VALUES:,} threads": partial(
                page, order="updated", labels=team
            ),
            f"last changed first, with a label of {threads:,} threads": partial(page, order="updated", labels=channel),
        }
        measured = interleaved(setting.size(51, 11), {name: _timed(page) for name, page in pages.items()})
    for number, (name, took) in enumerate(measured.items()):
        p95 = f"p95 {percentile(took, 95):.2f} ms"
        yield Figure(
            f"{PAGE} of {threads:,} threads, {name}",
            statistics.median(took),
            "ms",
            budget=at_most(20),
            note=f"{p95}; log created in {built:.0f} s, directory in {filled:.0f} s" if number == 0 else p95,
        )


def _timed(page: Callable[[], Iterator[object]]) -> Callable[[], float]:
    def once() -> float:
        threads: list[object] = []
        took = wall(lambda: threads.extend(page()))
        if len(threads) != PAGE:
            message = f"A page of {PAGE} has {len(threads)} threads."
            raise RuntimeError(message)
        return took * 1e3

    return once
