"""Reading the audit trail."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.service.settable_clock import SettableClock

from clew import Conversations, Message, Provenance
from clew.domain.errors import InvalidTimeError, ProjectionBehindError
from clew.domain.projection import Change, Column, Recorded, Rows, Table, Upsert
from clew.projections import Audit


@pytest.fixture
def audited(conversations: Conversations, clock: SettableClock) -> Conversations:
    first = conversations.start_thread("Refund", thread_id="first", actor="user:1")
    clock.move(10)
    first.append([Message.user("secret one"), Message.user("secret two")], actor="user:2")
    clock.move(10)
    first.fork(thread_id="fork", actor="user:1").end(reason="paid", actor="user:2")
    first.redact(2, reason="a card", actor="user:3")
    return conversations


def test_entries_name_actor_action_time_and_reason(audited: Conversations) -> None:
    entries = list(audited.audit())
    assert [(each.actor, each.what, each.why, each.thread_id, each.version) for each in entries] == [
        ("user:1", "started the thread 'Refund'", None, "first", 1),
        ("user:2", "appended a user message (redacted since)", None, "first", 2),
        ("user:2", "appended a user message (10 characters)", None, "first", 3),
        ("user:1", "forked 'first' at version 3", None, "fork", 4),
        ("user:2", "ended the thread", "paid", "fork", 5),
        ("user:3", "redacted version 2", "a card", "first", 4),
    ]
    events = [*audited.thread("first").events(), *audited.thread("fork").events(after=3)]
    by_position = {event.position: event for event in events}
    for entry in entries:
        event = by_position[entry.position]
        assert (entry.time, entry.type, entry.event_id) == (event.time, event.type, event.event_id)
        assert (entry.run_id, entry.cause, entry.subject) == (event.run_id, event.cause, event.subject)
        assert event.hash is not None
        assert entry.hash == event.hash.hex()
    assert "secret" not in str(entries)


def test_filters_by_thread_actor_type_and_time(audited: Conversations, clock: SettableClock) -> None:
    del clock
    everything = list(audited.audit())
    assert list(audited.audit(thread="fork")) == everything[3:5]
    assert list(audited.audit(actor="user:1")) == [everything[0], everything[3]]
    assert list(audited.audit(type="message-appended")) == everything[1:3]
    assert list(audited.audit(actor="user:2", thread="fork", type="thread-ended")) == [everything[4]]
    middle, last = everything[1].time, everything[-1].time
    assert list(audited.audit(since=middle)) == everything[1:]
    assert list(audited.audit(until=middle)) == everything[:1]
    assert list(audited.audit(since=middle, until=last)) == everything[1:3]
    assert list(audited.audit(since=datetime(2200, 1, 1, tzinfo=UTC))) == []
    assert list(audited.audit(thread="missing")) == []


@pytest.mark.parametrize("page", [1, 2, 100])
def test_is_read_in_pages_in_both_directions(
    audited: Conversations, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = list(audited.audit())
    monkeypatch.setattr("clew.service.effects.PAGE", page)
    assert list(audited.audit()) == everything
    assert list(audited.audit(newest_first=True)) == everything[::-1]
    assert list(audited.audit(limit=3)) == everything[:3]
    assert list(audited.audit(limit=2, after=everything[2].position)) == everything[3:5]
    assert list(audited.audit(newest_first=True, after=everything[2].position)) == everything[1::-1]


def test_entries_of_a_memory_scope_hide_the_text_of_facts(audited: Conversations) -> None:
    before = list(audited.audit())
    scope = audited.memory("first")  # a thread has the same name
    fact = scope.remember("secret", key="units", source=Provenance(thread="first", version=2), actor="user:2")
    other = scope.supersede(fact, "secret again", actor="user:1")
    scope.retract(other, reason="a wish", actor="user:3")
    entries = list(audited.audit(scope="first"))
    assert [(each.actor, each.what, each.why, each.scope, each.thread_id, each.version) for each in entries] == [
        ("user:2", "opened the scope for facts", None, "first", None, 1),
        (
            "user:2",
            f"remembered fact '{fact.id}' (6 characters, key 'units', learned in 'first' at version 2)",
            None,
            "first",
            None,
            2,
        ),
        ("user:1", f"replaced fact '{fact.id}' by '{other.id}' (12 characters, key 'units')", None, "first", None, 3),
        ("user:3", f"retracted fact '{other.id}'", "a wish", "first", None, 4),
    ]
    assert list(audited.audit()) == [*before, *entries]
    assert list(audited.audit(thread="first")) == [each for each in before if each.thread_id == "first"]
    assert list(audited.audit(actor="user:3")) == [before[-1], entries[-1]]
    assert list(audited.audit(scope="fork")) == list(audited.audit(scope="first", thread="fork")) == []
    assert "secret" not in str(entries)


def test_every_filter_finds_what_a_scan_of_all_entries_finds(
    conversations: Conversations, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.effects.PAGE", 7)
    chance = random.Random(5)
    threads = [conversations.start_thread(thread_id=f"t{number}", actor="user:0") for number in range(5)]
    for _ in range(220):
        clock.move(chance.choice([0, 0.25, 20, -15, 70]))
        thread, actor = chance.choice([*threads, *threads[:1] * 9]), chance.choice(["user:1", "user:2", "user:2", None])
        if chance.random() < 0.1:
            thread.label(actor=actor, n=chance.random())
        else:
            thread.append([Message.user("a")] * chance.choice([1, 1, 9]), actor=actor)
    everything = list(conversations.audit())
    assert [each.position for each in everything] == sorted(
        event.position or 0 for thread in threads for event in thread.events()
    )
    times = sorted(each.time for each in everything)
    for _ in range(60):
        since, until = sorted(chance.sample(times, 2))
        after = chance.choice([None, chance.choice(everything).position])
        exact = {"thread": "t0", "actor": "user:1", "type": "thread-labelled"}
        query: dict[str, Any] = {name: value for name, value in exact.items() if chance.random() < 0.4}
        query |= {name: value for name, value in (("since", since), ("until", until)) if chance.random() < 0.4}
        newest_first, limit = chance.random() < 0.5, chance.choice([None, 1, 30])
        expected = [
            entry
            for entry in (everything[::-1] if newest_first else everything)
            if entry.thread_id == query.get("thread", entry.thread_id)
            and entry.actor == query.get("actor", entry.actor)
            and entry.type == query.get("type", entry.type)
            and query.get("since", entry.time) <= entry.time
            and entry.time < query.get("until", datetime.max.replace(tzinfo=UTC))
            and (after is None or (entry.position < after if newest_first else entry.position > after))
        ]
        found = conversations.audit(**query, after=after, newest_first=newest_first, limit=limit)
        assert list(found) == expected[:limit]


def test_refuses_a_time_without_an_offset(audited: Conversations) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001  # the test refuses it
    with pytest.raises(InvalidTimeError, match="since="):
        audited.audit(since=naive)
    with pytest.raises(InvalidTimeError, match="until="):
        audited.audit(until=naive)


def test_refuses_a_text_as_a_time(audited: Conversations) -> None:
    with pytest.raises(InvalidTimeError, match="since: str is not a time"):
        audited.audit(since="2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(InvalidTimeError, match="until: str is not a time"):
        audited.audit(until="2026-01-01")  # type: ignore[arg-type]


def test_describes_unreadable_and_unknown_events(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, now=SettableClock()) as conversations:
        thread = conversations.start_thread(messages=[Message.user("one"), Message.user("two")], actor="user:1")
        assert len(list(conversations.audit())) == 3
    with sqlite3.connect(tmp_path / "clew.db") as database:
        database.execute("UPDATE event SET state = x'00ff' WHERE version = 2")
        database.execute("UPDATE event SET type = 'os:system' WHERE version = 3")
    database.close()
    with Conversations.open(url) as conversations:
        audited = list(conversations.audit())
        assert audited == list(conversations.audit(actor="user:1", since=audited[1].time))
    assert [each.actor for each in audited] == ["user:1", None, "user:1"]
    assert audited[1].time == audited[0].time
    assert [(entry.thread_id, entry.what) for entry in audited] == [
        (thread.id, "started the thread"),
        (thread.id, "recorded 'message-appended', which cannot be read: verify says what is wrong with it"),
        (thread.id, "recorded 'os:system', which this Clew does not know"),
    ]


class AuditVersion2(Audit):
    """The audit trail when it had a row for each event."""

    version, code_digest = 2, "789a87746c675c6d"
    tables = (
        Table(
            "entry",
            (Column("position", "integer"), Column("tenant"), Column("thread_id"), Column("recorded_at", "integer")),
            key=("position",),
            indexes=(("tenant", "thread_id", "position"), ("tenant", "position", "recorded_at")),
        ),
    )

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        del rows
        names = [column.name for column in self.tables[0].columns]
        yield Upsert("entry", {name: getattr(event, name) for name in names})


def test_the_rows_of_an_older_version_are_replaced_before_they_are_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, projections=[AuditVersion2()]) as before:
        thread = before.start_thread(messages=[Message.user("one")])
        before.wait()
    with (
        Conversations.open(url, embedded=False) as reader,
        pytest.raises(ProjectionBehindError, match="clew rebuild audit"),
    ):
        list(reader.audit())
    with Conversations.open(url) as after:
        assert [(entry.thread_id, entry.version) for entry in after.audit()] == [(thread.id, 1), (thread.id, 2)]
