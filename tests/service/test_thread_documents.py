"""Threads as documents: restored elsewhere, where nothing of them is there, something, the same, or something else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.moving_stores import CANARY, fill, heads
from tests.service.serialized_threads import document_of, keep, positions
from tests.service.settable_clock import SettableClock

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
from clew.domain.events import ThreadStarted
from clew.domain.messages import Message
from clew.service import thread_documents
from clew.sync.threads import Thread


@pytest.fixture
def source(clock: SettableClock) -> Iterator[Conversations]:
    with Conversations.open("memory:", now=clock) as store:
        fill(store)
        yield store


def test_a_thread_is_the_same_elsewhere(source: Conversations, conversations: Conversations) -> None:
    restored = conversations.restore_thread(document_of(source, "branch"))
    thread = source.thread("branch")
    assert restored.id == "branch"
    assert restored.summary() == thread.summary()
    assert restored.state() == thread.state()
    events = [event._replace(position=None) for event in restored.events()]
    assert events == [event._replace(position=None) for event in thread.events()]
    assert conversations.verify().first_bad is None
    assert restored.append(Message.user("On we go")).version == thread.version + 1
    assert [hit.thread_id for hit in conversations.search("go")] == ["branch"]


def test_of_the_ancestors_there_is_what_the_thread_needs(source: Conversations, conversations: Conversations) -> None:
    source.thread("root/ä").append(Message.user("Said long after the cut"))
    document = document_of(source, "branch")
    root = source.thread("root/ä")
    assert "Said long after" not in json.dumps(document)
    conversations.restore_thread(document)
    # Version 6 redacts an inherited message: without it the copy would not verify.
    assert conversations.thread("root/ä").version == 6
    conversations.restore_thread(document_of(source, "root/ä"))
    assert conversations.thread("root/ä").summary() == root.summary()
    assert conversations.verify().first_bad is None


def test_the_same_again_writes_nothing(source: Conversations, conversations: Conversations) -> None:
    document = document_of(source, "branch")
    conversations.restore_thread(document)
    before = positions(conversations)
    assert conversations.restore_thread(document, on_existing="fork").id == "branch"
    assert positions(conversations) == before
    assert source.restore_thread(document).summary() == source.thread("branch").summary()


def test_what_is_missing_is_added(source: Conversations, conversations: Conversations) -> None:
    conversations.restore_thread(document_of(source, "branch"))
    thread = source.thread("branch")
    thread.append([Message.user("More"), Message.assistant("And more")])
    conversations.restore_thread(document_of(source, "branch"))
    assert conversations.thread("branch").summary() == thread.summary()
    assert [hit.thread_id for hit in conversations.search("more")] == ["branch", "branch"]


def test_of_a_thread_that_has_gone_on_the_older_document_is_refused(
    source: Conversations, conversations: Conversations
) -> None:
    document = document_of(source, "branch")
    there = conversations.restore_thread(document)
    there.append(Message.user("Later"))
    before, head = positions(conversations), there.summary()
    with pytest.raises(ThreadAheadError, match="at version 11, and the document has its version 10") as caught:
        conversations.restore_thread(document)
    assert isinstance(caught.value, ThreadExistsError)
    assert (caught.value.thread_id, caught.value.there, caught.value.given) == ("branch", 11, 10)
    assert positions(conversations) == before
    fork = conversations.restore_thread(document, on_existing="fork", actor="user:7")
    assert (fork.summary().parent_id, fork.summary().forked_at) == ("branch", 10)
    assert [each.text for each in fork.history()] == [each["text"] for each in document["history"]]
    assert there.summary() == head


@pytest.mark.parametrize("where", ["branch", "root/ä"])
def test_a_thread_with_another_past_is_refused_unless_as_new(
    source: Conversations, conversations: Conversations, where: str
) -> None:
    if where == "branch":
        conversations.restore_thread(document_of(source, "branch"))
        conversations.thread("branch").append(Message.user("Mine"))
        source.thread("branch").append(Message.user("Theirs"))
    else:
        conversations.start_thread(thread_id=where, messages=[Message.user("Mine")])
    document, before = document_of(source, "branch"), positions(conversations)
    there, version = heads(conversations), 11 if where == "branch" else 1
    for on_existing in ("raise", "fork"):
        with pytest.raises(ThreadDivergedError, match="as_new=True") as caught:
            conversations.restore_thread(document, on_existing=on_existing)
        assert (caught.value.thread_id, caught.value.version) == (where, version)
    assert positions(conversations) == before
    new = conversations.restore_thread(document, as_new=True)
    assert new.id not in there
    assert [each.text for each in new.history()] == [each["text"] for each in document["history"]]
    assert heads(conversations) == {**there, new.id: new.summary().head}
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


def test_an_ancestor_that_went_its_own_way_after_the_cut_is_left_as_it_is(
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


def test_what_was_redacted_in_one_of_two_stores_is_the_same_thread(
    source: Conversations, conversations: Conversations
) -> None:
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


def test_an_inherited_message_that_was_redacted_is_redacted_elsewhere_too(
    source: Conversations, conversations: Conversations
) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user(CANARY)])
    root.fork(thread_id="f")
    conversations.restore_thread(document_of(source, "f"))
    root.redact(2)
    assert conversations.restore_thread(document_of(source, "f")).history().messages[0].redacted
    assert conversations.verify().first_bad is None


def test_the_words_of_what_was_redacted_leave_the_files(source: Conversations, tmp_path: Path) -> None:
    def there() -> bool:
        return any(b"zanzibar" in file.read_bytes() for file in tmp_path.iterdir())

    thread = source.start_thread(thread_id="t", messages=[Message.user("zanzibar"), Message.user("Two")])
    with Conversations.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        copy.restore_thread(document_of(source, "t"))
        assert len(copy.search("zanzibar")) == 1
        assert there()
        thread.redact(2)
        copy.restore_thread(document_of(source, "t"))
        assert not there()
        assert copy.search("zanzibar") == []


def test_a_thread_can_go_to_and_fro(source: Conversations, conversations: Conversations) -> None:
    here, there = source.thread("branch"), conversations.restore_thread(document_of(source, "branch"))
    for _ in range(2):
        there.append(Message.user("There"), expected_version=here.version)
        source.restore_thread(document_of(conversations, "branch"))
        here.append(Message.user("Here"), expected_version=there.version)
        conversations.restore_thread(document_of(source, "branch"))
    assert there.summary() == here.summary()
    assert there.history() == here.history()


def test_the_document_of_another_tenant_can_only_be_begun_again(source: Conversations, clock: SettableClock) -> None:
    document = document_of(source, "branch")
    with Conversations.open("memory:", tenant="other", now=clock) as store:
        with pytest.raises(
            ThreadDocumentError, match=r"of tenant 'default', but the store is open for 'other'.*as_new"
        ):
            store.restore_thread(document)
        assert positions(store) == 0
        new = store.restore_thread(document, as_new=True)
        assert [each.text for each in new.history()] == [each["text"] for each in document["history"]]


def test_a_thread_that_is_begun_again_says_where_it_comes_from(
    source: Conversations, conversations: Conversations
) -> None:
    thread = source.start_thread(
        "Tea",
        thread_id="t",
        labels={"topic": "tea"},
        metadata={"shop": 7},
        messages=[Message.user("A"), Message.user("Secret"), Message.assistant("B")],
    )
    keep(source, "t", "notes", {"n": 1}, seen=2)
    keep(source, "t", "notes", {"n": 2}, seen=3)
    keep(source, "t", HISTORY_STORE, {"place": "t"})
    thread.append(Message.user("Not on the path"))
    keep(source, "t", "notes", {"n": 3}, seen=8)
    thread.rewind(7)
    thread.redact(3)
    new = conversations.restore_thread(document_of(source, "t"), as_new=True, actor="user:7")
    began = next(new.events())
    assert isinstance(began.data, ThreadStarted)
    assert began.actor == "user:7"
    summary = thread.summary()
    assert began.data.metadata == {
        "shop": 7,
        "restored_from": {"tenant": "default", "thread": "t", "version": summary.version, "head": summary.head},
    }
    assert (new.summary().title, new.summary().labels) == ("Tea", {"topic": "tea"})
    assert [each.text for each in new.history()] == ["A", "B"]
    assert new.state().states == {"notes": {"n": 2}}
    assert new.history().context.states["notes"].seen == new.history().messages[0].version


def test_the_states_are_those_on_the_path(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t")
    keep(source, "t", "notes", {"n": 1})
    keep(source, "t", HISTORY_STORE, {"place": "t"})
    fork = thread.fork(thread_id="f")
    keep(source, "f", "notes", {"n": 2})
    fork.rewind(4)
    document = document_of(source, "f")
    assert document["states"] == {"notes": {"n": 1}}
    assert conversations.restore_thread(document).state().states == fork.state().states
    assert document_of(source, "t")["states"] == {"notes": {"n": 1}, HISTORY_STORE: {"place": "t"}}


def test_what_is_not_there_or_deleted_is_not_serialized(source: Conversations) -> None:
    with pytest.raises(UnknownThreadError):
        Thread(source._core, source._live, "nobody").serialize()
    with pytest.raises(ThreadDeletedError):
        source.thread("leaf").serialize()


def test_a_fork_of_a_thread_that_was_deleted_since_can_be_restored(
    source: Conversations, conversations: Conversations
) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user("Hello")])
    fork = root.fork(thread_id="f")
    root.delete()
    assert conversations.restore_thread(document_of(source, "f")).state() == fork.state()
    assert conversations.thread("r").status == "active"  # as far as the fork knows


def test_what_is_redacted_while_it_is_read_is_read_again(
    source: Conversations, conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY), Message.user("Hello")])
    log: Any = source._core.log
    own_rows = log.own_rows

    def redacting(stream: str, *, after: int, limit: int) -> Any:
        found = own_rows(stream, after=after, limit=limit)
        if after == 2 and not thread.history().messages[0].redacted:
            thread.redact(2)
        return found

    monkeypatch.setattr(thread_documents, "PAGE", 1)
    monkeypatch.setattr(log, "own_rows", redacting)
    document = document_of(source, "t")
    monkeypatch.undo()
    assert CANARY not in json.dumps(document["history"])
    assert conversations.restore_thread(document).history() == thread.history()


def test_a_long_thread_has_its_snapshots(source: Conversations, conversations: Conversations) -> None:
    messages = [Message.user(str(number)) for number in range(2 * SNAPSHOT_EVERY)]
    source.start_thread(thread_id="long", messages=messages).fork(thread_id="fork")
    restored = conversations.restore_thread(document_of(source, "fork"))
    assert restored.summary() == source.thread("fork").summary()
    recorder: Any = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    assert recorder.snapshot("default/thread/long").version == 2 * SNAPSHOT_EVERY
    assert conversations.verify().first_bad is None


def test_no_event_of_a_long_thread_is_folded_more_than_once(
    source: Conversations, conversations: Conversations
) -> None:
    messages = [Message.user(str(number)) for number in range(6 * SNAPSHOT_EVERY)]
    fork = source.start_thread(thread_id="long", messages=messages).fork(thread_id="fork")
    fork.append(messages)
    document = document_of(source, "fork")
    recorder: Any = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
    lineage, read = recorder.lineage, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal read
        found = lineage(*args, **options)
        read += len(found)
        return found

    recorder.lineage = counted
    restored = conversations.restore_thread(document)
    del recorder.lineage
    assert recorder.snapshot("default/thread/fork").version == 12 * SNAPSHOT_EVERY
    assert read <= restored.version
    assert restored.summary() == fork.summary()


def test_two_that_restore_at_once_come_to_one_thread(source: Conversations, tmp_path: Path) -> None:
    documents = [document_of(source, "branch"), document_of(source, "root/ä")] * 4
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    stores = [Conversations.open(url) for _ in documents]
    failed: list[BaseException] = []

    def work(store: Conversations, document: dict[str, Any]) -> None:
        try:
            store.restore_thread(document)
        except BaseException as error:  # noqa: BLE001  # told below
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


def test_the_awaited_face_says_the_same(source: Conversations, url: str) -> None:
    document = document_of(source, "branch")

    async def there_and_back() -> dict[str, Any]:
        async with Engine.open(url) as engine:
            restored = await engine.restore_thread(document)
            assert await restored.version == 10
            return await restored.serialize()

    assert json.loads(json.dumps(asyncio.run(there_and_back()))) == document
