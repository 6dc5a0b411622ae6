from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from tests.domain.strategies import exact, jsons, nested

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import MAX_BITS, MAX_DEPTH, check_json, check_text


class Word(str):
    __slots__ = ()


class Count(int):
    pass


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "nan is not a JSON number"),
    (float("inf"), "inf is not a JSON number"),
    (float("-inf"), "-inf is not a JSON number"),
    ((1, 2), "tuple is not JSON"),
    ({1, 2}, "set is not JSON"),
    (b"bytes", "bytes is not JSON"),
    (1 + 2j, "complex is not JSON"),
    (object, "type is not JSON"),
    (Word("secret"), "Word is not JSON"),
    (Count(7), "Count is not JSON"),
    (1 << MAX_BITS, "more than 4,200 digits"),
    (-(1 << MAX_BITS), "more than 4,200 digits"),
    ("a\ud800secret", "lone surrogate at character 1"),
    ({1: 2}, "a key is int"),
    ({None: 2}, "a key is NoneType"),
    ({("secret",): 2}, "a key is tuple"),
    ({Word("secret"): 2}, "a key is Word"),
    ({"ok\udfff": 2}, "the key has a lone surrogate at character 2"),
    (nested(MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
]


@given(jsons)
def test_accepts_every_value_that_json_returns_unchanged(value: Any) -> None:
    check_json(value, "value")
    assert exact(json.loads(json.dumps(value))) == exact(value)


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), (1 << MAX_BITS) - 1, -0.0, 5e-324, 1e308, "", "\x00", "🧶", {}])
def test_accepts_values_at_the_limits(value: Any) -> None:
    check_json(value, "value")


@pytest.mark.parametrize(("value", "expected"), REFUSED, ids=range(len(REFUSED)))
def test_refuses_a_value_that_json_would_change_without_showing_it(value: Any, expected: str) -> None:
    with pytest.raises(InvalidContentError, match=expected) as caught:
        check_json(value, "value")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("value", "expected"), REFUSED[:-1], ids=range(len(REFUSED) - 1))
def test_the_error_names_the_path_of_the_refused_value(value: Any, expected: str) -> None:
    with pytest.raises(InvalidContentError, match=expected) as caught:
        check_json({"orders": ["secret", {"items": value}]}, "metadata")
    assert str(caught.value).startswith("metadata.orders[1].items")
    assert "secret" not in str(caught.value)


def test_the_path_is_one_short_line_for_any_keys() -> None:
    with pytest.raises(InvalidContentError) as caught:
        check_json({"line\nbreak": {"k" * 1_000_000: [float("nan")]}}, "metadata")
    text = str(caught.value)
    assert len(text) < 200
    assert "\n" not in text
    assert text.startswith("metadata.line?break.kkk")


def test_a_value_that_contains_itself_is_too_deep() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidContentError, match="nested deeper"):
        check_json(circle, "value")


def test_text_with_a_lone_surrogate_is_refused_and_not_shown() -> None:
    check_text("Grüße 🧶", "title")
    with pytest.raises(InvalidContentError, match=r"^title: a lone surrogate at character 6") as caught:
        check_text("secret\ud83e", "title")
    assert "secret" not in str(caught.value)
