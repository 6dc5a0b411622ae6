from __future__ import annotations

import asyncio
import io
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import wait_until
from tests.service.transferred_stores import CANARY, fill, heads, import_lines

from clew.conversations import Conversations
from clew.domain.errors import ThreadDivergedError, UnknownThreadError
from clew.domain.events import Event
from clew.domain.formats.clew_jsonl import Entry, read_line
from clew.domain.formats.event_import import EventsReport
from clew.domain.messages import Message
from clew.domain.ports import Appended, Restore, Row
from clew.engine import Engine
from clew.infrastructure.envelope import decode_row
from clew.service import event_import, stored_rows


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
    result = import_lines(conversations, lines)
    assert result == report(threads=5, messages=9, events=len(lines) - 2, line=len(lines) - 1)
    assert list(conversations.threads()) == list(source.threads())
    assert conversations.verify() == source.verify()
    assert conversations.verify().first_bad is None
    for thread_id in ("root/ä", "branch", "other", "last"):
        assert conversations.thread(thread_id).history() == source.thread(thread_id).history()
    assert list(conversations.export_events()) == lines
    assert import_lines(conversations, lines) == report(skipped=len(lines) - 2, line=len(lines) - 1)


def test_a_copy_accepts_new_writes(conversations: Conversations, lines: list[bytes]) -> None:
    import_lines(conversations, lines)
    thread = conversations.thread("root/ä")
    thread.append(Message.user("Five"), expected_version=thread.version)
    thread.fork(at="here", thread_id="new").append(Message.user("Six"))
    thread.redact(thread.version)
    assert conversations.verify().first_bad is None


def test_the_file_contains_no_redacted_text(lines: list[bytes]) -> None:
    assert CANARY.encode() not in b"".join(lines)


def test_exports_threads_with_their_ancestors_and_no_others(
    source: Conversations, conversations: Conversations, lines: list[bytes]
) -> None:
    result = list(source.export_events(["leaf", "branch"]))
    names = {entry.row.stream for line in result if isinstance(entry := read_line(line), Entry)}
    assert names == {"default/thread/root%2F%C3%A4", "default/thread/branch", "default/thread/leaf"}
    assert result == list(source.export_events(iter(["branch", "leaf", "root/ä"])))
    assert [line for line in lines if line in result] == result[:-1]  # the same order; only the end differs
    assert import_lines(conversations, source.export_events("leaf")).threads == 3
    assert list(conversations.export_events()) == result
    assert import_lines(conversations, lines) == report(
        threads=2, messages=3, events=6, skipped=len(result) - 2, line=len(lines) - 1
    )
    assert heads(conversations) == heads(source)
    assert conversations.verify().first_bad is None


def test_refuses_to_export_an_unknown_thread(source: Conversations) -> None:
    with pytest.raises(UnknownThreadError):
        list(source.export_events(["branch", "missing"]))
    assert len(list(source.export_events([]))) == 2


def test_exports_only_threads_of_the_tenant(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url, tenant="b/c") as two:
        one.start_thread(thread_id="x")
        two.start_thread(thread_id="x")
        assert b"default/" not in whole(two)
        assert whole(two).count(b'"stream":"b%2Fc/thread/x"') == 1
        with Conversations.open("memory:", tenant="b/c") as copy:
            assert import_lines(copy, [whole(two)]).threads == 1


def test_the_engine_imports_and_exports_the_same(
    source: Conversations, lines: list[bytes], url: str, tmp_path: Path
) -> None:
    async def move() -> None:
        file = tmp_path / "copy.jsonl"
        file.write_bytes(b"".join(lines))
        seen: list[EventsReport] = []
        async with Engine.open(url) as engine:
            result = await engine.import_events(file, progress=seen.append)
            assert result == seen[-1] == report(threads=5, messages=9, events=len(lines) - 2, line=len(lines) - 1)
            assert [line async for line in engine.export_events()] == lines
            only = [line async for line in engine.export_events("branch")]
            assert only == list(source.export_events("branch"))
            thread = await engine.thread("branch")
            assert await thread.markdown() == source.thread("branch").markdown()

    asyncio.run(move())


# Threads that exist in the copy


def test_an_import_redacts_text_that_the_copy_has(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY), Message.user("Two")])
    fork = thread.fork(thread_id="f")
    import_lines(conversations, source.export_events())
    copy = conversations.thread("f")
    assert copy.history().messages[0].text == CANARY
    fork.redact(2)
    assert import_lines(conversations, source.export_events()).events == 1
    assert copy.history().messages[0].redacted
    assert CANARY.encode() not in whole(conversations)
    assert whole(conversations) == whole(source)
    assert conversations.verify().first_bad is None


