"""The stored form of an event: the byte string that is hashed, encrypted, exported and shredded.

Byte 0 names the codec. 0: sixteen bytes of random salt, then JSON with short keys. 1: encrypted, with a key id
(reserved; such events are opaque). 2: the stub of a shredded row, which is JSON without salt and content.

The short keys: ``i`` event id, or ``e``, its last twenty digits, if the others are the milliseconds of the time;
``t`` recorded time in microseconds, ``n`` messages on the path, ``a`` actor, ``r`` run, ``q`` mark of an idempotency
key, ``c`` cause, ``s`` subject, ``w`` when it was said in microseconds, ``b`` on behalf of whom, ``m`` metadata, ``v``
schema version (left out when 1), ``d`` data. A message that is only a text has no data, but the text: ``u`` of a user,
``x`` of an assistant. In stubs only, ``o`` role of a message and ``k`` type of a record. Stubs of some types have data,
too: what remains of it without the texts of users and services.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, overload

import orjson
from pydantic_core import (
    CoreSchema,
    PydanticSerializationError,
    SchemaValidator,
    ValidationError,
    core_schema,
    from_json,
    to_json,
)

from clew.domain.errors import CorruptEventError, InvalidContentError
from clew.domain.event_types import EventType
from clew.domain.events import (
    APPENDED_TYPES,
    EVENT_TYPES,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MESSAGE_APPENDED,
    Event,
    MessageAppended,
    Opaque,
    RecordAppended,
    Shredded,
)
from clew.domain.history import HistoryMessage
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import ROLES, FunctionResult, Message, Text, explain
from clew.domain.ports import Key, Row
from clew.domain.projection import Recorded, Unreadable
from clew.domain.streams import StreamName, parse_stream_name
from clew.infrastructure.clock import SALT_BYTES, salt

JSON = 0
STUB = 2
_JSON = bytes((JSON,))

_STR = core_schema.typed_dict_field(core_schema.str_schema(), required=False)
_HEADER: dict[str, core_schema.TypedDictField] = {
    "i": _STR,
    "e": _STR,
    "t": core_schema.typed_dict_field(core_schema.int_schema(strict=True)),
    "n": core_schema.typed_dict_field(core_schema.int_schema(strict=True)),
    "a": _STR,
    "r": _STR,
    "c": _STR,
    "s": _STR,
    "w": core_schema.typed_dict_field(core_schema.int_schema(strict=True), required=False),
    "b": _STR,
    "m": core_schema.typed_dict_field(core_schema.dict_schema(core_schema.str_schema()), required=False),
}
_TEXTS: dict[str, core_schema.TypedDictField] = {"u": _STR, "x": _STR}
_ANY_VERSION = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            **_HEADER,
            "v": core_schema.typed_dict_field(core_schema.int_schema(), required=False),
            "o": core_schema.typed_dict_field(core_schema.literal_schema(list(ROLES)), required=False),
            "k": _STR,
        }
    )
)
_STUB_DATA = SchemaValidator(
    core_schema.typed_dict_schema({"d": core_schema.typed_dict_field(core_schema.any_schema(), required=False)})
)


_TEXT_KEYS: dict[str, bytes] = {"user": b',"u":', "assistant": b',"x":'}
_TEXT_BEGINS: dict[str, bytes] = {
    role: b',"d":{"message":{"role":"%b","contents":[{"type":"text","text":' % role.encode() for role in ROLES
}
_TEXT_ENDS = b"}]}}}"
_ID_END = re.compile("[0-9a-f]{20}")

_LEFT_OUT_IF_EMPTY = ("metadata", "source", "native", "cut")

_PLAIN_ONLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""Refuse what is not plain JSON."""

_BEGIN = b'{%b,"t":%d,"n":%d%b'
_EVENT = _BEGIN + b"%b%b"

_NONE = (None, None, None, None, None)

_MARK = re.compile(rb'"n":-?\d+,"q":"([0-9a-f]{40}(?:-\d+)?)"')
_MARK_ENDS = 200
"""The bytes in which the mark of an idempotency key is."""

_LAST_INTEGER = 2**63 - 1


def key_mark(tag: str, key: Key, events: int) -> str:
    """What the first event of an append says about its idempotency key.

    It is a tag of the store, a part of the key's digest, and the number of events in the append, which an older Clew
    left out.
    """
    return f"{tag}{key.digest.hex()[:32]}-{events}"


