"""Indexes of words in PostgreSQL: a table for each, whose words are told apart here and looked up by an inverted index.

A word in the index begins with the number of its stretch, some thousand texts in the order of the log: so the newest
texts that have a word are found without a look at all others that have it, and texts are added in one place of the
index. Scopes stand beside the words. A text is kept as the row of its words, in which phrases
are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8

from clew.domain.names import tenant_part
from clew.domain.projection import Indexed, Words
from clew.domain.views.searching import compared
from clew.infrastructure.postgres.encoding import HIGHEST, tenant_id, within
from clew.infrastructure.postgres.lexemes import Lexemes, lexemes
from clew.infrastructure.postgres.projection_tables import index_name
from clew.infrastructure.postgres.session import Session
from clew.infrastructure.postgres.sql_files import statements as sql_statements

STRETCH = 8_192
"""Texts of one stretch, and those of the batch that fills it up."""

STRETCHES = 64
"""Stretches that are searched together, at the most."""

LONGEST = 500
"""Characters of a word that are listed in the index: it takes no more than 2 kB."""

MOST_BYTES = 900_000
"""Of the words of one text that are listed: it takes no more than a megabyte."""

AT_ONCE = 100
"""Texts that are sent together: while the server takes them in, the next are made ready."""

MANY = 500
"""Texts of one transaction that are many: somebody catches up, and searches little meanwhile."""

PENDING = {True: 2_048, False: 512}
"""Kilobytes of texts that the inverted index has not taken in yet, when they are many at once, and otherwise.

