"""Indexes of words in SQLite: full-text tables without content, one for each stretch of positions.

An index without content cannot return a text, so a text cannot be removed from it once it is shredded (and SQLite
before 3.43 cannot remove it at all). So an index is divided into stretches, each a separate full-text table. To
remove a text, its stretch is built again from the log and the old table is dropped; ``secure_delete`` wipes it. A
search goes through the stretches from the newest to the oldest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain

from clew.domain.projection import Indexed, Span, Words

STRETCH = 16_384
"""Positions of one full-text table."""

_KEY = "generation = ? AND text_index = ? AND number = ?"

TABLES = (
    # made counts how often a stretch was built: a new table needs a new name. seen is the end of the log when that
    # began: text that was shredded before is not in it.
    """CREATE TABLE stretch (
        generation INTEGER NOT NULL,
        text_index TEXT NOT NULL,
        number INTEGER NOT NULL,
        made INTEGER NOT NULL,
        seen INTEGER NOT NULL,
        stale INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (generation, text_index, number)
    ) WITHOUT ROWID""",
)


def add(connection: sqlite3.Connection, generation: int, index: str, texts: Sequence[Indexed], seen: int) -> None:
    """Index the words of texts, which were read from a log that had reached position ``seen``."""
    stretches: dict[int, list[Indexed]] = {}
    for each in texts:
        stretches.setdefault(each.position // STRETCH, []).append(each)
    for number, those in stretches.items():
        _insert(connection, _table_of(connection, generation, index, number, seen), those)


def mark(connection: sqlite3.Connection, generation: int, index: str | None, position: int, by: int) -> None:
    """Mark the stretch with this position as stale, unless it was built again after position ``by``."""
    connection.execute(
        "UPDATE stretch SET stale = 1 "
        "WHERE generation = ? AND text_index = coalesce(?, text_index) AND number = ? AND seen < ?",
        (generation, index, position // STRETCH, by),
    )


def stale(connection: sqlite3.Connection, generation: int) -> list[Span]:
    """The stale stretches."""
    stretches = connection.execute(
        "SELECT text_index, number FROM stretch WHERE generation = ? AND stale ORDER BY text_index, number",
        (generation,),
    ).fetchall()
    return [Span(index, number * STRETCH, number * STRETCH + STRETCH - 1) for index, number in stretches]


def rebuild(connection: sqlite3.Connection, generation: int, span: Span, texts: Iterable[Indexed], seen: int) -> None:
    """Build a stretch again; the texts were read from a log that had reached position ``seen``."""
    _insert(connection, empty(connection, generation, span), texts)
    connection.execute(f"UPDATE stretch SET stale = 0, seen = ? WHERE {_KEY}", (seen, *_key(generation, span)))  # noqa: S608 - of constants


def empty(connection: sqlite3.Connection, generation: int, span: Span) -> str:
    """Replace the table of a stretch by a new, empty one, which is returned."""
    key = _key(generation, span)
    (made,) = connection.execute(f"SELECT made FROM stretch WHERE {_KEY}", key).fetchone()  # noqa: S608 - of constants
    name = _name(*key, made + 1)
    connection.execute(_table(name))
    connection.execute(f"DROP TABLE {_name(*key, made)}")
    connection.execute(f"UPDATE stretch SET made = made + 1 WHERE {_KEY}", key)  # noqa: S608 - of constants
    return name


def _key(generation: int, span: Span) -> tuple[int, str, int]:
    return generation, span.text_index, span.first // STRETCH


def find(
    connection: sqlite3.Connection, generation: int, index: str, words: Words, *, before: int | None, limit: int
) -> list[int]:
    """The positions of texts with these words, newest first."""
    wanted = _match(words)
    positions: list[int] = []
    if wanted is None:
        return positions
    for number, name in _stretches(connection, generation, index):
        if before is not None and number * STRETCH >= before:
            continue
        sql = f"SELECT rowid FROM {name} WHERE {name} MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"  # noqa: S608 - checked names
        end = (number + 1) * STRETCH if before is None else min(before, (number + 1) * STRETCH)
        found = connection.execute(sql, (wanted, end, min(limit - len(positions), STRETCH)))
        positions += chain.from_iterable(found)  # a row has one column
        if len(positions) >= limit:
            break
    return positions


def tables(connection: sqlite3.Connection, generation: int) -> list[str]:
    """The tables of all indexes of a generation."""
    return [
        _name(generation, index, number, made)
        for index, number, made in connection.execute(
            "SELECT text_index, number, made FROM stretch WHERE generation = ?", (generation,)
        ).fetchall()
    ]


def _table_of(connection: sqlite3.Connection, generation: int, index: str, number: int, seen: int) -> str:
    """The table of a stretch. Where it is created, the one before it is complete, and is compacted."""
    key = (generation, index, number)
    row = connection.execute(f"SELECT made FROM stretch WHERE {_KEY}", key).fetchone()  # noqa: S608 - of constants
    if row is not None:
        return _name(generation, index, number, row[0])
    name = _name(generation, index, number, 1)
    connection.execute(_table(name))
    connection.execute(
        "INSERT INTO stretch (generation, text_index, number, made, seen) VALUES (?, ?, ?, 1, ?)", (*key, seen)
    )
    for before, other in _stretches(connection, generation, index):
        if before == number - 1:
            connection.execute(f"INSERT INTO {other} ({other}) VALUES ('optimize')")  # noqa: S608 - checked names
    return name


def _stretches(connection: sqlite3.Connection, generation: int, index: str) -> Iterator[tuple[int, str]]:
    """The numbers and tables of an index's stretches, newest first."""
    for number, made in connection.execute(
        "SELECT number, made FROM stretch WHERE generation = ? AND text_index = ? ORDER BY number DESC",
        (generation, index),
    ).fetchall():
        yield number, _name(generation, index, number, made)


def _insert(connection: sqlite3.Connection, name: str, texts: Iterable[Indexed]) -> None:
    connection.executemany(
        f"INSERT INTO {name} (rowid, words, scopes) VALUES (?, ?, ?)",  # noqa: S608 - checked names
        ((each.position, each.text, " ".join(map(_scope, each.scopes))) for each in texts),
    )


def _table(name: str) -> str:
    # Without the sizes of texts, which only ranking needs.
    return f"CREATE VIRTUAL TABLE {name} USING fts5(words, scopes, content = '', columnsize = 0)"


def layout() -> tuple[str, ...]:
    """The layout of an index in the file: this version of Clew can read no other."""
    return _table("words"), f"{STRETCH} positions"


def _name(generation: int, index: str, number: int, made: int) -> str:
    return f"t{generation}_{index}_{number}_{made}"


@lru_cache(maxsize=4_096)
def _scope(scope: str) -> str:
    """A scope as one word, whatever characters it contains."""
    return "s" + sha256(scope.encode(errors="surrogatepass")).hexdigest()[:16]


def _match(words: Words) -> str | None:
    """The words in FTS5's query language, each quoted; None for a search without words."""
    terms = list(map(_term, words.phrases))
    if words.beginnings:
        terms += [f"{beginning} *" for beginning in map(_term, words.beginnings)]
    if not terms:
        return None
    terms += [f"scopes : {scope}" for scope in map(_scope, words.scopes)]
    required = " AND ".join(terms)
    if not words.without:
        return required
    return f"({required}) NOT ({' OR '.join(map(_term, words.without))})"


def _term(text: str) -> str:
    quoted = text.replace('"', '""').replace("\0", " ")
    return f'words : "{quoted}"'
