from __future__ import annotations

import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clew.domain.errors import InvalidSearchError
from clew.domain.projection import Words
from clew.domain.search_terms import SNIPPET, compared, folded, only_words, parse, places, snippet


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("teapot", Words(("teapot",))),
        ("  green   glaze ", Words(("green", "glaze"))),
        ('"green glaze" teapot', Words(("green glaze", "teapot"))),
        ('"green glaze', Words(("green glaze",))),
        ("tea*", Words((), ("tea",))),
        ("teapot -broken", Words(("teapot",), (), ("broken",))),
        ('teapot -"green glaze"', Words(("teapot",), (), ("green glaze",))),
        ("e-mail", Words(("e mail",))),
        ("a_b", Words(("a b",))),
        ("user@example.org", Words(("user example org",))),
        ("teapot AND NOT (x OR words:y) ^z", Words(("teapot", "AND", "NOT", "x", "OR", "words y", "z"))),
        ("- * \u2014 teapot", Words(("teapot",))),
        ("Größe", Words(("Größe",))),
    ],
)  # fmt: skip
def test_parses_words_phrases_prefixes_and_exclusions(text: str, words: Words) -> None:
    assert parse(text) == words


@pytest.mark.parametrize("text", ["", " ", "***", '""', "-", "\N{TEAPOT}", "-teapot", '-"green glaze"', "\0"])
def test_refuses_an_empty_search(text: str) -> None:
    with pytest.raises(InvalidSearchError, match="Give a word"):
        parse(text)


@given(st.text())
@example('") OR words : ("x')
@example("x\0y*")
def test_a_parsed_search_has_only_words(text: str) -> None:
    try:
        words = parse(text)
    except InvalidSearchError:
        return
    for phrase in (*words.phrases, *words.beginnings, *words.without):
        assert compared(phrase) == [folded(word) for word in phrase.split()]


LETTERS = st.text(
    st.sampled_from("aAeÉéoÖßςжЖ漢字1٣_-' .,\n\u017f\u03c3\u0301\u0308\u0905\u093f\N{THINKING FACE}\N{TEAPOT}ﬁİẞẛᾈŉ")
)


@given(LETTERS)
def test_words_are_split_and_folded_as_in_the_index(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, instance)")
    connection.execute("INSERT INTO words VALUES (?)", (only_words(text),))
    terms = [term for (term,) in connection.execute("SELECT term FROM vocabulary ORDER BY offset")]
    connection.close()
    assert terms == compared(text)


@pytest.mark.parametrize(
    ("search", "text", "matches"),
    [
        ("teapot", "A Teapot, a TEAPOT; teapots.", ["Teapot", "TEAPOT"]),
        ("teapot*", "A Teapot, teapots.", ["Teapot", "teapots"]),
        ("grösse", "Gro\u0308sse und Größe", ["Gro\u0308sse"]),
        ("Größe", "die große GRÖßE", ["große", "GRÖßE"]),
        ('"green glaze"', "green-glaze, green paint", ["green-glaze"]),
        ('"green glaze" green', "green green glaze", ["green", "green glaze"]),
        ('"green gla*"', "green gla", ["green gla"]),
        ("green-gla*", "green glazes", ["green glazes"]),
        ("great", "great\N{THINKING FACE}", ["great"]),
        ("hauptstraße", "HAUPTSTRAẞE", ["HAUPTSTRAẞE"]),
    ],
)
def test_marks_the_matches(search: str, text: str, matches: list[str]) -> None:
    assert [text[start:end] for start, end in places(text, parse(search))] == matches


def test_a_snippet_shows_the_text_around_the_first_match() -> None:
    text = "one two three four five six seven eight nine ten eleven\n\n  teapot twelve " + "more " * 100
    parts = snippet(text, parse("teapot"))
    shown = "".join(part.text for part in parts)
    assert [part.text for part in parts if part.found] == ["teapot"]
    assert shown.startswith("…")
    assert "eleven teapot twelve more" in shown
    assert shown.endswith("more…")
    assert len(shown) <= SNIPPET + 2
    assert snippet("A teapot.", parse("teapot")) == (("A ", False), ("teapot", True), (".", False))
    assert snippet("", parse("teapot")) == ()


@given(st.text(), st.text(st.sampled_from('ab *"-')))
def test_a_snippet_is_part_of_the_text(text: str, search: str) -> None:
    try:
        words = parse(search)
    except InvalidSearchError:
        return
    shown = "".join(part.text for part in snippet(text, words))
    assert "".join(shown.strip("…").split()) in "".join(text.split())
