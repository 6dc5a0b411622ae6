"""Files of conversations: JSON, JSON lines, or directories of these. Their content decides about the format.

A file has one JSON value (a list of messages, an object with ``messages``, or a list of such objects or lists), or one
such conversation per line. Lines are read one by one, so a file can have any size. So are the conversations of the
exports of other programs, which are one array; they may be in a zip. Sessions may be in a SQLite file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from clew.domain.errors import ClewError, ImportFormatError, InvalidContentError
from clew.domain.formats.agent_framework_sessions import is_message, session_of
from clew.domain.formats.conversation_import import ImportFailure, Item, failure
from clew.domain.formats.sources import is_foreign
from clew.domain.formats.traces import joined, trace_of
from clew.domain.formats.transcripts import ExportedFile, Files
from clew.domain.json_values import MAX_DEPTH, one_line
from clew.infrastructure.agents_sessions import SQLITE, read_sessions
from clew.infrastructure.export_files import (
    ZIP,
    ExportFiles,
    are_conversations,
    folder_files,
    is_export,
    opened_archive,
)
from clew.infrastructure.json_arrays import Element, elements

_SUFFIXES = (".json", ".jsonl")
_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")
_LONGEST_NAME = 200
_ADVICE = "Give a JSON or JSON lines file of conversations."
_MAGIC_BYTES = 16


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files of the paths, sorted within a directory.

    Raises ImportFormatError for a path without files, and for an empty one, which Path takes for the working directory.
    """
    if not isinstance(paths, Iterable):
        raise ImportFormatError(f"{type(paths).__name__} is not a path. Give the paths of files or directories.")
    files: list[Path] = []
    for path in map(_path, paths):
        try:
            inside = _json_files(path) if path.is_dir() else [path]
            missing = not path.exists()
        except OSError as error:  # a name that is too long, or a directory without permission
            problem = f"{_shown(path)}: it cannot be accessed: {error.strerror}. Check the name and the permissions."
            raise ImportFormatError(problem) from None
        if missing:
            raise ImportFormatError(f"{_shown(path)}: this file or directory does not exist. Check the name.")
        if not inside:
            raise ImportFormatError(f"{_shown(path)}: the directory has no *.json or *.jsonl file. Name another.")
        files += inside
    return files


def read_conversations(paths: Iterable[str | Path]) -> Iterator[Item | ImportFailure]:
    """The conversations of files and directories, and failures for files that cannot be read.

    Raises ImportFormatError at once for a path that does not exist, for a directory without files, and for a file
    without conversations if it is the only one. Among several files, such a file is an ImportFailure, and the others
    are read.
    """
    files = find_files(paths)
    for file in files:
        try:
            yield from read_file(file)
        except ImportFormatError as error:
            if len(files) == 1:
                raise
            text = str(error).removeprefix(f"{_shown(file)}: ")
            yield failure(Item(_name(file), None, None), text)


def read_file(path: Path) -> Iterator[Item | ImportFailure]:
    """The conversations of one file. Raises ImportFormatError if it has none or cannot be read."""
    try:
        with path.open("rb") as file:
            beginning = file.peek(_MAGIC_BYTES)
            if beginning.startswith(ZIP):
                yield from _archive(path)
            elif beginning.startswith(SQLITE):
                yield from _sessions(path)
            elif (items := _foreign_array(path, file)) is not None:
                yield from items
            else:
                yield from _read(path, file)
    except OSError as error:
        raise ImportFormatError(
            f"{_shown(path)}: it cannot be read: {error.strerror}. Check its permissions."
        ) from None


def _path(given: str | Path) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ImportFormatError(f"{type(given).__name__} is not a path. Give the paths of files or directories.")
    if given == "":
        raise ImportFormatError("A path is empty. Give a file or a directory ('.' for the working directory).")
    return Path(given)


def _json_files(directory: Path) -> list[Path]:
    """The files with conversations. In the folder of an export, only some files have them."""
    found = [path for path in directory.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()]
    exports = {path.parent for path in found if are_conversations(path.name) and is_export(path.parent)}
    return sorted(path for path in found if are_conversations(path.name) or exports.isdisjoint(path.parents))


