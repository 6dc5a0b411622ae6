"""Rebuilding a projection next to the live tables: readers never see a part of it, even if a process is killed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing

import pytest
from tests.infrastructure.recorder_steps import in_forked_child
from tests.service.counting_projections import Counting, NewerCounting, assert_every_event_counts_once, opened
from tests.service.projection_contents import batches_of, rebuild

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.infrastructure.stores import store_at
from clew.projections import Query


def test_a_reader_sees_the_complete_old_or_new_tables(shared_url: str, scale: float) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("every word")] * 99)
    with closing(opened(shared_url, Counting())) as core:
        core.models.projector.drain()
    done = threading.Event()
    seen: list[tuple[int, ...]] = []

    def read() -> None:
        with closing(store_at(shared_url).open_projections()) as store:
            while not done.is_set():
                made = [row["made"] for row in store.select("counting", Query("event"))]
                assert len(made) == 100
                seen.append(tuple(set(made)))

    failed: list[threading.ExceptHookArgs] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", failed.append)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            with batches_of(7):
                for turn in range(max(4, round(60 * scale))):
                    # The newer version does not change the tables of the older one, and the older one does not return.
                    with closing(opened(shared_url, NewerCounting() if turn else Counting())) as core:
                        rebuild(core.models.projector, "counting")
        finally:
            done.set()
            reader.join()
    assert not failed
    assert set(seen) <= {(1,), (2,)}
    assert seen == sorted(seen), "the old tables came back"


@pytest.mark.parametrize("again", [True, False])
def test_a_killed_rebuild_is_continued_or_dropped(shared_url: str, *, again: bool) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("every word")] * 29)
    with closing(opened(shared_url, Counting())) as core:
        core.models.projector.drain()

    def start_and_die() -> None:
        core = opened(shared_url, NewerCounting())
        with batches_of(7):
            for batches, _ in enumerate(core.models.projector.rebuild("counting")):
                if batches == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

    assert in_forked_child(start_and_die) == -signal.SIGKILL
    with closing(opened(shared_url, NewerCounting())) as core:
        store = core.models.projector.store
        live, building = store.generations()
        assert (live.live, building.live, 0 < building.position < live.position) == (True, False, True)
        assert {row["made"] for row in store.select("counting", Query("event"))} == {1}
        if again:
            rebuild(core.models.projector, "counting")
        else:
            core.models.projector.drain()
        (built,) = store.generations()
        assert (built.id == building.id) is not again
        assert {row["made"] for row in store.select("counting", Query("event"))} == {2}
        assert_every_event_counts_once(core)
