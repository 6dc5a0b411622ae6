"""Listing threads and trees from the directory."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.service.settable_clock import SettableClock

from clew import Conversations, Engine, Message, Record
from clew.domain.decider import Start
from clew.domain.decider_state import Control
from clew.domain.errors import InvalidContentError, InvalidTimeError, ProjectionBehindError, UnknownThreadError
from clew.domain.events import APPENDED_TYPES, to_time
from clew.domain.formats.conversation_import import Item
from clew.domain.json_values import Json
from clew.domain.projection import Change, Query, Recorded, Rows, Upsert
from clew.projections import Directory
from clew.service.core import CommitOptions, commit
from clew.service.effects import run
from clew.service.thread_queries import ThreadSummary
from clew.sync.threads import LocalThread

KINDS: list[Json] = [0, 1, "x"]


def ids(summaries: Any) -> list[str]:
    return [each.id for each in summaries]


@pytest.fixture
def many(conversations: Conversations, clock: SettableClock) -> Conversations:
    """Forty threads: forks, changed labels, every status, and many with equal times."""
    chance = random.Random(5)
    made: list[LocalThread] = []
    for number in range(40):
        if number % 5 == 4:
            parent = chance.choice(made)
            made.append(parent.fork(thread_id=f"t{number:02}", at=chance.randint(1, parent.version)))
        else:
            made.append(
                conversations.start_thread(f"T{number}", thread_id=f"t{number:02}", labels={"kind": number % 2})
            )
        for _ in range(chance.randint(0, 3)):
            clock.move(chance.choice([0, 0, 1, 7]))
            thread = chance.choice(made)
            kind = chance.choice(["append", "label", "unlabel", "mark"])
            if kind == "append":
                thread.append(Message.user("Hello"))
            elif kind == "mark":
                thread.checkpoint(f"c{number}{thread.version}", at=chance.randint(1, thread.version))
            else:
                thread.label(kind=None if kind == "unlabel" else chance.choice(KINDS), more=[number % 3])
    for thread, change in zip(chance.sample(made, 9), ["suspend", "end", "delete"] * 3, strict=True):
        getattr(thread, change)()
    return conversations


def expected(summaries: list[ThreadSummary], query: dict[str, Any]) -> list[ThreadSummary]:
    """Return the expected result of a query by a scan of all threads."""
    listed = [
        each
        for each in summaries
        if query.get("status") in {None, each.status}
        and query.get("parent") in {None, each.parent_id}
        and all(each.labels.get(name) == value for name, value in (query.get("labels") or {}).items())
    ]
    if query.get("order") == "updated":
        listed.sort(key=lambda each: each.updated_at)
    return listed[::-1] if query.get("newest_first") else listed


FILTERS = [
    {"status": status, "labels": labels, "parent": parent}
    for status in (None, "active", "deleted")
    for labels in (None, {"kind": 1}, {"kind": "x", "more": [1]}, {"none": 1})
    for parent in (None, "t00", "t03")
]


@pytest.mark.parametrize("few", [0, 3, 1_000])
def test_lists_matching_threads_in_order_in_pages(
    many: Conversations, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.thread_directory.FEW", few)
    everything = [many.thread(f"t{number:02}").summary() for number in range(40)]
    assert list(many.threads()) == everything
    for filters, order, newest_first in itertools.product(FILTERS, ("begun", "updated"), (False, True)):
        query: dict[str, Any] = {**filters, "order": order, "newest_first": newest_first}
        wanted = expected(everything, query)
        with monkeypatch.context() as patch:
            patch.setattr("clew.service.effects.PAGE", 3)
            assert list(many.threads(**query)) == wanted, query
        assert list(many.threads(**query, limit=4)) == wanted[:4]
        if len(wanted) > 2:
            assert list(many.threads(**query, limit=3, after=wanted[1])) == wanted[2:5]
            assert list(many.threads(**query, after=wanted[1].id)) == wanted[2:]


def test_a_page_continues_although_the_last_thread_has_changed(
    conversations: Conversations, clock: SettableClock
) -> None:
    for each in ("a", "b", "c"):
        clock.move(1)
        conversations.start_thread(thread_id=each)
    (last,) = conversations.threads(order="updated", newest_first=True, limit=1)
    clock.move(1)
    conversations.thread("c").label(x=1)
    assert ids(conversations.threads(order="updated", newest_first=True, after=last)) == ["b", "a"]


def test_refuses_invalid_filters(conversations: Conversations) -> None:
    with pytest.raises(InvalidContentError, match="Use one of: active"):
        conversations.threads(status="unknown")  # type: ignore[arg-type]
    with pytest.raises(InvalidContentError, match="Use one of: begun"):
        conversations.threads(order="size")  # type: ignore[arg-type]
    with pytest.raises(InvalidContentError, match="'topic' is None"):
        conversations.threads(labels={"topic": None})
    with pytest.raises(InvalidContentError, match="object is not JSON"):
        conversations.threads(labels={"topic": object()})  # type: ignore[dict-item]
    with pytest.raises(UnknownThreadError):
        list(conversations.threads(after="missing"))
    assert list(conversations.threads(limit=0)) == []


def test_lists_threads_with_unknown_event_types(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, embedded=False) as conversations:
        conversations.start_thread("First", thread_id="first", labels={"a": 1}, metadata={"m": 1})
        known = conversations.start_thread("Known", thread_id="known", labels={"removed": None, "a": [1.5]})
        known.fork(thread_id="fork", at=1)
        known.append(Message.user("Hello"))
        known.label(b=2)
        known.checkpoint("c")
    with sqlite3.connect(tmp_path / "clew.db") as database:
        database.execute("UPDATE event SET type = 'newer-start' WHERE position = 1")
        database.execute("UPDATE event SET type = 'newer-label' WHERE type = 'thread-labelled'")
        database.execute("UPDATE event SET type = 'newer-message' WHERE type = 'message-appended'")
        database.execute("DELETE FROM snapshot")
    database.close()
    with Conversations.open(url) as conversations:
        listed = list(conversations.threads())
        assert ids(listed) == ["first", "known", "fork"]
        assert listed == [conversations.thread(each).summary() for each in ids(listed)]
        assert listed[1].labels == listed[2].labels == {"a": [1.5]}
        assert [branch.thread for branch in conversations.tree("fork")] == listed[1:]


def test_an_imported_thread_is_listed_with_its_summary(conversations: Conversations) -> None:
    source = {
        "id": 10**40,
        "title": "T",
        "metadata": {"m": [1.5, None]},
        "messages": [{"role": "user", "content": "x"}],
    }
    report = conversations.import_items([Item("here", 1, source)])
    assert report.failed == []
    (listed,) = conversations.threads()
    assert listed == conversations.thread(listed.id).summary()
    assert listed.metadata == {"m": [1.5, None], "source_id": 10**40}
    assert listed.imported


def test_returns_the_tree_of_a_thread(conversations: Conversations) -> None:
    root = conversations.start_thread(thread_id="root", messages=[Message.user(str(each)) for each in range(5)])
    conversations.start_thread(thread_id="other")
    root.checkpoint("four", at=4)
    late = root.fork(thread_id="late")
    early = root.fork(thread_id="early", at=2)
    late.checkpoint("also four", at=4)
    late.fork(thread_id="deep").delete()
    root.checkpoint("early", at=2)
    for thread_id in ("root", "deep", "early"):
        tree = [(each.thread.id, each.depth, each.forks, each.checkpoints) for each in conversations.tree(thread_id)]
        assert tree == [
            ("root", 0, 2, (("early", 2), ("four", 4))),
            ("early", 1, 0, ()),
            ("late", 1, 1, (("also four", 4),)),
            ("deep", 2, 0, ()),
        ]
    assert [each.thread for each in conversations.tree("late")][1] == early.summary()
    assert [each.thread.id for each in conversations.tree()] == ["root", "early", "late", "deep", "other"]
    with pytest.raises(UnknownThreadError):
        list(conversations.tree("missing"))


@pytest.mark.parametrize("rows", [1, 2, 3, 500])
def test_returns_all_trees_for_any_page_size(many: Conversations, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.service.thread_directory.ROWS", rows)
    roots = [each.id for each in many.threads() if each.parent_id is None]
    trees = [list(many.tree(root)) for root in roots]
    assert list(many.tree()) == [branch for tree in trees for branch in tree]
    assert list(many.tree(newest_first=True)) == [branch for tree in reversed(trees) for branch in tree]


async def check_engine(url: str) -> None:
    async with Engine.open(url) as engine:
        thread = await engine.start_thread("Refund", thread_id="a", messages=[Message.user("A teapot")])
        await thread.fork(thread_id="b")
        assert [each.id async for each in engine.threads(newest_first=True)] == ["b", "a"]
        assert [each.depth async for each in engine.tree("b")] == [0, 1]
        assert [hit.forks for hit in await engine.search("teapot")] == [("b",)]
        assert [entry.type async for entry in engine.audit(newest_first=True, limit=1)] == ["thread-forked"]
        assert [each.events for each in await engine.usage()] == [3]


def test_the_engine_lists_and_searches_the_same(url: str) -> None:
    asyncio.run(check_engine(url))


def times_said(thread: LocalThread) -> list[datetime]:
    """When each of the thread's own messages and records was said, from its events."""
    own = [each for each in thread.events() if each.stream.endswith(f"/{thread.id}") and each.type in APPENDED_TYPES]
    return [min(each.said_at or each.time, each.time) for each in own]


