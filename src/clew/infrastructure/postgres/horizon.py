"""How far readers in position order may go: what lies below the horizon is seen, or will never be there."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple, Protocol

from clew.infrastructure.postgres.session import Rows
from clew.infrastructure.postgres.sql_files import statements

STAYS = 0.05
"""Seconds after which a transaction is one that stays open: it is asked whether it may append."""

OWN_WAIT = 1.0
"""Seconds that a reader waits for what this process has appended, beside another's append that stays open."""

_SQL = statements("reads.sql")


class Query(Protocol):
    """How a datastore is asked."""

    def __call__(self, sql: str, parameters: dict[str, Any] | None = None, *, based: bool = False) -> Rows:
        """The rows of a statement."""
        ...


class Floor(NamedTuple):
    """What readers of a server have come past, and never go back below."""

    server: int
    """When it was started, in microseconds since 1970: another that takes its place may not have come so far."""
    position: int


class Horizon:
    """The lowest transaction that is open; where one stays so, the lowest of those that may append.

    Which these are takes longer to ask.
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        self.newest = 0
        """The highest position that this process has appended."""
        self._waited = 0
        """Below it what this process has appended has been waited for."""
        self._lowest = 0, 0.0
        """Where the horizon was, and since when."""
        self._looked = 0.0
        self._floor = Floor(0, 0)
        self.restart()

    def restart(self) -> None:
        """Go on in the child of a fork: the parent may have had the lock."""
        self._lock = threading.Lock()

    def floor(self) -> Floor:
        """Where the horizon is at the least, for the next statement, which sees more where no transaction stays open.

        What this process has appended lies below, unless an older append stays open: it is waited for once.
        """
        if self.newest >= self._waited:
            self._wait(self.newest)
        elif time.monotonic() - self._looked >= STAYS:
            self.look()
        return self._floor

    def look(self) -> int:
        """Where it is now."""
        lowest, end = self._query(_SQL["horizon"], based=True)[0]
        now = self._looked = time.monotonic()
        if lowest != self._lowest[0]:
            self._lowest = lowest, now
        if lowest < end and now - self._lowest[1] >= STAYS:
            position, server = self._query(_SQL["floor"], based=True)[0]
            with self._lock:
                if server != self._floor.server or position > self._floor.position:
                    self._floor = Floor(server, position)
        return max(int(lowest), self._floor.position)

    def _wait(self, newest: int) -> None:
        until = time.monotonic() + OWN_WAIT
        pause = 0.0005
        while (seen := self.look()) <= newest:
            if time.monotonic() > until:
                seen = newest + 1  # not again for the same
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        self._waited = max(self._waited, seen)
