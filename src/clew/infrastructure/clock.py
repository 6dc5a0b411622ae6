"""Where time and ids come from; the domain is given both."""

from __future__ import annotations

import secrets
import time

from clew.infrastructure.randomness import sixteen_bytes

_VARIANT = "89ab"
"""The digit with two bits that are the variant, and two that are random."""


def now() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


def event_id() -> str:
    """A UUIDv7 (RFC 9562, section 5.7) as 32 hex digits: ids made later sort later, by the millisecond."""
    random = sixteen_bytes()
    digits = random.hex()
    milliseconds = time.time_ns() // 1_000_000
    return f"{milliseconds:012x}7{digits[2:5]}{_VARIANT[random[0] & 3]}{digits[5:20]}"


def thread_id() -> str:
    """Sixteen random hex digits: of ten thousand such ids, five digits or so tell any two apart."""
    return secrets.token_hex(8)