def test_an_imported_redaction_removes_the_words_from_the_files(source: Conversations, tmp_path: Path) -> None:
    def word_remains() -> bool:
        return any(b"zanzibar" in file.read_bytes() for file in tmp_path.iterdir())

    thread = source.start_thread(thread_id="t", messages=[Message.user("zanzibar"), Message.user("Two")])
    with Conversations.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        import_lines(copy, source.export_events("t"))
        assert len(copy.search("zanzibar")) == 1
        assert word_remains()
        thread.redact(2)
        import_lines(copy, source.export_events("t"))
        assert not word_remains()
        assert copy.search("zanzibar") == []
        assert len(copy.search("two")) == 1


def test_an_older_file_does_not_restore_redacted_text(source: Conversations, conversations: Conversations) -> None:
    source.start_thread(thread_id="t", messages=[Message.user(CANARY)])
    older = list(source.export_events("t"))
    import_lines(conversations, older)
    conversations.thread("t").redact(2)
    assert import_lines(conversations, older) == report(skipped=2, line=3)
    assert conversations.thread("t").history().messages[0].redacted
    assert conversations.verify().first_bad is None


def test_text_that_the_same_file_redacts_is_never_written(source: Conversations, conversations: Conversations) -> None:
    thread = source.start_thread(thread_id="t", messages=[Message.user(CANARY)])
    before = list(source.export_events("t"))
    thread.redact(2)
    after = list(source.export_events("t"))
    mixed = [*before[:-1], *after[3:]]  # like an export during the redaction
    assert CANARY.encode() in b"".join(mixed)
    assert import_lines(conversations, mixed).failed == []
    assert list(conversations.export_events()) == after
    assert conversations.verify().first_bad is None


def test_an_existing_thread_with_another_past_stays_unchanged(
    source: Conversations, conversations: Conversations
) -> None:
    import_lines(conversations, source.export_events("root/ä"))
    mine = conversations.thread("root/ä")
    source.thread("root/ä").append(Message.user("Theirs"))
    mine.append(Message.user("Mine"))
    source.thread("root/ä").fork(thread_id="later").append(Message.user("Later"))
    source.thread("other").append(Message.user("More"))
    before, version = mine.summary(), mine.version
    result = import_lines(conversations, source.export_events())
    first, second = result.failed
    assert isinstance(first.error, ThreadDivergedError)
    assert (first.error.thread_id, first.error.version, first.error.there) == ("root/ä", version, before.head)
    assert first.error.given == next(source.thread("root/ä").events(after=version - 1)).hash.hex()  # type: ignore[union-attr]  # the event is stored
    for part in (repr("root/ä"), str(version), before.head, first.error.given, "another database"):
        assert part in str(first.error)
    assert first.line == 1 + next(
        number for number, line in enumerate(source.export_events()) if first.error.given.encode() in line
    )
    assert "'later', version 9: it is a fork of a thread that was refused" in str(second.error)
    assert mine.summary() == before
    assert conversations.verify().first_bad is None
    assert sorted(heads(conversations)) == ["branch", "last", "leaf", "other", "root/ä"]
    assert conversations.thread("other").history().messages[-1].text == "More"


@pytest.mark.parametrize("swapped", [False, True])
def test_a_fork_differs_from_a_thread_of_the_same_name(swapped: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    with Conversations.open("memory:") as one, Conversations.open("memory:") as two:
        root = one.start_thread(thread_id="root", messages=[Message.user("Hello")] * 3)
        import_lines(two, one.export_events())
        root.fork(thread_id="t")
        two.start_thread(thread_id="t", messages=[Message.user("Hello")])
        source, copy = (two, one) if swapped else (one, two)
        before = whole(copy)
        ((_, error),) = import_lines(copy, source.export_events("t")).failed
        assert isinstance(error, ThreadDivergedError)
        assert (error.thread_id, error.version, error.there) == ("t", 1 if swapped else 5, None)
        assert "is not an event of its own" in str(error)
        assert whole(copy) == before


def test_an_import_refreshes_cached_threads(source: Conversations, conversations: Conversations) -> None:
    import_lines(conversations, list(source.export_events("root/ä"))[:5])
    thread = conversations.open_thread("root/ä")
    before = thread.version
    assert len(thread.history()) == len(thread.history().messages)
    import_lines(conversations, source.export_events())
    assert thread.version == source.thread("root/ä").version > before
    assert thread.history() == source.thread("root/ä").history()
    thread.append(Message.user("New"), expected_version=source.thread("root/ä").version)
    assert conversations.verify().first_bad is None


def test_a_concurrent_import_writes_nothing_twice(
    lines: list[bytes], conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = conversations._core.log
    restore = log.restore

    def restore_twice(rows: Restore) -> Future[Appended]:
        restore(rows).result()
        return restore(rows)

    monkeypatch.setattr(log, "restore", restore_twice)
    result = import_lines(conversations, lines)
    assert (result.events, result.skipped, result.failed) == (0, len(lines) - 2, [])
    assert list(conversations.export_events()) == lines


# Large files


def test_a_long_thread_has_snapshots_in_the_copy(conversations: Conversations) -> None:
    with Conversations.open("memory:") as store:
        thread = store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(700)])
        thread.fork(thread_id="f").append([Message.user(str(number)) for number in range(200)])
        import_lines(conversations, store.export_events())
        recorder = conversations._core.log._recorder  # type: ignore[attr-defined]  # the log is an application
        for version in (128, 256, 384, 512, 640, 768, 896):
            result = recorder.snapshot("default/thread/f", version + 127)
            assert (result.stream, result.version) == (f"default/thread/{'t' if version < 701 else 'f'}", version)
        assert conversations.verify().first_bad is None
        assert list(conversations.threads()) == list(store.threads())


