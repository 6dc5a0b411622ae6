from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.formats import openai_messages
from clew.domain.formats.openai_messages import decode, difference, encode, encode_redacted, patched, same
from clew.domain.json_values import check_json
from clew.domain.messages import (
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
    check_message,
)


def canonical(value: object) -> str:
    """Return a text for comparisons: 1, 1.0, -0.0, 0.0 and true differ, and key order does not matter."""
    return json.dumps(value, sort_keys=True)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1,  "b":[]}'}}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "grep", "input": "needle"}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Grüße 🧶\u2028next"},
    {"role": "user", "content": ""},
    {"role": "user", "content": None},
    {"role": "user"},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text", "text": "one part"}]},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "user", "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x", "detail": "high"}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
    {"role": "user", "content": ["bare", 1, None, {"type": "text"}, {"type": "text", "text": 5}, [[]]]},
    {"role": "user", "content": [{"type": "reasoning", "text": "hm", "data": None}]},
    {"role": "user", "content": [{"type": "approval-response", "approval_id": "a", "approved": "true"}]},
    {"role": "user", "content": "x", "name": "anna"},
    {"role": "user", "content": "x", "name": None},
    {"role": "user", "content": "x", "name": 7},
    {"role": "user", "content": "x", "metadata": {"n": [1, 1.0, True, None]}},
    {"role": "user", "content": "x", "metadata": {}},
    {"role": "user", "content": "x", "metadata": "text"},
    {"role": "user", "content": "x", "n": 10**299, "f": 1.0, "i": 1, "b": True, "z": -0.0, "": {"": None}},
    {"role": "user", "content": "x", "_type_": "os.system", "__class__": 1, "type": "raw", "event_id": "e"},
    {"role": "user", "content": "x", "source": {"openai": {"patch": {"is": 1}}}, "openai": {"text": "{}"}},
    {"role": "system", "content": "Be kind."},
    {"role": "developer", "content": "Be brief."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL, CALL, {**CALL, "id": "call_9"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}], "tool_calls": [CALL]},
    {"role": "assistant", "content": "x", "tool_calls": []},
    {"role": "assistant", "content": "x", "tool_calls": None},
    {"role": "assistant", "content": "x", "tool_calls": "not a list"},
    {"role": "assistant", "content": "x", "tool_calls": [None, 1, {}, {"function": None}, {"function": {}}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": 5, "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "assistant", "content": None, "tool_calls": [CUSTOM, CALL]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "index": 0, "function": {**CALL["function"], "strict": True}}],  # type: ignore[dict-item]  # a mixed literal
    },
    {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}},
    {"role": "assistant", "content": None, "function_call": {"name": "f"}, "tool_calls": [CALL]},
    {"role": "assistant", "content": "x", "function_call": None, "tool_calls": None, "refusal": None, "audio": None},
    {"role": "assistant", "content": None, "refusal": "I will not."},
    {"role": "assistant", "content": "So:", "refusal": "I will not.", "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "No."}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "refusal": "No."},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    {"role": "tool", "tool_call_id": "call_1", "name": "find", "content": '{"found": 1}'},
    {"role": "tool", "tool_call_id": "call_1", "content": None},
    {"role": "tool", "tool_call_id": "call_1"},
    {"role": "tool", "content": ""},
    {"role": "tool", "tool_call_id": None, "content": [{"type": "text", "text": "a"}], "tool_calls": [CALL]},
    {"role": "function", "name": "find", "content": "42"},
    {"role": "function", "name": "find", "content": None, "function_call": {"name": "f", "arguments": ""}},
    {"role": "user", "content": None, "redacted": True},
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8)
)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.sampled_from(
    ["id", "type", "function", "name", "arguments", "text", "image_url", "url", "refusal", "custom", "input", "uri"]
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=12,
)


