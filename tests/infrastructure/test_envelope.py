from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import to_json
from tests.domain.strategies import CONTENTS, DATA, TRICKY_KEYS, event, events_of, exact, nested

from clew.domain.decider import Append, decide
from clew.domain.decider_state import Control
from clew.domain.errors import CorruptEventError, InvalidContentError
from clew.domain.events import (
    EVENT_TYPES,
    TYPE_NAMES,
    Event,
    HistoryRewound,
    MessageAppended,
    Opaque,
    RecordAppended,
    Shredded,
    ThreadEvent,
    ThreadLabelled,
    ThreadResumed,
)
from clew.domain.history import as_message
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import ROLES, FunctionCall, Message, Raw, Text
from clew.domain.ports import Row
from clew.domain.streams import digest
from clew.infrastructure.clock import SALT_BYTES
from clew.infrastructure.envelope import _plain, decode, decode_message, decode_row, encode, recorded, stub
from clew.infrastructure.event_log import EnvelopeMapper

EVENTS = st.one_of(*(events_of(data) for data in DATA.values()))
TEXT_MESSAGES = st.builds(Message, role=st.sampled_from(ROLES), contents=st.tuples(CONTENTS[Text]))


def read(written: Event, state: bytes) -> Event:
    return decode(written.stream, written.version, written.type, state)


def stored(fields: Any) -> bytes:
    return bytes(1 + SALT_BYTES) + json.dumps(fields).encode()


def header(**more: Any) -> dict[str, Any]:
    return {"i": "e", "t": 1, "n": 0, **more}


# Round trips


@pytest.mark.parametrize("kind", DATA, ids=lambda kind: TYPE_NAMES[kind])
def test_every_event_survives_a_round_trip(kind: type[ThreadEvent]) -> None:
    @given(events_of(DATA[kind]))
    def check(written: Event) -> None:
        decoded = read(written, encode(written))
        assert decoded == written
        assert exact(decoded) == exact(written)

    check()


@pytest.mark.parametrize("kind", CONTENTS, ids=lambda kind: kind.__name__)
def test_every_content_survives_a_round_trip(kind: type[Any]) -> None:
    @given(CONTENTS[kind])
    def check(content: Any) -> None:
        written = event(MessageAppended(message=Message(role="user", contents=(content, content))))
        decoded = read(written, encode(written))
        assert exact(decoded) == exact(written)

    check()


def end_of(data: Any) -> bytes:
    """The last field of an event with this data: of a message with nothing but a text, the text alone."""
    match data:
        case MessageAppended(message=Message(role="user" | "assistant" as role, contents=(Text() as text,)) as message):
            if message == Message(role=role, contents=(text,)):
                return (b'"u":' if role == "user" else b'"x":') + to_json(text.text)
    return b'"d":' + to_json(data, exclude_none=True)


@pytest.mark.parametrize("kind", [MessageAppended, RecordAppended], ids=lambda kind: kind.__name__)
def test_messages_and_records_have_the_bytes_of_pydantic(kind: type[Any]) -> None:
    """They are written by orjson, or by pydantic if orjson refuses them: every stored hash depends on these bytes."""

    @example(data=MessageAppended(message=Message(role="user", contents=(Text(text=""),))))
    @example(data=MessageAppended(message=Message(role="assistant", contents=(Text(text="a"),))))
    @given(data=DATA[kind])
    def check(data: Any) -> None:
        assert encode(event(data)).endswith(b"," + end_of(data) + b"}")

    check()


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        *((number, False) for number in (1e16, 1e22, 1e-7, 1e-5, 5e-324, 1.7976931348623157e308, -0.0, 0.1 + 0.2, 1.0)),
        *((number, False) for number in (2**63, 2**64 - 1, -(2**63))),
        *((number, True) for number in (2**64, -(2**63) - 1, 10**300)),
        ({"b": 1, "a": {"z": 1, "y": [True]}}, False),
        ({"b": 1, "a": {"z": None, "y": [None]}}, True),
        ('\x00\x1f\x7f"\\/\u2028\ufeff\U0010ffff\b\f\n\r\t', False),
        (nested(100), False),
    ],
    ids=repr,
)
def test_difficult_values_have_the_bytes_of_pydantic(value: Any, refused: bool) -> None:  # noqa: FBT001  # pytest's
    assert (_plain({"k": value}) is None) == refused
    for data in (
        MessageAppended(message=Message.tool("c", value, metadata={"k": value})),
        MessageAppended(message=Message(role="assistant", contents=(Raw(value=[value]), Text(text="")))),
        RecordAppended(type="state", data={"k": value}),
    ):
        assert encode(event(data)).endswith(b',"d":' + to_json(data, exclude_none=True) + b"}")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), [None, float("inf")], "\ud800"], ids=repr)
