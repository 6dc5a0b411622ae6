"""The state of a channel in a chat document: the thread of a participant, as plain JSON.

Every event is there with the text of its JSON, unchanged: the hashes cover it. So the restored thread is the same
thread, byte for byte. Only bytes are in base64: those of records and media.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Final, Literal

from pydantic import Field

from clew.domain.errors import ThreadDocumentError
from clew.domain.events import Event
from clew.domain.formats.lineage import AGAIN, Lineage, StreamRows, verify_streams
from clew.domain.formats.thread_document import with_blobs
from clew.domain.messages import Value
from clew.domain.ports import Fork, Row

KIND: Final = "clew-thread"

_MANY = 2**53
"""Versions are below this number: every language has them."""

_HASH = "^[0-9a-f]{64}$"
"""A SHA-256 in hex."""


class ChannelEvent(Value):
    """A stored event: the bytes ``prefix``, in hex, and then the ``text``, its JSON.

    If they are not JSON, ``prefix`` has them all, and ``text`` is None. A shredded event has the ``digest`` of its
    original bytes, and a stub as its ``text``.
    """

    version: int = Field(ge=1, lt=_MANY)
    type: str
    prefix: str = Field(pattern="^([0-9a-f]{2})*$")
    text: str | None
    hash: str = Field(pattern=_HASH)
    digest: str | None = Field(default=None, pattern=_HASH)


class ChannelStream(Value):
    """The events of one thread of the lineage; ``parent`` and ``cut`` are None for the oldest ancestor."""

    name: str
    parent: str | None = None
    cut: int | None = Field(default=None, ge=1, lt=_MANY)
    events: tuple[ChannelEvent, ...]


class ChannelBlob(Value):
    """Bytes of a record or of media that are not in their event, in base64, and their SHA-256 in hex."""

    digest: str = Field(pattern=_HASH)
    data: str


class ChannelThread(Value):
    """The channel's thread, its ancestors first, and the bytes next to their events.

    The channel is this thread at ``version``. The participant has heard the first ``synced`` messages of the history.
    ``brought`` says that it came to the chat with this thread.
    """

    kind: Literal["clew-thread"] = KIND
    version: int = Field(ge=1, lt=_MANY)
    synced: int = Field(ge=0, lt=_MANY)
    brought: bool = False
    streams: tuple[ChannelStream, ...]
    blobs: tuple[ChannelBlob, ...] = ()


def thread_state(
    lineage: Lineage, json_begins: Callable[[bytes], int], *, version: int, synced: int, brought: bool
) -> ChannelThread:
    """The state of a channel. ``json_begins`` returns where the JSON in stored bytes begins, for none their end."""
    return ChannelThread(
        version=version,
        synced=synced,
        brought=brought,
        streams=tuple([_stream(each, json_begins) for each in lineage.streams]),
        blobs=tuple(
            [ChannelBlob(digest=each.digest.hex(), data=b64encode(each.data).decode()) for each in lineage.blobs]
        ),
    )


def lineage_of(state: ChannelThread, decode: Callable[[Row], Event]) -> Lineage:
    """The thread in a channel's state, completely checked. Raises ThreadDocumentError, which names the place."""
    streams = [_rows(number, stream) for number, stream in enumerate(state.streams)]
    lineage = with_blobs(verify_streams(streams, decode), [(each.digest, each.data) for each in state.blobs])
    if not streams[-1].rows[0].version <= state.version <= lineage.head.version:
        raise ThreadDocumentError(f"version: the thread has no version {state.version}. {AGAIN}")
    return lineage


def _stream(stream: StreamRows, json_begins: Callable[[bytes], int]) -> ChannelStream:
    parent, cut = (None, None) if stream.fork is None else (stream.fork.parent, stream.fork.cut)
    return ChannelStream(
        name=stream.name, parent=parent, cut=cut, events=tuple([_event(row, json_begins) for row in stream.rows])
    )


def _event(row: Row, json_begins: Callable[[bytes], int]) -> ChannelEvent:
    begins = json_begins(row.state)
    try:
        text = row.state[begins:].decode() or None
    except UnicodeDecodeError:
        text = None
    prefix = row.state if text is None else row.state[:begins]
    digest = None if row.digest is None else row.digest.hex()
    return ChannelEvent(
        version=row.version, type=row.type, prefix=prefix.hex(), text=text, hash=row.hash.hex(), digest=digest
    )


def _rows(number: int, stream: ChannelStream) -> StreamRows:
    if (stream.parent is None) != (stream.cut is None):
        raise ThreadDocumentError(f"streams[{number}]: a fork needs parent and cut, and only one is given. {AGAIN}")
    fork = None if stream.parent is None or stream.cut is None else Fork(stream.parent, stream.cut)
    if not all(each.type.isprintable() for each in stream.events):
        raise ThreadDocumentError(f"streams[{number}]: a type is not the name of a type. {AGAIN}")
    return StreamRows(stream.name, fork, tuple([_row(stream.name, each) for each in stream.events]))


def _row(stream: str, event: ChannelEvent) -> Row:
    digest = None if event.digest is None else bytes.fromhex(event.digest)
    state = bytes.fromhex(event.prefix) + (event.text or "").encode()
    return Row(0, stream, event.version, event.type, state, bytes.fromhex(event.hash), digest)