def likely(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects in which most fields exist with the right type, and some unknown keys."""
    known = st.fixed_dictionaries({}, optional={name: value | json_values for name, value in fields.items()})
    more = st.dictionaries(texts, json_values, max_size=1)
    return st.tuples(more, known).map(lambda both: {**both[0], **both[1]})


functions = likely(name=texts, arguments=texts)
tool_calls = likely(
    id=st.sampled_from(["call_1", "call_2"]),
    type=st.just("function"),
    function=functions,
    custom=likely(name=texts, input=texts),
)
parts = likely(
    type=st.sampled_from(
        ["text", "image_url", "refusal", "reasoning", "media", "function-result", "approval-request", "file"]
    ),
    text=texts,
    image_url=likely(url=texts),
    refusal=texts,
    uri=texts,
    call_id=texts,
    approval_id=texts,
)
messages = st.builds(
    lambda fields, fixed: {**fields, **fixed},
    likely(
        name=texts,
        tool_call_id=texts,
        refusal=texts,
        tool_calls=st.lists(tool_calls | json_values, max_size=3),
        function_call=functions,
        metadata=st.dictionaries(texts, json_values, max_size=2),
    ),
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
        optional={"content": st.none() | texts | st.lists(parts | json_values, max_size=3)},
    ),
)


def assert_round_trip(value: dict[str, Any]) -> None:
    before = canonical(value)
    message = decode(value, 1)
    check_message(message)
    assert [canonical(each) for each in encode(message)] == [before]
    stored = Message.model_validate_json(message.model_dump_json())
    assert [canonical(each) for each in encode(stored)] == [before]


@pytest.mark.parametrize("value", MESSAGES, ids=json.dumps)
def test_round_trips_every_form_of_a_message(value: dict[str, Any]) -> None:
    assert_round_trip(value)


@given(messages)
def test_round_trips_any_message(value: dict[str, Any]) -> None:
    assert_round_trip(value)


usual_calls = st.fixed_dictionaries(
    {
        "id": texts,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": texts, "arguments": texts}),
    }
)
usual_messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": texts}),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": st.none() | texts,
            "tool_calls": st.lists(usual_calls, min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}, optional={"name": texts}),
)


def decode_slowly(value: dict[str, Any]) -> Message:
    """Decode by the rules for all messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_messages, "_read_exact", lambda _: None)
        return decode(value, 1)


@given(usual_messages)
def test_a_usual_message_is_decoded_once_as_the_rules_for_all_messages_say(value: dict[str, Any]) -> None:
    expected = decode_slowly(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(openai_messages, "_read")
        message = decode(value, 1)
    assert message == expected
    assert (message.model_dump_json(), message.source) == (expected.model_dump_json(), {})
    assert_round_trip(value)


@given(messages)
def test_decodes_any_message_as_the_rules_for_all_messages_say(value: dict[str, Any]) -> None:
    assert decode(value, 1).model_dump_json() == decode_slowly(value).model_dump_json()


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "\ud800"},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "\udfff"}]},
        {"role": "assistant", "content": "\ud800", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "\ud800", "content": "x"},
        {"role": "tool", "tool_call_id": "1", "name": "\ud800", "content": "x"},
    ],
    ids=repr,
)
def test_refuses_a_usual_message_that_is_not_valid_unicode(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError, match=r"message 1: .*lone surrogate"):
        decode(value, 1)


def test_round_trips_real_conversations(corpus: list[dict[str, Any]]) -> None:
    for conversation in corpus:
        for value in conversation["messages"]:
            assert_round_trip(value)


def test_plain_messages_need_no_source_data(corpus: list[dict[str, Any]]) -> None:
    sources = [decode(value, 1).source for conversation in corpus for value in conversation["messages"]]
    assert len(sources) > 10
    assert not any(sources)


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": [{"type": "text", "text": "UNIQUE"}]},
        {"role": "user", "content": [{"type": "text", "text": "UNIQUE", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "UNIQUE", "refusal": None, "audio": None, "tool_calls": None},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "UNIQUE"}},
        {"role": "function", "name": "f", "content": "UNIQUE"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "UNIQUE"}]},
    ],
)
def test_does_not_store_a_text_twice(value: dict[str, Any]) -> None:
    assert decode(value, 1).model_dump_json().count("UNIQUE") == 1