def _archive(path: Path) -> Iterator[Item | ImportFailure]:
    """The conversations in the zip of an export."""
    try:
        with opened_archive(path) as archive:
            for name in archive.conversations:
                with archive.reading(name) as file:
                    yield from _elements(f"{_name(path)}/{name}", elements(file), archive.files.find)
    except ImportFormatError as error:
        raise ImportFormatError(f"{_shown(path)}: {error}") from None


def _sessions(path: Path) -> Iterator[Item | ImportFailure]:
    """The sessions in a SQLite file."""
    sessions = 0
    try:
        for session in read_sessions(path, _name(path)):
            sessions += 1
            yield session
    except ImportFormatError as error:
        raise ImportFormatError(f"{_shown(path)}: {error}") from None
    if not sessions:
        raise ImportFormatError(f"{_shown(path)}: {_database_advice(path)}")


def _foreign_array(path: Path, file: BinaryIO) -> Iterator[Item | ImportFailure] | None:
    """The conversations of another program's array, None for any other file. Only one is in memory."""
    found = elements(file)
    try:
        first = next(found, None)
    except (ImportFormatError, InvalidContentError):
        first = None
    if first is not None and trace_of(first.value) is not None:
        return _traces(path, (each.value for each in chain((first,), found)))
    if first is None or not is_foreign(first.value):
        file.seek(0)
        return None
    return _elements(_name(path), chain((first,), found), _Folder(path.parent).find)


