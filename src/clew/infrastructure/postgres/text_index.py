"""Indexes of words in PostgreSQL: for each a table of texts, which are divided into words here, and one of postings.

An index is divided into stretches, each of some thousand texts in the order of the log. The newest stretch grows, and a
search scans its texts. A full stretch is listed: for each of its words a row has the positions of the texts with it. So
all rows are written in the order of the log, the newest texts are found without reading the others, and the postings of
a word are deleted with the last text that has it.

A text is stored as its words in a row, in which phrases are searched; its scopes follow them, as words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8

from clew.domain.projection import Indexed, Words
from clew.domain.search_terms import compared
from clew.domain.streams import tenant_part
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import index_name, table_name, tenant_id, within
from clew.infrastructure.recorder_ports import HIGHEST

STRETCH = 4_000_000
"""The size of a full stretch: the characters of its texts, and ``TEXT`` for each."""

TEXT = 500

AT_LEAST = STRETCH // 4
"""The size of a stretch that is listed before it is full, if one transaction wrote it: its texts are in memory."""

STRETCHES = 512
"""Most stretches that are searched together."""

LONGEST = 500
"""Characters of a word that are listed: at most 2 kB of the key."""

AT_ONCE = 100
"""Texts that are sent together: the next ones are prepared while the server inserts them."""

_SQL = statements("text_index.sql")
_SQL["find"] = _SQL["find"].replace("{fits}", _SQL["fits"])
_ONLY_BY_THE_INDEX = _SQL["only by the index"].encode()
_PARAMETERS = re.findall(r"%\((\w+)\)b", _SQL["find of a tenant"])
FIND_OF_A_TENANT = re.sub(
    r"%\((\w+)\)b",
    lambda found: f"${_PARAMETERS.index(found[1]) + 1}",
    _SQL["find"].replace("{more}", " AND there.tenant = (SELECT clew_tenant())"),
)
"""The statement that searches the texts of the transaction's tenant, for the function: with numbers for parameters."""

_BEYOND = "\U0010ffff"
"""No word contains it, and every character of a word comes before it."""


def tables(generation: int, index: str) -> tuple[str, str]:
    """The names of the tables of texts and of postings; no table of a projection has such a name."""
    return table_name(generation, index), table_name(generation, f"_{index}")


def created(generation: int, index: str) -> Iterator[str]:
    """The statements that create the tables of an index of words."""
    for table, what in zip(tables(generation, index), ("texts", "postings"), strict=True):
        for statement in (_SQL[what], _SQL[f"{what} are kept as they are"]):
            yield statement.replace("{table}", table).replace("{key}", index_name(table, "key"))


class _Stretch(NamedTuple):
    """A part of an index: its number, the position of its first text, its size, and whether its words are listed."""

    number: int
    first: int
    size: int
    listed: bool


