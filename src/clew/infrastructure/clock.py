"""Where time and ids come from; the domain is given both."""

from __future__ import annotations

import os
import secrets
import time

from clew.infrastructure.randomness import AT_A_TIME, Kept

_BEHIND_TIME = 10
"""Bytes of an id behind its time: random but for the digit that is the version and two bits that are the variant."""

_AS_VERSION = bytes(0x70 | byte & 0x0F for byte in range(256))
_AS_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))


def now() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


def _ends() -> list[str]:
    """The last twenty digits of many ids."""
    block = bytearray(os.urandom(_BEHIND_TIME * AT_A_TIME))
    block[0::_BEHIND_TIME] = block[0::_BEHIND_TIME].translate(_AS_VERSION)
    block[2::_BEHIND_TIME] = block[2::_BEHIND_TIME].translate(_AS_VARIANT)
    return block.hex(" ", _BEHIND_TIME).split()


_end = Kept(_ends).take


def event_id() -> str:
    """A UUIDv7 (RFC 9562, section 5.7) as 32 hex digits: ids made later sort later, by the millisecond."""
    return f"{time.time_ns() // 1_000_000:012x}{_end()}"


def thread_id() -> str:
    """Sixteen random hex digits: of ten thousand such ids, five digits or so tell any two apart."""
    return secrets.token_hex(8)
