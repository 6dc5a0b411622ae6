"""Searching messages by their words."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.settable_clock import SettableClock

from clew import Conversations, Message
from clew.domain.errors import InvalidSearchError, InvalidTimeError, ThreadDeletedError, UnknownThreadError
from clew.domain.events import to_time
from clew.domain.formats.conversation_import import Item
from clew.domain.messages import FunctionCall
from clew.domain.search_terms import SnippetPart, compared, searchable
from clew.service.message_search import Hit

WORDS = 400
RARE = 20


def places(hits: list[Hit]) -> list[tuple[str, int]]:
    return [(hit.thread_id, hit.version) for hit in hits]


def test_finds_messages_newest_first_with_their_place(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="a")
    thread.append(Message.user("My teapot broke.", author="Maeve"), actor="user:1")
    thread.append(
        Message.assistant(None, calls=[FunctionCall(call_id="1", name="refund", arguments='{"item": "teapot"}')])
    )
    thread.append(Message.tool("1", {"done": "Teapot refunded"}))
    thread.rewind(to=2)
    newest = conversations.start_thread(thread_id="b", messages=[Message.user("Any TEAPOTS?"), Message.user("None")])
    assert places(conversations.search("teapot*")) == [("b", 2), ("a", 4), ("a", 3), ("a", 2)]
    assert places(conversations.search("teapot")) == [("a", 4), ("a", 3), ("a", 2)]
    assert places(conversations.search("teapot refund*")) == [("a", 4), ("a", 3)]
    assert places(conversations.search("teapot -broke")) == [("a", 4), ("a", 3)]
    assert places(conversations.search('"teapot broke"')) == places(conversations.search("MY")) == [("a", 2)]
    assert conversations.search("Maeve") == [], "the author's name is not part of the text"
    (hit,) = conversations.search("broke")
    event = next(thread.events(after=1, at=2))
    assert hit == Hit(
        thread_id="a",
        version=2,
        number=1,
        position=event.position or 0,
        role="user",
        author="Maeve",
        time=event.time,
        actor="user:1",
        snippet=(
            SnippetPart("My teapot ", found=False),
            SnippetPart("broke", found=True),
            SnippetPart(".", found=False),
        ),
        forks=(),
        fork_count=0,
    )
    assert conversations.search("done", thread="a")[0].number == 3
    assert newest.id == "b"


def test_a_newer_unicode_symbol_separates_words(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("great\N{THINKING FACE}tea, Gro\u0308sse")])
    for word in ("great", "tea", "grosse"):
        assert places(conversations.search(word)) == [(thread.id, 2)]


def test_a_hit_names_the_forks_with_the_message(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="root", messages=[Message.user("apple"), Message.user("pear")])
    with_both = thread.fork(thread_id="both")
    thread.fork(thread_id="first", at=2)
    deep = with_both.fork(thread_id="deep")
    deep.append(Message.user("plum"))
    assert [(hit.thread_id, hit.forks) for hit in conversations.search("apple")] == [
        ("root", ("both", "first", "deep"))
    ]
    assert [(hit.thread_id, hit.forks) for hit in conversations.search("pear")] == [("root", ("both", "deep"))]
    assert [(hit.thread_id, hit.forks) for hit in conversations.search("plum")] == [("deep", ())]
    for number in range(20):
        thread.fork(thread_id=f"more-{number}", at=2)
    (hit,) = conversations.search("apple")
    assert (len(hit.forks), hit.fork_count) == (10, 23)


def test_searches_only_the_history_of_the_thread(conversations: Conversations) -> None:
    root = conversations.start_thread(thread_id="root", messages=[Message.user("tea one"), Message.user("tea two")])
    early = root.fork(thread_id="early", at=2)
    root.append(Message.user("tea three"))
    early.append(Message.user("tea four"))
    late = early.fork(thread_id="late")
    early.append(Message.user("tea five"))
    late.append(Message.user("tea six"))
    conversations.start_thread(thread_id="other", messages=[Message.user("tea seven")])
    assert places(conversations.search("tea", thread="late")) == [("late", 6), ("early", 4), ("root", 2)]
    assert places(conversations.search("tea", thread="root")) == [("root", 4), ("root", 3), ("root", 2)]
    assert places(conversations.search("tea", thread="late", limit=2)) == [("late", 6), ("early", 4)]
    last = conversations.search("tea", thread="late", limit=2)[-1]
    assert places(conversations.search("tea", thread="late", before=last.position)) == [("root", 2)]
    with pytest.raises(UnknownThreadError):
        conversations.search("tea", thread="missing")


def test_finds_messages_of_a_deleted_thread_only_through_living_forks(conversations: Conversations) -> None:
    root = conversations.start_thread(thread_id="root", messages=[Message.user("apple"), Message.user("pear")])
    for each in ("one", "two"):
        root.fork(thread_id=each, at=2)
    root.delete()
    assert [(hit.thread_id, hit.version, hit.forks) for hit in conversations.search("apple")] == [("one", 2, ("two",))]
    assert [(hit.thread_id, hit.forks) for hit in conversations.search("apple", thread="two")] == [("two", ("one",))]
    assert conversations.search("pear") == []
    with pytest.raises(ThreadDeletedError):
        conversations.search("apple", thread="root")


def test_pages_through_all_hits(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.service.message_search.POSITIONS", 2)
    for number in range(12):
        thread = conversations.start_thread(thread_id=f"t{number:02}", messages=[Message.user("tea")])
        if number % 3:
            thread.delete()
    everything = [("t09", 2), ("t06", 2), ("t03", 2), ("t00", 2)]
    assert places(conversations.search("tea")) == everything
    assert places(conversations.search("tea", limit=3)) == everything[:3]
    last = conversations.search("tea", limit=3)[-1]
    assert places(conversations.search("tea", before=last.position)) == everything[3:]


def test_never_finds_messages_of_another_tenant(shared_url: str) -> None:
    with (
        Conversations.open(shared_url, tenant="ours") as ours,
        Conversations.open(shared_url, tenant="theirs") as theirs,
    ):
        ours.start_thread(thread_id="same", messages=[Message.user("apple ours")])
        theirs.start_thread(thread_id="same", messages=[Message.user("apple theirs")])
        for service, name in ((ours, "ours"), (theirs, "theirs")):
            (hit,) = service.search("apple")
            assert hit.snippet == (("apple", True), (f" {name}", False))
            assert len(service.search("apple", thread="same")) == 1
            assert [entry.thread_id for entry in service.audit()] == ["same"] * 2
            assert [each.events for each in service.usage()] == [2]


def test_does_not_show_redacted_messages_that_the_index_still_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(messages=[Message.user("canary apple"), Message.user("apple")])
        assert len(conversations.search("apple")) == 2
    with Conversations.open(url, embedded=False) as conversations:
        conversations.thread(thread.id).redact(2)
        assert places(conversations.search("apple")) == [(thread.id, 3)]
        assert conversations.search("canary") == []


def test_does_not_show_a_modified_row(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(messages=[Message.user("apple one"), Message.user("apple two")])
        assert len(conversations.search("apple")) == 2
    with sqlite3.connect(tmp_path / "clew.db") as database:
        database.execute("UPDATE event SET state = x'00ff' WHERE version = 2")
    database.close()
    with Conversations.open(url) as conversations:
        assert places(conversations.search("apple")) == [(thread.id, 3)]


@pytest.fixture(scope="module")
def indexed() -> Iterator[Conversations]:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread(messages=[Message.user('She said "apple" (or: NOT) e-mail, 漢字, Größe * ^ - +')])
        yield conversations


@given(text=st.text() | st.text(st.sampled_from('ab"*-():^+{}.,AND ORNEAR\\\0ä漢')))
def test_accepts_or_refuses_any_query(indexed: Conversations, text: str) -> None:
    try:
        hits = indexed.search(text)
    except InvalidSearchError:
        return
    assert len(hits) <= 1


def test_finds_each_message_by_its_rare_words_until_it_is_redacted(corpus: list[dict[str, Any]], scale: float) -> None:
    chance = random.Random(3)
    with Conversations.open("memory:") as conversations:
        report = conversations.import_items(Item("corpus", line, value) for line, value in enumerate(corpus, start=1))
        assert report.failed == []
        places_of: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for thread in list(conversations.threads()):
            for message in conversations.thread(thread.id).history():
                assert message.message is not None
                for word in compared(searchable(message.message.model_dump(mode="json"))):
                    places_of[word].add((thread.id, message.version))
        rare = sorted(word for word, where in places_of.items() if len(where) <= RARE)
        for word in chance.sample(rare, min(len(rare), math.ceil(WORDS * scale))):
            hits = conversations.search(word, limit=RARE + 1)
            assert set(places(hits)) == places_of[word], word
            assert all(any(part.found for part in hit.snippet) for hit in hits), word
        for _ in range(5):
            word = chance.choice([each for each in rare if places_of[each]])
            thread_id, version = chance.choice(sorted(places_of[word]))
            fork = conversations.thread(thread_id).fork(at=version)
            assert (thread_id, version) in places(conversations.search(word, thread=fork.id, limit=RARE + 1))
            assert any(fork.id in hit.forks for hit in conversations.search(word, limit=RARE + 1))
            fork.redact(version)
            for where in places_of.values():
                where.discard((thread_id, version))
            assert set(places(conversations.search(word, limit=RARE + 1))) == places_of[word]
            assert (thread_id, version) not in places(conversations.search(word, thread=fork.id, limit=RARE + 1))


def test_finds_messages_by_when_they_were_said(conversations: Conversations, clock: SettableClock) -> None:
    recorded = to_time(clock())
    messages = [{"role": "user", "content": "tea", "created_at": 1_600_000_000 + day * 86_400} for day in range(100)]
    assert conversations.import_items([Item("a", None, {"id": "c", "messages": messages})]).messages == 100
    conversations.start_thread(messages=[Message.user("tea")])
    hits = conversations.search("tea", limit=200)
    assert [hit.said_at is None for hit in hits] == [True] + [False] * 100
    third, fifth = hits[98].said_at, hits[96].said_at
    assert third is not None
    found = conversations.search("tea", said_since=third, said_until=fifth)
    assert [hit.number for hit in found] == [4, 3]
    assert conversations.search("tea", said_until=third, limit=1) == [hits[99]]
    assert conversations.search("tea", said_since=recorded) == hits[:1]
    entries = list(conversations.audit(type="message-appended", said_since=third, said_until=fifth))
    assert [entry.version for entry in entries] == [4, 5]
    newest = list(conversations.audit(said_since=third, said_until=fifth, newest_first=True, limit=1))
    assert newest == entries[1:]
    kinds = [entry.type for entry in conversations.audit(said_since=recorded)]
    assert kinds == ["thread-started", "thread-started", "message-appended"]
    with pytest.raises(InvalidTimeError, match="said_since"):
        conversations.search("tea", said_since=datetime(2024, 1, 1))  # noqa: DTZ001 - without an offset on purpose
    with pytest.raises(InvalidTimeError, match="said_until"):
        list(conversations.audit(said_until="today"))  # type: ignore[arg-type]
