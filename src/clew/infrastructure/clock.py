"""Time, ids and random bytes; the domain receives them as arguments."""

from __future__ import annotations

import os
import secrets
import time
from struct import Struct

SALT_BYTES = 16

RANDOM_BATCH = 256
"""How many ids or salts are made at a time: a call of the operating system costs about as much for one."""

_RANDOM_ID_BYTES = 10
"""Bytes of an id after its time: random, except for the version digit and the two variant bits."""

_AS_VERSION = bytes(0x70 | byte & 0x0F for byte in range(256))
_AS_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))

_split_salts = Struct(f"{SALT_BYTES}s" * RANDOM_BATCH).unpack

# Each entry is used once. The child of a fork must not use the entries of its parent.
_id_ends: list[str] = []
_salts: list[bytes] = []
os.register_at_fork(after_in_child=_id_ends.clear)
os.register_at_fork(after_in_child=_salts.clear)


def now() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


def event_id() -> str:
    """A UUIDv7 (RFC 9562, section 5.7) as 32 hex digits: later ids sort later, by the millisecond."""
    try:
        end = _id_ends.pop()
    except IndexError:
        end = _make_id_ends()
    return f"{time.time_ns() // 1_000_000:012x}{end}"


def thread_id() -> str:
    """Sixteen random hex digits. About five digits tell any two of ten thousand such ids apart."""
    return secrets.token_hex(8)


def salt() -> bytes:
    """Sixteen random bytes."""
    try:
        return _salts.pop()
    except IndexError:
        made: list[bytes] = list(_split_salts(os.urandom(SALT_BYTES * RANDOM_BATCH)))
        mine = made.pop()
        _salts.extend(made)
        return mine


def _make_id_ends() -> str:
    """Make the last twenty digits of many ids, keep them, and return one."""
    block = bytearray(os.urandom(_RANDOM_ID_BYTES * RANDOM_BATCH))
    block[0::_RANDOM_ID_BYTES] = block[0::_RANDOM_ID_BYTES].translate(_AS_VERSION)
    block[2::_RANDOM_ID_BYTES] = block[2::_RANDOM_ID_BYTES].translate(_AS_VARIANT)
    made = block.hex(" ", _RANDOM_ID_BYTES).split()
    mine = made.pop()
    _id_ends.extend(made)
    return mine