With more of them the server has less to do, and does it in pieces that who fills has to wait for.
"""

_SQL = sql_statements("text_index.sql")
_ONLY_BY_THE_INDEX = _SQL["only by the index"].encode()
_PARAMETERS = re.findall(r"%\((\w+)\)b", _SQL["find of a tenant"])
FIND_OF_A_TENANT = re.sub(
    r"%\((\w+)\)b",
    lambda found: f"${_PARAMETERS.index(found[1]) + 1}",
    _SQL["find"].replace("{more}", " AND there.tenant = (SELECT clew_tenant())"),
)
"""The statement that finds, of the tenant of the transaction, for the function: with numbers for parameters."""

_ANY = "+"
"""Stands in the index for all the words of a text that has too many."""


def statements(table: str) -> tuple[str, ...]:
    """The statements that make an index of words."""
    key, index = index_name(table, "key"), index_name(table, "words")
    made = (_SQL["table"], _SQL["words are kept as they are"], _SQL["index"])
    return tuple(each.replace("{table}", table).replace("{key}", key).replace("{index}", index) for each in made)


class _Stretch(NamedTuple):
    """A part of an index: its number, the position of its first text, and how many it has."""

    number: int
    first: int
    texts: int


class Filling:
    """What is added to one index in a transaction."""

    def __init__(self, session: Session, generation: int, index: str, table: str) -> None:
        self._session = session
        self._key = {"generation": Int8(generation), "index": index}
        self._add = _SQL["add"].replace("{table}", table)
        self._encoding = session.connection.info.encoding
        self._added = 0
        self._pending = 0
        self._stretch: _Stretch | None = None
        """The newest, as it is by now; none before the first is -1, and full."""
        self._noted: _Stretch | None = None
        """The same as the table of stretches has it."""

    def add(self, texts: Iterable[Indexed]) -> None:
        """Let events be found by the words of their texts, which follow those that are there in position."""
        merged = _merged(texts)
        number = self._number(merged[0].position, len(merged))
        self._limit(len(merged))
        self._do(self._add, _columns(f"{number:x}.", merged, self._encoding))

    def note(self) -> None:
        """Write down what the newest stretch is."""
        if self._stretch is not None and self._stretch != self._noted:
            number, first, texts = map(Int8, self._stretch)
            self._do(_SQL["note stretch"], {**self._key, "number": number, "first": first, "texts": texts})
            self._noted = self._stretch

    def _limit(self, texts: int) -> None:
        """Say how much may wait for the index when these are added; as many as are sent together do not come alone."""
        self._added += texts
        kilobytes = PENDING[texts >= AT_ONCE or self._added >= MANY]
        if kilobytes != self._pending:
            self._pending = kilobytes
            self._session.connection.execute(_SQL["pending"].replace("{kilobytes}", str(kilobytes)).encode())

    def _number(self, first: int, texts: int) -> int:
        """The number of the stretch that texts go to."""
        if self._stretch is None:
            newest = _ask(self._session, _SQL["newest stretch"], self._key)
            self._stretch = self._noted = _Stretch(*newest[0]) if newest else _Stretch(-1, 0, STRETCH)
        last = self._stretch
        if last.texts < STRETCH:
            self._stretch = last._replace(texts=last.texts + texts)
        else:
            self.note()
            self._stretch = _Stretch(last.number + 1, first, texts)
        return self._stretch.number

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
    if session.tenant is None:
        sql, setting = _SQL["find"].replace("{table}", table).replace("{more}", ""), _ONLY_BY_THE_INDEX
    else:
        sql, setting = _SQL["find of a tenant"], None
    parameters = {
        "generation": Int8(generation),
        "index": index,
        "before": Int8(HIGHEST if before is None else within(before)),
        "among": wanted.among,
        "certain": wanted.is_listed,
        "rows": wanted.rows,
        "wanted": [number < len(wanted.terms) for number in range(len(wanted.rows))],
    }
    below, stretches, looked = HIGHEST, 1, 0
    while len(found) < limit:
        more = {"below": Int8(below), "stretches": Int8(stretches), "limit": Int8(min(limit - len(found), HIGHEST))}
        rows = session.ask(sql, parameters | more, setting=setting)
        found += [position for _, position in rows if position is not None]
        numbers = {number for number, _ in rows}
        if len(numbers) < stretches:
            break
        looked += stretches
        enough = (limit - len(found)) * looked // len(found) + 2 if found else STRETCHES
        below, stretches = min(numbers), min(STRETCHES, stretches * 8, enough)
    return found[:limit]


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


def _columns(prefix: str, texts: Sequence[Indexed], encoding: str) -> list[object]:
    """The columns of the rows of texts, in the form in which they are sent."""
    tenants: list[str] = []
    rows: list[str] = []
    listed: list[bytes] = []
    all_listed: list[str] = []
    for _, of, text, narrowed in texts:
        words = compared(text)
        there = set(words)
        is_all = _is_short(text) or _are_short(text, there)
        if not is_all:
            there = _cut(there, len(prefix))
        tenant, scopes = _scopes(of, tuple(narrowed))
        there |= scopes
        tenants.append(tenant)
        rows.append(f" {' '.join(words)} " if words else " ")
        listed.append(lexemes(prefix, there, encoding))
        all_listed.append("t" if is_all else "f")
    positions = _array(str(each.position) for each in texts)
    return [positions, _array(tenants), "\n".join(rows), Lexemes.of(listed), _array(all_listed)]


def _cut(words: set[str], prefix: int) -> set[str]:
    """Words as the index lists them where one is long, or where they are many: for all of them stands one."""
    cut = {word[:LONGEST] for word in words}
    return {_ANY} if sum(len(word.encode()) + prefix for word in cut) > MOST_BYTES else cut


def _is_short(text: str) -> bool:
    """Whether it is seen at a glance that no word is long: each would fill one of these parts, which have spaces."""
    if len(text) < LONGEST:
        return True
    half = LONGEST // 2
    short = len(text) < MOST_BYTES / 8 and text.isascii()
    return short and all(text.find(" ", at, at + half) >= 0 for at in range(0, len(text), half))


def _are_short(text: str, words: set[str]) -> bool:
    """Whether no word is long, and they are not too many."""
    return len(text) < MOST_BYTES / 8 and max(map(len, words), default=0) < LONGEST


@lru_cache(maxsize=4_096)
def _scopes(tenant: str, scopes: tuple[str, ...]) -> tuple[str, frozenset[str]]:
    """The integer that stands for a tenant, and the words that stand for the scopes of a text of his."""
    return str(tenant_id(f"{tenant_part(tenant)}/")), frozenset(map(_scope, scopes))


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
        """How it stands in the row of a text's words."""
        return f" {' '.join(self.words)}" + ("" if self.begins else " ")

    @property
    def lexemes(self) -> list[str]:
        *before, last = [f"'#{word[:LONGEST]}'" for word in self.words]
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
        self.rows = [term.row for term in (*self.terms, *self._without)]
        """How they stand in rows: those that are to be there, then those that are not."""

    @property
    def among(self) -> str:
        """The texts of a stretch that may have the words; ``#`` stands for the stretch."""
        lexemes = dict.fromkeys(lexeme for term in self.terms for lexeme in term.lexemes)
        scopes = [f"'#{_scope(each)}'" for each in self._scopes]
        return " & ".join([f"({' & '.join(lexemes)} | '#{_ANY}')", *scopes])

    @property
    def is_listed(self) -> bool:
        """Whether the index tells by itself which texts have them, if it lists their words."""
        return not self._without and all(term.is_listed for term in self.terms)


def _array(values: Iterable[str]) -> str:
    return f"{{{','.join(values)}}}"


def _ask(session: Session, sql: str, parameters: dict[str, object]) -> Sequence[tuple[int, ...]]:
    return session.connection.execute(sql.encode(), parameters, prepare=True).fetchall()