def test_reads_known_parts() -> None:
    file: Any = {"type": "file", "file": {"file_id": "f"}}
    content = [{"type": "text", "text": "See:"}, PICTURE, file]
    assert decode({"role": "user", "name": "anna", "content": content}, 1) == Message(
        role="user",
        author="anna",
        contents=(Text(text="See:"), Media(uri="https://example.org/cat.png"), Raw(value=file)),
    )
    assert decode({"role": "assistant", "content": "Hm.", "tool_calls": [CALL]}, 1) == Message.assistant(
        "Hm.", calls=[FunctionCall(call_id="call_1", name="find", arguments='{"a": 1,  "b":[]}')]
    )
    assert decode({"role": "tool", "tool_call_id": "c", "name": "f", "content": "42"}, 1) == Message.tool(
        "c", "42", name="f"
    )


def test_reads_calls_in_the_custom_and_the_older_form() -> None:
    custom = decode({"role": "assistant", "content": None, "tool_calls": [CUSTOM]}, 1)
    assert custom.calls == (FunctionCall(call_id="call_2", name="grep", arguments="needle"),)
    older = decode({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{"}}, 1)
    assert older.calls == (FunctionCall(call_id="", name="f", arguments="{"),)
    answer = decode({"role": "function", "name": "f", "content": "42"}, 1)
    assert (answer.role, answer.results) == ("tool", (FunctionResult(call_id="", name="f", result="42"),))


def test_shows_a_refusal_as_content() -> None:
    message = decode({"role": "assistant", "content": None, "refusal": "I will not."}, 1)
    assert message.contents == (Raw(value={"type": "refusal", "refusal": "I will not."}),)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("hello", "message 3: str is not an object"),
        (None, "message 3: NoneType is not an object"),
        ({}, "message 3: it has no role"),
        ({"role": "wizard", "content": "x"}, "message 3: the role 'wizard' is not known"),
        ({"role": 5}, "message 3: its role is not known"),
        ({"role": ["user"]}, "message 3: its role is not known"),
        ({"role": "My card is 4111 1111\n"}, "message 3: its role is not known"),
        ({"role": "user", "content": 5}, "message 3: its content is int"),
        ({"role": "user", "content": True}, "message 3: its content is bool"),
        ({"role": "user", "content": {"text": "x"}}, "message 3: its content is dict"),
    ],
)
def test_refuses_an_invalid_message_and_names_it(value: object, reason: str) -> None:
    with pytest.raises(ImportFormatError) as caught:
        decode(value, 3)
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)
    assert "4111" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "\ud800"},
        {"role": "user", "content": "x", "\ud800": 1},
        {"role": "user", "content": "x", "n": float("nan")},
        {"role": "user", "content": "x", "n": float("inf")},
        {"role": "user", "content": "x", "n": 10**4300},
        {"role": "user", "content": "x", "deep": nested(101)},
        {"role": "user", "content": [{"type": "text", "text": nested(100)}]},
    ],
    ids=["surrogate", "surrogate key", "NaN", "infinity", "huge integer", "depth 101", "depth 102 in the content"],
)
def test_refuses_values_that_cannot_round_trip(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError, match="message 3: "):
        decode(value, 3)


@pytest.mark.parametrize("levels", [90, 95, 96, 97, 98, 99, 100])
def test_accepts_a_hundred_levels_in_every_field(levels: int) -> None:
    assert_round_trip({"role": "user", "content": "x", "deep": nested(levels)})
    assert_round_trip({"role": "user", "content": "x", "metadata": {"deep": nested(levels - 1)}})
    assert_round_trip({"role": "user", "content": nested(levels)})
    assert_round_trip({"role": "tool", "tool_call_id": "c", "content": nested(levels)})