@pytest.mark.parametrize("few", [0, 1_000])
def test_lists_threads_by_when_they_were_said(
    conversations: Conversations, clock: SettableClock, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.thread_directory.FEW", few)
    chance = random.Random(3)
    threads = [
        conversations.start_thread(thread_id=f"t{number}", labels={"even": not number % 2}) for number in range(9)
    ]
    threads += [threads[3].fork(thread_id="fork"), threads[4].fork(thread_id="edge")]
    began = {each.id: to_time(clock()) for each in threads}
    for _ in range(60):
        clock.move(chance.choice([0, 3_600]))
        said = to_time(clock() + chance.randint(-200, 30) * 3_600_000_000) if chance.randint(0, 2) else None
        message: Message | Record = Record("state") if chance.randint(0, 3) == 0 else Message.user("tea")
        chance.choice([*threads[1:-1]]).append([message, message], said_at=said)  # the first and the last stay empty
    threads[2].redact(2)
    said_in = {each.id: times_said(each) for each in threads}
    for listed in conversations.threads():
        times_of = said_in[listed.id]
        shown = (min(times_of), max(times_of)) if times_of and min(times_of) < began[listed.id] else (None, None)
        assert (listed.first_said_at, listed.last_said_at) == shown, listed.id
    assert list(threads[3].forks()) == [each for each in conversations.threads() if each.id == "fork"]
    times = [None, *(to_time(clock() + hours * 3_600_000_000) for hours in (-300, -150, -100, -50, -10, 0, 20))]
    for since, until, wanted_labels in itertools.product(times, times, (None, {"even": True})):
        wanted = [
            each.id
            for each in threads
            if (wanted_labels is None or each.summary().labels == wanted_labels)
            and (
                since is until is None
                or (
                    bool(said_in[each.id])
                    and (since is None or max(said_in[each.id]) >= since)
                    and (until is None or min(began[each.id], *said_in[each.id]) < until)
                )
            )
        ]
        found = conversations.threads(said_since=since, said_until=until, labels=wanted_labels)
        assert sorted(ids(found)) == sorted(wanted), (since, until, wanted_labels)
    newest = ids(conversations.threads(said_since=times[1], order="updated", newest_first=True))
    first = list(conversations.threads(said_since=times[1], order="updated", newest_first=True, limit=2))
    rest = conversations.threads(said_since=times[1], order="updated", newest_first=True, after=first[-1])
    assert ids(first) + ids(rest) == newest
    with pytest.raises(InvalidTimeError, match="said_until"):
        conversations.threads(said_until=datetime(2024, 1, 1))  # noqa: DTZ001 - without an offset on purpose


class DirectoryVersion3(Directory):
    """The directory before it knew when threads were said."""

    version, code_digest = 3, "directory-3"
    tables = (
        Directory.tables[0]._replace(
            columns=tuple(each for each in Directory.tables[0].columns if not each.name.endswith("_said"))
        ),
        *Directory.tables[1:],
    )

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        for change in super().project(event, rows):
            if isinstance(change, Upsert) and change.table == "thread":
                yield change._replace(values={k: v for k, v in change.values.items() if not k.endswith("_said")})
            else:
                yield change


def test_tables_of_before_list_threads_but_not_by_when_they_were_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    with Conversations.open(url, projections=[DirectoryVersion3()]) as before:
        before.start_thread(thread_id="t").append(Message.user("tea"), said_at=long_ago)
        assert ids(before.threads()) == ["t"]
        with pytest.raises(ProjectionBehindError, match="rebuild directory"):
            list(before.threads(said_since=long_ago))
    with Conversations.open(url, embedded=False) as reader:
        (listed,) = reader.threads()
        assert listed.first_said_at is None
        with pytest.raises(ProjectionBehindError, match="rebuild directory"):
            list(reader.threads(said_since=long_ago))
    with Conversations.open(url) as after:
        after.rebuild("directory")
        (listed,) = after.threads(said_since=long_ago)
        assert (listed.first_said_at, listed.last_said_at) == (long_ago, long_ago)


def test_lists_the_kind_of_each_thread(conversations: Conversations) -> None:
    core = conversations._core
    run(commit(core, "remote", Start(kind="remote"), CommitOptions(base=Control())))
    conversations.start_thread(thread_id="local")
    conversations.thread("remote").fork(thread_id="fork")
    listed = {each.id: each.kind for each in conversations.threads()}
    assert listed == {"remote": "remote", "local": "local", "fork": "remote"}
    assert listed == {id_: conversations.thread(id_).summary().kind for id_ in listed}


def test_labels_match_with_any_order_of_json_fields(url: str) -> None:
    with Conversations.open(url) as conversations:
        conversations.start_thread(thread_id="t", labels={"o": {"a": 1, "b": [2]}})
        assert [each.id for each in conversations.threads(labels={"o": {"b": [2], "a": 1}})] == ["t"]
        assert list(conversations.threads(labels={"o": {"b": [2], "a": 2}})) == []


def test_checkpoints_are_read_only_for_threads_that_have_some(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = conversations.start_thread(thread_id="plain")
    marked = conversations.start_thread(thread_id="marked")
    list(conversations.threads())
    store = conversations._core.models._store
    read: list[Query] = []

    def recording(select: Callable[[str, Query], Any]) -> Callable[[str, Query], Any]:
        def recorded(name: str, query: Query) -> Any:
            read.append(query)
            return select(name, query)

        return recorded

    for name in ("select", "values"):
        monkeypatch.setattr(store, name, recording(getattr(store, name)))
    list(conversations.threads())
    plain.forks()
    assert {query.table for query in read} == {"thread"}
    marked.checkpoint("here")
    marked.fork(thread_id="fork")
    marked.fork(thread_id="early", at=1)
    read.clear()
    listed = {each.id: each.checkpoints for each in conversations.threads()}
    assert listed == {"plain": {}, "marked": {"here": 1}, "fork": {"here": 1}, "early": {}}
    (of_marks,) = [query for query in read if query.table == "checkpoint"]
    assert [where.value for where in of_marks.where if where.column == "thread_id"] == [["marked", "fork"]]
