"""Stored JSON of projections is read back exactly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.json_values import Json
from clew.infrastructure.projection_queries import decode_json

_numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\u00e9"), inner, max_size=4),
    max_leaves=12,
)


def exact(value: Json) -> str:
    """The value with the types of its numbers: 1, 1.0 and True are equal in Python."""
    return repr(value)


@given(_values)
def test_json_is_read_as_the_standard_library_reads_it(value: Json) -> None:
    text = json.dumps(value, ensure_ascii=False)
    long = str(2**80)
    expected = [json.loads(text), 2**80, json.loads(text)]
    assert (
        exact(decode_json([text, long, text]))
        == exact(decode_json([text.encode(), long.encode(), text.encode()]))
        == exact(expected)
    )
    assert exact(decode_json([text])) == exact(decode_json([text.encode()])) == exact(expected[:1])


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**40, -0.0, 1e-7, 1e22, 5e-324])
def test_numbers_of_any_size_are_read_exactly(value: float) -> None:
    assert exact(decode_json([json.dumps([value]), "{}"])) == exact([[value], {}])
