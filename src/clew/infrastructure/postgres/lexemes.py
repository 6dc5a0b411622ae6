"""Words on their way into an inverted index: in the form of the wire, which the server has nothing to read in.

To tell the words of a text apart a second time would take it as long as to index them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_TSVECTOR, _TSVECTORS = 3614, 3643
"""The types of one and of an array in PostgreSQL."""

_ARRAY = Struct(">iiiii")
"""Dimensions, whether there are NULLs, the type, how many there are, and the number of the first."""

_NUMBER = Struct(">i")

_END = "\0\0\0"
"""Of a word: it ends, and has no places."""


class Lexemes(bytes):
    """An array of ``tsvector``, a parameter of a statement; each of its parts is made by ``lexemes``."""

    __slots__ = ()

    @classmethod
    def of(cls, listed: Sequence[bytes]) -> Lexemes:
        """The array of these."""
        parts = [_ARRAY.pack(1, 0, _TSVECTOR, len(listed), 1)]
        for each in listed:
            parts += [_NUMBER.pack(len(each)), each]
        return cls(b"".join(parts))


def lexemes(prefix: str, words: Collection[str], encoding: str) -> bytes:
    """A ``tsvector`` of these words, each once, with a prefix, in the text of a connection."""
    listed = f"{prefix}{f'{_END}{prefix}'.join(words)}{_END}" if words else ""
    return _NUMBER.pack(len(words)) + listed.encode(encoding)


class _Dumper(Dumper):
    format = Format.BINARY
    oid = _TSVECTORS

    def dump(self, obj: Lexemes) -> Lexemes:
        return obj


psycopg.adapters.register_dumper(Lexemes, _Dumper)
