"""A clock that changes only when a test sets it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from clew.domain.events import to_time

SECOND = 1_000_000


@dataclass
class SettableClock:
    """Microseconds since 1970 (UTC)."""

    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def move(self, seconds: float) -> datetime:
        """Move the clock forward, or backward if negative; return the new time."""
        self.now += round(seconds * SECOND)
        return to_time(self.now)
