"""Thread documents: a thread with its whole past as one JSON object, which can be stored, sent and restored.

The events are stored bytes, in base64. All other fields are derived from the events for human readers. Reading a
document compares them with the events.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.domain.blobs import named, unmatched
from clew.domain.context.state import HISTORY_STORE
from clew.domain.decider_state import Control, advance
from clew.domain.errors import ThreadDocumentError
from clew.domain.event_types import Status
from clew.domain.events import Event, Opaque
from clew.domain.formats.lineage import AGAIN, Lineage, StreamRows, verify_streams
from clew.domain.formats.openai_messages import same
from clew.domain.history import HistoryBuilder, HistoryMessage
from clew.domain.json_values import MAX_BYTES, JsonObject, one_line
from clew.domain.messages import Role, Text, explain
from clew.domain.models.client import ServiceKind, ThreadKind
from clew.domain.ports import Blob, Fork, Row
from clew.domain.runs.events import ServiceThreadBound
from clew.domain.streams import digest

KIND = "thread"
VERSION = 1
"""The version in which documents are written and read."""

_MANY = 2**63
"""Every version is below this number."""

_LONGEST_PART = 100
"""The most characters of the beginning, and of the end, of a text in an error."""

_NEWER = "Restore it with the Clew that wrote it, or a newer one."
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
    """The identity of the thread. ``head`` is the hash of its newest event and covers its whole past."""

    id: str
    tenant: str
    kind: ThreadKind
    head: Hash
    version: Version
    status: Status
    title: str | None


class ServiceShape(_Shape):
    """The id of the thread at the service that stores it, None for a thread that Clew stores."""

    service_thread_id: str | None
    kind: ServiceKind | None


class BlobShape(_Shape):
    """Bytes of a record or of media that are not in their event, in base64. Definitions of agents are not included."""

    digest: Hash
    data: str


class MessageShape(_Shape):
    """A message for human readers: ``text`` is its text, ``contents`` are its other contents."""

    version: Version
    role: Role
    time: str
    text: str
    author: str | None = None
    actor: str | None = None
    contents: list[dict[str, Any]] | None = None
    redacted: Literal[True] | None = None


class ThreadDocument(_Shape):
    """A thread of Clew: its events in ``streams``, the oldest ancestor first, and the state that results from them."""

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
        id_: recorded.state
        for id_, recorded in history.context.states.items()
        if id_ != HISTORY_STORE or recorded.stream == lineage.stream
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
        "streams": [_write_stream(stream) for stream in lineage.streams],
        "heads": {stream.name: stream.rows[-1].hash.hex() for stream in lineage.streams},
        "blobs": [{"digest": blob.digest.hex(), "data": _base64(blob.data)} for blob in lineage.blobs],
        "states": states,
        "service": _write_service(control, lineage.events),
        "history": [_write_message(each) for each in history],
    }


def read_document(document: object, decode: Callable[[Row], Event]) -> Lineage:
    """The lineage in a document, completely checked.

    Raises ThreadDocumentError for a changed document or a newer version; the error names the place.
    """
    if not isinstance(document, dict) or document.get("clew") != KIND:
        raise ThreadDocumentError(
            f"{type(document).__name__} is not a thread document, which has {{'clew': 'thread'}}. Give the dict that "
            "thread.serialize() returned, or that json.load() reads from its JSON."
        )
    parsed = _parse(document)
    lineage = verify_streams([_read_stream(number, stream) for number, stream in enumerate(parsed.streams)], decode)
    lineage = with_blobs(lineage, [(each.digest, each.data) for each in parsed.blobs])
    for name, value in write_document(lineage).items():
        where = _first_difference(document[name], value, name)
        if where is not None:
            raise ThreadDocumentError(f"{_shortened(where)}: it does not match the events. {_advice(lineage.events)}")
    return lineage


def with_blobs(lineage: Lineage, written: Sequence[tuple[str, str]]) -> Lineage:
    """The lineage with the bytes next to its events, which are written as digests in hex and base64.

    Raises ThreadDocumentError if they are changed or missing.
    """
    blobs = dict(_read_blob(number, *each) for number, each in enumerate(written))
    return lineage.with_blobs(blob for event in lineage.all_events for blob in _blobs_of(event, blobs))


def _parse(document: dict[str, Any]) -> ThreadDocument:
    """The document with the right structure. Raises ThreadDocumentError."""
    version = document.get("version")
    if type(version) is int and VERSION < version < _MANY:
        raise ThreadDocumentError(
            f"version: the document has version {version}, and this Clew reads version {VERSION}. {_NEWER}"
        )
    try:
        return ThreadDocument.model_validate(document)
    except ValidationError as error:
        raise ThreadDocumentError(f"{_shortened(explain('document', error))} {AGAIN}") from None


def _read_stream(number: int, stream: StreamShape) -> StreamRows:
    if (stream.parent is None) != (stream.cut is None):
        raise ThreadDocumentError(f"streams[{number}]: a fork needs parent and cut, and only one is given. {AGAIN}")
    fork = None if stream.parent is None or stream.cut is None else Fork(stream.parent, stream.cut)
    rows = tuple(_read_row(stream.name, row, f"streams[{number}].rows[{at}]") for at, row in enumerate(stream.rows))
    return StreamRows(stream.name, fork, rows)


def _read_row(stream: str, row: RowShape, where: str) -> Row:
    try:
        state = b64decode(row.state, validate=True)
    except ValueError:
        state = b""
    if not state or _base64(state) != row.state:  # the encoding must be canonical
        raise ThreadDocumentError(f"{where}.state: it is not base64. {AGAIN}")
    if not row.type.isprintable():
        raise ThreadDocumentError(f"{where}.type: it is not the name of a type. {AGAIN}")
    digest = None if row.digest is None else bytes.fromhex(row.digest)
    return Row(0, stream, row.version, row.type, state, bytes.fromhex(row.hash), digest)


def _read_blob(number: int, written_digest: str, written_data: str) -> tuple[bytes, bytes]:
    named = bytes.fromhex(written_digest)
    try:
        data = b64decode(written_data, validate=True)
    except ValueError:
        data = b""
    if digest(data) != named:
        raise ThreadDocumentError(f"blobs[{number}]: the data does not match the digest. {AGAIN}")
    return named, data


def _blobs_of(event: Event, blobs: Mapping[bytes, bytes]) -> list[Blob]:
    """The bytes next to an event. Raises ThreadDocumentError if the document lacks them."""
    names = named(event)
    if (lacks := unmatched(names, blobs)) is not None:
        raise ThreadDocumentError(
            f"blobs: the bytes of version {event.version}, with the SHA-256 {lacks.digest.hex()}, are missing. {AGAIN}"
        )
    return [Blob(name.digest, "record", blobs[name.digest]) for name in names]


def _write_stream(stream: StreamRows) -> JsonObject:
    return {
        "name": stream.name,
        "parent": None if stream.fork is None else stream.fork.parent,
        "cut": None if stream.fork is None else stream.fork.cut,
        "rows": [
            {
                "version": row.version,
                "type": row.type,
                "state": _base64(row.state),
                "hash": row.hash.hex(),
                **({} if row.digest is None else {"digest": row.digest.hex()}),
            }
            for row in stream.rows
        ],
    }


def _write_service(control: Control, events: tuple[Event, ...]) -> JsonObject:
    name = control.service_thread_id
    for event in reversed(events):
        data = event.data
        if name is not None and isinstance(data, ServiceThreadBound) and data.id == name:
            return {"service_thread_id": name, "kind": data.kind}
    return {"service_thread_id": name, "kind": None}


def _write_message(message: HistoryMessage) -> JsonObject:
    fields: JsonObject = {
        "version": message.version,
        "role": message.role,
        "time": message.time.isoformat(),
        "text": message.text,
        "author": message.author,
        "actor": message.actor,
        "contents": [each.model_dump() for each in message.contents if not isinstance(each, Text)] or None,
        "redacted": message.redacted or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _first_difference(given: Any, expected: Any, where: str) -> str | None:
    """The first place where two JSON values differ, None if they are equal."""
    if isinstance(given, dict) and isinstance(expected, dict):
        for name in expected:
            if name not in given:
                return f"{where}.{name}"
        for name, value in given.items():
            if name not in expected:
                return f"{where}.{name}"
            if (place := _first_difference(value, expected[name], f"{where}.{name}")) is not None:
                return place
        return None
    if isinstance(given, list) and isinstance(expected, list):
        for number, (one, other) in enumerate(zip(given, expected, strict=False)):
            if (place := _first_difference(one, other, f"{where}[{number}]")) is not None:
                return place
        return None if len(given) == len(expected) else f"{where}[{min(len(given), len(expected))}]"
    return None if same(given, expected) else where


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _advice(events: tuple[Event, ...]) -> str:
    unknown = next((event for event in events if isinstance(event.data, Opaque)), None)
    if unknown is None:
        return AGAIN
    return f"Version {unknown.version} has a type or a form that this Clew does not know. {_NEWER}"


def _shortened(text: str) -> str:
    """The beginning and the end of the text, on one line."""
    short = text if len(text) <= 2 * _LONGEST_PART else f"{text[:_LONGEST_PART]}…{text[-_LONGEST_PART:]}"
    return one_line(short, len(short))
