"""A stored time that no calendar has is shown as the nearest one that it has; every reader and command works."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.service.transferred_stores import forged, poison, state, store_unchecked

from clew.conversations import Conversations
from clew.domain.messages import Message

TIMES = [300_000_000_000_000_000, -(10**17), 10**30, -(10**30), 2**63]
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("url", ["memory:", "sqlite:///clew.db"])
def test_every_reader_survives_a_forged_time(
    url: str, time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = LAST if time > 0 else FIRST
    with Conversations.open(url) as store:
        poison(store, time)
        assert [each.id for each in store.threads()] == ["mine", "f"]
        assert {each.id for each in store.threads(order="updated", newest_first=True)} == {"mine", "f"}
        assert [each.thread.id for each in store.tree()] == ["mine", "f"]
        assert [each.time for each in store.audit(thread="f")] == [shown, shown]
        assert len(list(store.audit())) == 4 + 6
        assert {each.thread_id for each in store.search("hello")} == {"mine", "f"}
        assert sum(each.events for each in store.usage(by="day")) == 4
        assert (store.usage()[0].threads, store.usage(by="thread")[0].events) == (2, 2)
        thread = store.thread("f")
        assert thread.summary().updated_at >= shown
        assert [each.time for each in thread.events()] == [shown, shown]
        assert [each.time for each in thread.history()] == [shown]
        assert "Hello" in thread.markdown()
        assert len(list(store.export(forks=True))) == 2
        assert len(list(store.export_events())) == 2 + 2 + 4 + 3 + 1
        scope = store.memory("user/2")
        assert [each.recorded_at for each in scope.facts(history=True)] == [shown, shown]
        assert scope.facts()[0].valid_from == shown
        assert all(each.status in {"live", "retracted"} for each in scope.facts(history=True))
        store.audit(since=datetime(2020, 1, 1, tzinfo=UTC))
        assert all(not each.parked for each in store.projections())


@pytest.mark.parametrize("time", TIMES)
def test_a_page_begins_after_a_thread_with_a_forged_time(time: int) -> None:
    with Conversations.open("memory:") as store:
        poison(store, time)
        store_unchecked(store, forged(("thread-started", state(t=time)), name="default/thread/g"))
        for newest_first in (False, True):
            assert len(list(store.threads(order="updated", newest_first=newest_first))) == 3
            (first,) = store.threads(order="updated", newest_first=newest_first, limit=1)
            (second,) = store.threads(order="updated", newest_first=newest_first, after=first, limit=1)
            (third,) = store.threads(order="updated", newest_first=newest_first, after=second, limit=1)
            assert {first.id, second.id, third.id} == {"mine", "f", "g"}


@pytest.mark.parametrize("time", TIMES)
def test_an_append_after_a_forged_time_has_a_time_that_can_be_shown(time: int) -> None:
    with Conversations.open("memory:") as store:
        poison(store, time)
        store.thread("f").append(Message.user("More"))
        store.memory("user/2").remember("Likes milk")
        newest = list(store.thread("f").events())[-1]
        assert newest.recorded_at == (253_402_300_799_999_999 if time > 0 else newest.recorded_at)
        assert store.memory("user/2").facts()[-1].recorded_at <= LAST
        fork = store.thread("f").fork()
        fork.append(Message.user("There"))
        assert len(list(store.threads())) == 3
