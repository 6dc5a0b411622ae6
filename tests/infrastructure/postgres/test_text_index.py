"""The index of words in PostgreSQL finds what the index of SQLite finds, and is filled in stretches."""

from __future__ import annotations

import random
from contextlib import closing, nullcontext, suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import SCALE
from tests.infrastructure.projection_contract import Opened
from tests.servers.postgres_server import ask

from clew.domain.projection import IndexText, Words
from clew.domain.projection_store import ProjectionStore
from clew.domain.search_terms import only_words
from clew.infrastructure.postgres import text_index
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.sqlite.projection_store import SQLiteProjections

# Letters of many scripts, accents that stand alone, digits that are not ours, and what means something in queries.
letters = st.sampled_from(
    "aAbBz\u00e9\u0301\u00c4\u00e4\u00df\u0130\u0131\u03a3\u03c3\u03c2\u00e7\u0152\u4e2d\u6587\ud55c\uae00"
    "\u0663\u096b\u066070_'\"\\:*&|!<>()-+/#%., \n\t\0\U0001f600\u200d\ufe0f\u0327\u1e9e\u1e9b\u017f\u1f88\u0149"
)
long_words = st.sampled_from(["x" * 499, "x" * 500, "x" * 501, "x" * 3_000, "中" * 700, "É" * 600])
pieces = st.one_of(
    st.sampled_from(["quick", "Quick", "fox", "fo", "naïve", "NAÏVE", "straße", "STRAẞE", "東京", "1.5", "e-mail"]),
    st.text(letters, max_size=6),
    long_words,
)
texts = st.lists(pieces, max_size=12).map(" ".join)
asked = st.lists(pieces, min_size=1, max_size=3).map(lambda words: only_words(" ".join(words)))
phrases = st.lists(asked, max_size=2).map(tuple)
searches = st.builds(Words, phrases, phrases, phrases, st.lists(st.sampled_from("ab"), max_size=2).map(tuple))


full = pytest.mark.parametrize("full", [1, 3 * text_index.TEXT, text_index.STRETCH])
"""The size of a stretch that is full: each text is one, some are, and none is."""


