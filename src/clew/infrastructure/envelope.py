"""The stored form of an event: one byte string, which is what is hashed, encrypted, exported and shredded.

Byte 0 names the codec. 0: sixteen bytes of random salt, then JSON with short keys. 1: encrypted, with a key id (kept
for that use; read as opaque). 2: the stub of a shredded row, JSON without salt or content.

The short keys: ``i`` event id, ``t`` recorded time in microseconds, ``n`` messages on the path, ``a`` actor, ``r`` run,
``c`` cause, ``s`` subject, ``m`` metadata, ``v`` schema version (left out when 1), ``o`` role (stubs only), ``d`` data.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic_core import PydanticSerializationError, SchemaValidator, ValidationError, core_schema, to_json

from clew.domain.errors import CorruptEventError, InvalidContentError
from clew.domain.events import EVENT_TYPES, Event, MessageAppended, Opaque, Shredded
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import ROLES
from clew.domain.upcasting import schema_version, upcast
from clew.domain.values import explain
from clew.infrastructure.randomness import SIZE, sixteen_bytes

JSON = 0
STUB = 2
_JSON = bytes((JSON,))
SALT = SIZE

_STR = core_schema.typed_dict_field(core_schema.str_schema(), required=False)
_HEADER: dict[str, core_schema.TypedDictField] = {
    "i": core_schema.typed_dict_field(core_schema.str_schema()),
    "t": core_schema.typed_dict_field(core_schema.int_schema()),
    "n": core_schema.typed_dict_field(core_schema.int_schema()),
    "a": _STR,
    "r": _STR,
    "c": _STR,
    "s": _STR,
    "m": core_schema.typed_dict_field(core_schema.dict_schema(core_schema.str_schema()), required=False),
}
_ANY_VERSION = SchemaValidator(
    core_schema.typed_dict_schema(
        {
            **_HEADER,
            "v": core_schema.typed_dict_field(core_schema.int_schema(), required=False),
            "o": core_schema.typed_dict_field(core_schema.literal_schema(list(ROLES)), required=False),
        }
    )
)


def encode(event: Event) -> bytes:
    """The stored bytes of an event. Each call salts anew, so that a short text cannot be guessed from its digest."""
    if isinstance(event.data, Opaque):
        return event.data.state
    if isinstance(event.data, Shredded):
        message = f"{event.stream} version {event.version} is shredded: there is nothing to store."
        raise InvalidContentError(message)
    version = schema_version(event.type)
    fields = _header(event)
    if version > 1:
        fields["v"] = version
    fields["d"] = event.data
    try:
        body = to_json(fields, exclude_none=True)
    except (PydanticSerializationError, ValueError) as error:  # what check_json did not see
        message = f"{event.type}: this cannot be written as JSON. {error}"
        raise InvalidContentError(message) from None
    if len(body) + SALT + 1 > MAX_BYTES:
        message = (
            f"{event.type}: {len(body):,} bytes, but an event holds at most {MAX_BYTES:,}. "
            "Store large content elsewhere and refer to it."
        )
        raise InvalidContentError(message)
    if b"NaN" in body or b"Infinity" in body:
        json.loads(body, parse_constant=_refuse_constant)
    return _JSON + sixteen_bytes() + body


def _refuse_constant(name: str) -> None:
    message = f"{name} is not a JSON number. Use null or a string."
    raise InvalidContentError(message)


def stub(event: Event) -> bytes:
    """What a shredded row holds: the envelope and the message's role, and no user content."""
    role = event.data.message.role if isinstance(event.data, MessageAppended) else None
    fields = {key: value for key, value in _header(event).items() if key in "itnar"}
    if role is not None:
        fields["o"] = role
    return bytes((STUB,)) + to_json(fields)


def decode(
    stream: str, version: int, type_: str, state: bytes, position: int | None = None, hash_: bytes | None = None
) -> Event:
    """The event that stored bytes hold.

    An unknown type, codec or newer schema version gives an opaque event, and nothing is imported for it. Bytes that are
    no event of a known type raise CorruptEventError.
    """
    codec = state[0] if state else None
    validator = _validator(type_)
    if codec == JSON and validator is not None:
        try:
            found = validator.validate_json(state[SALT + 1 :])
        except ValidationError as error:
            found = _decode_older(stream, version, type_, state, error)
        if found is not None:
            return _event(stream, version, type_, found, found["d"], position, hash_)
    if codec == STUB:
        try:
            left = _ANY_VERSION.validate_json(state[1:])
        except ValidationError as error:
            raise _corrupt(stream, version, type_, error) from None
        return _event(stream, version, type_, left, Shredded(left.get("o")), position, hash_)
    return peek(stream, version, type_, state, position, hash_)


def peek(
    stream: str, version: int, type_: str, state: bytes, position: int | None = None, hash_: bytes | None = None
) -> Event:
    """The event with its data left as stored bytes: its envelope is read when it can be, whatever its type."""
    body = 1 if state[:1] == bytes((STUB,)) else SALT + 1
    try:
        fields: Any = _ANY_VERSION.validate_json(state[body:])
    except ValidationError:
        fields = {"i": "", "t": 0, "n": -1}
    return _event(stream, version, type_, fields, Opaque(state), position, hash_)


def _header(event: Event) -> dict[str, Any]:
    """The envelope's short keys; what is None is left out."""
    fields: dict[str, Any] = {"i": event.event_id, "t": event.recorded_at, "n": event.messages}
    if event.actor is not None:
        fields["a"] = event.actor
    if event.run_id is not None:
        fields["r"] = event.run_id
    if event.cause is not None:
        fields["c"] = event.cause
    if event.subject is not None:
        fields["s"] = event.subject
    if event.metadata is not None:
        fields["m"] = event.metadata
    return fields


@cache
def _validator(type_: str) -> SchemaValidator | None:
    """Validates the JSON of one known type at its present schema version.

    Made from core schemas: a new process needs some of these for its first append, and a TypeAdapter of a TypedDict
    takes thirty times as long to make.
    """
    data = EVENT_TYPES.get(type_)
    if data is None:
        return None
    present = schema_version(type_)
    version = core_schema.typed_dict_field(core_schema.literal_schema([present]), required=present > 1)
    fields = {**_HEADER, "v": version, "d": core_schema.typed_dict_field(data.__pydantic_core_schema__)}
    return SchemaValidator(core_schema.typed_dict_schema(fields))


def _decode_older(stream: str, version: int, type_: str, state: bytes, error: ValidationError) -> dict[str, Any] | None:
    """The fields of an event that the present schema does not take: upcast when older, None when newer."""
    try:
        raw = json.loads(state[SALT + 1 :])
        written = raw.get("v", 1)
        if type(written) is not int or written < 1 or written == schema_version(type_):
            raise _corrupt(stream, version, type_, error)
        if written > schema_version(type_):
            return None
        data = EVENT_TYPES[type_].model_validate(upcast(type_, written, raw.pop("d")))
        return {**_ANY_VERSION.validate_python(raw), "d": data}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):  # pydantic's is a ValueError
        raise _corrupt(stream, version, type_, error) from None


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
        fields["i"],
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
    )


def _corrupt(stream: str, version: int, type_: str, error: ValidationError) -> CorruptEventError:
    return CorruptEventError(
        f"{stream} version {version} ({type_}) cannot be read: {explain('event', error)} "
        "The stored bytes are damaged; verify says where the damage begins."
    )
