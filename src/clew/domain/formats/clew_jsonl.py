"""Clew's own JSONL: stored rows as lines and back, byte for byte. Decision 9 describes the format."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from typing import Any, NamedTuple, TypeAlias

from clew.domain.errors import ImportFormatError
from clew.domain.ports import Blob, Fork, Row
from clew.domain.streams import digest

FORMAT = "clew"
FORMAT_VERSION = 1

_JSON = 0
_STUB = 2
_SALT_END = 17
_HASH_BYTES = 32
_LONGEST_NAME = 40
_HIGHEST = 2**63 - 1

# Characters that control a terminal, or that some programs treat as the end of a line.
_ESCAPED = re.compile("[\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")

_EVENT = {"stream": str, "version": int, "type": str, "hash": str}
_OPTIONAL = {"parent": str, "cut": int, "digest": str, "salt": str, "json": str, "stub": str, "state": str}
_BLOB: dict[str, type] = {"digest": str, "kind": str}
_OPTIONAL_IN_BLOB: dict[str, type] = {"text": str, "data": str}


class Header(NamedTuple):
    """The first line: the version of the format."""

    version: int = FORMAT_VERSION


class Entry(NamedTuple):
    """An event: its row, with position 0, and for the first event of a fork its fork point."""

    row: Row
    fork: Fork | None = None

    @property
    def begins(self) -> bool:
        """Whether it is the first event of its thread."""
        return self.fork is not None or self.row.version == 1


class End(NamedTuple):
    """The last line: how many threads begin in the file, and how many events and blobs it holds."""

    threads: int
    events: int
    blobs: int = 0


Line: TypeAlias = Header | Entry | Blob | End


def write_line(line: Line) -> bytes:
    """The bytes of a line with its line end. Equal lines have equal bytes."""
    match line:
        case Header(version=version):
            value: Any = {"format": {"name": FORMAT, "version": version}}
        case End(threads=threads, events=events, blobs=blobs):
            value = {"end": {"threads": threads, "events": events} | ({"blobs": blobs} if blobs else {})}
        case Blob(digest=name, kind=kind, data=data):
            value = {"blob": {"digest": name.hex(), "kind": kind, **_data(data)}}
        case Entry(row=row, fork=fork):
            fields: dict[str, Any] = {"stream": row.stream, "version": row.version, "type": row.type}
            if fork is not None:
                fields |= {"parent": fork.parent, "cut": fork.cut}
            fields["hash"] = row.hash.hex()
            if row.digest is not None:
                fields["digest"] = row.digest.hex()
            value = {"event": {**fields, **_state(row.state)}}
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def read_line(text: bytes) -> Line:
    """Parse a line. Raises ImportFormatError for a line of another format or a newer version."""
    value = _parse(text)
    if not isinstance(value, dict) or len(value) != 1:
        raise ImportFormatError("It is not a line of Clew's own JSONL: each is a JSON object with one field, its kind.")
    ((kind, fields),) = value.items()
    if kind not in {"format", "event", "blob", "end"}:
        raise ImportFormatError(f"{_quoted(kind)} is not a kind of line that this Clew knows. {_NEWER}")
    if not isinstance(fields, dict):
        raise ImportFormatError(f"{kind!r} is not an object. {_DAMAGED}")
    if kind == "format":
        return _header(fields)
    if kind == "end":
        _check_fields(fields, {"threads": int, "events": int}, {"blobs": int})
        return End(fields["threads"], fields["events"], fields.get("blobs", 0))
    return _blob(fields) if kind == "blob" else _entry(fields)


def is_header(text: bytes) -> bool:
    """Whether a file that begins with this line is in Clew's own JSONL, in any version."""
    try:
        value = _parse(text)
    except ImportFormatError:
        return False
    fields = value.get("format") if isinstance(value, dict) else None
    return isinstance(fields, dict) and fields.get("name") == FORMAT


_NEWER = "A newer Clew wrote the file: import it with that version."
_DAMAGED = "The file is damaged: export it again, or take another copy."


def _state(state: bytes) -> dict[str, str]:
    """Stored bytes, as text if they are text. They can be written in exactly one way."""
    codec = state[0] if state else None
    try:
        if codec == _JSON and len(state) >= _SALT_END:
            return {"salt": _base64(state[1:_SALT_END]), "json": state[_SALT_END:].decode()}
        if codec == _STUB:
            return {"stub": state[1:].decode()}
    except UnicodeDecodeError:
        pass
    return {"state": _base64(state)}


