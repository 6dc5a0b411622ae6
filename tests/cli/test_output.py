from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clew.cli.output import json_text, json_time, one_line, safe, shortened, time_text, without_middle


@given(st.text())
def test_safe_text_has_no_control_characters(text: str) -> None:
    escaped = safe(text)
    assert all(character in "\n\t" or character.isprintable() or ord(character) > 0x9F for character in escaped)
    assert not set(escaped) & {"\x1b", "\x9b", "\u202e", "\u2066"}
    escaped.encode()


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "Zs"))))
def test_safe_text_without_control_characters_is_unchanged(text: str) -> None:
    assert safe(text) == text


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


def test_control_characters_are_shown_as_escapes() -> None:
    assert safe("a\x1b[2Jb\r\nc\rd\u202e") == "a\\x1b[2Jb\nc\\rd\\u202e"


def test_shortened_text_ends_with_an_ellipsis() -> None:
    assert (shortened("abcd", 4), shortened("abcde", 4)) == ("abcd", "abc…")
    assert (without_middle("abcdef", 6), without_middle("abcdefg", 6)) == ("abcdef", "abc…fg")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(json_values)
def test_json_is_one_line_and_is_read_back_equal(value: Any) -> None:
    text = json_text(value)
    assert len(text.splitlines()) == 1
    assert json.loads(text) == value
    assert not set(text) & {"\x1b", "\x9b", "\x7f", "\u202e", "\u2066"}


def test_surrogates_and_text_direction_are_escaped_in_json() -> None:
    assert json_text("a\udcff\u202e\u2066\u061c") == '"a\\udcff\\u202e\\u2066\\u061c"'


def test_unicode_and_big_integers_are_written_as_they_are() -> None:
    assert json_text({"é": 10**30}) == '{"é":1' + "0" * 30 + "}"


def test_times_are_in_utc_to_the_microsecond_for_programs_and_to_the_second_for_people() -> None:
    time = datetime(2026, 1, 31, 13, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert json_time(time) == "2026-01-31T12:00:00.000005+00:00"
    assert time_text(time) == "2026-01-31 12:00:00Z"
    assert datetime.fromisoformat(time_text(time)) == datetime(2026, 1, 31, 12, tzinfo=UTC)
