"""How a batch is taken in: for how long, and what is noted of an event that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.service.projected import projector

from clew import Conversations, Message
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Upsert
from clew.infrastructure.sqlite.projections import SQLiteProjections
from clew.service import taking_in


class Events:
    """The position of each event; fails at labels."""

    name = "events"
    version = 1
    tables = (Table("event", (Column("position", "integer"),), ("position",)),)
    texts: tuple[str, ...] = ()
    types: frozenset[str] | None = None

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        if event.type == "thread-labelled":
            raise ValueError
        yield Upsert("event", {"position": event.position})


def test_a_batch_that_takes_long_ends_where_it_is(store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_in, "LONGEST_SECONDS", 0.0)
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("word")] * (2 * taking_in.AT_ONCE))
        filling = projector(conversations._core.log, store, [Events()])
        reached = [0]
        while filling.advance():
            reached += [built.position for built in store.built()]
    once = taking_in.AT_ONCE
    assert reached == [0, once, 2 * once, 2 * once + 1]
    assert [row["position"] for row in store.select("events", Query("event", order=("position",)))] == [
        *range(1, 2 * once + 2)
    ]


def test_a_parked_event_is_noted_with_the_name_of_its_stream(store: SQLiteProjections) -> None:
    with Conversations.open("memory:", tenant="a b/c", embedded=False) as conversations:
        conversations.start_thread(thread_id="t u").label(topic="refund")
        projector(conversations._core.log, store, [Events()]).settle()
    ((parked,),) = [store.parked("events", 9)[1]]
    assert parked.stream == "a%20b%2Fc/thread/t%20u"
