"""The hash chain: a thread's head hash names its whole past, as a git commit does."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from struct import Struct

_LENGTH = Struct(">I").pack
_VERSION = Struct(">Q").pack

ROOT = bytes(32)
"""What the first event of a stream without a parent is linked to."""


def digest(state: bytes) -> bytes:
    """The SHA-256 of an event's stored bytes, 32 bytes: what is left of them when they are shredded."""
    return sha256(state).digest()


def link(previous: bytes, stream: str, version: int, type_: str, state_digest: bytes) -> bytes:
    """The hash of an event: SHA-256 over the previous hash, the event's address and the digest of its bytes.

    The address is length-prefixed (4 bytes each for name and type, 8 for the version, big-endian), so that no two
    addresses have the same bytes. A fork's first event is linked to its parent's hash at the cut.
    """
    return sha256(previous + _prefixed(stream) + _VERSION(version) + _prefixed(type_) + state_digest).digest()


@lru_cache(maxsize=4_096)
def _prefixed(text: str) -> bytes:
    """Text after its length; most events are of streams that others were just written to."""
    encoded = text.encode()
    return _LENGTH(len(encoded)) + encoded
