from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recording import wait_until
from tests.service.moving_stores import CANARY, copied, fill, heads

from clew.conversations import Conversations
from clew.domain.errors import ThreadDivergedError, UnknownThreadError
from clew.domain.formats.clew_jsonl import Entry, read_line
from clew.domain.formats.event_import import EventsReport
from clew.domain.messages import Message
from clew.domain.ports import Appended, Restore
from clew.engine import Engine


@pytest.fixture
def source() -> Iterator[Conversations]:
    with Conversations.open("memory:") as store:
        fill(store)
        yield store


@pytest.fixture
def lines(source: Conversations) -> list[bytes]:
    return list(source.export_events())


def whole(store: Conversations) -> bytes:
    return b"".join(store.export_events())


def report(**more: Any) -> EventsReport:
    return EventsReport(**{**dict.fromkeys(EventsReport._fields, 0), "torn": False, "failed": [], **more})


# Round trips


def test_a_copy_is_equal_and_is_exported_to_equal_bytes(
    source: Conversations, lines: list[bytes], conversations: Conversations
) -> None:
    found = copied(conversations, lines)
    assert found == report(threads=5, messages=9, events=len(lines) - 2, line=len(lines) - 1)
    assert list(conversations.threads()) == list(source.threads())
    assert conversations.verify() == source.verify()
    assert conversations.verify().first_bad is None
    for thread_id in ("root/ä", "branch", "other", "last"):
        assert conversations.thread(thread_id).history() == source.thread(thread_id).history()
    assert list(conversations.export_events()) == lines
    assert copied(conversations, lines) == report(skipped=len(lines) - 2, line=len(lines) - 1)


def test_a_copy_goes_on_as_any_store_does(conversations: Conversations, lines: list[bytes]) -> None:
    copied(conversations, lines)
    thread = conversations.thread("root/ä")
    thread.append(Message.user("Five"), expected_version=thread.version)
    thread.fork(at="here", thread_id="new").append(Message.user("Six"))
    thread.redact(thread.version)
    assert conversations.verify().first_bad is None


def test_no_redacted_text_is_in_the_file(lines: list[bytes]) -> None:
    assert CANARY.encode() not in b"".join(lines)


def test_threads_come_with_all_their_ancestors_and_no_others(
    source: Conversations, conversations: Conversations, lines: list[bytes]
) -> None:
    found = list(source.export_events(["leaf", "branch"]))
    names = {entry.row.stream for line in found if isinstance(entry := read_line(line), Entry)}
    assert names == {"default/thread/root%2F%C3%A4", "default/thread/branch", "default/thread/leaf"}
    assert found == list(source.export_events(iter(["branch", "leaf", "root/ä"])))
    assert [line for line in lines if line in found] == found[:-1]  # the same order; only the end differs
    assert copied(conversations, source.export_events("leaf")).threads == 3
    assert list(conversations.export_events()) == found
    assert copied(conversations, lines) == report(
        threads=2, messages=3, events=6, skipped=len(found) - 2, line=len(lines) - 1
    )
    assert heads(conversations) == heads(source)
    assert conversations.verify().first_bad is None


def test_an_unknown_thread_is_not_exported(source: Conversations) -> None:
    with pytest.raises(UnknownThreadError):
        list(source.export_events(["branch", "nobody"]))
    assert len(list(source.export_events([]))) == 2


def test_only_the_tenant_s_threads_are_exported(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url, tenant="b/c") as two:
        one.start_thread(thread_id="x")
        two.start_thread(thread_id="x")
        assert b"default/" not in whole(two)
        assert whole(two).count(b'"stream":"b%2Fc/thread/x"') == 1
        with Conversations.open("memory:", tenant="b/c") as copy:
            assert copied(copy, [whole(two)]).threads == 1


def test_asyncio_moves_the_same(source: Conversations, lines: list[bytes], url: str, tmp_path: Path) -> None:
    async def move() -> None:
        file = tmp_path / "copy.jsonl"
        file.write_bytes(b"".join(lines))
        seen: list[EventsReport] = []
        async with Engine.open(url) as engine:
            found = await engine.import_events(file, progress=seen.append)
            assert found == seen[-1] == report(threads=5, messages=9, events=len(lines) - 2, line=len(lines) - 1)
            assert [line async for line in engine.export_events()] == lines
            only = [line async for line in engine.export_events("branch")]
            assert only == list(source.export_events("branch"))
            thread = await engine.thread("branch")
            assert await thread.markdown() == source.thread("branch").markdown()

    asyncio.run(move())


