"""Files that are not whole, and imports that do not come to their end: what is there verifies, and it goes on."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from tests.service.moving_stores import copied, fill

from clew.conversations import Conversations
from clew.domain.formats.event_import import EventsReport
from clew.domain.messages import Message
from clew.infrastructure import recorder
from clew.service import event_transfer


@pytest.fixture
def lines() -> list[bytes]:
    with Conversations.open("memory:") as store:
        fill(store)
        return list(store.export_events())


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_transfer, "MOST_EVENTS", 2)


def whole(store: Conversations) -> bytes:
    return b"".join(store.export_events())


@pytest.mark.usefixtures("small_commits")
def test_a_file_that_is_torn_after_any_line_is_imported_up_to_the_tear_and_goes_on(lines: list[bytes]) -> None:
    for count in range(1, len(lines)):
        with Conversations.open("memory:") as copy:
            found = copied(copy, lines[:count])
            assert found.torn
            assert found.failed == []
            assert found.line == 1 + found.events <= count
            assert copy.verify().first_bad is None
            rest = copied(copy, lines)
            assert (rest.torn, rest.failed, rest.skipped) == (False, [], found.events)
            assert list(copy.export_events()) == lines


def test_up_to_the_tear_is_all_but_what_waits_for_its_redaction() -> None:
    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(5)])
        lines = list(store.export_events())
        assert copied(copy, lines[:5]).events == 4
        store.thread("t").redact(4)
        lines = list(store.export_events())
    with Conversations.open("memory:") as copy:
        assert [copied(copy, lines[:count]).events for count in (3, 5, 7, 8, 9)] == [2, 1, 0, 4, 0]
        assert copied(copy, lines).torn is False


def test_what_a_redaction_beyond_the_tear_holds_back_holds_back_others() -> None:
    with Conversations.open("memory:") as store:
        thread = store.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(3)])
        for version in (2, 3, 4):
            thread.redact(version)
        lines = list(store.export_events())
    for count, events in ((5, 1), (6, 1), (7, 1), (8, 7)):
        with Conversations.open("memory:") as copy:
            assert copied(copy, lines[:count]).events == events
            assert copy.verify().first_bad is None
            assert copied(copy, lines).failed == []
            assert list(copy.export_events()) == lines


def test_a_file_that_is_torn_within_a_line_is_imported_up_to_the_tear_and_goes_on(
    lines: list[bytes], tmp_path: Path, scale: float
) -> None:
    chance = random.Random(7)
    text = b"".join(lines)
    for number in range(max(5, round(100 * scale))):
        cut = chance.randrange(len(lines[0]), len(text) - 1)
        with Conversations.open(f"sqlite:///{tmp_path}/{number}.db?synchronous=OFF") as copy:
            assert copied(copy, [text[:cut]]).torn
            assert copy.verify().first_bad is None
            assert not copied(copy, [text]).torn
            assert whole(copy) == text


def test_the_last_line_may_lack_its_end(lines: list[bytes]) -> None:
    with Conversations.open("memory:") as copy:
        assert not copied(copy, [b"\xef\xbb\xbf", *lines[:-1], b"\n  \n", lines[-1].rstrip()]).torn
        assert list(copy.export_events()) == lines


@pytest.mark.usefixtures("small_commits")
def test_an_import_that_is_interrupted_leaves_whole_commits_and_goes_on(
    lines: list[bytes], conversations: Conversations
) -> None:
    seen: list[EventsReport] = []

    def interrupt(found: EventsReport) -> None:
        seen.append(found)
        raise KeyboardInterrupt

    while not seen or seen[-1].events:
        before = len(whole(conversations).splitlines()) - 2
        with pytest.raises(KeyboardInterrupt):
            copied(conversations, lines, progress=interrupt)
        assert conversations.verify().first_bad is None
        assert len(whole(conversations).splitlines()) - 2 == before + seen[-1].events
        if before + seen[-1].events == len(lines) - 2:
            break
        lines_left = copied(conversations, lines[: seen[-1].line + 2])
        assert lines_left.failed == []
    assert copied(conversations, lines).failed == []
    assert list(conversations.export_events()) == lines


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("held", [0, 300])
def test_what_waits_too_long_for_its_redaction_is_written_if_the_file_has_it(
    lines: list[bytes], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_transfer, "MOST_HELD", held)
    for count in range(1, len(lines) + 1):
        with Conversations.open("memory:") as copy:
            found = copied(copy, lines[:count])
            assert (found.torn, found.failed) == (count < len(lines), [])
            assert copy.verify().first_bad is None
            assert not copied(copy, lines).torn
            assert list(copy.export_events()) == lines


def test_what_waits_too_long_in_a_pipe_is_refused(lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with Conversations.open("memory:") as copy:
        assert copy.import_events(Pipe(b"".join(lines))).failed == []
    monkeypatch.setattr(event_transfer, "MOST_HELD", 0)
    monkeypatch.setattr(event_transfer, "MOST_EVENTS", 1)
    with Conversations.open("memory:") as copy:
        (failed,) = copy.import_events(Pipe(b"".join(lines))).failed
        assert "Save the input in a file" in str(failed.error)
        assert copy.verify().first_bad is None


def test_what_was_redacted_behind_large_messages_is_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PAGE_BYTES", 1_000)
    with Conversations.open("memory:") as source, Conversations.open("memory:") as store:
        thread = source.start_thread(thread_id="big", messages=[Message.user("x" * 400)] * 12)
        store.import_events(io.BytesIO(whole(source)))
        for version in range(2, 13):
            thread.redact(version)
        report = store.import_events(io.BytesIO(whole(source)))
        assert (len(report.failed), whole(store) == whole(source)) == (0, True)
