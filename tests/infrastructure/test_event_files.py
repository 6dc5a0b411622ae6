from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.service.transferred_stores import STARTED, STORED_MESSAGE, STUB, file_of, forged, redaction

from clew.domain.errors import ImportFormatError
from clew.domain.streams import digest
from clew.infrastructure.event_files import EventFile, Redactions, is_event_file

ORIGINAL_DIGEST = digest(STORED_MESSAGE)
LINES = file_of(
    *forged(
        ("thread-started", STARTED),
        ("message-appended", STUB, ORIGINAL_DIGEST),
        ("message-appended", STORED_MESSAGE),
        ("message-redacted", redaction(2)),
        ("message-redacted", b"\1unreadable"),
    )
)


def open_file(lines: list[bytes]) -> EventFile:
    return EventFile.open(io.BytesIO(b"".join(lines)))


def test_returns_the_lines_after_the_header_with_their_numbers() -> None:
    file = open_file([b"\xef\xbb\xbf" + LINES[0], b"\n", *LINES[1:3], b"torn"])
    lines = []
    while (line := file.next()) is not None:
        lines.append((file.number, line.text, line.whole))
    assert lines == [(3, LINES[1], True), (4, LINES[2], True), (5, b"torn", False)]


def test_scans_for_redactions_and_the_end_without_moving() -> None:
    address = "default/thread/f", 2
    file = open_file(LINES)
    assert file.next() is not None
    assert file.redactions() == Redactions({address}, ended=True)
    line = file.next()
    assert line is not None
    assert line.text == LINES[2]
    assert open_file(LINES[:-1]).redactions() == Redactions({address}, ended=False)
    assert open_file([*LINES, b" \n"]).redactions().ended
    assert open_file([*LINES, LINES[1]]).redactions().ended is False
    assert open_file([*LINES[:4], LINES[4][:-9], b"\n", *LINES[5:]]).redactions() == Redactions(set(), ended=True)
    forgery = forged(("message-redacted", b"\0" * 17 + b"not JSON"))
    assert open_file(file_of(*forgery)).redactions() == Redactions(set(), ended=True)


def test_recognizes_an_event_file_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text, known in ((LINES[0], True), (b"\xef\xbb\xbf" + LINES[0], True), (LINES[1], False), (b"", False)):
        path.write_bytes(text)
        assert is_event_file(path) is known
    assert not is_event_file(tmp_path)


def test_closes_only_what_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(LINES))
    with path.open("rb") as source:
        with EventFile.open(source) as file:
            assert file.next() is not None
        assert not source.closed
    with EventFile.open(path) as file:
        assert file.next() is not None
    with pytest.raises(ValueError, match="closed"):
        file.next()


def test_reports_a_read_error() -> None:
    class Broken(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().readline(size)

    file = EventFile.open(Broken(b"".join(LINES)))
    for read in (file.redactions, file.next):
        with pytest.raises(ImportFormatError, match="Input/output error"):
            read()