# What is there already


def test_a_redaction_reaches_a_copy_that_has_the_text(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY), Message.user("Two")])
    fork = thread.fork(thread_id="f")
    copied(conversations, source.export_events())
    there = conversations.thread("f")
    assert there.history().messages[0].text == CANARY
    fork.redact(2)
    assert copied(conversations, source.export_events()).events == 1
    assert there.history().messages[0].redacted
    assert CANARY.encode() not in whole(conversations)
    assert whole(conversations) == whole(source)
    assert conversations.verify().first_bad is None


def test_a_redaction_takes_the_words_out_of_the_copy_s_files(source: Conversations, tmp_path: Path) -> None:
    def there() -> bool:
        return any(b"zanzibar" in file.read_bytes() for file in tmp_path.iterdir())

    thread = source.start_thread(thread_id="t", messages=[Message.user("zanzibar"), Message.user("Two")])
    with Conversations.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        copied(copy, source.export_events("t"))
        assert len(copy.search("zanzibar")) == 1
        assert there()
        thread.redact(2)
        copied(copy, source.export_events("t"))
        assert not there()
        assert copy.search("zanzibar") == []
        assert len(copy.search("two")) == 1


def test_an_older_file_does_not_bring_redacted_text_back(source: Conversations, conversations: Conversations) -> None:
    source.start_thread(thread_id="t", messages=[Message.user(CANARY)])
    older = list(source.export_events("t"))
    copied(conversations, older)
    conversations.thread("t").redact(2)
    assert copied(conversations, older) == report(skipped=2, line=3)
    assert conversations.thread("t").history().messages[0].redacted
    assert conversations.verify().first_bad is None


def test_text_that_the_same_file_redacts_is_never_written(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY)])
    before = list(source.export_events("t"))
    thread.redact(2)
    after = list(source.export_events("t"))
    mixed = [*before[:-1], *after[3:]]  # as an export that was going on while it was redacted
    assert CANARY.encode() in b"".join(mixed)
    assert copied(conversations, mixed).failed == []
    assert list(conversations.export_events()) == after
    assert conversations.verify().first_bad is None


def test_a_thread_that_is_there_with_another_past_is_left_as_it_is(
    source: Conversations, conversations: Conversations
) -> None:
    copied(conversations, source.export_events("root/ä"))
    mine = conversations.thread("root/ä")
    source.thread("root/ä").append(Message.user("Theirs"))
    mine.append(Message.user("Mine"))
    source.thread("root/ä").fork(thread_id="later").append(Message.user("Later"))
    source.thread("other").append(Message.user("More"))
    there, version = mine.summary(), mine.version
    found = copied(conversations, source.export_events())
    first, second = found.failed
    assert isinstance(first.error, ThreadDivergedError)
    assert (first.error.thread_id, first.error.version, first.error.there) == ("root/ä", version, there.head)
    assert first.error.given == next(source.thread("root/ä").events(after=version - 1)).hash.hex()  # type: ignore[union-attr]  # it is recorded
    for part in (repr("root/ä"), str(version), there.head, first.error.given, "another database"):
        assert part in str(first.error)
    assert first.line == 1 + next(
        number for number, line in enumerate(source.export_events()) if first.error.given.encode() in line
    )
    assert "'later', version 9: it is a fork of a thread that was refused" in str(second.error)
    assert mine.summary() == there
    assert conversations.verify().first_bad is None
    assert sorted(heads(conversations)) == ["branch", "last", "leaf", "other", "root/ä"]
    assert conversations.thread("other").history().messages[-1].text == "More"