def test_lines_are_read_and_written_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    class CountingFile(io.BytesIO):
        read = 0  # type: ignore[assignment]  # the number of lines read

        def readline(self, size: int | None = -1, /) -> bytes:
            CountingFile.read += 1
            return super().readline(size)

    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        for number in range(30):
            store.start_thread(thread_id=str(number), messages=[Message.user("x" * 50)] * 99)
        ahead: list[int] = []
        file = CountingFile(b"".join(store.export_events()))
        result = copy.import_events(file, progress=lambda seen: ahead.append(CountingFile.read - seen.line))
        assert result.events == 3_000
        assert len(ahead) == 7
        assert max(ahead) <= event_import.MOST_EVENTS + 2, "lines of one batch are read ahead"
        pages: list[int] = []
        rows_after = store._core.log.rows_after

        def recording_pages(position: int, limit: int, prefix: str) -> Any:
            pages.append(position)
            return rows_after(position, limit, prefix)

        monkeypatch.setattr(store._core.log, "rows_after", recording_pages)
        exported = store.export_events()
        assert pages == []
        for _ in range(150):
            next(exported)
        assert len(pages) <= 3
        assert len(list(exported)) == 3_002 - 150


def test_the_next_lines_are_read_while_a_batch_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_import, "MOST_EVENTS", 10)
    with (
        Conversations.open("memory:") as store,
        Conversations.open(f"sqlite:///{tmp_path}/c.db", projections=()) as copy,
    ):
        store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(99)])
        lines = list(store.export_events())
        log: Any = copy._core.log
        file = io.BytesIO(b"".join(lines))
        with log.recorder.datastore.lock.held():
            importing = threading.Thread(target=lambda: copy.import_events(file), daemon=True)
            importing.start()
            wait_until(lambda: file.tell() == len(b"".join(lines[:21])))
            importing.join(0.05)
            assert file.tell() == len(b"".join(lines[:21])), "the header, a batch, and as many lines ahead"
            assert log.last_position() == 0
        importing.join()
        assert list(copy.export_events()) == lines


def test_an_event_is_parsed_and_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, decoded = list[bytes](), list[Row]()

    def counted_line(text: bytes) -> Any:
        parsed.append(text)
        return read_line(text)

    def counted_row(row: Row) -> Event:
        decoded.append(row)
        return decode_row(row)

    monkeypatch.setattr(event_import, "MOST_EVENTS", 3)
    with Conversations.open("memory:", projections=()) as store, Conversations.open("memory:", projections=()) as copy:
        store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(20)])
        lines = list(store.export_events())
        monkeypatch.setattr(event_import, "read_line", counted_line)
        monkeypatch.setattr(event_import, "decode_row", counted_row)
        monkeypatch.setattr(stored_rows, "decode_row", counted_row)
        assert import_lines(copy, lines).events == 21
    assert parsed == lines[1:]
    assert [row.version for row in decoded] == list(range(1, 22))


def test_a_cancelled_import_of_events_stores_nothing_later(lines: list[bytes], tmp_path: Path) -> None:
    async def work() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/c.db", projections=()) as engine:
            log: Any = engine._core.log
            with log.recorder.datastore.lock.held():
                importing = asyncio.create_task(engine.import_events(io.BytesIO(b"".join(lines))))
                while log.recorder.datastore.queue._writing == 0:  # noqa: ASYNC110  # another thread changes it
                    await asyncio.sleep(0.001)
                importing.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await importing
            stored = log.last_position()
            await engine.start_thread()
            assert log.last_position() == stored + 1
            assert (await engine.verify()).first_bad is None

    asyncio.run(work())


def test_many_threads_are_merged_in_their_order() -> None:
    with Conversations.open("memory:") as store:
        chance = random.Random(3)
        threads = [store.start_thread(thread_id=str(number)) for number in range(60)]
        for _ in range(600):
            chance.choice(threads).append(Message.user("x"))
        named = list(store.export_events(str(number) for number in range(60)))
        assert named == list(store.export_events())


def test_imports_long_lines(conversations: Conversations) -> None:
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user('"\x01\\' * 500_000), Message.user("é")])
        lines = list(store.export_events())
        assert import_lines(conversations, lines).messages == 2
        assert list(conversations.export_events()) == lines


def test_projections_catch_up_without_a_reader(lines: list[bytes], shared_url: str) -> None:
    with Conversations.open(shared_url) as copy:
        copy.import_events(io.BytesIO(b"".join(lines)))
        wait_until(lambda: not any(status.lag for status in copy.projections()))
