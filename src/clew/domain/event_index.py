"""The index of records by type and key, of checkpoints by name, and of rewinds: the numbers that find an event.

It also says which events have the same bytes: a store destroys bytes with the last event that has them.
"""

from __future__ import annotations

import json
from hashlib import sha256

from clew.domain.blobs import may_name_blobs, named
from clew.domain.events import (
    CHECKPOINT_MADE,
    HISTORY_REWOUND,
    RECORD_APPENDED,
    CheckpointMade,
    Event,
    HistoryRewound,
    MessageAppended,
    RecordAppended,
    Shredded,
)

INDEXED_TYPES = frozenset({RECORD_APPENDED, HISTORY_REWOUND, CHECKPOINT_MADE})
"""The types of events with numbers. Messages have some, too, if they have media with bytes next to the event."""

REWINDS, RECORDS = 0, 1
"""The numbers of all rewinds, and of all records."""

BLOBS = 1 << 62
"""The lowest number of the bytes next to an event."""

_BYTES = 2

CHECKPOINTS = RECORDS + 1 + (1 << 8 * _BYTES)
"""The number of all checkpoints, above those of records."""


def number_of(type_: str | None, key: str | None = None) -> int:
    """The number of the records with a type, a key or both.

    It is a part of a digest: other records may have the same number, so the record must be read. It is so short that it
    does not tell which key a record has.
    """
    digest = sha256(json.dumps([type_, key]).encode()).digest()
    return RECORDS + 1 + int.from_bytes(digest[:_BYTES])


def number_of_checkpoint(name: str) -> int:
    """The number of the checkpoints with a name. Other names may have it, for the reasons that ``number_of`` gives."""
    return CHECKPOINTS + number_of(None, name)


def may_have_numbers(type_: str, state: bytes) -> bool:
    """Whether an event of a type may have numbers, from its stored bytes: only then it must be decoded."""
    return type_ in INDEXED_TYPES or may_name_blobs(type_, state)


def number_of_blob(digest: bytes) -> int:
    """The number of the events whose bytes have this digest, 62 bits of it."""
    return BLOBS | int.from_bytes(digest[:8]) >> 2


def numbers_of(event: Event) -> tuple[int, ...]:
    """The numbers of an event. A redacted one has those that do not depend on its key, its name or its bytes."""
    match event.data:
        case CheckpointMade(name=""):
            return (CHECKPOINTS,)
        case CheckpointMade(name=name):
            return CHECKPOINTS, number_of_checkpoint(name)
        case HistoryRewound():
            return (REWINDS,)
        case RecordAppended(type=type_, key=key):
            keys = () if key is None else (number_of(None, key), number_of(type_, key))
            return tuple(dict.fromkeys((RECORDS, number_of(type_), *keys, *_numbers_of_blobs(event))))
        case MessageAppended():
            return _numbers_of_blobs(event)
        case Shredded(record=str(type_)):
            return RECORDS, number_of(type_)
        case _:
            return ()


def numbers_of_key(event: Event) -> tuple[int, ...]:
    """The numbers of an event that a redaction removes."""
    match event.data:
        case CheckpointMade():
            return numbers_of(event)[1:]
        case RecordAppended(type=type_):
            return tuple(number for number in numbers_of(event) if number not in {RECORDS, number_of(type_)})
        case MessageAppended():
            return _numbers_of_blobs(event)
        case _:
            return ()


def _numbers_of_blobs(event: Event) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number_of_blob(name.digest) for name in named(event)))
