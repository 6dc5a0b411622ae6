"""What a thread sees of memory scopes when it reads them as they were at a cut, with what was learned from there on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clew.domain.memory.events import Provenance


class Inherited(NamedTuple):
    """How far a thread's past goes through an ancestor: the version that it leaves it at, and that one's position."""

    version: int
    position: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """A thread that reads scopes as of a cut: what was recorded up to ``position``, and what it has learned since.

    ``version`` is that of the cut. ``inherited`` are the threads between the fork that cut and this one, which it has
    its past from: what they learned up to there is the thread's, too. ``before`` is how the thread that was cut reads,
    None where it reads scopes as they are: nobody knows more of the time before the cut than was known there.
    """

    thread: str
    version: int
    position: int
    inherited: Mapping[str, Inherited]
    before: AsOf | None = None

    @property
    def first(self) -> int:
        """The position up to which everything is known, wherever it was learned."""
        return self.position if self.before is None else self.before.first

    def sees(self, position: int, learned: Provenance | None) -> bool:
        """Whether the thread knows what was recorded at a position, and was learned there."""
        if position <= self.position:
            return self.before is None or self.before.sees(position, learned)
        if learned is None:
            return False
        if learned.thread == self.thread:
            return True
        part = self.inherited.get(learned.thread)
        if part is None or learned.version > part.version:
            return False
        # From a message that is older than the cut it may have been learned before this thread began, or after.
        return learned.version > self.version or position <= part.position
