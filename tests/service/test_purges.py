"""Purging a thread: no byte of its texts stays, the chain verifies, and its id can be used again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.grants import Grants
from tests.service.recorded_runs import JOKER, record

from clew import Agent, ContextProvider, Conversations, Engine, Message, Record, ScriptedChatClient
from clew.domain.decider_state import holder_of
from clew.domain.errors import (
    InvalidContentError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadHasForksError,
    UnknownVersionError,
)
from clew.domain.events import Shredded, ThreadPurged
from clew.domain.json_values import JsonObject
from clew.domain.ports import Claim, Draft, StreamInfo, Write
from clew.domain.runs.errors import ModelRequestError, RunTakenOverError
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
from clew.service import core, redactions
from clew.types import EventsReport

TEXT = "unmistakable"


def texts(thread: Any, **at: Any) -> list[str | None]:
    return [None if each.redacted else each.text for each in thread.history(**at)]


def files_with(text: str, folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if text.encode() in path.read_bytes()]


def filled(conversations: Conversations, thread_id: str = "t") -> Any:
    """A thread with a text of every kind."""
    thread = conversations.start_thread(
        f"{TEXT} title",
        thread_id=thread_id,
        labels={"topic": f"{TEXT} label"},
        metadata={"m": TEXT},
        messages=[Message.user(f"{TEXT} one")],
    )
    thread.append(Message.user(f"{TEXT} two"), idempotency_key=f"{TEXT} key")
    thread.append(Record("state", {"x": TEXT}, blob=TEXT.encode(), key=TEXT))
    thread.checkpoint(f"{TEXT} checkpoint")
    thread.label(other=TEXT)
    thread.suspend(reason=f"{TEXT} reason")
    thread.resume()
    thread.redact(3, reason=f"{TEXT} redaction")
    return thread


def test_a_purge_leaves_stubs_and_a_chain_that_verifies(conversations: Conversations) -> None:
    thread, other = filled(conversations), filled(conversations, "other")
    before = thread.version
    purged = thread.purge(reason="asked", actor="user:1")
    assert (purged.version, purged.events, purged.pending) == (before + 2, 7, False)
    events = list(thread.events())
    assert [event.type for event in events][-2:] == ["thread-deleted", "thread-purged"]
    assert isinstance(events[-1].data, ThreadPurged)
    assert (events[-1].data.reason, events[-1].actor) == ("asked", "user:1")
    assert events[1].data == Shredded("user")
    assert TEXT not in str(events)
    assert conversations.verify().first_bad is None
    assert thread.verify().first_bad is None
    summary = thread.summary()
    assert (summary.status, summary.title, dict(summary.checkpoints)) == ("deleted", None, {})
    listed = {each.id: each for each in conversations.threads()}
    assert (listed["t"].title, listed["t"].labels, listed["t"].metadata, listed["t"].checkpoints) == (None, {}, {}, {})
    assert listed["other"].title == f"{TEXT} title"
    assert [hit.thread_id for hit in conversations.search(TEXT)] == ["other"]
    assert texts(other) == [f"{TEXT} one", None]
    with pytest.raises(ThreadDeletedError):
        thread.history()
    with pytest.raises(NotRedactableError, match="already purged"):
        thread.purge()


def test_purges_a_deleted_thread(conversations: Conversations) -> None:
    thread = filled(conversations)
    thread.delete(reason=TEXT)
    thread.purge()
    assert TEXT not in str(list(thread.events()))
    assert conversations.verify().first_bad is None


def test_forks_show_as_redacted_what_they_inherit(conversations: Conversations) -> None:
    thread = filled(conversations)
    fork = thread.fork(thread_id="f")
    fork.append(Message.user("own"))
    inner = fork.fork(thread_id="g", title="mine")
    assert list(conversations.threads())[1].title == f"{TEXT} title"
    with pytest.raises(ThreadHasForksError, match="has a fork"):
        thread.purge()
    assert thread.purge(forks=True).events == 7
    for each in (fork, inner):
        assert texts(each) == [None, None, "own"]
        assert [record.redacted for record in each.records()] == [True]
        assert each.summary().labels == {}
    listed = {each.id: each for each in conversations.threads()}
    assert [listed[each].title for each in ("t", "f", "g")] == [None, None, "mine"]
    assert [listed[each].labels for each in ("t", "f", "g")] == [{}, {}, {}]
    assert [listed[each].checkpoints for each in ("t", "f", "g")] == [{}, {}, {}]
    fork.append(Message.user("later"))
    assert conversations.verify().first_bad is None
    with Conversations.open("memory:") as copy:
        assert texts(copy.restore_thread(inner.serialize())) == [None, None, "own"]
        assert copy.verify().first_bad is None


def test_forks_of_a_purged_thread_do_not_count_for_the_thread_that_uses_its_id_again(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = filled(conversations)
        thread.fork(thread_id="old")
        thread.purge(forks=True)
        again = conversations.start_thread(thread_id="t", messages=[Message.user("x")], replace_deleted=True)
        assert again.purge().events == 1
        again = conversations.start_thread(thread_id="t", messages=[Message.user("x")], replace_deleted=True)
        again.fork(thread_id="new")
        with pytest.raises(ThreadHasForksError) as refused:
            again.purge()
        assert (refused.value.forks, refused.value.hidden) == (1, False)


def test_a_fork_that_is_made_before_a_purge_is_written_stops_it(shared_url: str) -> None:
    # Another process makes the fork: this one holds a lock of the purged stream, which may be that of the fork, too.
    with Conversations.open(shared_url) as conversations, Conversations.open(shared_url) as other:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user("x")])
        with before_the_next_write(conversations, other.thread("t").fork), pytest.raises(ThreadHasForksError):
            thread.purge()
        assert texts(thread) == ["x"]
        thread.purge(forks=True)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (set(), "has at least one fork that you may not see. Forks would lose"),
        ({"one"}, "has a fork, and others that you may not see. Forks would lose"),
        ({"one", "two"}, "has 2 forks. Forks would lose"),
    ],
)
def test_counts_only_the_forks_that_the_actor_may_see(seen: set[str], text: str) -> None:
    grants = Grants(ann={"t", *seen})
    with Conversations.open("memory:", authorize=grants) as service:
        conversations = service.acting_as("operator")
        thread = filled(conversations)
        for name in ("one", "two"):
            thread.fork(thread_id=name)
        with pytest.raises(ThreadHasForksError, match=text) as refused:
            service.acting_as("ann").thread("t").purge()
        assert (refused.value.forks, refused.value.hidden) == (len(seen), len(seen) < 2)


def test_the_error_for_forks_counts_a_bounded_number_and_says_so(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redactions, "MOST_FORKS", 3)
    with Conversations.open(shared_url) as conversations:
        thread = filled(conversations)
        for number in range(3):
            thread.fork(thread_id=f"f{number}")
        with pytest.raises(ThreadHasForksError, match="'t' has 3 forks") as refused:
            thread.purge()
        assert (refused.value.forks, refused.value.more) == (3, False)
        thread.fork(thread_id="one more")
        thread.fork(thread_id="two more")
        asked: list[int | None] = []
        log = conversations._core.log
        read = log.forks

        def counted(stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
            asked.append(limit)
            return read(stream, cut=cut, limit=limit)

        monkeypatch.setattr(log, "forks", counted)
        with pytest.raises(ThreadHasForksError, match="'t' has at least 3 forks") as refused:
            thread.purge()
        assert (refused.value.forks, refused.value.hidden, refused.value.more) == (3, False, True)
        assert {*asked} == {4}


def test_a_purged_fork_shows_nothing_and_its_parent_everything(conversations: Conversations) -> None:
    thread = filled(conversations)
    fork = thread.fork(thread_id="f", title=f"{TEXT} fork")
    fork.append(Message.user(f"{TEXT} own"))
    assert fork.purge().events == 2
    assert texts(thread) == [f"{TEXT} one", None]
    assert fork.summary().title is None
    assert {each.id: each.title for each in conversations.threads()} == {"t": f"{TEXT} title", "f": None}
    assert conversations.verify().first_bad is None


def test_the_id_of_a_purged_thread_can_be_used_again(conversations: Conversations) -> None:
    thread = filled(conversations)
    fork = thread.fork(thread_id="f")
    for deleted in (False, True):
        if deleted:
            thread.delete()
        with pytest.raises(
            ThreadExistsError, match="deleted, but not purged" if deleted else "already a thread 't'\\."
        ):
            conversations.start_thread(thread_id="t", replace_deleted=True)
    thread.purge(forks=True)
    with pytest.raises(ThreadExistsError):
        conversations.start_thread(thread_id="t")
    again = conversations.start_thread(
        "New", thread_id="t", labels={"a": 1}, messages=[Message.user("first")], replace_deleted=True
    )
    again.append(Message.user("second"), idempotency_key=f"{TEXT} key")
    again.checkpoint("here")
    assert texts(again) == ["first", "second"]
    assert texts(again, last=9) == ["first", "second"]
    assert texts(again, at=1) == []
    for at in (2, fork.version, datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(UnknownVersionError):
            again.history(at=at)
    with pytest.raises(UnknownVersionError, match="of the thread that had this id before"):
        again.rewind(to=2)
    assert again.records() == []
    summary = again.summary()
    assert (summary.status, summary.title, summary.labels, summary.messages) == ("active", "New", {"a": 1}, 2)
    (listed,) = conversations.threads(labels={"a": 1})
    assert (listed.id, listed.title, listed.status, listed.messages) == ("t", "New", "active", 2)
    assert texts(fork) == [None, None]
    assert [hit.thread_id for hit in conversations.search("second")] == ["t"]
    assert conversations.verify().first_bad is None
    again.purge(forks=True)
    assert conversations.start_thread(thread_id="t", replace_deleted=True).history().messages == ()
    assert conversations.verify().first_bad is None


def test_redacts_a_title_a_label_and_the_name_of_a_checkpoint(conversations: Conversations) -> None:
    thread = filled(conversations)
    fork = thread.fork(thread_id="f")
    versions = {event.type: event.version for event in thread.events()}
    for type_ in ("thread-started", "thread-labelled", "checkpoint-made", "message-redacted"):
        thread.redact(versions[type_])
    for each in (thread, fork):
        summary = each.summary()
        assert (summary.title, summary.labels, dict(summary.checkpoints), summary.metadata) == (None, {}, {}, {})
    for listed in conversations.threads():
        assert (listed.title, listed.labels, listed.checkpoints, listed.metadata) == (None, {}, {}, {})
    assert conversations.verify().first_bad is None


@pytest.mark.parametrize("starts_again", [False, True])
def test_a_redaction_reaches_the_forks_of_a_purged_thread(conversations: Conversations, starts_again: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    first = conversations.start_thread("First", labels={"topic": "first"}, messages=[Message.user("x")])
    first.checkpoint("first")
    between = first.fork(thread_id="between")
    last = between.fork()
    between.purge(forks=True)
    if starts_again:
        conversations.start_thread("Other", thread_id="between", replace_deleted=True)
    assert (last.summary().title, last.summary().labels) == ("First", {"topic": "first"})
    for version in (1, 3):
        first.redact(version)
    conversations.wait()
    (listed,) = [each for each in conversations.threads() if each.id == last.id]
    assert listed == last.summary()
    assert (listed.title, listed.labels, listed.checkpoints) == (None, {}, {})
    assert [each.title for each in conversations.threads() if each.id == "between"] == [
        "Other" if starts_again else None
    ]


def test_a_snapshot_does_not_keep_a_title(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "clew.db") as conversations:
        thread = conversations.start_thread(f"{TEXT} title", thread_id="t", messages=[Message.user("x")] * 300)
        fork = thread.fork(thread_id="f")
        fork.append([Message.user("y")] * 300)
        with Conversations.open(tmp_path / "clew.db") as other:
            assert other.thread("f").summary().title == f"{TEXT} title"
            thread.redact(1)
            other.thread("f").append([Message.user("z")] * 300)
        assert conversations.verify().first_bad is None
        assert fork.summary().title is None
    assert files_with(f"{TEXT} title", tmp_path) == []


@contextmanager
def before_the_next_write(conversations: Conversations, work: Callable[[], object]) -> Iterator[None]:
    """Do the work after the next append is decided, and before it is written."""
    log = conversations._core.log
    submit = log.submit

    def submit_later(write: Write) -> Any:
        patch.undo()
        work()
        return submit(write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "submit", submit_later)
        yield


def snapshots_of(conversations: Conversations, thread_id: str) -> list[int]:
    """The versions of a thread's own snapshots."""
    log: Any = conversations._core.log
    stream = conversations._core.stream(thread_id)
    found = (log._recorder.snapshot(stream, upto) for upto in range(127, 1_500, 128))
    return sorted({each.version for each in found if each is not None and each.stream == stream})


