"""The bytes that a store has next to an event: those of a record, and of the media in a message.

The event has their number and their SHA-256, so its hash covers them. Equal bytes are stored once. As it is stored, an
event has no such bytes; ``stored`` and ``whole`` convert between it and the event that callers see.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.events import MESSAGE_APPENDED, RECORD_APPENDED, Event, MessageAppended, RecordAppended
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import Content, FunctionResult, Media, Message, media_of
from clew.domain.ports import Blob
from clew.domain.streams import digest

MOST_INSIDE = 1_024
"""The most bytes of a record, or of a content, that its event has inside.

For more of them, the digest is shorter than their base64.
"""

Bytes: TypeAlias = Mapping[bytes, bytes]
"""Bytes by their digests."""


class Named(NamedTuple):
    """The bytes that an event names."""

    digest: bytes
    size: int


def may_name_blobs(type_: str, state: bytes) -> bool:
    """Whether an event of a type may have bytes next to it, from its stored bytes: only then it must be decoded."""
    return type_ == RECORD_APPENDED or (type_ == MESSAGE_APPENDED and b'"digest":"' in state)


def named(event: Event) -> tuple[Named, ...]:
    """What a store should have next to an event as it is stored, each once."""
    data = event.data
    if isinstance(data, MessageAppended):
        return named_in(data.message)
    if isinstance(data, RecordAppended) and data.digest is not None:
        return (Named(bytes.fromhex(data.digest), data.size or 0),)
    return ()


def named_in(message: Message) -> tuple[Named, ...]:
    """The same for the media of a message."""
    found = [
        Named(bytes.fromhex(media.digest), media.size or 0)
        for media in media_of(message.contents)
        if media.digest is not None
    ]
    return tuple(dict.fromkeys(found))


def matches(name: Named, data: object) -> bool:
    """Whether these are the bytes."""
    return isinstance(data, bytes) and len(data) == name.size and digest(data) == name.digest


def unmatched(names: Sequence[Named], blobs: Bytes) -> Named | None:
    """The first of the bytes that are missing or damaged, None if all are there."""
    return next((name for name in names if not matches(name, blobs.get(name.digest))), None)


def stored(event: Event) -> tuple[Event, tuple[Blob, ...]]:
    """An event as it is stored, and the bytes next to it.

    Raises InvalidContentError for too many bytes, and for an event that names bytes and does not have them.
    """
    data = event.data
    if isinstance(data, MessageAppended):
        for media in media_of(data.message.contents):
            if len(media.uri) > MOST_INSIDE or media.digest is not None:
                message, blobs = _stored_message(data.message)
                return event._replace(data=MessageAppended.model_construct(message=message)), blobs
    elif isinstance(data, RecordAppended) and data.digest is not None:
        if data.blob is None:
            raise _missing("record", data.digest)
        return event, (Blob(bytes.fromhex(data.digest), "record", data.blob),)
    return event, ()


def whole(event: Event, blobs: Bytes) -> Event:
    """The event with the bytes that it names. ``blobs`` must have them."""
    data = event.data
    if isinstance(data, MessageAppended):
        message = whole_message(data.message, blobs)
        unchanged = message is data.message
        return event if unchanged else event._replace(data=MessageAppended.model_construct(message=message))
    if isinstance(data, RecordAppended) and data.digest is not None:
        return event._replace(data=data.with_blob(blobs[bytes.fromhex(data.digest)]))
    return event


def whole_message(message: Message, blobs: Bytes) -> Message:
    """The message with the bytes that it names."""
    if not named_in(message):
        return message
    contents = tuple([_whole_content(content, blobs) for content in message.contents])
    return message.model_copy(update={"contents": contents})


def _whole_content(content: Content, blobs: Bytes) -> Content:
    if type(content) is FunctionResult and content.contents:
        contents = tuple([_whole_content(each, blobs) for each in content.contents])
        return content.model_copy(update={"contents": contents})
    if type(content) is not Media or content.digest is None:
        return content
    encoded = b64encode(blobs[bytes.fromhex(content.digest)]).decode()
    return content.model_copy(update={"uri": content.uri + encoded, "size": None, "digest": None})


def _stored_message(message: Message) -> tuple[Message, tuple[Blob, ...]]:
    blobs: dict[bytes, Blob] = {}
    contents = tuple([_stored_content(content, blobs) for content in message.contents])
    return message.model_copy(update={"contents": contents}), tuple(blobs.values())


def _stored_content(content: Content, blobs: dict[bytes, Blob]) -> Content:
    """A content as it is stored. Its bytes are added to ``blobs``."""
    if type(content) is FunctionResult and content.contents:
        contents = tuple([_stored_content(each, blobs) for each in content.contents])
        return content.model_copy(update={"contents": contents})
    if type(content) is not Media:
        return content
    if content.digest is not None:
        raise _missing("media", content.digest)
    kept, blob = _stored_media(content)
    if blob is not None:
        blobs[blob.digest] = blob
    return kept


def _stored_media(media: Media) -> tuple[Media, Blob | None]:
    """Media as it is stored, and its bytes. Base64 that is not what Clew would write for the bytes stays inside."""
    data = media.data if len(media.uri) > MOST_INSIDE else None
    if data is None or len(data) <= MOST_INSIDE:
        return media, None
    if len(data) > MAX_BYTES:
        raise InvalidContentError(
            f"media: {len(data):,} bytes, but one content has at most {MAX_BYTES:,}. "
            "Store large content elsewhere and give its URL."
        )
    head = media.uri[: media.uri.index(",") + 1]
    if head + b64encode(data).decode() != media.uri:
        return media, None
    blob = Blob(digest(data), "record", data)
    return media.model_copy(update={"uri": head, "size": len(data), "digest": blob.digest.hex()}), blob


def _missing(kind: str, name: str) -> InvalidContentError:
    return InvalidContentError(f"{kind}: the bytes with the SHA-256 {name} are missing.")
