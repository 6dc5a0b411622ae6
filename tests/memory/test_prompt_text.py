"""Text for prompts: escaped to one line and limited in length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.naive_memory import NaiveThread

from clew.domain.messages import Media, Message, Raw, Text
from clew.memory.prompt_text import (
    MOST_MESSAGE_CHARACTERS,
    MOST_MESSAGES,
    MOST_TOTAL_CHARACTERS,
    bullet_list,
    escaped_line,
    item_at,
    numbered_messages,
    shortened,
    single_line,
)


@given(text=st.text(), most=st.integers(1, 50))
def test_an_escaped_line_has_no_line_ends_and_no_invisible_characters(text: str, most: int) -> None:
    line = escaped_line(text, most)
    assert len(line.splitlines()) <= 1
    assert all(each.isprintable() or each in "\u200c\u200d" or each.isspace() for each in line)
    assert "\n" not in line


@given(text=st.text(st.characters(codec=None)), most=st.integers(1, 50))
def test_text_of_a_model_becomes_valid_unicode_on_one_line(text: str, most: int) -> None:
    line = single_line(text, most)
    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    assert line.encode().decode() == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\r\nb", "a\\r\\nb"),
        ("a\u202eb\u2028c", "a\\u202eb\\u2028c"),
        ("hidden \U000e0041", "hidden \\U000e0041"),
        ("10\xa0km, \u3000or so", "10\xa0km, \u3000or so"),
        ("👩‍🚀 می‌خواهم", "👩‍🚀 می‌خواهم"),
        ("  a \\n b  ", "a \\n b"),
    ],
)
def test_escapes_line_ends_and_control_characters_only(text: str, line: str) -> None:
    assert escaped_line(text, 100) == line


@given(text=st.text(), most=st.integers(1, 20))
def test_a_shortened_text_keeps_its_start_and_end(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= max(most, 0)
    if len(text) <= most:
        assert short == text
    else:
        first, _, last = short.partition("…")
        assert text.startswith(first)
        assert text.endswith(last)


def test_a_list_has_one_item_per_line_after_its_title() -> None:
    assert bullet_list("Known:", ["a", "b"]) == "Known:\n- a\n- b"


@pytest.mark.parametrize(("number", "item"), [(1, "a"), (2, "b"), (3, None), (0, None), (-1, None), (None, None)])
def test_a_missing_item_is_none(number: int | None, item: str | None) -> None:
    assert item_at(["a", "b"], number) == item


def test_numbers_only_messages_with_text_and_their_authors() -> None:
    media = Message(role="user", author="Ann", contents=(Text(text="See:"), Media(uri="data:x"), Raw(value={"a": 1})))
    redacted = NaiveThread().say("Secret.")[0]._replace(message=None)
    assert numbered_messages([redacted, *NaiveThread().say(media)]) == [
        {"number": 2, "role": "user", "author": "Ann", "said": "See:"}
    ]


@given(lengths=st.lists(st.sampled_from([0, 10, 400, 5_000, 20_000]), max_size=300))
def test_the_shown_messages_are_limited_in_number_and_length(lengths: list[int]) -> None:
    messages = numbered_messages(NaiveThread().say(*("x" * length for length in lengths)))
    texts = [str(each["said"]) for each in messages if "said" in each]
    assert len(texts) <= MOST_MESSAGES
    assert all(len(text) <= MOST_MESSAGE_CHARACTERS for text in texts)
    assert sum(map(len, texts)) <= MOST_TOTAL_CHARACTERS
    assert sum(int(str(each.get("left_out", 0))) for each in messages) == len(lengths) - len(texts)
