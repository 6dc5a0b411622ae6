"""The lists of the audit trail: where events are, in blocks of bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.projections.test_versions import recorded_events

from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Audit, Query
from clew.projections.audit import BLOCK, Part, following, in_all

ROWS = 5
"""Rows that are read together."""

POSITIONS = st.integers(1, 400) | st.integers(1, 40_000)
LISTS = st.lists(
    st.tuples(st.sets(POSITIONS, max_size=300), st.sets(st.integers(0, 40_000), max_size=5)), min_size=1, max_size=3
)
"""Lists of events: single ones, and the beginnings of runs of two thousand."""


def part_from(positions: set[int], begin: int | None, *, newest_first: bool) -> Part:
    """What a store returns from a block on."""
    blocks: dict[int, int] = {}
    for position in sorted(positions, reverse=newest_first):
        block = position // BLOCK
        if begin is None or (block <= begin if newest_first else block >= begin):
            blocks[block] = blocks.get(block, 0) | 1 << position % BLOCK
    read = dict([*blocks.items()][:ROWS])
    return Part(read, more=len(read) == ROWS)


def read(lists: Sequence[set[int]], *, newest_first: bool) -> Iterator[int]:
    begin: int | None = None
    while True:
        parts = [part_from(each, begin, newest_first=newest_first) for each in lists]
        yield from in_all(parts, newest_first=newest_first)
        begin = following(parts, newest_first=newest_first)
        if begin is None:
            return


@given(lists=LISTS, newest_first=st.booleans())
def test_reads_exactly_what_is_in_all_lists_in_order(
    lists: list[tuple[set[int], set[int]]], *, newest_first: bool
) -> None:
    whole = [single.union(*(range(first, first + 2_000) for first in runs)) for single, runs in lists]
    assert list(read(whole, newest_first=newest_first)) == sorted(set.intersection(*whole), reverse=newest_first)


def test_what_is_read_next_skips_what_one_of_the_lists_lacks() -> None:
    frequent, rare = set(range(100_000)), {10, 99_990}
    for newest_first in (False, True):
        parts = [part_from(each, None, newest_first=newest_first) for each in (frequent, rare)]
        begin = following(parts, newest_first=newest_first)
        assert begin == (10 if newest_first else 99_990) // BLOCK


def test_a_block_of_events_has_one_row_in_each_list() -> None:
    store, projection = SQLiteProjections(None), Audit()
    event = recorded_events()[0]
    with store.session(0) as session:
        rows = session.rows(session.begin(projection, "code", live=True), projection)
        for position in range(BLOCK, 3 * BLOCK):
            rows.apply(position, event.tenant, projection.project(event._replace(position=position), rows))
    assert [(row["by"], row["events"]) for row in store.select("audit", Query("entry", order=["by", "block"]))] == [
        (by, 2**63 - 1) for by in ("actor", "all", "thread", "type") for _ in range(2)
    ]
    store.close()