class TextIndexWriter:
    """Adds texts to one index, in one transaction."""

    def __init__(self, session: Session, generation: int, index: str) -> None:
        self._session = session
        self._names = (generation, index)
        self._key = {"generation": Int8(generation), "index": index}
        self._add = _sql("add", *self._names)
        self._stretch: _Stretch | None = None
        """The newest stretch, with the changes so far; before the first one it is number -1, and listed."""
        self._stored: _Stretch | None = None
        """The same as it is stored."""
        self._since = 0
        """The position of the first text that was added here."""
        self._postings: dict[str, list[str]] = defaultdict(list)
        """The words of the texts that were added here, each with their positions."""
        self._forgotten: set[str] = set()
        """The positions of removed texts, which must not be listed."""

    def add(self, texts: Iterable[Indexed]) -> None:
        """Index texts, whose positions are above all that are in the index."""
        merged = _merged(texts)
        stretch = self._growing(merged[0].position)
        if not self._postings:
            self._since = merged[0].position
        positions, tenants, rows = _columns(merged, self._postings)
        self._do(self._add, [_array(positions), _array(tenants), "\n".join(rows)])
        size = sum(map(len, rows)) + TEXT * len(rows)
        self._stretch = stretch._replace(size=stretch.size + size)
        if self._stretch.size >= STRETCH:
            self._list(self._stretch)

    def forget(self, position: int) -> None:
        """Do not list the text at a position."""
        if self._postings and position >= self._since:
            self._forgotten.add(str(position))

    def note(self) -> None:
        """Store the number, the size and the state of the newest stretch."""
        if self._stretch is None:
            return
        if self._postings and self._since == self._stretch.first and self._stretch.size >= AT_LEAST:
            self._list(self._stretch)
        elif self._stretch != self._stored:
            self._note(self._stretch)

    def _growing(self, position: int) -> _Stretch:
        """The stretch for the next texts, of which the first is at this position."""
        if self._stretch is None:
            newest = _ask(self._session, _SQL["newest stretch"], self._key)
            self._stretch = self._stored = _Stretch(*newest[0]) if newest else _Stretch(-1, 0, 0, listed=True)
        if self._stretch.listed:
            self._stretch = _Stretch(self._stretch.number + 1, position, 0, listed=False)
        return self._stretch

    def _note(self, stretch: _Stretch) -> None:
        number, first, size, listed = stretch
        row = {"number": Int8(number), "first": Int8(first), "size": Int8(size), "listed": listed}
        self._do(_SQL["note stretch"], self._key | row)
        self._stretch = self._stored = stretch

    def _list(self, stretch: _Stretch) -> None:
        """List the words of the newest stretch, which then gets no more texts."""
        postings: dict[str, list[str]] = defaultdict(list)
        if stretch.first < self._since:
            span = {"first": Int8(stretch.first), "end": Int8(self._since)}
            for position, row in _ask(self._session, _sql("texts of a stretch", *self._names), span):
                _post(postings, str(position), set(row.split()))
        for word, positions in self._postings.items():
            rest = [each for each in positions if each not in self._forgotten] if self._forgotten else positions
            if rest:
                postings[word] += rest
        words = sorted(_cut(postings))
        listed = {"words": "\n".join(words), "positions": "\n".join(_array(postings[word]) for word in words)}
        self._do(_sql("list", *self._names), {"stretch": Int8(stretch.number), **listed})
        self._postings.clear()
        self._forgotten.clear()
        self._note(stretch._replace(listed=True))

    def _do(self, sql: str, parameters: Any) -> None:
        self._session.connection.execute(sql.encode(), parameters, prepare=True)


def forget(session: Session, generation: int, index: str, position: int) -> bool:
    """Remove the text at a position from an index, with its words; False if there is none."""
    key = {"generation": Int8(generation), "index": index, "position": Int8(position), "longest": LONGEST}
    return bool(_ask(session, _sql("forget", generation, index), key))


def find(session: Session, generation: int, index: str, words: Words, *, before: int | None, limit: int) -> list[int]:
    """The positions of texts with these words, newest first."""
    wanted = _Wanted(words)
    positions: list[int] = []
    if not wanted.terms or not all(term.words for term in wanted.terms):
        return positions
    if session.tenant is None:
        sql, setting = _sql("find", generation, index).replace("{more}", ""), _ONLY_BY_THE_INDEX
    else:
        sql, setting = _SQL["find of a tenant"], None
    parameters = {
        "generation": Int8(generation),
        "index": index,
        "before": Int8(HIGHEST if before is None else within(before)),
        "words": wanted.words,
        "beginnings": wanted.beginnings,
        "ends": [beginning + _BEYOND for beginning in wanted.beginnings],
        "certain": wanted.is_listed,
        "rows": wanted.rows,
        "wanted": [number < wanted.needed for number in range(len(wanted.rows))],
    }
    below, stretches, searched = HIGHEST, 1, 0
    while len(positions) < limit:
        more = {"below": Int8(below), "stretches": Int8(stretches), "limit": Int8(min(limit - len(positions), HIGHEST))}
        rows = session.query(sql, parameters | more, setting=setting)
        positions += [position for _, position in rows if position is not None]
        numbers = {number for number, _ in rows}
        if len(numbers) < stretches:
            break
        searched += stretches
        enough = (limit - len(positions)) * searched // len(positions) + 2 if positions else STRETCHES
        below, stretches = min(numbers), min(STRETCHES, stretches * 8, enough)
    return positions[:limit]