@pytest.mark.parametrize(
    "removal", [lambda thread: thread.purge(forks=True), lambda thread: thread.redact(1)], ids=["purge", "redaction"]
)
def test_a_snapshot_of_a_fork_does_not_keep_what_its_parent_lost_before_it_was_written(
    shared_url: str, removal: Callable[[Any], object]
) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as two:
        thread = one.start_thread(f"{TEXT} title", thread_id="t", messages=[Message.user("x")])
        thread.fork(thread_id="f")
        fork = two.thread("f")
        assert fork.summary().title == f"{TEXT} title"
        with before_the_next_write(two, lambda: removal(thread)):
            fork.append([Message.user("y")] * 300)
        assert snapshots_of(two, "f") == []
        assert (fork.summary().title, one.thread("f").summary().title) == (None, None)
        fork.append([Message.user("z")] * 300)
        assert snapshots_of(two, "f") == [384, 512]
        assert one.verify().first_bad is None


def test_a_fork_that_is_made_while_its_parent_is_purged_has_no_snapshot_of_its_title(shared_url: str) -> None:
    # Another process purges: this one holds a lock of the fork's stream, which may be that of the purged one, too.
    with Conversations.open(shared_url) as conversations, Conversations.open(shared_url) as other:
        messages = [Message.user("x")] * 126
        thread = conversations.start_thread(f"{TEXT} title", thread_id="t", messages=messages)
        with before_the_next_write(conversations, other.thread("t").purge):
            fork = thread.fork(thread_id="f")
        assert fork.version == 128
        assert snapshots_of(conversations, "f") == []
        assert fork.summary().title is None
        assert conversations.verify().first_bad is None