def mark_in(state: bytes) -> str | None:
    """The mark of an idempotency key in stored bytes, None without one."""
    if b',"q":"' not in state[:_MARK_ENDS]:  # most events
        return None
    found = _MARK.search(state, SALT_BYTES + 1, _MARK_ENDS)
    return None if found is None else found[1].decode()


def encode(event: Event, mark: str | None = None) -> bytes:
    """The stored bytes of an event, with the mark of the idempotency key of its append.

    Each call adds new salt, so that a short text cannot be guessed from its digest.
    """
    data = event.data
    if isinstance(data, Opaque):
        return data.state
    if isinstance(data, Shredded):
        message = f"{event.stream} version {event.version} is shredded: there is nothing to store."
        raise InvalidContentError(message)
    try:
        rare = b""
        declared = EVENT_TYPES.get(event.type)
        if (declared and declared.schema_version > 1) or _rare(event) != _NONE:
            rare = _rare_fields(event)
        actor_and_run = _actor(event.actor) + _run(event.run_id)
        body = _EVENT % (
            _id(event),
            event.recorded_at,
            event.messages,
            actor_and_run if mark is None else b',"q":"%b"%b' % (mark.encode(), actor_and_run),
            rare,
            _WRITERS.get(type(data), _data)(data),
        )
    except (PydanticSerializationError, orjson.JSONEncodeError, ValueError) as error:  # not detected by check_json
        message = f"{event.type}: this cannot be written as JSON. {error}"
        raise InvalidContentError(message) from None
    if len(body) + SALT_BYTES + 1 > MAX_BYTES:
        message = (
            f"{event.type}: {len(body):,} bytes, but an event holds at most {MAX_BYTES:,}. "
            "Store large content elsewhere and refer to it."
        )
        raise InvalidContentError(message)
    return _JSON + salt() + body


_rare = attrgetter("cause", "subject", "metadata", "said", "on_behalf_of")


def _id(event: Event) -> bytes:
    """The JSON of the event's id: usually its first twelve digits say when it was made, which the time says, too."""
    id_ = event.event_id
    if id_[:12] == f"{event.recorded_at // 1000:012x}" and _ID_END.fullmatch(id_, 12):
        return b'"e":"%b"' % id_[12:].encode()
    return b'"i":%b' % to_json(id_)


def _id_in(fields: Any) -> str:
    """The event's id; it is empty if the fields of the event do not have it."""
    end: str | None = fields.get("e")
    id_: str = fields.get("i", "") if end is None else f"{fields['t'] // 1000:012x}{end}"
    return id_


def _data(data: object) -> bytes:
    """The end of an event, with its data."""
    return b',"d":%b}' % _json(data)


def _message(data: MessageAppended) -> bytes:
    """The end of an event with a message, written by orjson: the same as that of to_json, in a fraction of the time.

    to_json writes what orjson refuses, such as integers of more than 64 bits, and everything with a null.
    """
    message = data.message
    if type(message) is not Message or message.native is not None or message.cut:
        return _data(data)
    contents = message.contents
    if message.author is None and not message.metadata and not message.source and len(contents) == 1:
        text = contents[0]
        if type(text) is Text and type(text.text) is str and message.role in _TEXT_BEGINS:
            key = _TEXT_KEYS.get(message.role)
            if key is not None:
                return key + orjson.dumps(text.text) + b"}"
            return _TEXT_BEGINS[message.role] + orjson.dumps(text.text) + _TEXT_ENDS
    written = []
    for content in contents:
        fields = content.__dict__
        if type(content) is FunctionResult and not content.contents:
            fields = {**fields}
            del fields["contents"]
        written.append(_without_none(fields) if None in fields.values() else fields)
    fields = {**message.__dict__, "contents": written}
    if fields["author"] is None:
        del fields["author"]
    for name in _LEFT_OUT_IF_EMPTY:
        if not fields[name]:
            del fields[name]
    return _plain({"message": fields}) or _data(data)


def _record(data: RecordAppended) -> bytes:
    """The end of an event with a record, written like that of a message."""
    return _plain(_without_none(data.__dict__)) or _data(data)