# Storing


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


def _columns(texts: Sequence[Indexed], postings: dict[str, list[str]]) -> tuple[list[str], list[str], list[str]]:
    """The positions, tenants and rows of texts, as they are sent; their words are added to the postings."""
    positions: list[str] = []
    tenants: list[str] = []
    rows: list[str] = []
    for position, tenant_name, text, text_scopes in texts:
        words = compared(text)
        tenant, scopes = _scopes(tenant_name, tuple(text_scopes))
        number = str(position)
        positions.append(number)
        tenants.append(tenant)
        rows.append(f" {' '.join([*words, *scopes])} ")
        _post(postings, number, {*words, *scopes})
    return positions, tenants, rows


def _post(postings: dict[str, list[str]], position: str, words: Iterable[str]) -> None:
    for word in words:
        postings[word].append(position)


def _cut(postings: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same postings, with long words cut: those that begin alike become one."""
    for word in [word for word in postings if len(word) > LONGEST]:
        positions = postings.pop(word)
        postings[word[:LONGEST]] = sorted({*postings[word[:LONGEST]], *positions}, key=int)
    return postings


@lru_cache(maxsize=4_096)
def _scopes(tenant: str, scopes: tuple[str, ...]) -> tuple[str, list[str]]:
    """The integer of a tenant, and the words for the scopes of a text."""
    return str(tenant_id(f"{tenant_part(tenant)}/")), [*map(_scope, scopes)]


@lru_cache(maxsize=4_096)
def _scope(scope: str) -> str:
    """A scope as one word, whatever characters it contains; no text has such a word."""
    return "/" + sha256(scope.encode(errors="surrogatepass")).hexdigest()[:16]


# Searching


class _Term(NamedTuple):
    """A run of words, of which the last may be only the beginning of a word."""

    words: Sequence[str]
    begins: bool

    @property
    def is_listed(self) -> bool:
        """Whether the postings alone show which texts have it."""
        return len(self.words) == 1 and len(self.words[0]) < LONGEST

    @property
    def row(self) -> str:
        """How it appears in the row of a text's words."""
        return f" {' '.join(self.words)}" + ("" if self.begins else " ")


class _Wanted:
    """A search: its words as postings have them, and as they appear in the rows of texts."""

    def __init__(self, words: Words) -> None:
        phrases = [_Term(compared(each), begins=False) for each in words.phrases]
        beginnings = [_Term(compared(each), begins=True) for each in words.beginnings]
        without = [_Term(compared(each), begins=False) for each in words.without if compared(each)]
        scopes = [_Term([_scope(each)], begins=False) for each in words.scopes]
        self.terms = [*phrases, *beginnings]
        whole = [word for term in self.terms for word in (term.words[:-1] if term.begins else term.words)]
        self.words = _listed([*whole, *(word for term in scopes for word in term.words)])
        """Whole words that a text must have."""
        self.beginnings = _listed(term.words[-1] for term in beginnings if term.words)
        """Beginnings of words that a text must have."""
        self.is_listed = not (without or beginnings) and all(term.is_listed for term in self.terms)
        """Whether the postings alone show the texts: not all beginnings are looked up in them."""
        self.needed = len(self.terms) + len(scopes)
        self.rows = [term.row for term in (*self.terms, *scopes, *without)]
        """How they appear in rows: first those that a text must have, then those that it must not have."""


def _listed(words: Iterable[str]) -> list[str]:
    """Words as postings have them, each once."""
    return [*dict.fromkeys(word[:LONGEST] for word in words)]


@lru_cache(maxsize=256)
def _sql(name: str, generation: int, index: str) -> str:
    """A statement on the tables of an index."""
    table, postings = tables(generation, index)
    return _SQL[name].replace("{table}", table).replace("{postings}", postings)


def _array(values: Iterable[str]) -> str:
    return f"{{{','.join(values)}}}"


def _ask(session: Session, sql: str, parameters: Mapping[str, object]) -> Sequence[tuple[Any, ...]]:
    return session.connection.execute(sql.encode(), parameters, prepare=True).fetchall()
