"""The data exports of ChatGPT and Claude: the zip that people download, or its folder, with conversations and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TypeAlias
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError  # noqa: N812  # its name is that of any error

from clew.domain.errors import ImportFormatError
from clew.domain.formats.transcripts import ExportedFile
from clew.domain.json_values import MAX_BYTES, one_line

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of a zip, and of an empty one."""

_CONVERSATIONS = re.compile(r"conversations(?:[-_]\d+)?\.json", re.IGNORECASE)
_FILE_ID = re.compile(r"file[-_][0-9A-Za-z]+")
_OTHERS = frozenset(
    {
        "chat.html",
        "export_manifest.json",
        "group_chats.json",
        "memories.json",
        "message_feedback.json",
        "model_comparisons.json",
        "projects.json",
        "shared_conversations.json",
        "shopping.json",
        "sora.json",
        "user.json",
        "user_settings.json",
        "users.json",
    }
)
"""The other files of exports. They hold no conversations."""

_LONGEST_NAME = 200
_DAMAGED = (BadZipFile, ZlibError, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)
"""What reading a zip raises if it is torn, damaged, encrypted, or compressed in another way."""

_Open: TypeAlias = Callable[[str], IO[bytes]]


def are_conversations(name: str) -> bool:
    """Whether a file of this name, without its folder, has the conversations of an export."""
    return _CONVERSATIONS.fullmatch(name) is not None


def is_export(folder: Path) -> bool:
    """Whether a folder is that of an export: it has other files of exports next to the conversations."""
    names = {path.name.lower() for path in folder.iterdir()}
    return any(map(are_conversations, names)) and not names.isdisjoint(_OTHERS)


class ExportFiles:
    """The files of an export, found by their names and by the ids in them."""

    def __init__(self, names: Iterable[str], open_: _Open, size: Callable[[str], int]) -> None:
        self._names = list(names)
        self._open = open_
        self._size = size

    @cached_property
    def _by_id(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self._names:
            base = name.rpartition("/")[2]
            if not base or are_conversations(base) or base.lower() in _OTHERS:
                continue
            id_ = _FILE_ID.match(base)
            for key in (base, base.rpartition(".")[0], id_[0] if id_ else ""):
                if key:
                    found.setdefault(key, name)
        return found

    def find(self, name: str) -> ExportedFile | None:
        """A file by its id or its name; None if there is none, or if it is too large for one content.

        Raises ImportFormatError if it cannot be read.
        """
        path = self._by_id.get(name)
        if path is None:
            return None
        base = one_line(path.rpartition("/")[2], _LONGEST_NAME)
        try:
            if self._size(path) > MAX_BYTES:
                return None
            with self._open(path) as file:
                data = file.read(MAX_BYTES + 1)
        except _DAMAGED as error:
            raise ImportFormatError(f"The file {base} of the export cannot be read: {_reason(error)}") from None
        return None if len(data) > MAX_BYTES else ExportedFile(base, data)


def folder_files(folder: Path) -> ExportFiles:
    """The files of an export's folder."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return ExportFiles(paths, lambda name: paths[name].open("rb"), lambda name: paths[name].stat().st_size)


class Archive:
    """The zip of an export."""

    def __init__(self, opened: ZipFile) -> None:
        self._zip = opened
        names = [each.filename for each in opened.infolist() if not each.is_dir()]
        self.conversations = sorted(name for name in names if are_conversations(name.rpartition("/")[2]))
        self.files = ExportFiles(names, opened.open, lambda name: opened.getinfo(name).file_size)

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        """Read a file of the zip. Raises ImportFormatError if that fails."""
        try:
            with self._zip.open(name) as file:
                yield file
        except _DAMAGED as error:
            raise ImportFormatError(f"{one_line(name, _LONGEST_NAME)} in it cannot be read: {_reason(error)}") from None


@contextmanager
def opened_archive(path: Path) -> Iterator[Archive]:
    """The zip at a path. Raises ImportFormatError if it cannot be read, or has no conversations."""
    try:
        opened = ZipFile(path)
    except _DAMAGED as error:
        raise ImportFormatError(f"It is not a zip that can be read: {_reason(error)}") from None
    with opened:
        archive = Archive(opened)
        if not archive.conversations:
            raise ImportFormatError(
                "The zip has no conversations.json. Give the zip that ChatGPT or Claude sends, or unpack this one."
            )
        yield archive


def _reason(error: Exception) -> str:
    text = one_line(str(error) or type(error).__name__, _LONGEST_NAME)
    return f"{text}. It may be damaged or encrypted: download it again."
