from __future__ import annotations

import pytest
from hypothesis import given
from tests.domain.difference_strategies import mirrored_parts, sentences

from clew.domain.differences import alignment
from clew.domain.differences.word_diff import DiffPart, word_diff, words


def marked(a: str, b: str) -> str:
    """Return the difference as one text: [-only in a-], {+only in b+}."""
    marks = {"same": "{}", "only-a": "[-{}-]", "only-b": "{{+{}+}}"}
    return "".join(marks[part.kind].format(part.text) for part in word_diff(a, b))


@given(sentences, sentences)
def test_the_parts_of_a_side_form_its_text_and_swapping_mirrors_them(a: str, b: str) -> None:
    parts = word_diff(a, b)
    assert "".join(part.text for part in parts if part.kind != "only-b") == a
    assert "".join(part.text for part in parts if part.kind != "only-a") == b
    assert all(part.text for part in parts)
    assert word_diff(b, a) == mirrored_parts(parts)
    assert all(part.kind == "same" for part in parts) == (a == b)


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        ("", "", ""),
        ("Hi", "Hi", "Hi"),
        ("", "Hi there", "{+Hi there+}"),
        ("It costs 48 euros.", "It costs 24 euros.", "It costs [-48-]{+24+} euros."),
        ("The price is 48.50.", "The price is 48.", "The price is [-48.50-]{+48+}."),
        ("I'd like tea", "I would like tea", "[-I'd-]{+I would+} like tea"),
        ("one two", "one  two", "one {+ +}two"),
        ("one\n\ntwo", "one\ntwo", "one\n[-\n-]two"),
        ("Yes. Thanks!", "Yes!", "Yes[-. Thanks-]!"),
        ("call user_id_7", "call user_id_8", "call [-user_id_7-]{+user_id_8+}"),
        ("日本語", "日本人", "日本[-語-]{+人+}"),
        (" a", "a", "[- -]a"),
    ],
)
def test_compares_whole_words_and_single_symbols(a: str, b: str, shown: str) -> None:
    assert marked(a, b) == shown


def test_few_equal_words_between_large_differences_count_as_different() -> None:
    assert marked("The quick brown fox jumps", "The slow brown wolf runs") == (
        "The [-quick brown fox jumps-]{+slow brown wolf runs+}"
    )
    assert marked("Red tea for all guests here", "Hot tea for all guests there") == (
        "[-Red-]{+Hot+} tea for all guests [-here-]{+there+}"
    )


def test_adjacent_parts_of_one_kind_are_merged() -> None:
    assert word_diff("a b c", "a c") == (DiffPart("same", "a "), DiffPart("only-a", "b "), DiffPart("same", "c"))


def test_splits_words_without_spaces() -> None:
    assert words("  Don't pay 07:30, pay\tnow: 1,000.5!") == [
        "Don't", "pay", "07:30", ",", "pay", "now", ":", "1,000.5", "!",
    ]  # fmt: skip


def test_compares_texts_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MOST_BITS", 0)
    assert marked("one x two x three", "one y two y three") == "one [-x-]{+y+} two [-x-]{+y+} three"
    assert marked("x y x y z", "y x y x z") == "[-x y x y-]{+y x y x+} z"
