"""What property tests draw from: JSON with everything that is hard to keep, messages, and the data of every event."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st
from tests.domain.memory_strategies import context_data, memory_data
from tests.domain.run_strategies import run_data

from clew.domain.events import (
    EVENT_TYPES,
    TYPE_NAMES,
    AnyEvent,
    CheckpointMade,
    Event,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    ServiceDeletion,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
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
)

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
    FunctionResult: st.builds(FunctionResult, call_id=texts, name=optional_texts, result=jsons),
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

positive = st.integers(min_value=1, max_value=2**53)
DATA: dict[type[AnyEvent], st.SearchStrategy[Any]] = {
    ThreadStarted: st.builds(
        ThreadStarted,
        kind=st.sampled_from(["local", "remote"]),
        title=optional_texts,
        labels=objects,
        metadata=objects,
        source=st.none() | st.builds(Source, id=jsons, fields=objects),
    ),
    ThreadForked: st.builds(
        ThreadForked,
        parent_id=texts,
        parent_version=positive,
        parent_hash=texts,
        title=optional_texts,
        kind=st.sampled_from(["local", "remote", None]),
        memory=st.sampled_from(["live", "as-of", None]),
    ),
    ThreadLabelled: st.builds(ThreadLabelled, labels=objects),
    MessageAppended: st.builds(MessageAppended, message=messages),
    MessageRedacted: st.builds(MessageRedacted, version=positive, digest=texts, stub=texts, reason=optional_texts),
    HistoryRewound: st.builds(HistoryRewound, to=positive, service_thread_id=optional_texts),
    CheckpointMade: st.builds(CheckpointMade, name=texts, at=positive),
    ThreadSuspended: st.builds(ThreadSuspended, reason=optional_texts),
    ThreadResumed: st.builds(ThreadResumed),
    ThreadEnded: st.builds(ThreadEnded, reason=optional_texts),
    ThreadDeleted: st.builds(
        ThreadDeleted,
        reason=optional_texts,
        service=st.lists(st.builds(ServiceDeletion, id=texts, failed=optional_texts), max_size=2).map(tuple),
    ),
    **run_data(texts, objects),
    **context_data(texts, objects, jsons, messages),
    **memory_data(texts, objects),
}
assert set(DATA) == set(EVENT_TYPES.values())
assert set(CONTENTS) == set(CONTENT_TYPES)


def events_of(data: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    """Events that are to be recorded, with envelopes of every shape."""
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
    """One event with an envelope that says little."""
    told: dict[str, Any] = {"stream": "default/thread/a", "event_id": f"event-{version}", "recorded_at": version}
    return Event(**{**told, **fields}, version=version, type=TYPE_NAMES[type(data)], messages=messages, data=data)


def nested(levels: int) -> Any:
    """A value of so many levels, lists and objects by turns."""
    value: Any = "end"
    for level in range(levels):
        value = [value] if level % 2 else {"d": value}
    return value


def exact(value: Any) -> str:
    """By which values of JSON are compared: 1, 1.0, -0.0, 0.0 and True differ, and so does the order of keys."""
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