def _plain(fields: dict[str, Any]) -> bytes | None:
    """The same with plain data. None if orjson refuses it, or if it has a null, which orjson also writes for NaN."""
    try:
        body = orjson.dumps(fields, option=_PLAIN_ONLY)
    except orjson.JSONEncodeError:
        return None
    return None if b"null" in body else b',"d":%b}' % body


def _text_data(fields: Any) -> dict[str, Any]:
    """The data of an event with a message that is stored as its text. Raises LookupError without a text."""
    key, role = ("u", "user") if "u" in fields else ("x", "assistant")
    return {"message": {"role": role, "contents": [{"type": "text", "text": fields[key]}]}}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _json(value: object) -> bytes:
    """The JSON of any other value. Raises InvalidContentError for numbers that JSON does not have."""
    text = to_json(value, exclude_none=True)
    if b"NaN" in text or b"Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    return text


def _refuse_constant(name: str) -> None:
    message = f"{name} is not a JSON number. Use null or a string."
    raise InvalidContentError(message)


_WRITERS: dict[type, Callable[[Any], bytes]] = {MessageAppended: _message, RecordAppended: _record}
"""How the data of some events is written. All other data is written by to_json."""


def json_begins(state: bytes) -> int:
    """Where the JSON in stored bytes begins: after the codec and the salt. At their end for an unknown codec."""
    return {JSON: SALT_BYTES + 1, STUB: 1}.get(state[0], len(state))


def stub(event: Event) -> bytes:
    """The bytes of a shredded row: the envelope, and the message's role, the record's type or the data that remains."""
    declared = EVENT_TYPES.get(event.type)
    if declared is not None and declared.remains is not None and isinstance(event.data, declared.model):
        data, schema = declared.remains(event.data), declared.schema_version
        return b'%c%b%b,"d":%b}' % (STUB, _header(event), _keys({"v": schema if schema > 1 else None}), _json(data))
    role = event.data.message.role if isinstance(event.data, MessageAppended) else None
    record = event.data.type if isinstance(event.data, RecordAppended) else None
    return b"%c%b%b}" % (
        STUB,
        _header(event),
        _keys({"w": event.said, "b": event.on_behalf_of, "o": role, "k": record}),
    )


def decode(
    stream: str, version: int, type_: str, state: bytes, position: int | None = None, hash_: bytes | None = None
) -> Event:
    """The event in stored bytes.

    The event is opaque if its type, codec or schema version is unknown, and no code is imported for it. Bytes of a
    known type that are not a valid event raise CorruptEventError.
    """
    codec = state[0] if state else None
    declared = EVENT_TYPES.get(type_)
    if codec == JSON and declared is not None:
        try:
            validator = _VALIDATORS.get(declared)
            if validator is None:
                validator = _VALIDATORS[declared] = _validator(declared, declared.model.__pydantic_core_schema__)
            fields = validator.validate_json(state[SALT_BYTES + 1 :])
            if type_ == MESSAGE_APPENDED and "d" not in fields:
                fields["d"] = _validate_message_appended(_text_data(fields))
        except (ValidationError, LookupError) as error:
            fields = _decode_older(stream, version, declared, state, error)
        if fields is not None:
            event = _event(stream, version, type_, fields, fields["d"], position, hash_)
            if not event.event_id and "i" not in fields:
                raise _corrupt(stream, version, type_, "event: it has no id.")
            return event
    if codec == STUB:
        try:
            fields = _ANY_VERSION.validate_json(state[1:])
            data = (
                _remaining(declared, state, fields) if declared is not None and declared.remains is not None else None
            )
        except ValidationError as error:
            raise _corrupt(stream, version, type_, explain("event", error)) from None
        data = Shredded(fields.get("o"), fields.get("k")) if data is None else data
        return _event(stream, version, type_, fields, data, position, hash_)._replace(redacted=True)
    return peek(stream, version, type_, state, position, hash_)


def _remaining(declared: EventType, state: bytes, fields: Any) -> Any:
    """The data in a stub; None if it has none, or data of a newer Clew."""
    found, written = _STUB_DATA.validate_json(state[1:]).get("d"), fields.get("v", 1)
    if found is None or not 1 <= written <= declared.schema_version:
        return None
    return declared.model.__pydantic_validator__.validate_python(declared.upcast(written, found))


