"""Indexes of words in PostgreSQL: a table for each, whose words are told apart here and looked up by an inverted index.

A word in the index begins with the number of its stretch, some thousand texts in the order of the log: so the newest
texts that have a word are found without a look at all others that have it, and texts are added in one place of the
index. Scopes, the tenant's among them, stand beside the words. A text is kept as the row of its words, in which phrases
are looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8

from clew.domain.names import tenant_part
from clew.domain.projection import Indexed, Words
from clew.domain.views.searching import compared
from clew.infrastructure.postgres.reads import HIGHEST, tenant_id, within
from clew.infrastructure.postgres.sessions import Session
from clew.infrastructure.postgres.sql_files import statements as sql_statements

STRETCH = 8_192
"""Texts of one stretch, and those of the batch that fills it up."""

AT_ONCE = 16
"""Stretches that are searched together, at the most."""

LONGEST = 500
"""Characters of a word that are listed in the index: it takes no more than 2 kB."""

MOST_BYTES = 900_000
"""Of the words of one text that are listed: it takes no more than a megabyte."""

MANY = 200
"""Texts that are many at once: somebody catches up, and searches little meanwhile."""

PENDING = {True: 8_192, False: 512}
"""Kilobytes of texts that the inverted index has not taken in yet, when they are many at once, and otherwise."""

_SQL = sql_statements("text_index.sql")
_ANY = "+"
"""Stands in the index for all the words of a text that has too many."""


def statements(table: str) -> tuple[str, ...]:
    """The statements that make an index of words."""
    index = table.replace("clew_g", "clew_i", 1) + "_words"
    made = (_SQL["table"], _SQL["words are kept as they are"], _SQL["index"])
    return tuple(each.replace("{table}", table).replace("{index}", index) for each in made)


class _Row(NamedTuple):
    position: int
    tenant: int
    words: str
    listed: str | None


class Filling:
    """What is added to one index in a transaction."""

    def __init__(self, session: Session, generation: int, index: str, table: str) -> None:
        self._session = session
        self._key = {"generation": Int8(generation), "index": index}
        self._table = table
        self._stretch: tuple[int, int] | None = None
        """The number of the newest stretch, and how many texts it has; none before the first is -1."""

    def add(self, texts: Iterable[Indexed]) -> None:
        """Let events be found by the words of their texts, which follow those that are there in position."""
        merged = _merged(texts)
        prefix = f"{self._number(merged[0].position, len(merged)):x}."
        rows = [_row(prefix, each) for each in merged]
        columns = [
            _array(str(row.position) for row in rows),
            _array(str(row.tenant) for row in rows),
            "\n".join([row.words for row in rows]),
            _array("NULL" if row.listed is None else f'"{row.listed}"' for row in rows),
        ]
        pending = _SQL["pending"].replace("%(kilobytes)s", str(PENDING[len(rows) >= MANY]))
        self._session.connection.execute(pending.encode())
        self._do(_SQL["add"].replace("{table}", self._table), columns)

    def _number(self, first: int, texts: int) -> int:
        """The number of the stretch that texts go to."""
        if self._stretch is None:
            newest = _ask(self._session, _SQL["newest stretch"], self._key)
            self._stretch = (newest[0][0], newest[0][1]) if newest else (-1, STRETCH)
        number, there = self._stretch
        if there < STRETCH:
            self._stretch = number, there + texts
            self._do(_SQL["fill stretch"], {**self._key, "number": Int8(number), "texts": Int8(there + texts)})
        else:
            self._stretch = number + 1, texts
            values = {"number": Int8(number + 1), "first": Int8(first), "texts": Int8(texts)}
            self._do(_SQL["begin stretch"], {**self._key, **values})
        return self._stretch[0]

    def _do(self, sql: str, parameters: Any) -> None:
        self._session.connection.execute(sql.encode(), parameters, prepare=True)


def forget(session: Session, table: str, position: int) -> bool:
    """Take the text at a position out of an index; False when it is not there."""
    sql = _SQL["forget"].replace("{table}", table)
    return bool(session.connection.execute(sql.encode(), {"position": Int8(position)}, prepare=True).fetchall())


def find(
    session: Session, generation: int, index: str, table: str, words: Words, *, before: int | None, limit: int
) -> list[int]:
    """The positions of texts that have the words, newest first."""
    wanted = _Wanted(words)
    found: list[int] = []
    if not wanted.terms or not all(term.words for term in wanted.terms):
        return found
    below = HIGHEST if before is None else within(before)
    parameters = {"generation": Int8(generation), "index": index, "before": Int8(below)}
    numbers = [number for (number,) in _ask(session, _SQL["stretches"], parameters)]
    at_once = 1
    session.connection.execute(_SQL["only by the index"].encode())
    sql = _SQL["find"].replace("{table}", table).replace("{more}", wanted.more())
    while numbers and len(found) < limit:
        some, numbers = numbers[:at_once], numbers[at_once:]
        at_once = min(AT_ONCE, at_once * 4)
        parameters = {
            "among": _array(f'"{wanted.among(number)}"' for number in some),
            "prefixes": _array(f'"{number:x}."' for number in some),
            "before": Int8(below),
            "limit": Int8(min(limit - len(found), HIGHEST)),
            **wanted.rows,
        }
        found += [position for (position,) in _ask(session, sql, parameters)]
    return found


# What is stored


def _merged(texts: Iterable[Indexed]) -> list[Indexed]:
    """One text for each position."""
    merged: list[Indexed] = []
    for each in texts:
        if merged and merged[-1].position == each.position:
            last = merged[-1]
            merged[-1] = last._replace(text=f"{last.text}\n{each.text}", scopes=(*last.scopes, *each.scopes))
        else:
            merged.append(each)
    return merged


def _row(prefix: str, text: Indexed) -> _Row:
    tenant = tenant_id(f"{tenant_part(text.tenant)}/")
    words = compared(text.text)
    row = f" {prefix}{f' {prefix}'.join(words)} " if words else " "
    scopes = "".join([f"{prefix}{_scope(each)} " for each in (*text.scopes, f"tenant {tenant}")])
    if len(text.text) < LONGEST or (len(text.text) < MOST_BYTES / 8 and max(map(len, words), default=0) < LONGEST):
        return _Row(text.position, tenant, row + scopes, None)
    there = {word[:LONGEST] for word in words}
    if sum(len(word.encode()) + len(prefix) for word in there) > MOST_BYTES:
        there = {_ANY}
    return _Row(text.position, tenant, row + scopes, " ".join([*map(prefix.__add__, there), scopes]))


@lru_cache(maxsize=4_096)
def _scope(scope: str) -> str:
    """A scope as one word, whatever characters it has; no text has such a word."""
    return "/" + sha256(scope.encode(errors="surrogatepass")).hexdigest()[:16]


# What is asked for


class _Term(NamedTuple):
    """Words in a row, of which the last may be the beginning of one."""

    words: Sequence[str]
    begins: bool

    @property
    def is_listed(self) -> bool:
        """Whether the index tells by itself which texts have it."""
        return len(self.words) == 1 and len(self.words[0]) < LONGEST

    @property
    def row(self) -> str:
        """How it stands in the row of a text's words; ``#`` stands for the stretch."""
        return f" #{' #'.join(self.words)}" + ("" if self.begins else " ")

    def lexemes(self, prefix: str) -> list[str]:
        *before, last = [f"'{prefix}{word[:LONGEST]}'" for word in self.words]
        return [*before, f"{last}:*" if self.begins else last]


