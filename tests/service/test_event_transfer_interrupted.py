"""Torn files and interrupted imports: the imported part verifies, and a second import completes it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.service.transferred_stores import fill, import_lines

from clew.conversations import Conversations
from clew.domain.errors import ConflictError
from clew.domain.formats.event_import import Batch, EventsReport
from clew.domain.messages import Message
from clew.infrastructure import recorder_ports
from clew.service import event_import, stored_rows
from clew.service.core import Core
from clew.service.effects import Operation


@pytest.fixture
def lines() -> list[bytes]:
    with Conversations.open("memory:") as store:
        fill(store)
        return list(store.export_events())


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_import, "MOST_EVENTS", 2)


def whole(store: Conversations) -> bytes:
    return b"".join(store.export_events())


@pytest.mark.usefixtures("small_commits")
def test_imports_a_file_up_to_a_tear_between_lines_and_later_the_rest(lines: list[bytes]) -> None:
    for count in range(1, len(lines)):
        with Conversations.open("memory:") as copy:
            entries = import_lines(copy, lines[:count])
            assert entries.torn
            assert entries.failed == []
            assert entries.line == 1 + entries.events <= count
            assert copy.verify().first_bad is None
            rest = import_lines(copy, lines)
            assert (rest.torn, rest.failed, rest.skipped) == (False, [], entries.events)
            assert list(copy.export_events()) == lines


def test_imports_up_to_the_tear_except_messages_that_wait_for_a_redaction() -> None:
    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(5)])
        lines = list(store.export_events())
        assert import_lines(copy, lines[:5]).events == 4
        store.thread("t").redact(4)
        lines = list(store.export_events())
    with Conversations.open("memory:") as copy:
        assert [import_lines(copy, lines[:count]).events for count in (3, 5, 7, 8, 9)] == [2, 1, 0, 4, 0]
        assert import_lines(copy, lines).torn is False


def test_a_message_that_waits_for_a_redaction_delays_later_events() -> None:
    with Conversations.open("memory:") as store:
        thread = store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(3)])
        for version in (2, 3, 4):
            thread.redact(version)
        lines = list(store.export_events())
    for count, events in ((5, 1), (6, 1), (7, 1), (8, 7)):
        with Conversations.open("memory:") as copy:
            assert import_lines(copy, lines[:count]).events == events
            assert copy.verify().first_bad is None
            assert import_lines(copy, lines).failed == []
            assert list(copy.export_events()) == lines


def test_imports_a_file_up_to_a_tear_within_a_line_and_later_the_rest(
    lines: list[bytes], tmp_path: Path, scale: float
) -> None:
    chance = random.Random(7)
    text = b"".join(lines)
    for number in range(max(5, round(100 * scale))):
        cut = chance.randrange(len(lines[0]), len(text) - 1)
        with Conversations.open(f"sqlite:///{tmp_path}/{number}.db?synchronous=OFF") as copy:
            assert import_lines(copy, [text[:cut]]).torn
            assert copy.verify().first_bad is None
            assert not import_lines(copy, [text]).torn
            assert whole(copy) == text


def test_the_last_line_may_lack_its_newline(lines: list[bytes]) -> None:
    with Conversations.open("memory:") as copy:
        assert not import_lines(copy, [b"\xef\xbb\xbf", *lines[:-1], b"\n  \n", lines[-1].rstrip()]).torn
        assert list(copy.export_events()) == lines


@pytest.mark.usefixtures("small_commits")
def test_an_interrupted_import_leaves_whole_commits_and_can_continue(
    lines: list[bytes], conversations: Conversations
) -> None:
    seen: list[EventsReport] = []

    def interrupt(entries: EventsReport) -> None:
        seen.append(entries)
        raise KeyboardInterrupt

    while not seen or seen[-1].events:
        before = len(whole(conversations).splitlines()) - 2
        with pytest.raises(KeyboardInterrupt):
            import_lines(conversations, lines, progress=interrupt)
        assert conversations.verify().first_bad is None
        assert len(whole(conversations).splitlines()) - 2 == before + seen[-1].events
        if before + seen[-1].events == len(lines) - 2:
            break
        lines_left = import_lines(conversations, lines[: seen[-1].line + 2])
        assert lines_left.failed == []
    assert import_lines(conversations, lines).failed == []
    assert list(conversations.export_events()) == lines


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("held", [0, 300])
def test_reads_ahead_for_a_redaction_that_is_far_away(
    lines: list[bytes], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_import, "MOST_WAITING_BYTES", held)
    for count in range(1, len(lines) + 1):
        with Conversations.open("memory:") as copy:
            entries = import_lines(copy, lines[:count])
            assert (entries.torn, entries.failed) == (count < len(lines), [])
            assert copy.verify().first_bad is None
            assert not import_lines(copy, lines).torn
            assert list(copy.export_events()) == lines


def test_finds_a_redaction_in_the_lines_that_it_read_ahead_before_a_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_batch, refused = stored_rows.write_batch, set[bytes]()

    def refuse_once(core: Core, batch: Batch, meanwhile: Callable[[], None] | None = None) -> Operation[None]:
        first = batch.rows[0].hash
        if first not in refused and meanwhile is not None:
            refused.add(first)
            meanwhile()
            raise ConflictError("another writer", 0, 0)
        yield from write_batch(core, batch, meanwhile)

    monkeypatch.setattr(event_import, "MOST_BYTES", 1)
    monkeypatch.setattr(event_import, "MOST_WAITING_BYTES", 0)
    monkeypatch.setattr(event_import, "write_batch", refuse_once)
    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        thread = store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(3)])
        thread.redact(4)
        thread.append([Message.user("later")] * 3)
        lines = list(store.export_events())
        report = import_lines(copy, lines)
        assert (report.torn, report.failed) == (False, [])
        assert list(copy.export_events()) == lines


def test_rows_that_wait_for_their_purge_are_not_copied_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_import, "MOST_EVENTS", 3)
    given: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Batch:
        batch = Batch(*arguments, **options)
        given.append(len(batch.unexplained))
        return batch

    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        thread = store.start_thread(thread_id="t", messages=[Message.user("x")] * 30)
        import_lines(copy, list(store.export_events()))
        thread.purge()
        monkeypatch.setattr(event_import, "Batch", counted)
        assert import_lines(copy, list(store.export_events())).failed == []
        assert list(copy.export_events()) == list(store.export_events())
    assert len(given) > 10
    assert max(given) == 0


def test_refuses_a_distant_redaction_in_a_pipe(lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with Conversations.open("memory:") as copy:
        assert copy.import_events(Pipe(b"".join(lines))).failed == []
    monkeypatch.setattr(event_import, "MOST_WAITING_BYTES", 0)
    monkeypatch.setattr(event_import, "MOST_EVENTS", 1)
    with Conversations.open("memory:") as copy:
        (failed,) = copy.import_events(Pipe(b"".join(lines))).failed
        assert "Save the input in a file" in str(failed.error)
        assert copy.verify().first_bad is None


def test_updates_redactions_behind_large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_ports, "PAGE_BYTES", 1_000)
    with Conversations.open("memory:") as source, Conversations.open("memory:") as store:
        thread = source.start_thread(thread_id="big", messages=[Message.user("x" * 400)] * 12)
        store.import_events(io.BytesIO(whole(source)))
        for version in range(2, 13):
            thread.redact(version)
        report = store.import_events(io.BytesIO(whole(source)))
        assert (len(report.failed), whole(store) == whole(source)) == (0, True)