def decode_message(row: Row) -> HistoryMessage | None:
    """The message in a stored row, as histories show it.

    It is that of ``decode``, without the event around it: a long history has many messages, and each object costs time
    to collect garbage. None for a row of another type, a redacted message, and bytes that are older, newer or damaged.
    """
    state = row.state
    if row.type != MESSAGE_APPENDED or type(state) is not bytes or type(row.hash) is not bytes or state[:1] != _JSON:
        return None
    try:
        fields: Any = _MESSAGE_VALIDATOR.validate_json(state[SALT_BYTES + 1 :])
        if "d" in fields:
            message = fields["d"]["message"]
        else:  # written out, because a history has thousands
            key, role = ("u", "user") if "u" in fields else ("x", "assistant")
            message = _validate_message({"role": role, "contents": ({"type": "text", "text": fields[key]},)})
        id_ = f"{fields['t'] // 1000:012x}{fields['e']}" if "e" in fields else fields["i"]
    except (ValidationError, LookupError):
        return None
    get = fields.get
    return HistoryMessage(row.version, message.role, message, id_, fields["t"], get("a"), get("w"), get("b"))


def decode_row(row: Row) -> Event:
    """The event in a stored row, without its position."""
    return decode(row.stream, row.version, row.type, row.state, hash_=row.hash)


def peek(
    stream: str, version: int, type_: str, state: bytes, position: int | None = None, hash_: bytes | None = None
) -> Event:
    """The event with its data as stored bytes. Its envelope is read if possible, for every type."""
    body = 1 if state[:1] == bytes((STUB,)) else SALT_BYTES + 1
    try:
        fields: Any = _ANY_VERSION.validate_json(state[body:])
    except ValidationError:
        fields = {"i": "", "t": 0, "n": -1}
    return _event(stream, version, type_, fields, Opaque(state), position, hash_)


def _header(event: Event) -> bytes:
    """The JSON of the envelope fields that a stub also has, as the beginning of an object."""
    actor_and_run = _actor(event.actor) + _run(event.run_id)
    return _BEGIN % (_id(event), event.recorded_at, event.messages, actor_and_run)


@lru_cache(maxsize=4_096)
def _actor(actor: str | None) -> bytes:
    """The JSON of an actor, which many events share."""
    return b"" if actor is None else b',"a":' + _json(actor)


@lru_cache(maxsize=4_096)
def _run(run_id: str | None) -> bytes:
    """The JSON of a run, which its events share."""
    return b"" if run_id is None else b',"r":' + _json(run_id)


def _rare_fields(event: Event) -> bytes:
    """The JSON of rare envelope fields."""
    declared = EVENT_TYPES.get(event.type)
    version = 1 if declared is None else declared.schema_version
    return _keys(
        {
            "c": event.cause,
            "s": event.subject,
            "m": event.metadata,
            "w": event.said,
            "b": event.on_behalf_of,
            "v": version if version > 1 else None,
        }
    )


def _keys(fields: dict[str, Any]) -> bytes:
    """Further keys of an object, without None values."""
    return b"".join([b',"%b":%b' % (key.encode(), _json(value)) for key, value in fields.items() if value is not None])


_VALIDATORS: dict[EventType, SchemaValidator] = {}


def _validator(declared: EventType, data: CoreSchema) -> SchemaValidator:
    """Create a validator of a type's JSON at its current schema version; ``data`` is the schema of its data.

    It is made from core schemas, because a new process needs some validators for its first append, and creating a
    TypeAdapter of a TypedDict takes thirty times as long.
    """
    current = declared.schema_version
    version = core_schema.typed_dict_field(core_schema.literal_schema([current]), required=current > 1)
    has_text = declared.name == MESSAGE_APPENDED
    fields = {**_HEADER, "v": version, "d": core_schema.typed_dict_field(data, required=not has_text)}
    return SchemaValidator(core_schema.typed_dict_schema({**fields, **_TEXTS} if has_text else fields))


_MESSAGE_VALIDATOR = _validator(
    EVENT_TYPES[MESSAGE_APPENDED],
    core_schema.typed_dict_schema(
        {"message": core_schema.typed_dict_field(Message.__pydantic_core_schema__)}, extra_behavior="forbid"
    ),
)
"""The validator of messages, without the model around the message."""

