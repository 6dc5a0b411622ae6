"""Incremental projecting in any batches gives the same contents as a rebuild."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SCALE
from tests.service.projection_contents import OPERATIONS, History, batches_of, contents, projector, rebuild
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.infrastructure.sqlite.projection_store import SQLiteProjections

number = st.integers(0, 9_999)
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), number, number), min_size=5, max_size=60)
# When to catch up: after this number of steps, for this number of batches, by the second projector, batch size.
catching_up = st.lists(st.tuples(st.integers(0, 59), st.integers(1, 4), st.booleans(), st.integers(1, 9)), max_size=12)


@settings(max_examples=max(20, round(400 * SCALE)))
@given(steps=steps, catching_up=catching_up, final=st.integers(1, 50))
def test_rebuilding_equals_incremental_projecting(
    steps: list[tuple[str, int, int]], catching_up: list[tuple[int, int, bool, int]], final: int
) -> None:
    with Conversations.open("memory:", embedded=False, now=SettableClock()) as conversations:
        history = History(conversations)
        log = history.log
        store, other = SQLiteProjections(None), SQLiteProjections(None)
        projectors = projector(log, store), projector(log, store)
        for count, step in enumerate(steps):
            history.step(*step)
            for at, batches, second, size in catching_up:
                if at == count:
                    with batches_of(size):
                        for _ in range(batches):
                            projectors[second].advance()
        with batches_of(final):
            projectors[0].drain()
        projector(log, other).drain()
        assert contents(log, store) == contents(log, other)
        for name in projectors[1].projections:
            with batches_of(final):
                rebuild(projectors[1], name)
        assert contents(log, store) == contents(log, other)
        store.close()
        other.close()


@settings(max_examples=max(5, round(80 * SCALE)))
@given(steps=steps, turns=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40))
def test_alternating_processes_give_the_same_contents(
    steps: list[tuple[str, int, int]], turns: list[tuple[bool, int]]
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Conversations.open("memory:", embedded=False, now=SettableClock()) as conversations,
    ):
        history = History(conversations)
        log = history.log
        stores = [SQLiteProjections(str(Path(folder) / "clew.db.projections")) for _ in range(2)]
        projectors = [projector(log, store) for store in stores]
        for count, step in enumerate(steps):
            history.step(*step)
            if count < len(turns):
                second, size = turns[count]
                with batches_of(size):
                    projectors[second].advance()
        projectors[1].drain()
        clean = SQLiteProjections(None)
        projector(log, clean).drain()
        assert contents(log, stores[0]) == contents(log, clean)
        for store in (*stores, clean):
            store.close()
