"""PostgreSQL's text index finds the same texts as SQLite's, and stores postings in stretches."""

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

# Letters of many scripts, single combining accents, non-ASCII digits, and the special characters of queries.
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
normalized = st.lists(pieces, min_size=1, max_size=3).map(lambda words: only_words(" ".join(words)))
phrases = st.lists(normalized, max_size=2).map(tuple)
searches = st.builds(Words, phrases, phrases, phrases, st.lists(st.sampled_from("ab"), max_size=2).map(tuple))


full = pytest.mark.parametrize("full", [1, 3 * text_index.TEXT, text_index.STRETCH])
"""The size of a full stretch: one text, about three texts, and more than all texts."""


@full
@settings(max_examples=max(25, round(200 * SCALE)), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    indexed=st.lists(texts, min_size=1, max_size=8),
    queries=st.lists(st.tuples(searches, st.none() | st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=12),
)
def test_finds_the_same_texts_as_the_sqlite_index(
    store: PostgresProjections,
    sqlite_store: SQLiteProjections,
    monkeypatch: pytest.MonkeyPatch,
    full: int,
    indexed: list[str],
    queries: list[tuple[Words, int | None, int]],
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full)
    monkeypatch.setattr(text_index, "AT_ONCE", 1)
    both: tuple[ProjectionStore, ...] = (store, sqlite_store)
    for each in both:
        with each.session(0) as session:
            for built in session.generations():
                session.drop(built)
            opened = Opened(session)
            for number, text in enumerate(indexed, 1):
                scopes = ("a", "b")[: number % 3]
                opened.apply(IndexText("words", only_words(text), scopes), position=number)
    for words, before, limit in queries:
        results = [each.find("declared", "words", words, before=before, limit=limit) for each in both]
        assert results[0] == results[1], (words, indexed)


@pytest.mark.parametrize("stretches", [0, 1, 2, 7])
def test_finds_texts_by_frequent_and_rare_words(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch, stretches: int
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", 700 * text_index.TEXT // stretches if stretches else 10**9)
    monkeypatch.setattr(text_index, "AT_LEAST", 10**9)
    chance = random.Random(stretches)
    shares = {"often": 0.9, "half": 0.5, "some": 0.2, "sore": 0.1, "seldom": 0.02}
    words_of_events = {
        3 * number + 1: [f"so{number}", *(each for each, share in shares.items() if chance.random() < share)]
        for number in range(700)
    }
    with store.session(0) as session:
        opened = Opened(session)
        for position, words in words_of_events.items():
            opened.apply(
                IndexText("words", " ".join(words), ("odd",) if position % 2 else ("even",)), position=position
            )
    for _ in range(60):
        query = Words(
            tuple(chance.sample([*shares], chance.randrange(3))),
            tuple(chance.sample(["so", "s", "o", "h", "x"], chance.randrange(2))),
            tuple(chance.sample([*shares], chance.randrange(2))),
            tuple(chance.sample(["odd", "even"], chance.randrange(2))),
        )
        before, limit = chance.choice([None, 0, 1, 700, 1_400]), chance.choice([1, 20, 1_000])
        matching = [
            position
            for position, words in words_of_events.items()
            if {*query.phrases} <= {*words}
            and all(any(word.startswith(each) for word in words) for each in query.beginnings)
            and not {*query.without} & {*words}
            and query.scopes in {(), ("odd",) if position % 2 else ("even",)}
            and (before is None or position < before)
        ]
        is_searchable = bool(query.phrases or query.beginnings)
        result = store.find("declared", "words", query, before=before, limit=limit)
        assert result == matching[::-1][: limit * is_searchable], query


def test_finds_texts_from_a_connection_with_another_encoding(postgres: str, store: PostgresProjections) -> None:
    with closing(PostgresProjections(f"{postgres}?client_encoding=latin1")) as other:
        with other.session(0) as session:
            Opened(session).apply(IndexText("words", "Überschlag um zwölf"), position=1)
        results = [
            each.find("declared", "words", Words(("zwölf",), ("übersch",)), before=None, limit=9)
            for each in (other, store)
        ]
    assert results == [[1], [1]]


@full
@pytest.mark.parametrize(
    "text",
    [
        "first " + "again " * 40_000 + "last words",
        " ".join(f"word{number}" for number in range(130_000)) + " last words",
        "first " + "y" * 2_000_000 + " last words",
    ],
    ids=["many positions", "many words", "one long word"],
)
def test_finds_the_end_of_a_very_long_text(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch, full: int, text: str
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full)
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("words", text, ("s",)), position=1)
        opened.apply(IndexText("words", "words last", ("s",)), position=2)

    def find(words: Words) -> list[int]:
        return store.find("declared", "words", words._replace(scopes=("s",)), before=None, limit=9)

    assert find(Words(("last words",))) == [1]
    assert find(Words(("last", "words"))) == [2, 1]
    assert find(Words((), ("wor",))) == [2, 1]
    assert find(Words(("last",), without=("words last",))) == [1]
    assert find(Words(("nowhere",))) == find(Words(("again last last",))) == []


def test_a_full_stretch_lists_the_texts_of_each_word(
    postgres: str, store: PostgresProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", 16 * text_index.TEXT)
    monkeypatch.setattr(text_index, "AT_ONCE", 5)
    for first in (1, 61):
        with store.session(0) as session:
            opened = Opened(session, next(iter(session.generations()), None))
            for position in range(first, first + 60):
                with suppress(ZeroDivisionError), session.attempt() if position % 9 == 0 else nullcontext():
                    text = f"said {position % 7} {'x' * (495 + position % 9)}"
                    opened.apply(IndexText("words", text, ("a", "b")[: position % 3]), position=position)
                    assert 1 / (position % 18)
    assert ask(postgres, "SELECT count(*) FROM clew_g1_words") == [(120 - 120 // 18,)]
    assert len(_listed(postgres)) > 6


changes_of_session = st.lists(st.tuples(st.booleans(), st.sampled_from(["a b", "b c", "c c a", "d", ""])), max_size=30)


@settings(max_examples=max(25, round(200 * SCALE)), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sessions=st.lists(changes_of_session, max_size=4), full=st.integers(1, 12), at_once=st.integers(1, 4))
@example(sessions=[[(True, "a b"), (True, "a b"), (False, ""), (False, "")]], full=1, at_once=1)  # in one transaction
def test_a_deleted_text_leaves_no_words_in_the_index(
    postgres: str,
    store: PostgresProjections,
    monkeypatch: pytest.MonkeyPatch,
    sessions: list[list[tuple[bool, str]]],
    full: int,
    at_once: int,
) -> None:
    monkeypatch.setattr(text_index, "STRETCH", full * text_index.TEXT)
    monkeypatch.setattr(text_index, "AT_ONCE", at_once)
    with store.session(0) as session:
        for built in session.generations():
            session.drop(built)
        Opened(session)
    remaining: dict[int, str] = {}
    position = 0
    for changes in sessions:
        with store.session(0) as session:
            (built,) = session.generations()
            opened = Opened(session, built)
            for adds, text in changes:
                if adds:
                    position += 1
                    opened.apply(IndexText("words", text, ("s",)), position=position)
                    remaining[position] = text
                elif remaining:
                    deleted = [*remaining][len(text) % len(remaining)]
                    del remaining[deleted]
                    session.forget(built, "words" if deleted % 2 else None, deleted, position)
    for word in "abcd":
        matching = [each for each, text in remaining.items() if word in text.split()]
        assert store.find("declared", "words", Words((word,)), before=None, limit=99) == matching[::-1]
    _listed(postgres)


def _listed(url: str) -> list[int]:
    """The stretches with postings, after a check that each has exactly the words of its texts."""
    ((generation,),) = ask(url, "SELECT id FROM clew_generation")
    stretches = ask(url, "SELECT number, first, listed FROM clew_stretch ORDER BY number")
    texts = ask(url, f"SELECT position, words FROM clew_g{generation}_words ORDER BY position")  # noqa: S608 - a number
    postings = ask(url, f"SELECT stretch, word, positions FROM clew_g{generation}__words")  # noqa: S608 - a number
    assert [number for number, *_ in stretches] == [*range(len(stretches))]
    assert all(listed for *_, listed in stretches[:-1])
    expected: dict[tuple[int, str], list[int]] = {}
    for position, words in texts:
        number, listed = next((number, listed) for number, first, listed in stretches[::-1] if first <= position)
        for word in {each[: text_index.LONGEST] for each in words.split()} if listed else ():
            expected.setdefault((number, word), []).append(position)
    assert {(number, word): positions for number, word, positions in postings} == expected
    return [number for number, _, listed in stretches if listed]