def test_a_fork_with_many_messages_gets_snapshots_in_a_store_with_redactions(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user("x")] * 3)
        thread.redact(2)
        for name, at in (("f", None), ("g", 2)):
            thread.fork(at=at, thread_id=name, then=[Message.user("y")] * 300)
            assert snapshots_of(conversations, name) == [128, 256]


def test_a_fork_is_read_once_after_a_redaction(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user("x")] * 3)
        fork = thread.fork(thread_id="f")
        thread.redact(2)
        log = conversations._core.log
        reads: list[str] = []
        control = log.control
        monkeypatch.setattr(log, "control", lambda stream, *upto: reads.append(stream) or control(stream, *upto))  # type: ignore[func-returns-value]
        for _ in range(10):
            assert fork.summary().status == "active"
        assert len(reads) == 1


def test_an_append_during_a_redaction_stores_no_snapshot_with_the_title(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(f"{TEXT} title", thread_id="t", messages=[Message.user("x")] * 120)
        log: Any = conversations._core.log
        submit = log.submit
        appended: list[threading.Thread] = []

        def submit_and_append(write: Write) -> Any:
            patch.undo()
            submitted = submit(write)
            submitted.outcome.result()
            appended.append(threading.Thread(target=thread.append, args=([Message.user("y")] * 20,)))
            return submitted

        def note(*arguments: Any, **more: Any) -> Any:
            noted.undo()
            appended[0].start()
            appended[0].join()
            return note_stored(*arguments, **more)

        note_stored = core.note_stored
        with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as noted:
            patch.setattr(log, "submit", submit_and_append)
            noted.setattr(core, "note_stored", note)
            thread.redact(1)
        assert thread.version == 142
        assert thread.summary().title is None
        assert conversations.verify().first_bad is None
    with Conversations.open(shared_url) as again:
        assert again.thread("t").summary().title is None


def test_a_redaction_between_the_snapshot_and_the_events_leaves_no_title(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as two:
        thread = one.start_thread(f"{TEXT} title", thread_id="t", messages=[Message.user("x")] * 130)
        log: Any = two._core.log
        snapshot = log._recorder.snapshot

        def snapshot_and_redact(*arguments: Any) -> Any:
            patch.undo()
            found = snapshot(*arguments)
            thread.redact(1)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log._recorder, "snapshot", snapshot_and_redact)
            assert two.thread("t").summary().title is None
        two.thread("t").append([Message.user("y")] * 200)
        assert two.verify().first_bad is None
        assert one.thread("t").summary().title is None


def test_an_import_stores_snapshots_of_forks_in_a_store_with_redactions(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "source.db") as source:
        thread = source.start_thread("title", thread_id="t", messages=[Message.user("x")] * 2)
        thread.redact(2)
        fork = thread.fork(thread_id="f")
        for _ in range(4):
            fork.append([Message.user("y")] * 200)
        fork.redact(fork.version)
        fork.append([Message.user("y")] * 300)
        exported, version = b"".join(source.export_events()), fork.version
    with Conversations.open(tmp_path / "clew.db") as conversations:
        conversations.start_thread(messages=[Message.user("x")]).redact(2)
        assert conversations.import_events(BytesIO(exported)).failed == []
        assert snapshots_of(conversations, "f") == list(range(128, version, 128))
        assert conversations.verify().first_bad is None


def test_an_import_stores_snapshots_of_forks_after_another_writer_has_redacted(shared_url: str) -> None:
    with Conversations.open("memory:") as source:
        fork = source.start_thread(thread_id="t", messages=[Message.user("x")]).fork(thread_id="f")
        for _ in range(10):
            fork.append([Message.user("y")] * 150)
        exported = b"".join(source.export_events())
    with Conversations.open(shared_url) as importing, Conversations.open(shared_url) as other:
        thread = other.start_thread(messages=[Message.user("x")])
        batches: list[int] = []

        def redact_once(report: EventsReport) -> None:
            batches.append(report.line)
            if len(batches) == 1:
                thread.redact(2)

        assert importing.import_events(BytesIO(exported), progress=redact_once).failed == []
        assert len(batches) > 2
        assert snapshots_of(importing, "f")[-1] == 1_280
        assert importing.verify().first_bad is None


def test_an_import_reads_nothing_in_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open("memory:") as source:
        thread = source.start_thread("title", thread_id="t", messages=[Message.user("x")])
        thread.redact(1)
        exported = b"".join(source.export_events())
    threads: list[int] = []
    query = SQLiteRecorder.query

    def noted(recorder: SQLiteRecorder, *arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return query(recorder, *arguments, **options)

    async def import_all() -> None:
        async with Engine.open(tmp_path / "clew.db") as engine:
            with monkeypatch.context() as patch:
                patch.setattr(SQLiteRecorder, "query", noted)
                assert (await engine.import_events(BytesIO(exported))).failed == []

    asyncio.run(import_all())
    assert threads
    assert threading.get_ident() not in threads


def test_exports_and_imports_a_purged_thread(tmp_path: Path, conversations: Conversations) -> None:
    with Conversations.open(tmp_path / "source.db") as source:
        thread = filled(source)
        fork = thread.fork(thread_id="f")
        before = b"".join(source.export_events())
        thread.purge(forks=True)
        fork.append(Message.user("later"))
        source.start_thread(thread_id="t", messages=[Message.user("again")], replace_deleted=True)
        after = b"".join(source.export_events())
        report = conversations.import_events(BytesIO(after))
        assert (report.failed, report.torn) == ([], False)
        assert conversations.verify().first_bad is None
        assert texts(conversations.thread("t")) == ["again"]
        assert texts(conversations.thread("f")) == [None, None, "later"]
    copy = tmp_path / "copy"
    copy.mkdir()
    with Conversations.open(copy / "clew.db") as other:
        other.import_events(BytesIO(before))
        assert texts(other.thread("f")) == [f"{TEXT} one", None]
        assert len(other.search(TEXT)) == 1
        assert other.import_events(BytesIO(after)).failed == []
        assert b"".join(other.export_events()) == after
        assert texts(other.thread("f")) == [None, None, "later"]
        assert other.thread("f").summary().labels == {}
        assert other.search(TEXT) == []
        other.wait()
        assert other.verify().first_bad is None
        assert other.erase(timeout=60)
        assert files_with(TEXT, copy) == []


def test_a_document_of_a_fork_purges_its_parent_in_another_store(conversations: Conversations) -> None:
    thread = filled(conversations)
    fork = thread.fork(thread_id="f")
    with Conversations.open("memory:") as other:
        other.restore_thread(fork.serialize())
        thread.purge(forks=True)
        fork.append(Message.user("later"))
        assert texts(other.restore_thread(fork.serialize())) == [None, None, "later"]
        assert other.thread("f").summary().labels == {}
        assert other.verify().first_bad is None


@pytest.mark.parametrize("first", [True, False])
def test_a_purge_removes_the_part_of_a_batch(conversations: Conversations, *, first: bool) -> None:
    one, two = filled(conversations), conversations.start_thread(thread_id="two")
    with conversations.batch(idempotency_key=f"{TEXT} batch") as batch:
        batch.append(one if first else two, Message.user(f"{TEXT} batch"))
        batch.append(two if first else one, Message.user(f"{TEXT} batch"))
    one.purge()
    assert TEXT not in str(list(one.events()))
    assert texts(two) == [f"{TEXT} batch"]
    assert conversations.verify().first_bad is None


def test_an_import_of_a_redacted_title_leaves_it_in_no_snapshot(tmp_path: Path) -> None:
    with Conversations.open("memory:") as source, Conversations.open(tmp_path / "clew.db") as copy:
        thread = source.start_thread(f"{TEXT} title", thread_id="t", messages=[Message.user("x")] * 200)
        thread.fork(thread_id="f").append([Message.user("y")] * 200)
        copy.import_events(BytesIO(b"".join(source.export_events())))
        assert copy.thread("f").summary().title == f"{TEXT} title"
        thread.redact(1)
        assert copy.import_events(BytesIO(b"".join(source.export_events()))).failed == []
        assert [each.title for each in copy.threads()] == [None, None]
        assert copy.thread("f").summary().title is None
        assert copy.erase(timeout=60)
        assert files_with(TEXT, tmp_path) == []


def test_other_processes_show_no_redacted_title_from_their_caches(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations, Conversations.open(path) as other:
        thread = conversations.start_thread("Mine", thread_id="t", labels={"topic": TEXT})
        thread.fork(thread_id="f")
        assert [other.thread(each).summary().title for each in ("t", "f")] == ["Mine", "Mine"]
        thread.redact(1)
        for each in ("t", "f"):
            assert (other.thread(each).summary().title, other.thread(each).state().labels) == (None, {})


def test_a_run_in_progress_writes_no_draft_after_a_purge(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    core, stream = conversations._core, conversations._core.stream("t")
    record(conversations, "t", "r", JOKER)
    control = core.log.control(stream)
    assert control.run is not None
    now = core.now()
    lease = Claim(stream, holder_of(control.run), now, now + 30_000_000)
    core.log.submit(Write((), {}, claims=(lease,))).outcome.result()
    thread.purge()
    draft = Draft(stream, "r", TEXT.encode())
    with pytest.raises(RunTakenOverError):
        core.log.submit(Write((), {}, claims=(lease._replace(renews=True),), drafts=(draft,))).outcome.result()
    assert core.log.draft(stream) is None


def test_finds_a_purged_row_that_was_changed_or_put_back(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        thread = filled(conversations)
        with sqlite3.connect(path) as raw:
            (state,) = raw.execute("SELECT state FROM event WHERE position = 2").fetchone()
        raw.close()
        thread.purge()
        at = thread.version
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE event SET state = ?, digest = NULL WHERE position = 2", (state,))
    raw.close()
    with Conversations.open(path) as conversations:
        fault = conversations.verify().first_bad
        assert fault is not None
        assert (fault.thread_id, fault.version) == ("t", at)


def test_a_purge_removes_what_runs_have_recorded(tmp_path: Path) -> None:
    async def run() -> None:
        async with Engine.open(tmp_path / "clew.db") as engine:
            thread = await engine.start_thread(thread_id="t")
            error = ModelRequestError(f"{TEXT} refused", code=TEXT)
            for script in ("fine", error):
                try:
                    await Agent(ScriptedChatClient(script), engine=engine).run(f"{TEXT} input", thread=thread)
                except ModelRequestError:
                    continue
            await thread.purge()
            assert (await engine.verify()).first_bad is None

    asyncio.run(run())
    assert files_with(TEXT, tmp_path) == []


def secret(thread_id: str, what: object) -> str:
    return f"secret of {thread_id}: {what}"


def redact_last(thread: Any) -> None:
    for message in thread.history(last=1):
        if not message.redacted:
            thread.redact(message, reason="asked")


STEPS: dict[str, Callable[[Any, str], object]] = {
    "append": lambda thread, text: thread.append(Message.user(text)),
    "key": lambda thread, text: thread.append([Message.user(text), Message.assistant(text)], idempotency_key=text),
    "record": lambda thread, text: thread.append(Record("r", {"text": text}, blob=text.encode() * 100, key=text)),
    "label": lambda thread, text: thread.label(topic=text),
    "checkpoint": lambda thread, text: thread.checkpoint(text),
    "rewind": lambda thread, _: thread.rewind(to=max(1, thread.version // 2)),
    "redact": lambda thread, _: redact_last(thread),
    "suspend": lambda thread, text: (thread.suspend(reason=text), thread.resume()),
    "long": lambda thread, text: thread.append([Message.user(f"{text} {number} " + "x" * 50) for number in range(130)]),
}


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from([*STEPS, "fork"]), st.integers(0, 9)), max_size=12),
    chosen=st.integers(0, 9),
)
def test_no_byte_of_a_purged_thread_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], chosen: int
) -> None:
    folder = tmp_path_factory.mktemp("purge")
    with Conversations.open(f"sqlite:///{folder}/clew.db?synchronous=OFF") as conversations:
        labels: JsonObject = {"topic": secret("t0", "label")}
        metadata: JsonObject = {"m": secret("t0", "metadata")}
        threads = [conversations.start_thread(secret("t0", "title"), thread_id="t0", labels=labels, metadata=metadata)]
        for number, (name, place) in enumerate(steps):
            thread, new = threads[place % len(threads)], f"t{len(threads)}"
            if name == "fork":
                threads.append(thread.fork(thread_id=new, title=secret(new, "title")))
            else:
                STEPS[name](thread, secret(thread.id, number))
        conversations.search("secret*")
        gone = threads[chosen % len(threads)]
        assert files_with(secret(gone.id, ""), folder)
        gone.purge(forks=True)
        assert conversations.verify().first_bad is None
        for other in threads:
            if other is not gone:
                other.append(Message.user("later"))
        conversations.wait()
        assert conversations.verify().first_bad is None
        assert conversations.erase(timeout=60)
        assert files_with(secret(gone.id, ""), folder) == []


@pytest.mark.parametrize("forks", ["yes", "no", 1, None])
def test_only_a_bool_says_that_forks_may_be_purged(conversations: Conversations, forks: Any) -> None:
    thread = conversations.start_thread(messages=[Message.user("1")])
    with pytest.raises(InvalidContentError, match="is not a bool"):
        thread.purge(forks=forks)
    assert texts(thread) == ["1"]


def test_a_conversation_is_not_imported_into_the_thread_that_uses_its_id_again(
    conversations: Conversations, tmp_path: Path
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"id": "a", "messages": [{"role": "user", "content": "hello"}]}')
    conversations.import_files([path])
    (summary,) = conversations.threads()
    conversations.thread(summary.id).purge()
    again = conversations.start_thread("Another", thread_id=summary.id, replace_deleted=True)
    report = conversations.import_files([path])
    assert (report.threads, [each.error for each in report.failed] != []) == (0, True)
    assert texts(again) == []


def test_a_thread_begins_again_without_the_context_of_the_purged_one(conversations: Conversations) -> None:
    async def work(engine: Engine) -> None:
        thread = await engine.start_thread(thread_id="t")
        agent = Agent(ScriptedChatClient(["one"]), name="Clerk", context_providers=[Preferences()])
        await agent.run("hi", thread=thread)
        await thread.purge()
        again = await engine.start_thread(thread_id="t", replace_deleted=True)
        bare = Agent(ScriptedChatClient(["two"]), name="Clerk")
        await bare.run("hi", thread=again)
        started = [each async for each in again.events() if each.type == "run-started"]
        assert getattr(started[-1].data, "missing", None) == ()

    asyncio.run(work(conversations.awaited))


class Preferences(ContextProvider):
    id = "preferences"
