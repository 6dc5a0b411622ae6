"""Thread documents: a thread with its whole past as one JSON object, which can be stored, sent and restored.

The events are stored bytes, in base64. Everything else is derived from them, for readers; it is compared with the
events when the document is read.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.domain.context.state import HISTORY_STORE
from clew.domain.decider_state import Control, advance
from clew.domain.errors import ThreadDocumentError
from clew.domain.event_types import Status
from clew.domain.events import Event, Opaque
from clew.domain.formats.lineage import AGAIN, Lineage, OwnRows, verified
from clew.domain.history import HistoryBuilder, HistoryMessage
from clew.domain.json_values import MAX_BYTES, JsonObject
from clew.domain.messages import Role, Text, explain
from clew.domain.models.client import ServiceKind, ThreadKind
from clew.domain.ports import Fork, Row
from clew.domain.runs.events import ServiceThreadBound

KIND = "thread"
VERSION = 1
"""The version of documents that is written and read."""

_MANY = 2**63
"""Every version is below this number."""

_NEWER = "Restore it with the Clew that wrote it, or a newer one."
_SHOWN = 100

_LONGEST = 4 * ((MAX_BYTES + 2) // 3)
"""The most characters of an event in base64."""

Hash: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256, in hex")]
Version: TypeAlias = Annotated[int, Field(ge=1, lt=_MANY)]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class RowShape(_Shape):
    """A stored event. For a shredded event, ``state`` is the stub and ``digest`` the digest of the original bytes."""

    version: Version
    type: str
    state: Annotated[str, Field(max_length=_LONGEST, description="Stored bytes, in base64")]
    hash: Hash
    digest: Hash | None = None


class StreamShape(_Shape):
    """The events of one thread of the lineage; ``parent`` and ``cut`` are None for the oldest ancestor."""

    name: str
    parent: str | None
    cut: Version | None
    rows: list[RowShape]


class ThreadShape(_Shape):
    """The identity of the thread: ``head`` is the hash of its newest event, which covers its whole past."""

    id: str
    tenant: str
    kind: ThreadKind
    head: Hash
    version: Version
    status: Status
    title: str | None


class ServiceShape(_Shape):
    """The id of the thread at the service that holds it, None for a thread that Clew holds."""

    service_thread_id: str | None
    kind: ServiceKind | None


class BlobShape(_Shape):
    """Bytes that messages refer to; ``data`` is in base64. The definitions of agents are never included."""

    digest: Hash
    data: str


class MessageShape(_Shape):
    """A message for readers: ``text`` is its text, ``contents`` are its other contents."""

    version: Version
    role: Role
    time: str
    text: str
    author: str | None = None
    actor: str | None = None
    contents: list[dict[str, Any]] | None = None
    redacted: Literal[True] | None = None


class ThreadDocument(_Shape):
    """A thread of Clew: its events in ``streams``, the oldest ancestor first, and the state that follows from them."""

    clew: Literal["thread"]
    version: Literal[1]
    thread: ThreadShape
    streams: list[StreamShape]
    heads: Annotated[dict[str, Hash], Field(description="The hash of the last row of each stream")]
    blobs: list[BlobShape]
    states: Annotated[
        dict[str, Any], Field(description="The states of context providers in the thread, by provider id")
    ]
    service: ServiceShape
    history: list[MessageShape]


def json_schema() -> JsonObject:
    """The JSON schema of documents, as docs/thread-document.schema.json has it."""
    schema: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ThreadDocument.model_json_schema(),
    }
    return schema


def write_document(lineage: Lineage) -> JsonObject:
    """The document of a thread. Equal lineages have equal documents."""
    builder, control = HistoryBuilder(lineage.name.id), Control()
    builder.add(lineage.events)
    for event in lineage.events:
        control = advance(control, event)
    history = builder.history()
    states: JsonObject = {
        id_: kept.state
        for id_, kept in history.context.states.items()
        if id_ != HISTORY_STORE or kept.stream == lineage.stream
    }
    return {
        "clew": KIND,
        "version": VERSION,
        "thread": {
            "id": lineage.name.id,
            "tenant": lineage.name.tenant,
            "kind": control.kind,
            "head": lineage.head.hash.hex(),
            "version": lineage.head.version,
            "status": control.status,
            "title": control.title,
        },
        "streams": [_stream(own) for own in lineage.streams],
        "heads": {own.name: own.rows[-1].hash.hex() for own in lineage.streams},
        "blobs": [],
        "states": states,
        "service": _service(control, lineage.events),
        "history": [_message(each) for each in history],
    }


def read_document(document: object, decode: Callable[[Row], Event]) -> Lineage:
    """The lineage in a document, completely checked.

    Raises ThreadDocumentError for a changed document or a newer version; the error names the place.
    """
    given = _checked(document)
    lineage = verified([_own(number, stream) for number, stream in enumerate(given.streams)], decode)
    expected = write_document(lineage)
    for name, value in expected.items():
        where = _difference(document[name], value, name)  # type: ignore[index]  # _checked has seen that it is a dict
        if where is not None:
            raise ThreadDocumentError(f"{_shortened(where)}: it does not match the events. {_advice(lineage.events)}")
    return lineage


def _checked(document: object) -> ThreadDocument:
    """The document, with the right structure. Raises ThreadDocumentError."""
    if not isinstance(document, dict) or document.get("clew") != KIND:
        raise ThreadDocumentError(
            f"{type(document).__name__} is not a thread document, which has {{'clew': 'thread'}}. Give the dict that "
            "thread.serialize() returned, or that json.load() reads from its JSON."
        )
    version = document.get("version")
    if type(version) is int and VERSION < version < _MANY:
        raise ThreadDocumentError(
            f"version: the document has version {version}, and this Clew reads version {VERSION}. {_NEWER}"
        )
    try:
        return ThreadDocument.model_validate(document)
    except ValidationError as error:
        raise ThreadDocumentError(f"{_shortened(explain('document', error))} {AGAIN}") from None


def _own(number: int, stream: StreamShape) -> OwnRows:
    if (stream.parent is None) != (stream.cut is None):
        raise ThreadDocumentError(f"streams[{number}]: a fork needs parent and cut, and only one is given. {AGAIN}")
    fork = None if stream.parent is None or stream.cut is None else Fork(stream.parent, stream.cut)
    return OwnRows(stream.name, fork, tuple(_row(number, at, stream.name, row) for at, row in enumerate(stream.rows)))


def _row(number: int, at: int, stream: str, row: RowShape) -> Row:
    try:
        state = b64decode(row.state, validate=True)
    except ValueError:
        state = b""
    if not state or _base64(state) != row.state:  # the encoding must be canonical
        raise ThreadDocumentError(f"streams[{number}].rows[{at}].state: it is not base64. {AGAIN}")
    if not row.type.isprintable():
        raise ThreadDocumentError(f"streams[{number}].rows[{at}].type: it is not the name of a type. {AGAIN}")
    shredded = None if row.digest is None else bytes.fromhex(row.digest)
    return Row(0, stream, row.version, row.type, state, bytes.fromhex(row.hash), shredded)


def _stream(own: OwnRows) -> JsonObject:
    return {
        "name": own.name,
        "parent": None if own.fork is None else own.fork.parent,
        "cut": None if own.fork is None else own.fork.cut,
        "rows": [
            {
                "version": row.version,
                "type": row.type,
                "state": _base64(row.state),
                "hash": row.hash.hex(),
                **({} if row.digest is None else {"digest": row.digest.hex()}),
            }
            for row in own.rows
        ],
    }


def _service(control: Control, events: tuple[Event, ...]) -> JsonObject:
    name = control.service_thread_id
    for event in reversed(events):
        data = event.data
        if name is not None and isinstance(data, ServiceThreadBound) and data.id == name:
            return {"service_thread_id": name, "kind": data.kind}
    return {"service_thread_id": name, "kind": None}


def _message(message: HistoryMessage) -> JsonObject:
    found: JsonObject = {
        "version": message.version,
        "role": message.role,
        "time": message.time.isoformat(),
        "text": message.text,
        "author": message.author,
        "actor": message.actor,
        "contents": [each.model_dump() for each in message.contents if not isinstance(each, Text)] or None,
        "redacted": message.redacted or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _difference(given: Any, expected: Any, where: str) -> str | None:
    """The first place where JSON values differ, None if they are equal: 1, 1.0 and true all differ."""
    if type(given) is not type(expected):
        return where
    if isinstance(expected, dict):
        for name in expected:
            if name not in given:
                return f"{where}.{name}"
        for name, value in given.items():
            inner = f"{where}.{name}"
            found = inner if name not in expected else _difference(value, expected[name], inner)
            if found is not None:
                return found
        return None
    if isinstance(expected, list):
        for number, (one, other) in enumerate(zip(given, expected, strict=False)):
            found = _difference(one, other, f"{where}[{number}]")
            if found is not None:
                return found
        return None if len(given) == len(expected) else f"{where}[{min(len(given), len(expected))}]"
    same = repr(given) == repr(expected) if isinstance(expected, float) else given == expected
    return None if same else where


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _advice(events: tuple[Event, ...]) -> str:
    unknown = next((event for event in events if isinstance(event.data, Opaque)), None)
    if unknown is None:
        return AGAIN
    return f"Version {unknown.version} has a type or a form that this Clew does not know. {_NEWER}"


def _shortened(words: str) -> str:
    """The text on one short line: a document may hold long texts with any characters."""
    shown = words if len(words) <= 2 * _SHOWN else f"{words[:_SHOWN]}…{words[-_SHOWN:]}"
    return shown if shown.isprintable() else "".join(each if each.isprintable() else "?" for each in shown)
