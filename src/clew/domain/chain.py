"""The hash chain: a thread's head hash names its whole past, as a git commit does."""

from __future__ import annotations

import struct
from hashlib import sha256

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
    name, kind = stream.encode(), type_.encode()
    address = struct.pack(">I", len(name)) + name + struct.pack(">QI", version, len(kind)) + kind
    return sha256(previous + address + state_digest).digest()