@pytest.mark.parametrize("turned", [False, True])
def test_a_fork_and_a_thread_of_one_name_differ(turned: bool) -> None:  # noqa: FBT001 - which of them is there
    with Conversations.open("memory:") as one, Conversations.open("memory:") as two:
        root = one.start_thread(thread_id="root", messages=[Message.user("Hello")] * 3)
        copied(two, one.export_events())
        root.fork(thread_id="t")
        two.start_thread(thread_id="t", messages=[Message.user("Hello")])
        source, copy = (two, one) if turned else (one, two)
        before = whole(copy)
        ((_, error),) = copied(copy, source.export_events("t")).failed
        assert isinstance(error, ThreadDivergedError)
        assert (error.thread_id, error.version, error.there) == ("t", 1 if turned else 5, None)
        assert "is not an event of its own" in str(error)
        assert whole(copy) == before


def test_what_was_read_before_is_not_stale_after(source: Conversations, conversations: Conversations) -> None:
    copied(conversations, list(source.export_events("root/ä"))[:5])
    thread = conversations.open_thread("root/ä")
    before = thread.version
    assert len(thread.history()) == len(thread.history().messages)
    copied(conversations, source.export_events())
    assert thread.version == source.thread("root/ä").version > before
    assert thread.history() == source.thread("root/ä").history()
    thread.append(Message.user("New"), expected_version=source.thread("root/ä").version)
    assert conversations.verify().first_bad is None


def test_an_import_at_the_same_time_is_not_doubled(
    lines: list[bytes], conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = conversations._core.log
    restore = log.restore

    def twice(rows: Restore) -> Future[Appended]:
        restore(rows).result()
        return restore(rows)

    monkeypatch.setattr(log, "restore", twice)
    found = copied(conversations, lines)
    assert (found.events, found.skipped, found.failed) == (0, len(lines) - 2, [])
    assert list(conversations.export_events()) == lines


# Large files


def test_a_long_thread_has_snapshots_in_the_copy(conversations: Conversations) -> None:
    with Conversations.open("memory:") as store:
        thread = store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(700)])
        thread.fork(thread_id="f").append([Message.user(str(number)) for number in range(200)])
        copied(conversations, store.export_events())
        recorder = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
        for version in (128, 256, 384, 512, 640, 768, 896):
            found = recorder.snapshot("default/thread/f", version + 127)
            assert (found.stream, found.version) == (f"default/thread/{'t' if version < 701 else 'f'}", version)
        assert conversations.verify().first_bad is None
        assert list(conversations.threads()) == list(store.threads())


def test_lines_are_read_and_written_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(io.BytesIO):
        read = 0  # type: ignore[assignment]  # how many lines were

        def readline(self, size: int | None = -1, /) -> bytes:
            Counted.read += 1
            return super().readline(size)

    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        for number in range(30):
            store.start_thread(thread_id=str(number), messages=[Message.user("x" * 50)] * 99)
        ahead: list[int] = []
        file = Counted(b"".join(store.export_events()))
        found = copy.import_events(file, progress=lambda seen: ahead.append(Counted.read - seen.line))
        assert found.events == 3_000
        assert len(ahead) == 7
        assert max(ahead) <= 2
        pages: list[int] = []
        rows_after = store._core.log.rows_after

        def noted(position: int, limit: int, prefix: str) -> Any:
            pages.append(position)
            return rows_after(position, limit, prefix)

        monkeypatch.setattr(store._core.log, "rows_after", noted)
        exported = store.export_events()
        assert pages == []
        for _ in range(150):
            next(exported)
        assert len(pages) <= 3
        assert len(list(exported)) == 3_002 - 150


def test_many_threads_are_merged_in_their_order() -> None:
    with Conversations.open("memory:") as store:
        chance = random.Random(3)
        threads = [store.start_thread(thread_id=str(number)) for number in range(60)]
        for _ in range(600):
            chance.choice(threads).append(Message.user("x"))
        named = list(store.export_events(str(number) for number in range(60)))
        assert named == list(store.export_events())


def test_a_line_may_be_long(conversations: Conversations) -> None:
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user('"\x01\\' * 500_000), Message.user("é")])
        lines = list(store.export_events())
        assert copied(conversations, lines).messages == 2
        assert list(conversations.export_events()) == lines


def test_projections_are_filled_without_anybody_reading_them(lines: list[bytes], shared_url: str) -> None:
    with Conversations.open(shared_url) as copy:
        copy.import_events(io.BytesIO(b"".join(lines)))
        wait_until(lambda: not any(status.lag for status in copy.projections()))
