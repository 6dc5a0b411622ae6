"""Where time and ids come from; the domain is given both."""

from __future__ import annotations

import secrets
import time

from clew.infrastructure.randomness import sixteen_bytes


def now() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


def event_id() -> str:
    """A UUIDv7 (RFC 9562, section 5.7) as 32 hex digits: ids made later sort later, by the millisecond."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(sixteen_bytes(), "big")
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (random >> 68) & 0x0FFF
    low = 0x8000_0000_0000_0000 | random & 0x3FFF_FFFF_FFFF_FFFF
    return f"{high:016x}{low:016x}"


def thread_id() -> str:
    """Sixteen random hex digits: of ten thousand such ids, five digits or so tell any two apart."""
    return secrets.token_hex(8)
