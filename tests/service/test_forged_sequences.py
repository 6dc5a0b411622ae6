"""Generated files with correct hashes and changed events: an import never leaves a store that cannot be read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.recorded_runs import cut_short, failing, record, waiting, with_a_tool
from tests.service.transferred_stores import file_of, import_lines

from clew.conversations import Conversations
from clew.domain.errors import ClewError
from clew.domain.event_types import EVENT_TYPES
from clew.domain.formats.clew_jsonl import Entry, read_line
from clew.domain.formats.event_import import EventsReport
from clew.domain.messages import Message
from clew.domain.ports import Fork, Row
from clew.domain.streams import ROOT, digest, is_thread, link

FILES = 10_000

NUMBERS = st.sampled_from([-(10**30), -(10**17), -1, 0, 1, 2, 3, 7, 99, 10**6, 3 * 10**17, 2**63, 10**30])
TEXTS = st.sampled_from(["", "a", "f", "f1", "run-1", "here", "joker", "live", "x" * 300, "\x1b[31m"])
VALUES = st.one_of(NUMBERS, TEXTS, st.none(), st.just([]), st.just({}), st.just({"a": [1]}))
TYPES = st.sampled_from(sorted(EVENT_TYPES))
place = st.integers(0, 9_999)


@dataclass(frozen=True)
class Written:
    """An event of a generated file: its address in the first file, its type, its salt and its envelope as JSON."""

    stream: str
    fork: Fork | None
    type: str
    salt: bytes
    body: Any


def threads() -> list[bytes]:
    """Return the lines of a store with forks, rewinds, checkpoints and every status."""
    with Conversations.open("memory:") as store:
        root = store.start_thread("Root", thread_id="root", labels={"a": 1}, messages=[Message.user("Hello")])
        root.append([Message.assistant("One"), Message.user("Two")])
        root.checkpoint("here")
        branch = root.fork(at=3, thread_id="branch", memory="as-of")
        branch.append(Message.user("Hello there"))
        root.rewind(2)
        root.append(Message.user("Again"))
        branch.fork(at=2, thread_id="twig").label(topic="b")
        root.suspend()
        root.resume()
        root.end()
        branch.delete()
        store.start_thread(thread_id="last", messages=[Message.user("Hello")])
        return list(store.export_events())


def runs() -> list[bytes]:
    """Return the lines of a store with runs in every state."""
    with Conversations.open("memory:") as store:
        for number, steps in enumerate((with_a_tool(), waiting(), cut_short(), failing())):
            thread = store.start_thread(thread_id=f"t{number}")
            record(store, thread.id, f"run-{number}", *steps)
        store.thread("t0").fork(at=9, thread_id="fork").append(Message.user("Hello"))
        return list(store.export_events())


def scopes() -> list[bytes]:
    """Return the lines of a store with a scope of facts and one of documents."""
    with Conversations.open("memory:") as store:
        user = store.memory("user/1")
        first = user.remember("Likes tea", key="drink")
        second = user.supersede(first, "Likes coffee")
        user.remember("Lives in Cork")
        user.retract(second)
        store.start_thread(thread_id="t", messages=[Message.user("Hello")])
        return list(store.export_events())


@cache
def source(number: int) -> tuple[Written, ...]:
    """Return the events of one of the files."""
    made: list[Callable[[], list[bytes]]] = [threads, runs, scopes]
    written = []
    for line in made[number]()[1:-1]:
        entry = read_line(line)
        assert isinstance(entry, Entry)
        row = entry.row
        written.append(Written(row.stream, entry.fork, row.type, row.state[:17], json.loads(row.state[17:])))
    return tuple(written)


def hashed(events: list[Written]) -> list[Entry]:
    """Return the events as a file has them, with correct versions and hashes, also of the cuts."""
    heads: dict[str, tuple[int, bytes]] = {}
    hashes: dict[tuple[str, int], bytes] = {}
    entries: list[Entry] = []
    for event in events:
        fork = event.fork if event.stream not in heads else None
        if fork is not None and (fork.parent, fork.cut) not in hashes:
            fork = None
        begins = (0, ROOT) if fork is None else (fork.cut, hashes[fork.parent, fork.cut])
        version, previous = heads.get(event.stream, begins)
        body = event.body
        if fork is not None and isinstance(body.get("d"), dict) and "parent_hash" in body["d"]:
            body = {**body, "d": {**body["d"], "parent_hash": previous.hex(), "parent_version": fork.cut}}
        stored = event.salt + json.dumps(body).encode()
        hashed = link(previous, event.stream, version + 1, event.type, digest(stored))
        heads[event.stream] = version + 1, hashed
        hashes[event.stream, version + 1] = hashed
        entries.append(Entry(Row(0, event.stream, version + 1, event.type, stored, hashed, None), fork))
    return entries


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places in a JSON value where something can be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, each in items for leaf in leaves(each, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with another value at a place."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


def rewritten(draw: st.DrawFn, event: Written) -> Written:
    """Return the event with another time, count or run, or another value somewhere in its data."""
    body = event.body
    match draw(st.integers(0, 4)):
        case 0:
            body = {**body, "t": draw(NUMBERS)}
        case 1:
            body = {**body, "n": draw(NUMBERS)}
        case 2:
            body = {**body, "r": draw(TEXTS)}
        case _:
            name = next(key for key in ("d", "u", "x") if key in body)  # the data, or the text of a message
            fields = leaves(body[name])
            body = {**body, name: replaced(body[name], fields[draw(place) % len(fields)], draw(VALUES))}
    return replace(event, body=body)


@st.composite
def forgeries(draw: st.DrawFn) -> list[Entry]:
    """A file of events that Clew wrote, with one to four changes and correct hashes."""
    events = list(source(draw(st.integers(0, 2))))
    for _ in range(draw(st.integers(1, 4))):
        at, other = draw(place) % len(events), draw(place) % len(events)
        match draw(st.integers(0, 7)):
            case 0:
                del events[at]
            case 1:
                events.insert(other, events[at])
            case 2:
                events[at], events[other] = events[other], events[at]
            case 3:
                events[at] = replace(events[at], stream=events[other].stream)
            case 4:
                type_ = draw(TYPES)
                body = {**events[at].body, "d": dict(EVENT_TYPES[type_].sample)}
                events.insert(at + 1, replace(events[at], fork=None, type=type_, body=body))
            case _:
                events[at] = rewritten(draw, events[at])
    return hashed(events)


def import_into(store: Conversations, entries: list[Entry]) -> EventsReport:
    """Import the file. Whatever was refused is named by its line."""
    result = import_lines(store, file_of(*entries))
    lines = [line for line, error in result.failed if isinstance(error, ClewError)]
    assert len(lines) == len(result.failed)
    assert all(line is not None and 1 < line <= len(entries) + 2 for line in lines)
    assert not result.torn
    return result


def read_everything(store: Conversations) -> None:
    """Read everything that a store can list, show and export, and append to every thread."""
    assert store.verify().first_bad is None
    ids = [summary.id for summary in store.threads()]
    assert sorted(each.id for each in store.threads(order="updated")) == sorted(ids)
    assert len(list(store.tree())) == len(ids)
    assert len(list(store.audit())) == store.verify().events
    store.search("hello")
    store.usage(by="day")
    assert all(not each.parked for each in store.projections())
    list(store.export(forks=True))
    lines = list(store.export_events())
    for id_ in ids:
        thread = store.thread(id_)
        assert len(list(thread.events())) == thread.version
        if thread.status == "deleted":
            continue
        summary = thread.summary()
        assert len(thread.history()) == summary.messages
        thread.view()
        thread.markdown()
        thread.state()
        for name in thread.state().checkpoints:
            thread.history(at=name)
        thread.fork().append(Message.user("More"))
    for scope in store.scopes():
        if scope.holds == "facts":
            store.memory(scope.name).facts(history=True)
    with Conversations.open("memory:") as again:
        assert import_lines(again, lines).failed == []
        for id_ in ids[:1]:
            if store.thread(id_).status != "deleted":
                again.restore_thread(store.thread(id_).serialize())
    assert store.verify().first_bad is None


def test_an_import_never_leaves_a_store_that_cannot_be_read(scale: float) -> None:
    # In `make test` half of a tenth: there is little time.
    files = math.ceil(FILES * scale**1.6)
    refused = 0

    @settings(max_examples=files, deadline=None, suppress_health_check=list(HealthCheck))
    @given(forgeries())
    def check(entries: list[Entry]) -> None:
        nonlocal refused
        with Conversations.open("memory:") as store:
            result = import_into(store, entries)
            refused += bool(result.failed)
            read_everything(store)

    check()
    assert refused > files / 3


def test_every_sequence_of_the_decider_is_imported() -> None:
    for number in range(3):
        entries = hashed(list(source(number)))
        with Conversations.open("memory:") as store:
            result = import_into(store, entries)
            assert (result.failed, result.events) == ([], len(entries))
            assert result.threads == sum(entry.begins and is_thread(entry.row.stream) for entry in entries)
            read_everything(store)