_validate_message = Message.__pydantic_validator__.validate_python
_validate_message_appended = MessageAppended.__pydantic_validator__.validate_python


def _decode_older(
    stream: str, version: int, declared: EventType, state: bytes, error: ValidationError | LookupError
) -> dict[str, Any] | None:
    """The fields of an event that the current schema does not accept: upcast if older, None if newer."""
    problem = explain("event", error) if isinstance(error, ValidationError) else "event: it has no data."
    try:
        raw = json.loads(state[SALT_BYTES + 1 :])
        written = raw.get("v", 1)
        if type(written) is not int or written < 1 or written == declared.schema_version:
            raise _corrupt(stream, version, declared.name, problem)
        if written > declared.schema_version:
            return None
        data = declared.model.model_validate(declared.upcast(written, raw.pop("d")))
        return {**_ANY_VERSION.validate_python(raw), "d": data}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):  # pydantic's is a ValueError
        raise _corrupt(stream, version, declared.name, problem) from None


def _event(
    stream: str,
    version: int,
    type_: str,
    fields: Any,
    data: Any,
    position: int | None,
    hash_: bytes | None,
) -> Event:
    get = fields.get
    return Event(
        stream,
        version,
        type_,
        _id_in(fields),
        fields["t"],
        fields["n"],
        data,
        get("a"),
        get("r"),
        get("c"),
        get("s"),
        get("m"),
        position,
        hash_,
        get("w"),
        get("b"),
    )


def _corrupt(stream: str, version: int, type_: str, problem: str) -> CorruptEventError:
    return CorruptEventError(
        f"{stream} version {version} ({type_}) cannot be read: {problem} "
        "The stored bytes are damaged; verify shows where the damage begins."
    )


class RecordedRows(Sequence[Recorded | Unreadable]):
    """Rows as projections see them, decoded one by one: a reader of thousands has only a few of them in memory."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Recorded | Unreadable]:
        return map(recorded, self._rows)

    @overload
    def __getitem__(self, index: int) -> Recorded | Unreadable: ...

    @overload
    def __getitem__(self, index: slice) -> RecordedRows: ...

    def __getitem__(self, index: int | slice) -> Recorded | Unreadable | RecordedRows:
        return RecordedRows(self._rows[index]) if isinstance(index, slice) else recorded(self._rows[index])


def recorded(row: Row) -> Recorded | Unreadable:
    """What projections see of a row."""
    position, stream, version, type_, state, hash_, _ = row
    try:
        codec = state[0]
        fields: dict[str, Any]
        redacted = codec == STUB
        if codec == JSON:
            fields = from_json(state[SALT_BYTES + 1 :])
            declared, written = EVENT_TYPES.get(type_), fields.get("v", 1)
            data = None if declared is None else fields.get("d")
            if data is None and type_ == MESSAGE_APPENDED and written == 1:
                data = _text_data(fields)
            if declared is not None and data is not None and written != declared.schema_version:
                data = None if written > declared.schema_version else declared.upcast(written, data)
        elif redacted:
            fields = from_json(state[1:])
            data = None if type_ in APPENDED_TYPES else fields.get("d")
        else:
            fields, data = {"i": "", "t": 0, "n": -1}, None
        get, time, messages = fields.get, fields["t"], fields["n"]
        if not (FIRST_MICROSECOND <= time <= LAST_MICROSECOND and -1 <= messages <= _LAST_INTEGER):
            # In a forged event. A table must be able to hold the numbers, and a reader to show them.
            time = min(max(FIRST_MICROSECOND, time), LAST_MICROSECOND)
            messages = min(max(-1, messages), _LAST_INTEGER)
        tenant, kind, thread_id = _name(stream)
        return Recorded(
            position,
            tenant,
            kind,
            thread_id,
            version,
            type_,
            time,
            messages,
            data,
            len(state),
            hash_,
            _id_in(fields),
            get("a"),
            get("r"),
            get("c"),
            get("s"),
            redacted,
            get("o"),
            get("w"),
            get("b"),
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        return Unreadable(position, str(stream), version, str(type_), hash_, type(error).__name__)


@lru_cache(maxsize=4_096)
def _name(stream: str) -> StreamName:
    name = parse_stream_name(stream)
    return StreamName("", "", stream) if name is None else name