def _data(data: bytes) -> dict[str, str]:
    """The bytes of a blob, as text if they are text."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": _base64(data)}


def _header(fields: dict[str, Any]) -> Header:
    version = fields.get("version")
    if fields.get("name") != FORMAT or type(version) is not int:
        raise ImportFormatError(f"Its first line does not name a version of Clew's own JSONL. {_DAMAGED}")
    if version != FORMAT_VERSION or fields.keys() != {"name", "version"}:
        raise ImportFormatError(
            f"It has version {version} of Clew's own JSONL, and this Clew reads version {FORMAT_VERSION}. {_NEWER}"
        )
    return Header(version)


def _entry(fields: dict[str, Any]) -> Entry:
    _check_fields(fields, _EVENT, _OPTIONAL)
    forked = fields.keys() & {"parent", "cut"}
    if len(forked) == 1:
        raise ImportFormatError(f"A fork's first event needs parent and cut, and only one is given. {_DAMAGED}")
    fork = Fork(fields["parent"], fields["cut"]) if forked else None
    shredded = _hex(fields["digest"], "digest") if "digest" in fields else None
    hash_ = _hex(fields["hash"], "hash")
    return Entry(Row(0, fields["stream"], fields["version"], fields["type"], _bytes(fields), hash_, shredded), fork)


def _blob(fields: dict[str, Any]) -> Blob:
    _check_fields(fields, _BLOB, _OPTIONAL_IN_BLOB)
    kind = fields["kind"]
    if kind not in {"definition", "content", "record"}:
        raise ImportFormatError(f"{_quoted(kind)} is not a kind of blob that this Clew knows. {_NEWER}")
    match sorted(fields.keys() - _BLOB.keys()):
        case ["text"]:
            data = fields["text"].encode()
        case ["data"]:
            data = _unbase64(fields["data"], "data")
        case _:
            raise ImportFormatError(f"A blob has 'text' or 'data'. {_DAMAGED}")
    blob = Blob(_hex(fields["digest"], "digest"), kind, data)
    if digest(blob.data) != blob.digest:
        raise ImportFormatError(f"The blob {blob.digest.hex()} does not match its digest. {_DAMAGED}")
    return blob


def _bytes(fields: dict[str, str]) -> bytes:
    match sorted(fields.keys() & {"salt", "json", "stub", "state"}):
        case ["json", "salt"]:
            salt = _unbase64(fields["salt"], "salt")
            if len(salt) != _SALT_END - 1:
                raise ImportFormatError(f"'salt' holds {len(salt)} bytes, not {_SALT_END - 1}. {_DAMAGED}")
            return bytes((_JSON,)) + salt + fields["json"].encode()
        case ["stub"]:
            return bytes((_STUB,)) + fields["stub"].encode()
        case ["state"]:
            return _unbase64(fields["state"], "state")
        case _:
            raise ImportFormatError(f"An event has 'salt' and 'json', or 'stub', or 'state'. {_DAMAGED}")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ImportFormatError(f"It is not UTF-8, at byte {error.start + 1}. {_DAMAGED}") from None
    except (ValueError, RecursionError):
        raise ImportFormatError(f"It is not valid JSON. {_DAMAGED}") from None


def _check_fields(fields: dict[str, Any], required: dict[str, type], optional: dict[str, type]) -> None:
    known = {**required, **optional}
    for name, value in fields.items():
        kind = known.get(name)
        if kind is None:
            raise ImportFormatError(f"{_quoted(name)} is not a field that this Clew knows. {_NEWER}")
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= _HIGHEST):
            raise ImportFormatError(f"{name!r} has the wrong type. {_DAMAGED}")
        if isinstance(value, str) and not _is_unicode(value):
            raise ImportFormatError(f"{name!r} holds a lone surrogate, which is not valid Unicode. {_DAMAGED}")
    for name in required:
        if name not in fields:
            raise ImportFormatError(f"{name!r} is missing. {_DAMAGED}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hex(text: str, name: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != _HASH_BYTES:
        raise ImportFormatError(f"{name!r} is not {2 * _HASH_BYTES} hex digits. {_DAMAGED}")
    return value


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _unbase64(text: str, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ImportFormatError(f"{name!r} is not base64. {_DAMAGED}") from None


def _quoted(name: str) -> str:
    return ascii(name) if len(name) <= _LONGEST_NAME else ascii(name[:_LONGEST_NAME]) + "…"
