"""Positions in several shards: their text and their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import InvalidContentError, InvalidNameError
from clew.infrastructure.shards import Positions, check_shard_name

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,5}", fullmatch=True)
POSITIONS = st.builds(Positions, st.dictionaries(NAMES, st.integers(0, 2**63 - 1), max_size=4))
FEW = st.builds(Positions, st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)))


@given(POSITIONS)
def test_positions_can_be_parsed_from_their_text(positions: Positions) -> None:
    assert Positions.parse(str(positions)) == positions
    assert hash(Positions.parse(str(positions))) == hash(positions)
    assert eval(repr(positions)) == positions  # noqa: S307 - the text was just created


@given(FEW, FEW, FEW)
def test_positions_are_partially_ordered(one: Positions, other: Positions, third: Positions) -> None:
    assert (one == other) == (one <= other <= one)
    assert (one <= other) == (other >= one) == all(one.of(name) <= other.of(name) for name in "ab")
    assert one <= third or not one <= other <= third


@given(POSITIONS, NAMES, st.integers(0, 2**63 - 1))
def test_a_new_position_in_one_shard_changes_no_other(positions: Positions, name: str, position: int) -> None:
    moved = positions.at(name, position)
    assert moved.of(name) == position
    assert dict(moved.at(name, positions.of(name))) == dict(positions)
    assert (positions <= moved) == (positions.of(name) <= position)


def test_the_text_is_sorted_by_name_and_omits_zero_positions() -> None:
    positions = Positions({"west": 42, "north": 0, "east": 1_048_576})
    assert str(positions) == "east=1048576,west=42"
    assert dict(positions) == {"east": 1_048_576, "west": 42}
    assert positions == Positions.parse("west=42,east=1048576,north=0")
    assert str(Positions()) == ""
    assert Positions.parse("") == Positions()


@pytest.mark.parametrize(
    "text",
    ["east", "east=", "east=-1", "east=1.5", "east=1,east=2", "east=٣", f"east={2**63}", "east=" + "9" * 5_000, ","],
)
def test_refuses_invalid_text(text: str) -> None:
    with pytest.raises(InvalidContentError):
        Positions.parse(text)


@pytest.mark.parametrize("name", ["", "a,b", "a=b", "a b", "-a", ".a", "ä", "a\n", "x" * 64])
def test_refuses_names_that_would_make_the_text_ambiguous(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_shard_name(name)
    with pytest.raises(InvalidNameError):
        Positions({name: 1})


def test_refuses_invalid_positions() -> None:
    for wrong in (-1, 2**63, True, 1.0, "1"):
        with pytest.raises(InvalidContentError):
            Positions({"east": wrong})  # type: ignore[dict-item] # an invalid value
