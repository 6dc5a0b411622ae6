"""Long results of functions, cut to their beginning with a note that says how long they were."""

from __future__ import annotations

from dataclasses import dataclass

from clew.domain.messages import Message
from clew.domain.models.request_parts import result_text
from clew.domain.reducers.configuration import checked_limit, checked_trigger
from clew.domain.reducers.cutting import SHORTEST
from clew.domain.reducers.pipeline import Composable
from clew.domain.reducers.reducer import Reducible, Reduction, Trigger


@dataclass(frozen=True, slots=True)
class TrimToolResults(Composable):
    """Cuts long results of functions to ``characters``, but for those in the newest ``keep_last`` groups.

    Results that are no text count as their JSON. What is left begins as the result does and ends with a note that says
    how many characters it had; the note counts, so ``characters`` are 40 at the least. The run's own are never cut.
    """

    characters: int
    keep_last: int = 1
    when: Trigger = "before_retrieval"

    def __post_init__(self) -> None:
        checked_limit(self, "characters", self.characters, SHORTEST)
        checked_limit(self, "keep_last", self.keep_last, 0)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"trim-tool-results({self.characters}, {self.keep_last})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep all, some of it shorter."""
        groups = given.groups()
        older = groups.groups[: max(0, len(groups.groups) - self.keep_last)]
        versions = {version for group in older for version in group.versions}
        trimmed = {
            each.version: self.characters
            for each in given.history
            if each.version in versions and each.message is not None and self._is_long(each.message)
        }
        return Reduction([each.version for each in given.history], trimmed=trimmed)

    def _is_long(self, message: Message) -> bool:
        return any(len(result_text(each.result)) > self.characters for each in message.results)
