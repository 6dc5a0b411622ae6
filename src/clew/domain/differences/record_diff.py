"""Diffs of records: those of two paths that are not events of both, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from clew.domain.differences.alignment import aligned
from clew.domain.differences.content_diff import FieldDiff, field_diffs
from clew.domain.differences.word_diff import Kind
from clew.domain.json_values import JsonObject, canonical
from clew.domain.records import ThreadRecord

EQUAL, SAME_KEY, SAME_TYPE = 3, 2, 1
"""The likeness of records with equal content, of one type and key, and of one type."""


class RecordDiff(NamedTuple):
    """Two records that belong together, or one that is on one side only; ``fields`` are the changes.

    Of bytes, the length and the SHA-256 are compared.
    """

    kind: Kind
    a: ThreadRecord | None
    b: ThreadRecord | None
    fields: tuple[FieldDiff, ...] = ()


def diff_records(a: Sequence[ThreadRecord], b: Sequence[ThreadRecord]) -> tuple[RecordDiff, ...]:
    """The records of two paths after those that are events of both, aligned by content."""
    shorter = min(len(a), len(b))
    shared = next((index for index in range(shorter) if a[index].event_id != b[index].event_id), shorter)
    ours = [_ComparedRecord(record) for record in a[shared:]]
    theirs = [_ComparedRecord(record) for record in b[shared:]]
    rows: list[RecordDiff] = []
    start = other_start = 0
    for index, other_index in (*aligned(ours, theirs, _likeness), (len(ours), len(theirs))):
        rows += (RecordDiff("only-a", each.record, None) for each in ours[start:index])
        rows += (RecordDiff("only-b", None, each.record) for each in theirs[other_start:other_index])
        if index < len(ours):
            fields = field_diffs(ours[index].plain, theirs[other_index].plain)
            kind: Kind = "changed" if fields else "same"
            rows.append(RecordDiff(kind, ours[index].record, theirs[other_index].record, fields))
        start, other_start = index + 1, other_index + 1
    return tuple(rows)


class _ComparedRecord:
    """A record, and the values by which it is compared."""

    def __init__(self, record: ThreadRecord) -> None:
        self.record = record
        self.plain: JsonObject = {"type": record.type, "key": record.key, "data": record.data}
        if record.blob is not None:
            self.plain["bytes"] = {"length": len(record.blob), "sha256": sha256(record.blob).hexdigest()}
        if record.redacted:
            self.plain["redacted"] = True
        self.key = canonical(self.plain)


def _likeness(record: _ComparedRecord, others: Sequence[_ComparedRecord]) -> list[int]:
    likenesses: list[int] = []
    for other in others:
        if other.key == record.key:
            likeness = EQUAL
        elif other.record.type != record.record.type:
            likeness = 0
        else:
            likeness = SAME_KEY if other.record.key == record.record.key else SAME_TYPE
        likenesses.append(likeness)
    return likenesses
