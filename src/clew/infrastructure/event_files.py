"""Files in Clew's own JSONL: they are read line by line, and searched ahead for redactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from clew.domain.errors import CorruptEventError, ImportFormatError
from clew.domain.events import MessageRedacted
from clew.domain.formats.clew_jsonl import End, Entry, is_header, read_line
from clew.domain.json_values import MAX_BYTES
from clew.domain.ports import NOTHING
from clew.infrastructure.envelope import decode_row

LONGEST_LINE = 7 * MAX_BYTES
"""The most bytes of a line. The line of an event is never longer, even if all its characters are escaped."""

_BOM = b"\xef\xbb\xbf"


class FileLine(NamedTuple):
    """A line; ``whole`` is false for the last line of a file that is cut off within it."""

    text: bytes
    whole: bool


class Redactions(NamedTuple):
    """The rows that the rest of a file redacts, by stream and version, and whether the file is complete."""

    rows: set[tuple[str, int]]
    ended: bool
    purged: Mapping[str, int] = NOTHING
    """The version of the last purge of each stream."""

    def missing(self, rows: Iterable[tuple[str, int]]) -> bool:
        """Whether one of these rows is neither redacted nor purged."""
        return any(row not in self.rows and self.purged.get(row[0], 0) <= row[1] for row in rows)


class EventFile:
    """A file in Clew's own JSONL, by its path or open for reading bytes. Blank lines are skipped.

    ``number`` is the number of the last line, from 1.
    """

    def __init__(self, file: BinaryIO, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self.number = 0
        self._lines = self._read()

    @classmethod
    def open(cls, source: str | Path | BinaryIO) -> Self:
        """Open it. Raises ImportFormatError if it cannot be read or has no such header."""
        owned = isinstance(source, str | Path)
        if not owned and not hasattr(source, "readline"):
            raise ImportFormatError(f"{type(source).__name__} is not a file. Give its path, or a file open for bytes.")
        if source == "":
            raise ImportFormatError("The path of the file is empty. Give a file of `clew export --format clew`.")
        try:
            opened = Path(source).open("rb") if isinstance(source, str | Path) else source  # noqa: SIM115  # see close()
        except OSError as error:
            raise ImportFormatError(f"{source}: it cannot be read: {error.strerror}. Check the name.") from None
        file = cls(opened, owned=owned)
        try:
            file._check_header()
        except BaseException:
            file.close()
            raise
        return file

    def next(self) -> FileLine | None:
        """The next line, None at the end. Raises ImportFormatError if it cannot be read."""
        return next(self._lines, None)

    def redactions(self) -> Redactions:
        """The rows that the rest of the file redacts. The reading position does not change.

        Raises ImportFormatError if the file cannot be read twice.
        """
        if not self._file.seekable():
            raise ImportFormatError(
                "A redaction is too far behind its message to read ahead. Save the input in a file and import that."
            )
        position, ended = self._file.tell(), False
        rows: set[tuple[str, int]] = set()
        purged: dict[str, int] = {}
        try:
            while text := self._file.readline(LONGEST_LINE):
                if text.strip():
                    ended = False
                if b'"message-redacted"' in text or b'"thread-purged"' in text or text.startswith(b'{"end"'):
                    line = _read(text)
                    ended = isinstance(line, End)
                    if isinstance(line, Entry):
                        rows |= _redacted_rows(line)
                        if line.row.type == "thread-purged":
                            purged[line.row.stream] = line.row.version
        except OSError as error:
            raise _unreadable(error) from None
        finally:
            self._file.seek(position)
        return Redactions(rows, ended, purged)

    def close(self) -> None:
        """Close the file if ``open`` opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_header(self) -> None:
        first = self.next()
        if first is None or not is_header(first.text):
            raise ImportFormatError("It is not in Clew's own JSONL. `clew export --format clew` writes such files.")
        read_line(first.text)

    def _read(self) -> Iterator[FileLine]:
        try:
            while text := self._file.readline(LONGEST_LINE):
                self.number += 1
                if len(text) == LONGEST_LINE:
                    raise ImportFormatError("The line is longer than any event. The file is damaged: use another copy.")
                if text.strip():
                    yield FileLine(text.removeprefix(_BOM) if self.number == 1 else text, text.endswith(b"\n"))
        except OSError as error:
            raise _unreadable(error) from None


def is_event_file(path: Path) -> bool:
    """Whether a file is in Clew's own JSONL, in any version, by its first line."""
    try:
        with path.open("rb") as file:
            return is_header(file.readline(1_000).removeprefix(_BOM))
    except OSError:
        return False


def _read(text: bytes) -> object:
    try:
        return read_line(text)
    except ImportFormatError:  # reported when it is read
        return None


def _redacted_rows(entry: Entry) -> set[tuple[str, int]]:
    row = entry.row
    try:
        data = decode_row(row).data
    except CorruptEventError:
        return set()
    return {(row.stream, data.version)} if isinstance(data, MessageRedacted) else set()


def _unreadable(error: OSError) -> ImportFormatError:
    return ImportFormatError(f"The rest cannot be read: {error.strerror}. The lines before it are imported.")
