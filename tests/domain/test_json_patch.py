"""Patches: what a difference says makes the one value out of the other, and nothing else fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import InvalidContentError
from clew.domain.json_patch import difference, patched
from clew.domain.json_values import canonical

NAMES = st.sampled_from(["a", "b", "~", "/", "~1", "", "0", "messages"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0]), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=20,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_a_difference_makes_the_other_value(one: dict[str, Any], other: dict[str, Any]) -> None:
    before = canonical(one)
    assert canonical(patched(one, list(difference(one, other)))) == canonical(other)
    assert canonical(one) == before, "the value itself stays as it is"


@given(OBJECTS)
def test_equal_values_have_no_difference(value: dict[str, Any]) -> None:
    assert not list(difference(value, value))


def test_numbers_of_different_types_differ() -> None:
    assert list(difference({"a": 1}, {"a": True})) == [{"op": "replace", "path": "/a", "value": True}]
    assert list(difference({"a": [1, 2]}, {"a": [1.0, 2]})) == [{"op": "replace", "path": "/a/0", "value": 1.0}]


def test_a_message_in_the_middle_is_one_operation() -> None:
    messages: Any = [{"role": "user", "content": str(number)} for number in range(9)]
    longer: Any = [*messages[:4], {"role": "system", "content": "Be brief."}, *messages[4:]]
    added = {"op": "add", "path": "/messages/4", "value": {"role": "system", "content": "Be brief."}}
    assert list(difference({"messages": messages}, {"messages": longer})) == [added]
    removed = {"op": "remove", "path": "/messages/4"}
    assert list(difference({"messages": longer}, {"messages": messages})) == [removed]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/a/7", "value": 1},
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "add", "path": "/a/0/0", "value": 1},
        {"op": "add", "path": "/c"},
        {"op": "move", "path": "/a", "from": "/c"},
        {"op": "remove", "path": ""},
        {"path": "/a"},
    ],
)
def test_a_patch_that_does_not_fit_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError, match="does not fit"):
        patched({"a": [1]}, [operation])


def test_the_result_is_an_object() -> None:
    with pytest.raises(InvalidContentError, match="not a JSON object"):
        patched({"a": 1}, [{"op": "replace", "path": "", "value": 1}])