class _Wanted:
    """Words in the language of PostgreSQL's queries of text, and how they stand in the rows of texts."""

    def __init__(self, words: Words) -> None:
        phrases = [_Term(compared(each), begins=False) for each in words.phrases]
        beginnings = [_Term(compared(each), begins=True) for each in words.beginnings]
        without = [_Term(compared(each), begins=False) for each in words.without]
        self.terms = [*phrases, *beginnings]
        self._without = [term for term in without if term.words]
        self._scopes = words.scopes
        self.rows = {f"row{number}": term.row for number, term in enumerate((*self.terms, *self._without))}

    def among(self, number: int) -> str:
        """The texts of a stretch that may have the words."""
        prefix = f"{number:x}."
        lexemes = dict.fromkeys(lexeme for term in self.terms for lexeme in term.lexemes(prefix))
        scopes = [f"'{prefix}{_scope(each)}'" for each in self._scopes]
        return " & ".join([f"({' & '.join(lexemes)} | '{prefix}{_ANY}')", *scopes])

    def more(self) -> str:
        """The condition that is to be looked at besides."""
        is_there = "strpos(found.words, replace(%(row{number})s, '#', wanted.prefix)) {wanted} 0"
        wanted = [is_there.format(number=number, wanted=">") for number in range(len(self.terms))]
        wanted += [is_there.format(number=number, wanted="=") for number in range(len(self.terms), len(self.rows))]
        if not self._without and all(term.is_listed for term in self.terms):
            return f" AND (found.listed IS NULL OR ({' AND '.join(wanted)}))"
        return f" AND {' AND '.join(wanted)}"


def _array(values: Iterable[str]) -> str:
    return f"{{{','.join(values)}}}"


def _ask(session: Session, sql: str, parameters: dict[str, object]) -> Sequence[tuple[int, ...]]:
    return session.connection.execute(sql.encode(), parameters, prepare=True).fetchall()
