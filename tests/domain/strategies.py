"""Strategies of property tests: difficult JSON, messages, and the data of every event type."""

from __future__ import annotations

from base64 import b64encode
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from clew.domain.events import EVENT_TYPES, TYPE_NAMES, AnyEvent, Event, RecordAppended
from clew.domain.messages import (
    ROLES,
    ApprovalRequest,
    ApprovalResponse,
    Content,
    FunctionCall,
    FunctionResult,
    Media,
    Message,
    Raw,
    Reasoning,
    Text,
    Value,
)
from clew.domain.models.prices import Cost

CONTENT_TYPES: tuple[type[Any], ...] = get_args(Content)

TRICKY_KEYS = ("_type_", "_data_", "__class__", "__proto__", "type", "event_id", "d", "v", "i", "t", "", "$ref", "NaN")

texts = st.text(st.characters(codec="utf-8"), max_size=8)
optional_texts = st.none() | texts
keys = st.sampled_from(TRICKY_KEYS) | texts
numbers = (
    st.integers()
    | st.integers(min_value=-(10**300), max_value=10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-0.0, 5e-324, 1e308, 10**300, -(10**299), 1e16, 2**53 + 1])
)
scalars = st.none() | st.booleans() | numbers | texts | st.sampled_from(["NaN", "Infinity", "null", "\x00"])
jsons = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2), max_leaves=4
)
objects = st.dictionaries(keys, jsons, max_size=2)

calls = st.builds(FunctionCall, call_id=texts, name=texts, arguments=texts)
CONTENTS: dict[type[Any], st.SearchStrategy[Any]] = {
    Text: st.builds(Text, text=texts),
    Reasoning: st.builds(Reasoning, text=texts, data=jsons),
    Media: st.builds(Media, uri=texts, media_type=optional_texts),
    FunctionCall: calls,
    FunctionResult: st.builds(FunctionResult, call_id=texts, name=optional_texts, result=jsons)
    | st.builds(
        FunctionResult,
        call_id=texts,
        contents=st.lists(
            st.builds(Text, text=texts) | st.builds(Media, uri=texts, media_type=optional_texts), min_size=1, max_size=2
        ).map(tuple),
    ),
    ApprovalRequest: st.builds(ApprovalRequest, approval_id=texts, call=calls, reason=optional_texts),
    ApprovalResponse: st.builds(ApprovalResponse, approval_id=texts, approved=st.booleans(), reason=optional_texts),
    Raw: st.builds(Raw, value=jsons),
}
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    author=optional_texts,
    contents=st.lists(st.one_of(*CONTENTS.values()), max_size=2).map(tuple),
    metadata=objects,
    source=objects,
)

counts = st.integers(min_value=0, max_value=2**53)


def _with_digest(record: RecordAppended, size: int, digest: bytes) -> RecordAppended:
    """The record with its bytes next to it."""
    return RecordAppended(**{**dict(record), "base64": None, "size": size, "digest": digest.hex()})


base64s = st.binary(max_size=20).map(lambda data: b64encode(data).decode())
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: counts,
    bool: st.booleans(),
    float: st.floats(min_value=0, max_value=1e6),
    type(None): st.none(),
    Any: jsons,
    Message: messages,
    Cost: st.builds(Cost, usd=st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,12})?", fullmatch=True), prices=texts),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field with this annotation."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return st.dictionaries(keys, values_of(arguments[1]), max_size=2) if arguments[1] is int else objects
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin in {Union, UnionType}:
        return st.one_of(*map(values_of, arguments))
    return data_of(annotation)


def data_of(model: type[Value]) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a model with any fields."""
    return st.builds(
        model,
        **{name: _values_of_field(field) for name, field in model.model_fields.items()},
    )


def _values_of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field, none smaller than the field allows."""
    values = values_of(field.annotation)
    least = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    return values if least is None else values.filter(lambda value: value is None or value >= least)


_records = st.builds(RecordAppended, type=texts, data=jsons, key=optional_texts, base64=st.none() | base64s)
DATA: dict[type[Any], st.SearchStrategy[Any]] = {
    declared.model: data_of(declared.model) for declared in EVENT_TYPES.values()
} | {RecordAppended: _records | st.builds(_with_digest, _records, counts, st.binary(min_size=32, max_size=32))}
assert set(CONTENTS) == set(CONTENT_TYPES)


def events_of(data: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    """Return a strategy for unrecorded events with any envelopes."""
    return st.builds(
        _event,
        data,
        st.integers(min_value=1, max_value=2**53),
        texts,
        st.integers(min_value=0, max_value=2**53),
        st.integers(min_value=0, max_value=2**31),
        optional_texts,
        optional_texts,
        optional_texts,
        optional_texts,
        st.none() | objects,
    )


def event(data: AnyEvent, version: int = 1, *, messages: int = 0, **fields: Any) -> Event:
    """Return an event with a minimal envelope."""
    envelope: dict[str, Any] = {"stream": "default/thread/a", "event_id": f"event-{version}", "recorded_at": version}
    return Event(**{**envelope, **fields}, version=version, type=TYPE_NAMES[type(data)], messages=messages, data=data)


def nested(levels: int) -> Any:
    """Return a value with this many levels, lists and objects in turn."""
    value: Any = "end"
    for level in range(levels):
        value = [value] if level % 2 else {"d": value}
    return value


def exact(value: Any) -> str:
    """Return a text for comparisons: 1, 1.0, -0.0, 0.0 and True differ, and so do key orders."""
    return repr(value)


def _event(
    data: AnyEvent,
    version: int,
    event_id: str,
    recorded_at: int,
    messages: int,
    actor: str | None,
    run_id: str | None,
    cause: str | None,
    subject: str | None,
    metadata: dict[str, Any] | None,
) -> Event:
    return Event(
        "default/thread/a",
        version,
        TYPE_NAMES[type(data)],
        event_id,
        recorded_at,
        messages,
        data,
        actor,
        run_id,
        cause,
        subject,
        metadata,
    )
