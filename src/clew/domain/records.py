"""Records: an application's own events on a thread, next to the messages."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from clew.domain.blobs import MOST_INSIDE
from clew.domain.errors import InvalidContentError
from clew.domain.events import RECORD_APPENDED, Event, RecordAppended, Shredded, to_time
from clew.domain.json_values import MAX_BYTES, Json, check_json, check_text
from clew.domain.streams import MAX_LENGTH, digest

LONGEST_KEY = 1_000
"""The most characters of a record's key."""


@dataclass(frozen=True, slots=True)
class Record:
    """An application's own event on a thread. It is stored, forked, rewound and redacted like a message.

    It is not part of the history, and no model receives it. ``type`` is the application's name for this kind of record:
    1 to 200 printable characters, which stay readable after a redaction. ``data`` is JSON, ``blob`` bytes. ``key``
    names what the record is about, so that ``records(key=…)`` finds it: 1 to 1,000 characters.
    """

    type: str
    data: Json = None
    blob: bytes | None = None
    key: str | None = None


class ThreadRecord(NamedTuple):
    """A record of a thread. If it was redacted, only ``data``, ``blob`` and ``key`` are gone: they are None."""

    version: int
    type: str
    data: Json
    blob: bytes | None
    key: str | None
    event_id: str
    recorded_at: int
    actor: str | None = None
    said: int | None = None
    on_behalf_of: str | None = None
    redacted: bool = False

    @property
    def time(self) -> datetime:
        """When it was recorded, in UTC."""
        return to_time(self.recorded_at)

    @property
    def said_at(self) -> datetime | None:
        """When it was said, in UTC, if the append named that time."""
        return None if self.said is None else to_time(self.said)


def record_appended(record: Record) -> RecordAppended:
    """The event of a record. Raises InvalidContentError for anything that cannot be stored and read back unchanged."""
    check_record_type(record.type)
    check_json(record.data, "record data")
    if record.key is not None:
        check_record_key(record.key)
    if record.blob is not None and type(record.blob) is not bytes:
        raise InvalidContentError(f"record blob: {type(record.blob).__name__} is not bytes. Give bytes.")
    blob = record.blob
    if blob is None or len(blob) <= MOST_INSIDE:
        base64 = None if blob is None else b64encode(blob).decode()
        return RecordAppended(type=record.type, data=record.data, key=record.key, base64=base64)
    if len(blob) > MAX_BYTES:
        raise InvalidContentError(
            f"record blob: {len(blob):,} bytes, but a record has at most {MAX_BYTES:,}. "
            "Store large content elsewhere and refer to it."
        )
    size, named = len(blob), digest(blob).hex()
    event = RecordAppended(type=record.type, data=record.data, key=record.key, size=size, digest=named)
    return event.with_blob(blob)


def check_record_type(name: object) -> None:
    """Raise InvalidContentError unless ``name`` can be the type of a record."""
    if not isinstance(name, str):
        raise InvalidContentError(f"record type: {type(name).__name__} is not a string.")
    if not 1 <= len(name) <= MAX_LENGTH or not name.isprintable():
        raise InvalidContentError(f"record type: it must be 1 to {MAX_LENGTH} printable characters.")


def check_record_key(key: str) -> None:
    """Raise InvalidContentError unless ``key`` can be the key of a record."""
    check_text(key, "record key")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise InvalidContentError(f"record key: {len(key)} characters, but it must have 1 to {LONGEST_KEY:,}.")


def as_record(event: Event) -> ThreadRecord | None:
    """The record of an event, redacted or not; None for other events."""
    data = event.data
    envelope = event.event_id, event.recorded_at, event.actor, event.said, event.on_behalf_of
    if isinstance(data, RecordAppended):
        return ThreadRecord(event.version, data.type, data.data, data.blob, data.key, *envelope)
    if isinstance(data, Shredded) and event.type == RECORD_APPENDED and data.record is not None:
        return ThreadRecord(event.version, data.record, None, None, None, *envelope, redacted=True)
    return None
