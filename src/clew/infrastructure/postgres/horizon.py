"""How far readers in position order may go: what lies below the horizon is seen, or will never be there."""

from __future__ import annotations

import time
from collections.abc import Callable

OWN_WAIT = 1.0
"""Seconds that a reader waits for what this process has appended: an older transaction is open."""


class Horizon:
    """The lowest transaction that is open; ``look`` asks where that is."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self.newest = 0
        """The highest position that this process has appended."""
        self._seen = 0
        """Below it there is nothing that readers do not see."""

    def await_own(self) -> None:
        """Wait until what this process has appended lies below, and no longer for somebody who stays open."""
        newest = self.newest
        if newest < self._seen:
            return
        until = time.monotonic() + OWN_WAIT
        pause = 0.0005
        while (seen := self._look()) <= newest:
            if time.monotonic() > until:
                seen = newest + 1  # not again for the same
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        self._seen = max(self._seen, seen)
