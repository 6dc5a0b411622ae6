"""Listing threads: pages of 100 of 100,000 summaries, the few threads of a user, 1,000 forks, and all of 10,000."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from benchmarks.measurement import Setting, interleaved, percentile, store_url, wall
from benchmarks.report import Figure, at_most
from benchmarks.synthetic_data import VALUES, many_threads, thread_id_of
from clew import Conversations
from clew.projections import Directory
from clew.types import ThreadFilter

PAGE = 100
MINE = 5


def run(setting: Setting) -> Iterator[Figure]:
    """Milliseconds of a page or list that includes everything written before."""
    threads, all_, forks = setting.size(100_000, 10_000), setting.size(10_000, 1_000), setting.size(1_000, 100)
    path = setting.fresh("threads")
    built = wall(lambda: many_threads(path, threads))
    projections = (Directory(),)
    with (
        Conversations.open(store_url(path), projections=projections) as conversations,
        Conversations.open(store_url(path), projections=projections, authorize=_own) as restricted,
    ):
        page = partial(conversations.threads, newest_first=True, limit=PAGE)
        filled = wall(lambda: list(page()))
        middle = thread_id_of(threads // 2)
        forked = conversations.thread(middle)
        for _ in range(forks):
            forked.fork()
        for number in range(MINE):
            conversations.thread(thread_id_of(number * threads // MINE)).label(owner="ada")
        ada = restricted.acting_as("ada")
        team, channel = {"team": f"team {VALUES // 2}"}, {"channel": "web"}
        pages: dict[str, Callable[[], Iterable[object]]] = {
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
            f"the {MINE} of a user, by a filter of authorize": partial(ada.threads, order="updated"),
            f"{forks:,} forks of one": forked.forks,
        }
        sizes = [*[PAGE] * 8, MINE, forks]
        measured = interleaved(
            setting.size(51, 11),
            {name: _timed(page, size) for (name, page), size in zip(pages.items(), sizes, strict=True)},
        )
    for number, (name, took) in enumerate(measured.items()):
        p95 = f"p95 {percentile(took, 95):.2f} ms"
        yield Figure(
            f"{sizes[number]:,} of {threads:,} threads: {name}",
            statistics.median(took),
            "ms",
            budget=at_most(5),
            note=f"{p95}; log created in {built:.0f} s, directory in {filled:.0f} s" if number == 0 else p95,
        )
    yield _whole(setting, all_)


def _own(actor: str | None, action: str, thread: str | None) -> ThreadFilter:
    del action, thread
    return ThreadFilter({"owner": actor})


def _whole(setting: Setting, threads: int) -> Figure:
    path = setting.fresh("all")
    many_threads(path, threads)
    with Conversations.open(store_url(path), projections=(Directory(),)) as conversations:
        list(conversations.threads(limit=1))
        whole = _timed(conversations.threads, threads)
        took = [whole() for _ in range(setting.size(21, 5))]
    p95 = f"p95 {percentile(took, 95):.2f} ms"
    return Figure(f"all of {threads:,} threads", statistics.median(took), "ms", budget=at_most(60), note=p95)


def _timed(page: Callable[[], Iterable[object]], size: int) -> Callable[[], float]:
    def once() -> float:
        threads: list[object] = []
        took = wall(lambda: threads.extend(page()))
        if len(threads) != size:
            message = f"A list of {size} has {len(threads)} threads."
            raise RuntimeError(message)
        return took * 1e3

    return once