class _Folder:
    """The files next to conversations, if they are those of an export. They are listed when the first one is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _files(self) -> ExportFiles | None:
        return folder_files(self._folder) if is_export(self._folder) else None

    def find(self, name: str) -> ExportedFile | None:
        """A file by its id or its name."""
        return None if self._files is None else self._files.find(name)


def _traces(path: Path, rows: Iterable[Any]) -> Iterator[Item | ImportFailure]:
    """The traces of rows, in the order of their first rows.

    All rows are in memory: those of a trace may be far apart.
    """
    traces: dict[tuple[str, str], list[Any]] = {}
    name, number = _name(path), 0
    try:
        for number, row in enumerate(rows, start=1):
            trace = trace_of(row)
            if trace is None:
                yield failure(
                    Item(name, None, None, number), "It is not a run of LangSmith or Langfuse, and others are."
                )
            else:
                traces.setdefault(trace, []).append(row)
    except (ImportFormatError, InvalidContentError) as error:
        yield failure(Item(name, None, None, number + 1), f"{error} Its trace may be incomplete.")
    for (format_, trace_id), found in traces.items():
        yield Item(name, None, joined(format_, trace_id, found))


def _elements(name: str, found: Iterator[Element], files: Files) -> Iterator[Item | ImportFailure]:
    """The conversations of an array. After a damaged one, the rest cannot be read."""
    number = 0
    try:
        for number, element in enumerate(found, start=1):
            yield Item(name, None, element.value, number, element.size, files)
    except (ImportFormatError, InvalidContentError) as error:
        yield failure(Item(name, None, None, number + 1), f"{error} The conversations before it are imported.")


def _read(path: Path, file: BinaryIO) -> Iterator[Item | ImportFailure]:
    lines = _lines(path, file)
    first, second = next(lines, None), next(lines, None)
    if first is None:
        raise ImportFormatError(f"{_shown(path)}: the file is empty. {_ADVICE}")
    if second is None:
        line = first[0] if path.suffix.lower() == ".jsonl" else None
        yield from _document(path, first[1], line)
    elif (value := _value(first[1])) is not None and trace_of(value) is not None:
        yield from _traces(path, (_parse(text) for _, text in chain((first, second), lines)))
    elif is_message(value):
        messages = [_parse(text) for _, text in chain((first, second), lines)]
        yield Item(_name(path), None, session_of(messages, path.stem))
    elif _is_value(first[1]) or _parses_as_conversation(second[1]):
        yield from _items(path, chain((first, second), lines))
    else:
        all_lines = [first, second, *lines]  # one JSON value on many lines, which is only valid as a whole
        try:
            yield from _document(path, b"".join(text for _, text in all_lines), None)
        except ImportFormatError:
            if path.suffix.lower() != ".jsonl":
                raise
            yield from _items(path, all_lines)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    for number, line in enumerate(file, start=1):
        text = line
        if number == 1:
            if line.startswith(_OTHER_ENCODINGS) or b"\0" in line:
                raise ImportFormatError(f"{_shown(path)}: it is not UTF-8, perhaps UTF-16. Convert it to UTF-8 first.")
            text = line.removeprefix(_BOM)
        if text.strip():
            yield number, text


def _database_advice(path: Path) -> str:
    command = f"clew --db {shlex.quote(_shown(path))}"
    return (
        f"it is a SQLite database. If Clew wrote it, `{command} threads` lists its threads. "
        f"To copy it: `{command} export --format clew > copy.jsonl`, then import copy.jsonl."
    )


def _document(path: Path, text: bytes, line: int | None) -> Iterator[Item | ImportFailure]:
    """The conversations of one JSON value."""
    try:
        value = _parse(text)
    except ImportFormatError as error:
        raise ImportFormatError(f"{_shown(path)}: {error} {_ADVICE}") from None
    except InvalidContentError as error:
        yield failure(Item(_name(path), line, None), error)
        return
    if value == []:
        raise ImportFormatError(f"{_shown(path)}: an empty list contains no conversation. {_ADVICE}")
    if isinstance(value, dict) and isinstance(value.get("conversations"), list) and "messages" not in value:
        value = value["conversations"]
    if isinstance(value, dict) and isinstance(value.get("data"), list) and "messages" not in value:
        value = value["data"]  # a page of Langfuse's API
    if is_message(value):
        value = session_of([value], path.stem)
    rows = value if isinstance(value, list) else [value]
    if any(map(trace_of, rows)):
        yield from _traces(path, rows)
    elif isinstance(value, list) and not is_foreign(value) and any(map(_is_conversation, value)):
        for number, each in enumerate(value, start=1):
            yield Item(_name(path), line, each, number, len(text) // len(value))
    else:
        yield Item(_name(path), line, value, size=len(text))


def _items(path: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[Item | ImportFailure]:
    """The conversations of JSON lines."""
    for number, text in lines:
        try:
            item = Item(_name(path), number, _parse(text), size=len(text))
        except ClewError as error:
            yield failure(Item(_name(path), number, None), error)
        else:
            yield item


def _parse(text: bytes) -> Any:
    """The JSON value. The last of equal keys counts. Integers are exact; faster parsers round large ones."""
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ImportFormatError(f"It is not UTF-8, at byte {error.start + 1}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise ImportFormatError(f"It is not valid JSON: {error.msg}, at {where}.") from None
    except ValueError:  # Python's limit for the text of an integer
        raise InvalidContentError("An integer of more than 4,200 digits. Use a string.") from None
    except RecursionError:
        raise InvalidContentError(f"Nested deeper than {MAX_DEPTH} levels.") from None


def _value(text: bytes) -> Any:
    """The JSON value of a line, None if it has none."""
    try:
        return _parse(text)
    except ClewError:
        return None


def _is_value(text: bytes) -> bool:
    try:
        _parse(text)
    except ImportFormatError:
        return False
    except InvalidContentError:
        return True
    return True


def _parses_as_conversation(text: bytes) -> bool:
    try:
        return _is_conversation(_parse(text))
    except ClewError:
        return False


def _is_conversation(value: object) -> bool:
    is_object = isinstance(value, dict) and "messages" in value and "role" not in value
    return isinstance(value, list) or is_object or is_foreign(value)


def _name(path: Path) -> str:
    """The path in valid Unicode: other bytes are replaced."""
    return os.fsencode(path).decode(errors="replace")


def _shown(path: Path) -> str:
    return one_line(str(path), _LONGEST_NAME)
