"""What is remembered is put into words on one line, and never longer than it may be."""

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
def test_a_text_on_one_line_has_nothing_that_ends_a_line_and_nothing_that_is_not_seen(text: str, most: int) -> None:
    line = escaped_line(text, most)
    assert len(line.splitlines()) <= 1
    assert all(each.isprintable() or each in "\u200c\u200d" or each.isspace() for each in line)
    assert "\n" not in line


@given(text=st.text(st.characters(codec=None)), most=st.integers(1, 50))
def test_what_a_model_wrote_is_tidied_to_valid_unicode_on_one_line(text: str, most: int) -> None:
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
def test_line_ends_and_what_turns_or_hides_text_are_escaped_and_words_are_not(text: str, line: str) -> None:
    assert escaped_line(text, 100) == line


@given(text=st.text(), most=st.integers(1, 20))
def test_a_shortened_text_keeps_its_beginning_and_its_end(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= max(most, 0)
    if len(text) <= most:
        assert short == text
    else:
        first, _, last = short.partition("…")
        assert text.startswith(first)
        assert text.endswith(last)


def test_a_list_has_an_item_a_line_under_its_title() -> None:
    assert bullet_list("Known:", ["a", "b"]) == "Known:\n- a\n- b"


@pytest.mark.parametrize(("number", "item"), [(1, "a"), (2, "b"), (3, None), (0, None), (-1, None), (None, None)])
def test_an_item_that_there_is_not_is_none(number: int | None, item: str | None) -> None:
    assert item_at(["a", "b"], number) == item


def test_only_what_has_words_in_it_is_said_and_who_says_it() -> None:
    media = Message(role="user", author="Ann", contents=(Text(text="See:"), Media(uri="data:x"), Raw(value={"a": 1})))
    redacted = NaiveThread().say("Secret.")[0]._replace(message=None)
    assert numbered_messages([redacted, *NaiveThread().say(media)]) == [
        {"number": 2, "role": "user", "author": "Ann", "said": "See:"}
    ]


@given(lengths=st.lists(st.sampled_from([0, 10, 400, 5_000, 20_000]), max_size=300))
def test_what_is_shown_is_bounded_however_many_and_long_messages_are(lengths: list[int]) -> None:
    messages = numbered_messages(NaiveThread().say(*("x" * length for length in lengths)))
    texts = [str(each["said"]) for each in messages if "said" in each]
    assert len(texts) <= MOST_MESSAGES
    assert all(len(text) <= MOST_MESSAGE_CHARACTERS for text in texts)
    assert sum(map(len, texts)) <= MOST_TOTAL_CHARACTERS
    assert sum(int(str(each.get("left_out", 0))) for each in messages) == len(lengths) - len(texts)