def test_values_that_are_not_json_are_never_written_as_null(value: Any) -> None:
    for data in (
        MessageAppended(message=Message(role="tool", contents=(Raw(value=value),))),
        RecordAppended(type="state", data=value),
    ):
        with pytest.raises(InvalidContentError):
            encode(event(data))


@given(EVENTS)
def test_the_mapper_returns_an_equal_event(written: Event) -> None:
    mapper = EnvelopeMapper()
    row = mapper.to_stored_event(written)
    assert (row.originator_id, row.originator_version, row.topic) == (written.stream, written.version, written.type)
    assert exact(mapper.to_domain_event(row)) == exact(written)


@pytest.mark.parametrize("key", TRICKY_KEYS)
@pytest.mark.parametrize("value", [None, "uuid_hex", 0, [None], {"_type_": "nope", "_data_": None}], ids=range(5))
def test_keys_that_look_like_tags_are_plain_keys(key: str, value: Any) -> None:
    tricky = {key: value, "_data_": "0" * 32, "inner": [{key: value}]}
    message = Message.tool("c", tricky, metadata=tricky)
    written = event(MessageAppended(message=message), metadata=tricky)
    assert exact(read(written, encode(written))) == exact(written)
    labelled = event(ThreadLabelled(labels=tricky))
    assert exact(read(labelled, encode(labelled))) == exact(labelled)


@pytest.mark.parametrize(
    "value",
    [
        nested(100),
        10**300 - 1,
        -(10**299),
        (1 << 14_000) - 1,
        2**53 + 1,
        2**64,
        -0.0,
        0.0,
        5e-324,
        1e308,
        1.7976931348623157e308,
        0.1 + 0.2,
        1e16,
        1.0,
        True,
        None,
        [None, {"a": None}],
        "\x00\x1f\x7f\u2028\ufeff\U0010ffff",
        "NaN",
        "Infinity NaN",
        {"NaN": "-Infinity"},
    ],
    ids=range(21),
)
def test_unusual_values_survive_a_round_trip(value: Any) -> None:
    contents = (Raw(value=value), Raw(value=[value] if value != nested(100) else None))
    message = Message(role="tool", contents=contents, metadata={} if value == nested(100) else {"k": value})
    decided = decide("a", Control(version=1), Append((message,)))
    written = event(decided[0].data, metadata={"k": value})
    assert exact(read(written, encode(written))) == exact(written)


# Refused values

NOT_JSON: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    "\ud800",
    "text secret\udfff",
    {"\ud800": 1},
    nested(300),
]


@pytest.mark.parametrize("value", [*NOT_JSON, nested(101), (1, 2), {1: 2}, b"x"], ids=range(11))
@pytest.mark.parametrize("place", ["result", "metadata", "source"])
def test_a_decision_refuses_a_value_that_is_not_json_and_names_its_field(place: str, value: Any) -> None:
    message = {
        "result": Message.tool("c", value),
        "metadata": Message.user("secret", metadata={"k": value}),
        "source": Message(role="user", contents=(), source={"k": value}),
    }[place]
    with pytest.raises(InvalidContentError) as caught:
        decide("a", Control(version=1), Append((message,)))
    assert place in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", NOT_JSON, ids=range(len(NOT_JSON)))