def test_writes_messages_of_clew_as_plain_openai_json() -> None:
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    assert encode(Message.system("Be kind.")) == [{"role": "system", "content": "Be kind."}]
    assert encode(Message.user("Hi", author="anna")) == [{"role": "user", "name": "anna", "content": "Hi"}]
    assert encode(Message.assistant(calls=[call])) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }
    ]
    assert encode(Message.tool("c", "sunny", name="f")) == [
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "sunny"}
    ]
    assert encode(Message.user("Hi", metadata={"k": 1})) == [{"role": "user", "content": "Hi", "metadata": {"k": 1}}]


@pytest.mark.parametrize(
    ("result", "content"), [({"a": [1, "ü"]}, '{"a": [1, "ü"]}'), ([1], "[1]"), (7, "7"), (None, "null")]
)
def test_writes_a_result_that_is_not_text_as_json(result: Any, content: str) -> None:
    assert encode(Message.tool("c", result)) == [{"role": "tool", "tool_call_id": "c", "content": content}]


def test_writes_one_message_for_each_result() -> None:
    results = (FunctionResult(call_id="a", result="1"), FunctionResult(call_id="b", result="2"))
    assert encode(Message(role="tool", contents=results)) == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


def test_writes_other_contents_as_readable_parts() -> None:
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    contents: tuple[Content, ...] = (
        Reasoning(text="Let me think.", data={"item": [1]}),
        Text(text="Done."),
        ApprovalRequest(approval_id="a", call=call, reason="costs money"),
        ApprovalResponse(approval_id="a", approved=True),
        Media(uri="https://example.org/talk.ogg", media_type="audio/ogg"),
        FunctionResult(call_id="c", result={"x": None}),
        Raw(value={"type": "file", "file": {"file_id": "f"}}),
        call,
    )
    message = Message(role="assistant", contents=contents, metadata={"k": "v"})
    (written,) = encode(message)
    assert written["content"][0] == {"type": "reasoning", "text": "Let me think.", "data": {"item": [1]}}  # type: ignore[index]  # a list of parts
    assert decode(written, 1) == message


def test_writes_a_redacted_message_without_its_content() -> None:
    assert encode_redacted("tool") == {"role": "tool", "content": None, "redacted": True}


def test_ignores_source_data_of_another_format() -> None:
    message = Message(role="user", contents=(Text(text="x"),), source={"openai": 5, "other": {}})
    assert encode(message) == [{"role": "user", "content": "x"}]


@given(json_values, json_values)
def test_a_difference_turns_the_old_value_into_the_new_one(old: Any, new: Any) -> None:
    before = canonical(old)
    patch = difference(old, new)
    assert (patch is None) == (before == canonical(new)) == same(old, new)
    if patch is not None:
        assert canonical(patched(old, json.loads(json.dumps(patch)))) == canonical(new)
    assert canonical(old) == before


def test_distinguishes_1_from_1_0_and_true() -> None:
    pairs: list[tuple[Any, Any]] = [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (None, False), ([], {}), ("1", 1)]
    for one, other in pairs:
        assert not same(one, other)
    assert same({"a": 1, "b": [1.5]}, {"b": [1.5], "a": 1})


def test_a_patch_that_no_longer_fits_changes_what_it_can() -> None:
    message = decode({"role": "assistant", "content": [PICTURE | {"x": 1}], "tool_calls": [{**CALL, "index": 0}]}, 1)
    changed = message.model_copy(update={"contents": (Text(text="Something else."),)})
    assert encode(changed) == [{"role": "assistant", "content": "Something else."}]


def test_decoding_does_not_change_its_input() -> None:
    value = {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}], "more": {"k": [1]}}
    before = canonical(value)
    encode(decode(value, 1))
    assert canonical(value) == before
    check_json(value, "value")
