"""Threads as documents, restored into stores with none, some, all or different events of the thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.serialized_threads import document_of, positions, record_state
from tests.service.settable_clock import SettableClock
from tests.service.transferred_stores import CANARY, fill, heads

from clew import Engine
from clew.conversations import Conversations
from clew.domain.context.state import HISTORY_STORE
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import (
    ThreadAheadError,
    ThreadDeletedError,
    ThreadDivergedError,
    ThreadDocumentError,
    ThreadExistsError,
    UnknownThreadError,
)
from clew.domain.events import Event, ThreadStarted
from clew.domain.messages import Message
from clew.domain.ports import Row
from clew.infrastructure.envelope import decode_row
from clew.service import thread_documents
from clew.sync.threads import Thread


@pytest.fixture
def source(clock: SettableClock) -> Iterator[Conversations]:
    with Conversations.open("memory:", now=clock) as store:
        fill(store)
        yield store


def test_a_restored_thread_equals_its_source(source: Conversations, conversations: Conversations) -> None:
    restored = conversations.restore_thread(document_of(source, "branch"))
    thread = source.thread("branch")
    assert restored.id == "branch"
    assert restored.summary() == thread.summary()
    assert restored.state() == thread.state()
    events = [event._replace(position=None) for event in restored.events()]
    assert events == [event._replace(position=None) for event in thread.events()]
    assert conversations.verify().first_bad is None
    assert restored.append(Message.user("We go on")).version == thread.version + 1
    assert [hit.thread_id for hit in conversations.search("go")] == ["branch"]


def test_a_document_contains_only_the_needed_events_of_ancestors(
    source: Conversations, conversations: Conversations
) -> None:
    source.thread("root/ä").append(Message.user("Written long after the cut"))
    document = document_of(source, "branch")
    root = source.thread("root/ä")
    assert "Written long after" not in json.dumps(document)
    conversations.restore_thread(document)
    # Version 6 redacts an inherited message: without it the copy would not verify.
    assert conversations.thread("root/ä").version == 6
    conversations.restore_thread(document_of(source, "root/ä"))
    assert conversations.thread("root/ä").summary() == root.summary()
    assert conversations.verify().first_bad is None


def test_restoring_the_same_document_again_writes_nothing(source: Conversations, conversations: Conversations) -> None:
    document = document_of(source, "branch")
    conversations.restore_thread(document)
    before = positions(conversations)
    assert conversations.restore_thread(document, on_existing="fork").id == "branch"
    assert positions(conversations) == before
    assert source.restore_thread(document).summary() == source.thread("branch").summary()


def test_restoring_adds_missing_events(source: Conversations, conversations: Conversations) -> None:
    conversations.restore_thread(document_of(source, "branch"))
    thread = source.thread("branch")
    thread.append([Message.user("More"), Message.assistant("And more")])
    conversations.restore_thread(document_of(source, "branch"))
    assert conversations.thread("branch").summary() == thread.summary()
    assert [hit.thread_id for hit in conversations.search("more")] == ["branch", "branch"]


def test_refuses_a_document_older_than_the_thread(source: Conversations, conversations: Conversations) -> None:
    document = document_of(source, "branch")
    copy = conversations.restore_thread(document)
    copy.append(Message.user("Later"))
    before, head = positions(conversations), copy.summary()
    with pytest.raises(ThreadAheadError, match="at version 11, and the document has its version 10") as caught:
        conversations.restore_thread(document)
    assert isinstance(caught.value, ThreadExistsError)
    assert (caught.value.thread_id, caught.value.there, caught.value.given) == ("branch", 11, 10)
    assert positions(conversations) == before
    fork = conversations.restore_thread(document, on_existing="fork", actor="user:7")
    assert (fork.summary().parent_id, fork.summary().forked_at) == ("branch", 10)
    assert [each.text for each in fork.history()] == [each["text"] for each in document["history"]]
    assert copy.summary() == head


@pytest.mark.parametrize("thread_id", ["branch", "root/ä"])
def test_a_thread_with_another_past_is_refused_unless_as_new(
    source: Conversations, conversations: Conversations, thread_id: str
) -> None:
    if thread_id == "branch":
        conversations.restore_thread(document_of(source, "branch"))
        conversations.thread("branch").append(Message.user("Mine"))
        source.thread("branch").append(Message.user("Theirs"))
    else:
        conversations.start_thread(thread_id=thread_id, messages=[Message.user("Mine")])
    document, before = document_of(source, "branch"), positions(conversations)
    before_heads, version = heads(conversations), 11 if thread_id == "branch" else 1
    for on_existing in ("raise", "fork"):
        with pytest.raises(ThreadDivergedError, match="as_new=True") as caught:
            conversations.restore_thread(document, on_existing=on_existing)
        assert (caught.value.thread_id, caught.value.version) == (thread_id, version)
    assert positions(conversations) == before
    new = conversations.restore_thread(document, as_new=True)
    assert new.id not in before_heads
    assert [each.text for each in new.history()] == [each["text"] for each in document["history"]]
    assert heads(conversations) == {**before_heads, new.id: new.summary().head}
    assert conversations.verify().first_bad is None


def test_a_fork_of_another_thread_under_the_same_id_has_another_past(
    source: Conversations, conversations: Conversations
) -> None:
    conversations.start_thread(thread_id="mine").fork(thread_id="branch")
    before = positions(conversations)
    with pytest.raises(ThreadDivergedError, match="version 6 is not an event of its own") as caught:
        conversations.restore_thread(document_of(source, "branch"))
    assert (caught.value.thread_id, caught.value.there) == ("branch", None)
    assert positions(conversations) == before


def test_an_ancestor_that_diverged_after_the_cut_stays_unchanged(
    source: Conversations, conversations: Conversations
) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user("Secret"), Message.user("Hello")])
    conversations.restore_thread(document_of(source, "r"))
    fork = root.fork(thread_id="f")
    root.append(Message.user("Theirs"))
    root.redact(2)
    conversations.thread("r").append(Message.user("Mine"))
    restored = conversations.restore_thread(document_of(source, "f"))
    assert restored.summary() == fork.summary()
    assert [each.text for each in conversations.thread("r").history()] == ["Secret", "Hello", "Mine"]
    assert conversations.verify().first_bad is None


def test_a_redaction_does_not_make_threads_diverge(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY), Message.user("Hello")])
    whole = document_of(source, "t")
    conversations.restore_thread(whole)
    thread.redact(2)
    restored = conversations.restore_thread(document_of(source, "t"))
    assert restored.history().messages[0].redacted
    assert conversations.search(CANARY) == []
    assert conversations.verify().first_bad is None
    with pytest.raises(ThreadAheadError):
        conversations.restore_thread(whole)
    assert restored.history().messages[0].redacted


def test_restoring_redacts_an_inherited_message(source: Conversations, conversations: Conversations) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user(CANARY)])
    root.fork(thread_id="f")
    conversations.restore_thread(document_of(source, "f"))
    root.redact(2)
    assert conversations.restore_thread(document_of(source, "f")).history().messages[0].redacted
    assert conversations.verify().first_bad is None


def test_a_restored_redaction_removes_the_words_from_the_files(source: Conversations, tmp_path: Path) -> None:
    def word_remains() -> bool:
        return any(b"zanzibar" in file.read_bytes() for file in tmp_path.iterdir())

    thread = source.start_thread(thread_id="t", messages=[Message.user("zanzibar"), Message.user("Two")])
    with Conversations.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        copy.restore_thread(document_of(source, "t"))
        assert len(copy.search("zanzibar")) == 1
        assert word_remains()
        thread.redact(2)
        copy.restore_thread(document_of(source, "t"))
        assert not word_remains()
        assert copy.search("zanzibar") == []


def test_a_thread_can_move_back_and_forth(source: Conversations, conversations: Conversations) -> None:
    here, there = source.thread("branch"), conversations.restore_thread(document_of(source, "branch"))
    for _ in range(2):
        there.append(Message.user("There"), expected_version=here.version)
        source.restore_thread(document_of(conversations, "branch"))
        here.append(Message.user("Here"), expected_version=there.version)
        conversations.restore_thread(document_of(source, "branch"))
    assert there.summary() == here.summary()
    assert there.history() == here.history()


def test_a_document_of_another_tenant_is_restored_only_as_new(source: Conversations, clock: SettableClock) -> None:
    document = document_of(source, "branch")
    with Conversations.open("memory:", tenant="other", now=clock) as store:
        with pytest.raises(
            ThreadDocumentError, match=r"of tenant 'default', but the store is open for 'other'.*as_new"
        ):
            store.restore_thread(document)
        assert positions(store) == 0
        new = store.restore_thread(document, as_new=True)
        assert [each.text for each in new.history()] == [each["text"] for each in document["history"]]


def test_a_thread_restored_as_new_records_its_origin(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(
        "Tea",
        thread_id="t",
        labels={"topic": "tea"},
        metadata={"shop": 7},
        messages=[Message.user("A"), Message.user("Secret"), Message.assistant("B")],
    )
    record_state(source, "t", "notes", {"n": 1}, seen=2)
    record_state(source, "t", "notes", {"n": 2}, seen=3)
    record_state(source, "t", HISTORY_STORE, {"place": "t"})
    thread.append(Message.user("Not on the path"))
    record_state(source, "t", "notes", {"n": 3}, seen=8)
    thread.rewind(7)
    thread.redact(3)
    new = conversations.restore_thread(document_of(source, "t"), as_new=True, actor="user:7")
    first = next(new.events())
    assert isinstance(first.data, ThreadStarted)
    assert first.actor == "user:7"
    summary = thread.summary()
    assert first.data.metadata == {
        "shop": 7,
        "restored_from": {"tenant": "default", "thread": "t", "version": summary.version, "head": summary.head},
    }
    assert (new.summary().title, new.summary().labels) == ("Tea", {"topic": "tea"})
    assert [each.text for each in new.history()] == ["A", "B"]
    assert new.state().states == {"notes": {"n": 2}}
    assert new.history().context.states["notes"].seen == new.history().messages[0].version


def test_a_document_contains_the_provider_states_on_the_path(
    source: Conversations, conversations: Conversations
) -> None:
    thread = source.start_thread(thread_id="t")
    record_state(source, "t", "notes", {"n": 1})
    record_state(source, "t", HISTORY_STORE, {"place": "t"})
    fork = thread.fork(thread_id="f")
    record_state(source, "f", "notes", {"n": 2})
    fork.rewind(4)
    document = document_of(source, "f")
    assert document["states"] == {"notes": {"n": 1}}
    assert conversations.restore_thread(document).state().states == fork.state().states
    assert document_of(source, "t")["states"] == {"notes": {"n": 1}, HISTORY_STORE: {"place": "t"}}


def test_refuses_to_serialize_a_missing_or_deleted_thread(source: Conversations) -> None:
    with pytest.raises(UnknownThreadError):
        Thread(source._core, source._live, "missing").serialize()
    with pytest.raises(ThreadDeletedError):
        source.thread("leaf").serialize()


def test_restores_a_fork_of_a_deleted_thread(source: Conversations, conversations: Conversations) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user("Hello")])
    fork = root.fork(thread_id="f")
    root.delete()
    assert conversations.restore_thread(document_of(source, "f")).state() == fork.state()
    assert conversations.thread("r").status == "active"  # the document of the fork ends before the deletion


def test_a_redaction_during_serializing_is_respected(
    source: Conversations, conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY), Message.user("Hello")])
    log: Any = source._core.log
    own_rows = log.own_rows

    def redact_while_reading(stream: str, *, after: int, limit: int) -> Any:
        rows = own_rows(stream, after=after, limit=limit)
        if after == 2 and not thread.history().messages[0].redacted:
            monkeypatch.undo()  # the redaction reads rows, too
            thread.redact(2)
        return rows

    monkeypatch.setattr(thread_documents, "PAGE", 1)
    monkeypatch.setattr(log, "own_rows", redact_while_reading)
    document = document_of(source, "t")
    assert CANARY not in json.dumps(document["history"])
    assert conversations.restore_thread(document).history() == thread.history()


def test_a_restored_long_thread_has_snapshots(source: Conversations, conversations: Conversations) -> None:
    messages = [Message.user(str(number)) for number in range(2 * SNAPSHOT_EVERY)]
    source.start_thread(thread_id="long", messages=messages).fork(thread_id="fork")
    restored = conversations.restore_thread(document_of(source, "fork"))
    assert restored.summary() == source.thread("fork").summary()
    recorder: Any = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    assert recorder.snapshot("default/thread/long").version == 2 * SNAPSHOT_EVERY
    assert conversations.verify().first_bad is None


def test_decodes_each_event_of_a_document_once(
    source: Conversations, conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = document_of(source, "other")
    decoded: list[tuple[str, int]] = []

    def counted(row: Row) -> Event:
        decoded.append((row.stream, row.version))
        return decode_row(row)

    monkeypatch.setattr(thread_documents, "decode_row", counted)
    conversations.restore_thread(document)
    assert len(decoded) == len(set(decoded)) == source.thread("other").version


def test_folds_each_event_of_a_long_thread_only_once(source: Conversations, conversations: Conversations) -> None:
    messages = [Message.user(str(number)) for number in range(6 * SNAPSHOT_EVERY)]
    fork = source.start_thread(thread_id="long", messages=messages).fork(thread_id="fork")
    fork.append(messages)
    document = document_of(source, "fork")
    recorder: Any = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    lineage, read = recorder.lineage, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal read
        events = lineage(*args, **options)
        read += len(events)
        return events

    recorder.lineage = counted
    restored = conversations.restore_thread(document)
    del recorder.lineage
    assert recorder.snapshot("default/thread/fork").version == 12 * SNAPSHOT_EVERY
    assert read <= restored.version
    assert restored.summary() == fork.summary()


def test_concurrent_restores_give_one_thread(source: Conversations, tmp_path: Path) -> None:
    documents = [document_of(source, "branch"), document_of(source, "root/ä")] * 4
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    stores = [Conversations.open(url) for _ in documents]
    failed: list[BaseException] = []

    def work(store: Conversations, document: dict[str, Any]) -> None:
        try:
            store.restore_thread(document)
        except BaseException as error:  # noqa: BLE001  # asserted below
            failed.append(error)

    threads = [threading.Thread(target=work, args=each) for each in zip(stores, documents, strict=True)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    for id_ in ("branch", "root/ä"):
        assert stores[0].thread(id_).summary() == source.thread(id_).summary()
    assert stores[0].verify().first_bad is None
    for store in stores:
        store.close()


def test_the_engine_restores_and_serializes_the_same(source: Conversations, url: str) -> None:
    document = document_of(source, "branch")

    async def restore_and_serialize() -> dict[str, Any]:
        async with Engine.open(url) as engine:
            restored = await engine.restore_thread(document)
            assert await restored.version == 10
            return await restored.serialize()

    assert json.loads(json.dumps(asyncio.run(restore_and_serialize()))) == document