def test_encoding_refuses_values_that_are_not_json(value: Any) -> None:
    events = [
        event(MessageAppended(message=Message.tool("c", value))),
        event(MessageAppended(message=Message.user("secret", metadata={"k": [value]}))),
        event(ThreadLabelled(labels={"k": value})),
        event(ThreadResumed(), metadata={"k": value}),
    ]
    for written in events:
        with pytest.raises(InvalidContentError) as caught:
            encode(written)
        assert "secret" not in str(caught.value)


def test_an_envelope_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidContentError):
        encode(event(ThreadResumed(), actor="user:\ud800"))


def test_refuses_an_event_larger_than_16_mib_without_showing_it() -> None:
    written = event(MessageAppended(message=Message.user("secret " * (17 * 1024 * 1024 // 7))))
    with pytest.raises(
        InvalidContentError, match=r"message-appended: 17,8\d\d,\d\d\d bytes.*at most 16,777,216"
    ) as caught:
        encode(written)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_accepts_an_event_of_exactly_16_mib() -> None:
    room = MAX_BYTES - len(encode(event(MessageAppended(message=Message.user("")))))
    assert len(encode(event(MessageAppended(message=Message.user("x" * room))))) == MAX_BYTES
    with pytest.raises(InvalidContentError):
        encode(event(MessageAppended(message=Message.user("x" * (room + 1)))))


def test_a_shredded_event_cannot_be_stored_again() -> None:
    with pytest.raises(InvalidContentError, match="version 3 is shredded"):
        encode(Event("default/thread/a", 3, "message-appended", "e", 1, 1, Shredded("user")))


# The bytes


def test_a_stored_event_has_a_codec_byte_a_salt_and_compact_json() -> None:
    written = event(MessageAppended(message=Message.user("hello")), actor="ann", run_id="r", cause="c", subject="s")
    state = encode(written._replace(metadata={"k": None}))
    assert state[0] == 0
    assert SALT_BYTES == 16
    assert state[17:] == (b'{"i":"event-1","t":1,"n":0,"a":"ann","r":"r","c":"c","s":"s","m":{"k":null},"u":"hello"}')
    answer = Message(role="assistant", contents=(Text(text="hello"), Text(text="again")))
    assert encode(event(MessageAppended(message=answer)))[17:] == (
        b'{"i":"event-1","t":1,"n":0,"d":{"message":{"role":"assistant","contents":'
        b'[{"type":"text","text":"hello"},{"type":"text","text":"again"}]}}}'
    )


def test_the_digits_of_an_id_that_the_time_has_are_not_stored() -> None:
    made = event(MessageAppended(message=Message.assistant("hello")))
    id_, time = "0199c82cc00070008000000000000bee", 0x0199C82CC000 * 1_000 + 999
    written = made._replace(event_id=id_, recorded_at=time)
    assert encode(written)[17:] == b'{"e":"70008000000000000bee","t":%d,"n":0,"x":"hello"}' % time
    for other in (
        written._replace(recorded_at=time + 1),
        written._replace(event_id=id_[:-1]),
        written._replace(event_id=id_.upper()),
        written._replace(event_id=f"{id_}0"),
    ):
        assert encode(other)[17:].startswith(b'{"i":')
        assert read(other, encode(other)).event_id == other.event_id
    row = row_of(written, encode(written))
    seen: Any = recorded(row)
    assert read(written, row.state).event_id == seen.event_id == id_
    assert decode_row(row._replace(state=stub(written))).event_id == id_


@given(
    text=st.text() | st.sampled_from(['"', "\\", '","u":"', ',"x":"', '"}', '\\","u":"']),
    metadata=st.none() | st.dictionaries(st.sampled_from(["u", "x", "d", 'k","u":"']), st.text(), max_size=3),
    role=st.sampled_from(ROLES),
)
def test_any_text_is_read_as_it_was_written(text: str, metadata: Any, role: Any) -> None:
    message = Message(role=role, contents=(Text(text=text),))
    written = event(MessageAppended(message=message))._replace(metadata=metadata)
    row = row_of(written, encode(written))
    assert decode_row(row)._replace(hash=None) == written
    seen: Any = recorded(row)
    assert seen.data == {"message": message.model_dump(mode="json", exclude_none=True)}
    found = decode_message(row)
    assert found is not None
    assert (found.message, found.event_id) == (message, written.event_id)


@pytest.mark.parametrize(
    "body",
    [
        b'{"i":"e","t":1,"n":1}',
        b'{"i":"e","t":1,"n":1,"u":1}',
        b'{"i":"e","t":1,"n":1,"z":"x"}',
        b'{"t":1,"n":1,"u":"x"}',
        b'{"i":"e","t":1,"n":1,"u":"x}',
        b'{"e":1,"t":1,"n":1,"u":"x"}',
    ],
)
def test_a_short_event_that_is_damaged_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptEventError):
        decode("default/thread/a", 3, "message-appended", bytes(17) + body)


@given(EVENTS | events_of(st.builds(MessageAppended, message=TEXT_MESSAGES)))
def test_the_encoding_equals_the_json_of_pydantic(written: Event) -> None:
    envelope = {
        "i": written.event_id,
        "t": written.recorded_at,
        "n": written.messages,
        "a": written.actor,
        "r": written.run_id,
        "c": written.cause,
        "s": written.subject,
        "m": written.metadata,
    }
    fields = {key: value for key, value in envelope.items() if value is not None}
    message: Any = getattr(written.data, "message", None)
    key = {"user": "u", "assistant": "x"}.get(getattr(message, "role", ""))
    if key is not None and message == Message(role=message.role, contents=(Text(text=message.text),)):
        assert encode(written)[17:] == to_json({**fields, key: message.text}, exclude_none=True)
        return
    assert encode(written)[17:] == to_json({**fields, "d": written.data}, exclude_none=True)


def test_equal_texts_have_different_bytes_and_digests() -> None:
    written = event(MessageAppended(message=Message.user("yes")))
    states = {encode(written) for _ in range(100)}
    assert len({state[1:17] for state in states}) == 100
    assert len({digest(state) for state in states}) == 100
    assert len({state[17:] for state in states}) == 1


@given(events_of(DATA[MessageAppended]))
def test_a_stub_keeps_the_envelope_and_no_user_content(written: Event) -> None:
    data = written.data
    assert isinstance(data, MessageAppended)
    state = stub(written)
    fields = json.loads(state[1:])
    assert set(fields) <= {"i", "t", "n", "a", "r", "o"}
    decoded = read(written, state)
    shredded = Shredded(data.message.role)
    assert decoded == written._replace(data=shredded, cause=None, subject=None, metadata=None, redacted=True)


@given(EVENTS.filter(lambda written: EVENT_TYPES[written.type].remains is not None))
def test_the_stub_of_an_event_with_text_keeps_the_rest_of_its_data(written: Event) -> None:
    declared = EVENT_TYPES[written.type]
    assert declared.remains is not None
    rest: Any = declared.remains(written.data)
    assert declared.remains(rest) == rest
    state = stub(written)
    assert set(json.loads(state[1:])) <= {"i", "t", "n", "a", "r", "v", "d"}
    assert read(written, state) == written._replace(data=rest, cause=None, subject=None, metadata=None, redacted=True)


def test_the_stub_of_an_event_without_a_role_has_no_role() -> None:
    written = event(HistoryRewound(to=1, service_thread_id="secret"), subject="secret", metadata={"k": "secret"})
    assert b"secret" not in stub(written)
    assert read(written, stub(written)).data == Shredded(None)


# Unreadable events


@given(EVENTS, st.sampled_from(["song-sung", "", "Thread-started", "thread-started ", "\ud800", "x" * 1000]))
def test_an_unknown_type_is_opaque_and_keeps_its_bytes(written: Event, type_: str) -> None:
    state = encode(written)
    decoded = decode(written.stream, written.version, type_, state)
    assert decoded == written._replace(type=type_, data=Opaque(state))
    assert encode(decoded) == state


@pytest.mark.parametrize(
    "type_",
    [
        "os:system",
        "clew.domain.events:ThreadStarted",
        "this:d",
        "antigravity:fly",
        "turtledemo.__main__:main",
        "idlelib",
    ],
)
def test_a_type_that_is_a_python_path_is_opaque_and_imports_nothing(type_: str) -> None:
    for module in ("this", "antigravity", "turtledemo", "turtledemo.__main__", "idlelib"):
        assert module not in sys.modules
    before = set(sys.modules)
    state = stored(header(d={"title": "x", "__class__": type_, "_type_": type_}))
    decoded = EnvelopeMapper().to_domain_event(StoredEvent("default/thread/a", 4, type_, state))
    assert decoded.data == Opaque(state)
    assert decoded.event_id == "e"
    assert set(sys.modules) == before


@pytest.mark.parametrize("type_", [*EVENT_TYPES, "song-sung"])
@pytest.mark.parametrize("state", [b"", b"\x01" + bytes(40), b"\x03{}", b"\xff" * 40, b"{}"], ids=range(5))
def test_an_unknown_codec_is_opaque(type_: str, state: bytes) -> None:
    decoded = decode("default/thread/a", 2, type_, state, 7, b"h")
    assert decoded == Event("default/thread/a", 2, type_, "", 0, -1, Opaque(state), position=7, hash=b"h")


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"x",
        bytes(15),
        bytes(16),
        bytes(16) + b"{",
        bytes(16) + b"[]",
        bytes(16) + b"null",
        bytes(16) + b"7",
        bytes(16) + b"\xff\xfe",
        bytes(16) + b"[" * 100_000,
        bytes(16) + b'{"d":' * 100_000,
        stored({"i": "e"})[1:],
        stored(header())[1:],
        stored(header(d=None))[1:],
        stored(header(d=[]))[1:],
        stored(header(d={"labels": 5}))[1:],
        stored(header(d={"labels": {}, "more": 1}))[1:],
        stored(header(d={"labels": {}}, t="soon"))[1:],
        stored(header(d={"labels": {}}, i=None))[1:],
        stored(header(d={"labels": {}}, v=0))[1:],
        stored(header(d={"labels": {}}, v=-1))[1:],
        stored(header(d={"labels": {}}, v="2"))[1:],
        stored(header(d={"labels": {}}, v=None))[1:],
        stored(header(d={"labels": {}}, v=1.5))[1:],
        stored(header(d={"labels": {}}, v=[2]))[1:],
    ],
    ids=range(25),
)
def test_invalid_bytes_of_a_known_type_are_corrupt(rest: bytes) -> None:
    with pytest.raises(CorruptEventError, match=r"^default/thread/a version 2 \(thread-labelled\)") as caught:
        decode("default/thread/a", 2, "thread-labelled", b"\x00" + rest)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("rest", [b"", b"{", b"{}", b"[]", b'{"i":"e","t":1}', b'{"i":"e","t":1,"n":0,"o":"wizard"}'])
def test_an_invalid_stub_is_corrupt(rest: bytes) -> None:
    with pytest.raises(CorruptEventError):
        decode("default/thread/a", 2, "message-appended", b"\x02" + rest)


def test_the_error_of_a_corrupt_event_does_not_show_it() -> None:
    state = stored(header(d={"message": {"role": "secret", "contents": "secret"}}))
    with pytest.raises(CorruptEventError) as caught:
        decode("default/thread/a", 2, "message-appended", state)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("type_", EVENT_TYPES)
def test_a_newer_schema_version_is_opaque(type_: str) -> None:
    state = stored(header(v=2, a="ann", d={"of": "the future"}))
    decoded = decode("default/thread/a", 2, type_, state)
    assert decoded == Event("default/thread/a", 2, type_, "e", 1, 0, Opaque(state), "ann")


@given(EVENTS, st.integers(min_value=0, max_value=2**32), st.binary(max_size=60))
def test_damaged_bytes_raise_only_a_corrupt_event_error(written: Event, seed: int, noise: bytes) -> None:
    chance = random.Random(seed)
    state = bytearray(encode(written))
    for byte in noise:
        state[chance.randrange(len(state))] = byte
    try:
        decoded = read(written, bytes(state))
    except CorruptEventError:
        return
    assert decoded.stream == written.stream
    assert decoded.version == written.version


# Messages of histories


def row_of(written: Event, state: bytes) -> Row:
    return Row(7, written.stream, written.version, written.type, state, b"hash", None)


@given(events_of(DATA[MessageAppended]), st.none() | st.integers(0, 2**53), st.none() | st.text(max_size=3))
def test_a_message_of_a_history_is_that_of_its_event(
    written: Event, said: int | None, on_behalf_of: str | None
) -> None:
    written = written._replace(said=said, on_behalf_of=on_behalf_of)
    row = row_of(written, encode(written))
    assert exact(decode_message(row)) == exact(as_message(decode_row(row))) == exact(as_message(written))


@given(events_of(DATA[MessageAppended]), st.integers(min_value=0, max_value=2**32), st.binary(max_size=6))
def test_damaged_bytes_are_a_message_of_a_history_only_if_they_are_an_event(
    written: Event, seed: int, noise: bytes
) -> None:
    chance = random.Random(seed)
    state = bytearray(encode(written))
    for byte in noise:
        state[chance.randrange(len(state))] = byte
    row = row_of(written, bytes(state))
    try:
        expected = as_message(decode_row(row))
    except CorruptEventError:
        expected = None
    assert exact(decode_message(row)) == exact(expected)


@pytest.mark.parametrize(
    "more",
    [
        {"d": {"message": {"role": "user", "contents": []}, "more": 1}},
        {"d": {"message": {"role": "user", "contents": [], "more": 1}}},
        {"d": {"message": {"role": "wizard", "contents": []}}},
        {"d": {"message": {"role": "user", "contents": [{"type": "smell"}]}}},
        {"d": {}},
        {"d": {"message": {"role": "user", "contents": []}}, "v": 2},
        {"d": {"message": {"role": "user", "contents": []}}, "n": "1"},
        {},
    ],
    ids=range(8),
)
def test_unusual_bytes_are_no_message_of_a_history(more: dict[str, Any]) -> None:
    written = event(MessageAppended(message=Message.user("Hello")))
    assert decode_message(row_of(written, stored(header(**more)))) is None


def test_only_messages_with_their_content_are_messages_of_a_history() -> None:
    written = event(MessageAppended(message=Message.user("Hello")))
    row = row_of(written, encode(written))
    assert decode_message(row) is not None
    others: list[dict[str, Any]] = [
        {"state": stub(written)},
        {"state": b"\x01" + row.state[1:]},
        {"state": b""},
        {"state": "text"},
        {"hash": None},
        {"type": "record-appended"},
        {"type": "message-sung"},
    ]
    assert [decode_message(row._replace(**other)) for other in others] == [None] * len(others)


def test_a_calls_arguments_are_text_and_not_json() -> None:
    tool_call = FunctionCall(call_id="c", name="f", arguments='{"a": 1,  "b": NaN, broken')
    written = event(MessageAppended(message=Message.assistant(calls=[tool_call])))
    assert read(written, encode(written)) == written


def test_a_cut_answer_is_read_as_cut() -> None:
    message = Message(role="assistant", contents=(Text(text="Half"),), cut=True)
    written = encode(event(MessageAppended(message=message)))
    assert written.endswith(b'"cut":true}}}')
    assert b"cut" not in encode(event(MessageAppended(message=message.model_copy(update={"cut": False}))))
