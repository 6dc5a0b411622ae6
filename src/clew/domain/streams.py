"""Streams of events: their names, the checks of these and other names, and the hash chain of a stream.

The hash of an event covers the hash before it. So the head hash of a thread identifies its whole past, as a git commit
hash does.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from clew.domain.errors import InvalidNameError

Kind: TypeAlias = Literal["thread", "memory", "chat", "system"]

ROOT = bytes(32)
"""The hash before the first event of a stream without a parent."""

_LENGTH = Struct(">I").pack
_VERSION = Struct(">Q").pack

_BEFORE_SURROGATES = 0xD7FF
_AFTER_SURROGATES = "\ue000"

MAX_LENGTH = 200
"""Characters of an id, a tenant, an idempotency key, or the name of a checkpoint or a label."""

_SAFE = ":@"
"""Characters that are not escaped in a stream's name, in addition to letters, digits and ``_.-``."""


class StreamName(NamedTuple):
    """The parts of a stream's name ``tenant/kind/id``."""

    tenant: str
    kind: str
    id: str


@lru_cache(maxsize=4_096)
def stream_name(tenant: str, kind: Kind | str, id_: str) -> str:
    """The name of a stream. Characters outside ``[A-Za-z0-9._:@-]`` are percent-escaped."""
    return f"{_escape(tenant)}/{kind}/{_escape(id_)}"


@lru_cache(maxsize=4_096)
def thread_stream(tenant: str, thread_id: str) -> str:
    """The name of a thread's stream. Raises InvalidNameError."""
    check_id(thread_id, "thread id")
    return stream_name(tenant, "thread", thread_id)


def tenant_part(tenant: str) -> str:
    """A tenant as it is written in the names of its streams."""
    return _escape(tenant)


def stream_prefix(tenant: str, kind: Kind, id_prefix: str = "") -> str:
    """The prefix of the names of all streams of this kind whose ids have this prefix."""
    return f"{_escape(tenant)}/{kind}/{_escape(id_prefix)}"


def first_after(prefix: str) -> str | None:
    """The lowest text above every text with the prefix in code point order, None when there is none.

    UTF-8 bytes have the same order, so a store can use it to seek in an index.
    """
    while prefix:
        last = ord(prefix[-1])
        if last == _BEFORE_SURROGATES:
            # The code points between them are surrogates, which no text contains.
            return prefix[:-1] + _AFTER_SURROGATES
        if last < sys.maxunicode:
            return prefix[:-1] + chr(last + 1)
        prefix = prefix[:-1]
    return None


@lru_cache(maxsize=4_096)
def parse_stream_name(name: str) -> StreamName | None:
    """The parts of a stream's name, None for a name that is not Clew's."""
    match name.split("/"):
        case [tenant, kind, id_]:
            return StreamName(unquote(tenant), kind, unquote(id_))
        case _:
            return None


def stream_id(name: str) -> str:
    """The id in a stream's name; the whole name if it is not Clew's."""
    parts = parse_stream_name(name)
    return name if parts is None else parts.id


def is_thread(name: str) -> bool:
    """Whether a stream's name is that of a thread."""
    parts = parse_stream_name(name)
    return parts is not None and parts.kind == "thread"


def check_id(value: str, what: str) -> None:
    """Raise InvalidNameError unless ``value`` is a name of 1 to 200 characters of valid Unicode."""
    if not isinstance(value, str):
        message = f"{what}: {type(value).__name__} is not a string."
        raise InvalidNameError(message)
    if not 1 <= len(value) <= MAX_LENGTH:
        message = f"{what}: {len(value)} characters, but it must have 1 to {MAX_LENGTH}."
        raise InvalidNameError(message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{what}: it holds a lone surrogate, which is not valid Unicode."
        raise InvalidNameError(message) from None


def check_idempotency_key(key: object) -> None:
    """Raise InvalidNameError unless ``key`` is a string of 1 to 200 printable characters."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_LENGTH or not key.isprintable():
        message = f"idempotency key: it must be 1 to {MAX_LENGTH} printable characters."
        raise InvalidNameError(message)


def check_checkpoint_name(name: str) -> None:
    """Raise InvalidNameError for a name that could be mistaken for a version, a message or a time."""
    check_id(name, "checkpoint name")
    if name.strip() != name or not name.isprintable():
        message = f"checkpoint name {name!r}: it begins or ends with a space, or holds a control character."
        raise InvalidNameError(message)
    if is_version(name) or message_number(name) is not None or moment(name) is not None:
        message = f"checkpoint name {name!r}: it reads as a version, a message or a time. Choose a word."
        raise InvalidNameError(message)


def check_label_name(name: str) -> None:
    """Raise InvalidNameError for a name that is too long for a database index. An empty name is valid."""
    if len(name) > MAX_LENGTH:
        message = f"label name: {len(name)} characters, but it may have at most {MAX_LENGTH}."
        raise InvalidNameError(message)


def is_version(text: str) -> bool:
    """Whether ``text`` is written as a version: digits only."""
    return re.fullmatch(r"[0-9]+", text) is not None


def message_number(text: str) -> int | None:
    """N of ``message:N``, None for any other text."""
    match = re.fullmatch(r"message:([0-9]{1,18})", text)
    return int(match[1]) if match else None


def moment(text: str) -> datetime | None:
    """The time in ``text``, which is ISO 8601 with or without an offset; None for any other text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


@lru_cache(maxsize=4_096)
def _escape(part: str) -> str:
    return quote(part, safe=_SAFE).replace("~", "%7E")


DIGEST_BYTES = 32
"""The bytes of a digest."""


def digest(state: bytes) -> bytes:
    """The SHA-256 of an event's stored bytes, 32 bytes. It remains when the bytes are shredded."""
    return sha256(state).digest()


def link(previous: bytes, stream: str, version: int, type_: str, state_digest: bytes) -> bytes:
    """The hash of an event: SHA-256 over the previous hash, the event's address and the digest of its bytes.

    The address is length-prefixed (4 bytes each for name and type, 8 for the version, big-endian), so that no two
    addresses have the same bytes. A fork's first event is linked to its parent's hash at the cut.
    """
    return sha256(previous + _prefixed(stream) + _VERSION(version) + _prefixed(type_) + state_digest).digest()


@lru_cache(maxsize=4_096)
def _prefixed(text: str) -> bytes:
    """Text after its length. Cached, because most events belong to streams that were written before."""
    encoded = text.encode()
    return _LENGTH(len(encoded)) + encoded
