from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.difference_strategies import in_any_order, mirrored_fields
from tests.domain.strategies import jsons, keys, nested, scalars

from clew.domain.differences.content_diff import field_diffs, parsed, plain
from clew.domain.formats.openai_messages import same
from clew.domain.json_values import Json, canonical
from clew.domain.messages import ApprovalRequest, ApprovalResponse, Content, FunctionCall, FunctionResult, Media, Text

# Few keys and values, so that two of them have something in common.
alike = st.recursive(
    st.sampled_from([0, 1, 1.0, True, None, "a cat", "a dog", "", -0.0, 0.0]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(alike | jsons, alike | jsons)
def test_finds_differences_of_unequal_json_and_mirrors_them_when_swapped(a: Json, b: Json) -> None:
    fields = field_diffs(a, b)
    assert (not fields) == same(a, b) == (canonical(a) == canonical(b))
    assert in_any_order(field_diffs(b, a)) == mirrored_fields(fields)
    for field in fields:
        if field.kind != "only-b":
            assert canonical(at(a, field.path)) == canonical(field.a)
        if field.kind != "only-a":
            assert canonical(at(b, field.path)) == canonical(field.b)


@given(st.dictionaries(keys, scalars), st.dictionaries(keys, scalars))
def test_the_differing_fields_turn_one_object_into_the_other(a: dict[str, Json], b: dict[str, Json]) -> None:
    made = dict(a)
    for field in field_diffs(a, b):
        (key,) = field.path
        if field.kind == "only-a":
            del made[str(key)]
        else:
            made[str(key)] = field.b
    assert canonical(made) == canonical(b)


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def summarised(a: Json, b: Json) -> list[tuple[Any, ...]]:
    return [(field.kind, field.path, field.a, field.b) for field in field_diffs(a, b)]


def test_fields_are_named_by_their_path() -> None:
    a: Json = {"city": "Rome", "seats": [{"row": 1}, {"row": 2}], "wine": True}
    b: Json = {"city": "Rome", "seats": [{"row": 1}, {"row": 3}], "tea": None}
    assert summarised(a, b) == [
        ("changed", ("seats", 1, "row"), 2, 3),
        ("only-b", ("tea",), None, None),
        ("only-a", ("wine",), True, None),
    ]


def test_equal_list_items_match_at_any_place() -> None:
    assert summarised(["a", "b", "c"], ["x", "a", "b", "c"]) == [("only-b", (0,), None, "x")]
    assert summarised([1, 2, 3], [1, 3]) == [("only-a", (1,), 2, None)]
    assert summarised([1, [2], 3], [1, [4], 3]) == [("changed", (1, 0), 2, 4)]
    assert summarised([1, 2, 3], [2, 4, 3]) == [("only-a", (0,), 1, None), ("only-b", (1,), None, 4)]


def test_a_changed_text_is_compared_by_words() -> None:
    (field,) = field_diffs({"why": "It is late"}, {"why": "It is early"})
    assert [(part.kind, part.text) for part in field.parts] == [
        ("same", "It is "),
        ("only-a", "late"),
        ("only-b", "early"),
    ]


def test_values_of_different_kinds_are_not_equal() -> None:
    assert summarised([1, 0.0, "1"], [True, -0.0, 1]) != []
    assert summarised(1, 1.0) == [("changed", (), 1, 1.0)]


@pytest.mark.parametrize(
    "text",
    ["", "at sea", "5", '"a"', "{", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 200_000, f"[{'9' * 5_000}]", '["\\ud800"]'],
)
def test_anything_but_a_valid_object_or_list_stays_text(text: str) -> None:
    assert parsed(text) == text


def test_json_in_a_text_is_parsed() -> None:
    assert parsed(' {"a": [1, 1e2]}') == {"a": [1, 100.0]}
    assert parsed("[]") == []
    assert parsed("[" * 100 + "]" * 100) == nested_list(100)
    assert parsed("[" * 101 + "]" * 101) == "[" * 101 + "]" * 101
    assert field_diffs(nested(100), nested(99)) != ()


def nested_list(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("content", "compared"),
    [
        (Text(text="Hi"), {"text": "Hi"}),
        (Media(uri="data:,x"), {"uri": "data:,x"}),
        (FunctionCall(call_id="7", name="look", arguments='{"a": 1}'), {"name": "look", "arguments": {"a": 1}}),
        (FunctionCall(call_id="7", name="look", arguments="{"), {"name": "look", "arguments": "{"}),
        (FunctionResult(call_id="7", result="[1]"), {"result": [1]}),
        (FunctionResult(call_id="7", name="look", result=[1]), {"name": "look", "result": [1]}),
        (
            ApprovalRequest(
                approval_id="9", call=FunctionCall(call_id="7", name="pay", arguments="{}"), reason="expensive"
            ),
            {"call": {"name": "pay", "arguments": {}}, "reason": "expensive"},
        ),
        (ApprovalResponse(approval_id="9", approved=True), {"approved": True}),
    ],
)
def test_ids_that_pair_contents_are_not_compared(content: Content, compared: Json) -> None:
    assert plain(content) == compared