@full
@settings(max_examples=max(25, round(200 * SCALE)), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(texts, min_size=1, max_size=8),
    wanted=st.lists(st.tuples(searches, st.none() | st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=12),
)
def test_finds_what_the_index_of_sqlite_finds(
    store: PostgresProjections,
    lite: SQLiteProjections,
    monkeypatch: pytest.MonkeyPatch,
    full: int,
    said: list[str],
    wanted: list[tuple[Words, int | None, int]],
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full)
    monkeypatch.setattr(text_index, "AT_ONCE", 1)
    both: tuple[ProjectionStore, ...] = (store, lite)
    for each in both:
        with each.session(0) as session:
            for built in session.generations():
                session.drop(built)
            opened = Opened(session)
            for number, text in enumerate(said, 1):
                scopes = ("a", "b")[: number % 3]
                opened.apply(IndexText("words", only_words(text), scopes), position=number)
    for words, before, limit in wanted:
        found = [each.find("declared", "words", words, before=before, limit=limit) for each in both]
        assert found[0] == found[1], (words, said)


@pytest.mark.parametrize("stretches", [0, 1, 2, 7])
def test_finds_words_that_many_texts_have_among_those_that_have_others(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch, stretches: int
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", 700 * text_index.TEXT // stretches if stretches else 10**9)
    monkeypatch.setattr(text_index, "AT_LEAST", 10**9)
    chance = random.Random(stretches)
    shares = {"often": 0.9, "half": 0.5, "some": 0.2, "sore": 0.1, "seldom": 0.02}
    said = {
        3 * number + 1: [f"so{number}", *(each for each, share in shares.items() if chance.random() < share)]
        for number in range(700)
    }
    with store.session(0) as session:
        opened = Opened(session)
        for position, words in said.items():
            opened.apply(
                IndexText("words", " ".join(words), ("odd",) if position % 2 else ("even",)), position=position
            )
    for _ in range(60):
        wanted = Words(
            tuple(chance.sample([*shares], chance.randrange(3))),
            tuple(chance.sample(["so", "s", "o", "h", "x"], chance.randrange(2))),
            tuple(chance.sample([*shares], chance.randrange(2))),
            tuple(chance.sample(["odd", "even"], chance.randrange(2))),
        )
        before, limit = chance.choice([None, 0, 1, 700, 1_400]), chance.choice([1, 20, 1_000])
        having = [
            position
            for position, words in said.items()
            if {*wanted.phrases} <= {*words}
            and all(any(word.startswith(each) for word in words) for each in wanted.beginnings)
            and not {*wanted.without} & {*words}
            and wanted.scopes in {(), ("odd",) if position % 2 else ("even",)}
            and (before is None or position < before)
        ]
        asked_for = bool(wanted.phrases or wanted.beginnings)
        found = store.find("declared", "words", wanted, before=before, limit=limit)
        assert found == having[::-1][: limit * asked_for], wanted


def test_finds_what_was_filled_over_a_connection_of_another_encoding(postgres: str, store: PostgresProjections) -> None:
    with closing(PostgresProjections(f"{postgres}?client_encoding=latin1")) as other:
        with other.session(0) as session:
            Opened(session).apply(IndexText("words", "Überschlag um zwölf"), position=1)
        found = [
            each.find("declared", "words", Words(("zwölf",), ("übersch",)), before=None, limit=9)
            for each in (other, store)
        ]
    assert found == [[1], [1]]


@full
@pytest.mark.parametrize(
    "text",
    [
        "first " + "again " * 40_000 + "last words",
        " ".join(f"word{number}" for number in range(130_000)) + " last words",
        "first " + "y" * 2_000_000 + " last words",
    ],
    ids=["many places", "many words", "one long word"],
)
def test_finds_what_is_at_the_end_of_a_very_long_text(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch, full: int, text: str
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full)
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("words", text, ("s",)), position=1)
        opened.apply(IndexText("words", "words last", ("s",)), position=2)

    def found(words: Words) -> list[int]:
        return store.find("declared", "words", words._replace(scopes=("s",)), before=None, limit=9)

    assert found(Words(("last words",))) == [1]
    assert found(Words(("last", "words"))) == [2, 1]
    assert found(Words((), ("wor",))) == [2, 1]
    assert found(Words(("last",), without=("words last",))) == [1]
    assert found(Words(("nowhere",))) == found(Words(("again last last",))) == []


def test_each_word_of_a_full_stretch_is_listed_with_the_texts_that_have_it(
    postgres: str, store: PostgresProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", 16 * text_index.TEXT)
    monkeypatch.setattr(text_index, "AT_ONCE", 5)
    for first in (1, 61):
        with store.session(0) as session:
            opened = Opened(session, next(iter(session.generations()), None))
            for position in range(first, first + 60):
                with suppress(ZeroDivisionError), session.attempt() if position % 9 == 0 else nullcontext():
                    said = f"said {position % 7} {'x' * (495 + position % 9)}"
                    opened.apply(IndexText("words", said, ("a", "b")[: position % 3]), position=position)
                    assert 1 / (position % 18)
    assert ask(postgres, "SELECT count(*) FROM clew_g1_words") == [(120 - 120 // 18,)]
    assert len(_listed(postgres)) > 6


forgetting = st.lists(st.tuples(st.booleans(), st.sampled_from(["a b", "b c", "c c a", "d", ""])), max_size=30)


@settings(max_examples=max(25, round(200 * SCALE)), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(done=st.lists(forgetting, max_size=4), full=st.integers(1, 12), at_once=st.integers(1, 4))
@example(done=[[(True, "a b"), (True, "a b"), (False, ""), (False, "")]], full=1, at_once=1)  # of one transaction
def test_a_text_that_is_forgotten_takes_its_words_with_it(
    postgres: str,
    store: PostgresProjections,
    monkeypatch: pytest.MonkeyPatch,
    done: list[list[tuple[bool, str]]],
    full: int,
    at_once: int,
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full * text_index.TEXT)
    monkeypatch.setattr(text_index, "AT_ONCE", at_once)
    with store.session(0) as session:
        for built in session.generations():
            session.drop(built)
        Opened(session)
    left: dict[int, str] = {}
    position = 0
    for changes in done:
        with store.session(0) as session:
            (built,) = session.generations()
            opened = Opened(session, built)
            for adds, text in changes:
                if adds:
                    position += 1
                    opened.apply(IndexText("words", text, ("s",)), position=position)
                    left[position] = text
                elif left:
                    gone = [*left][len(text) % len(left)]
                    del left[gone]
                    session.forget(built, "words" if gone % 2 else None, gone, position)
    for word in "abcd":
        having = [each for each, text in left.items() if word in text.split()]
        assert store.find("declared", "words", Words((word,)), before=None, limit=99) == having[::-1]
    _listed(postgres)


def _listed(url: str) -> list[int]:
    """The stretches that are listed, once each was seen to have the words of its texts, and no others."""
    ((generation,),) = ask(url, "SELECT id FROM clew_generation")
    stretches = ask(url, "SELECT number, first, listed FROM clew_stretch ORDER BY number")
    texts = ask(url, f"SELECT position, words FROM clew_g{generation}_words ORDER BY position")  # noqa: S608 - a number
    postings = ask(url, f"SELECT stretch, word, positions FROM clew_g{generation}__words")  # noqa: S608 - a number
    assert [number for number, *_ in stretches] == [*range(len(stretches))]
    assert all(listed for *_, listed in stretches[:-1])
    had: dict[tuple[int, str], list[int]] = {}
    for position, words in texts:
        number, listed = next((number, listed) for number, first, listed in stretches[::-1] if first <= position)
        for word in {each[: text_index.LONGEST] for each in words.split()} if listed else ():
            had.setdefault((number, word), []).append(position)
    assert {(number, word): positions for number, word, positions in postings} == had
    return [number for number, _, listed in stretches if listed]
