"""The index that finds records by type and key, and rewinds: the numbers under which a store finds an event."""

from __future__ import annotations

import json
from hashlib import sha256

from clew.domain.events import HISTORY_REWOUND, RECORD_APPENDED, Event, HistoryRewound, RecordAppended, Shredded

INDEXED_TYPES = frozenset({RECORD_APPENDED, HISTORY_REWOUND})
"""The types of events with numbers."""

REWINDS, RECORDS = 0, 1
"""The numbers of all rewinds, and of all records."""

_BYTES = 2


def number_of(type_: str | None, key: str | None = None) -> int:
    """The number of the records with a type, a key or both.

    It is a part of a digest: other records may have the same number, so the record must be read. It is so short that it
    does not tell which key a record has.
    """
    digest = sha256(json.dumps([type_, key]).encode()).digest()
    return RECORDS + 1 + int.from_bytes(digest[:_BYTES])


def numbers_of(event: Event) -> tuple[int, ...]:
    """The numbers of an event. A redacted record has those that do not depend on its key."""
    match event.data:
        case HistoryRewound():
            return (REWINDS,)
        case RecordAppended(type=type_, key=None):
            return RECORDS, number_of(type_)
        case RecordAppended(type=type_, key=key):
            return tuple(dict.fromkeys((RECORDS, number_of(type_), number_of(None, key), number_of(type_, key))))
        case Shredded(record=str(type_)):
            return RECORDS, number_of(type_)
        case _:
            return ()


def numbers_of_key(event: Event) -> tuple[int, ...]:
    """The numbers of an event that a redaction removes."""
    match event.data:
        case RecordAppended(type=type_):
            return tuple(number for number in numbers_of(event) if number not in {RECORDS, number_of(type_)})
        case _:
            return ()
