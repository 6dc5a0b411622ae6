"""The stored form of an event: one byte string, which is what is hashed, encrypted, exported and shredded.

Byte 0 names the codec. 0: sixteen bytes of random salt, then JSON with short keys. 1: encrypted, with a key id (kept
for that use; read as opaque). 2: the stub of a shredded row, JSON without salt or content.

The short keys: ``i`` event id, ``t`` recorded time in microseconds, ``n`` messages on the path, ``a`` actor, ``r`` run,
``c`` cause, ``s`` subject, ``m`` metadata, ``v`` schema version (left out when 1), ``o`` role (stubs only), ``d`` data.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any, Literal, Required

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from clew.domain.errors import CorruptEventError, InvalidContentError
from clew.domain.events import EVENT_TYPES, Event, MessageAppended, Opaque, Shredded
from clew.domain.messages import Role
from clew.domain.upcasting import schema_version, upcast
from clew.domain.values import explain

JSON = 0
STUB = 2
SALT = 16
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of one stored event."""


class _Header(TypedDict, total=False):
    i: Required[str]
    t: Required[int]
    n: Required[int]
    a: str
    r: str
    c: str
    s: str
    m: dict[str, Any]


class _AnyVersion(_Header, total=False):
    v: int
    o: Role


_ANY_VERSION: TypeAdapter[_AnyVersion] = TypeAdapter(_AnyVersion)


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
    return bytes((JSON,)) + os.urandom(SALT) + body


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
    adapter = _adapter(type_)
    if codec == JSON and adapter is not None:
        try:
            found = adapter.validate_json(state[SALT + 1 :])
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
    return _opaque(stream, version, type_, state, position, hash_)


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
def _adapter(type_: str) -> TypeAdapter[Any] | None:
    """Validates the JSON of one known type at its present schema version."""
    data = EVENT_TYPES.get(type_)
    if data is None:
        return None
    present = schema_version(type_)
    fields: dict[str, Any] = {**_Header.__annotations__, "d": Required[data], "v": Literal[present]}
    if present > 1:
        fields["v"] = Required[Literal[present]]
    return TypeAdapter(TypedDict(f"_{data.__name__}", fields, total=False))  # type: ignore[operator]  # made at run time, one a type


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


def _opaque(stream: str, version: int, type_: str, state: bytes, position: int | None, hash_: bytes | None) -> Event:
    """An event that is kept as it is; its envelope is read when it can be."""
    try:
        fields: Any = _ANY_VERSION.validate_json(state[SALT + 1 :])
    except ValidationError:
        fields = {"i": "", "t": 0, "n": -1}
    return _event(stream, version, type_, fields, Opaque(state), position, hash_)


def _corrupt(stream: str, version: int, type_: str, error: ValidationError) -> CorruptEventError:
    return CorruptEventError(
        f"{stream} version {version} ({type_}) cannot be read: {explain('event', error)} "
        "The stored bytes are damaged; verify says where the damage begins."
    )
