"""The port of reducers: messages in, what is kept out."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.reducers.message_groups import Groups, groups_of

Trigger: TypeAlias = Literal["after_message_added", "before_retrieval"]
"""When a history is reduced: as it grows, when a run has added its messages, or as it is read, when one begins."""


@dataclass(frozen=True, slots=True)
class Reducible:
    """What a reducer is given.

    ``history`` are the messages before the run's own input, oldest first. A summary that an earlier reduction made
    comes first among them, after a system message that begins them, in place of what it sums up; ``summary`` is then
    its version, which is that of the ``history-reduced`` event, or 0 when the reducer before this one has just made it.
    ``input`` are the new messages of the run, and its rounds: they are sent whatever a reducer says, but count for
    budgets. ``instructions`` are the agent's, which count, too.
    """

    history: Sequence[HistoryMessage]
    input: Sequence[HistoryMessage] = ()
    instructions: str | None = None
    summary: int | None = None

    def groups(self) -> Groups:
        """The history in groups, which are kept or left out as wholes."""
        return groups_of(self.history, self.input, summary=self.summary)


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is left of a history: the versions that are ``kept``.

    ``summary`` is said in place of what is left out, and so of an earlier summary, too. ``trimmed`` maps versions of
    kept messages to the characters that each of their results is cut to, the note on that among them. ``over_budget``
    says that what must be sent is more than was allowed.
    """

    kept: Sequence[int]
    summary: Message | None = None
    trimmed: Mapping[int, int] = field(default_factory=dict)
    over_budget: bool = False


class Reducer(Protocol):
    """Chooses what of a history a model is sent. Pure: the same messages give the same reduction.

    Only whole groups may go: a message with calls and the results of these. The first system message stays. One that
    asks a model for a summary is awaited. One for which the run's own messages count has ``counts_own = True``, and is
    asked again before each model call, whatever ``when`` says.
    """

    @property
    def name(self) -> str:
        """What the log calls it, with its limits, such as ``keep-last(2)``."""
        ...

    @property
    def when(self) -> Trigger:
        """When it is asked."""
        ...

    def reduce(self, given: Reducible) -> Reduction | Awaitable[Reduction]:
        """What is left."""
        ...
