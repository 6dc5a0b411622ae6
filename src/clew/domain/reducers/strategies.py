"""Reducers that keep the newest: so many groups, so many turns, or as much as a budget of tokens has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text
from clew.domain.models.request_parts import media_words, result_text
from clew.domain.reducers.configuration import checked_limit, checked_trigger
from clew.domain.reducers.errors import ReducerError
from clew.domain.reducers.message_groups import Group
from clew.domain.reducers.pipeline import Composable
from clew.domain.reducers.reducer import Reducible, Reduction, Trigger
from clew.domain.runs.errors import AgentConfigurationError


@dataclass(frozen=True, slots=True)
class KeepLast(Composable):
    """Keeps the newest ``n`` messages before the run's own input; a call with its results counts as one.

    The first system message and a summary are kept beside them.
    """

    n: int
    when: Trigger = "before_retrieval"

    def __post_init__(self) -> None:
        checked_limit(self, "n", self.n, 1)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"keep-last({self.n})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep the newest."""
        return Reduction(given.groups().newest(self.n))


@dataclass(frozen=True, slots=True)
class SlidingWindow(Composable):
    """Keeps the newest ``turns`` turns before the run's own input; each message of a user begins one.

    Fewer turns are kept with what was said before them. The first system message and a summary are kept in any case.
    """

    turns: int
    when: Trigger = "before_retrieval"

    def __post_init__(self) -> None:
        checked_limit(self, "turns", self.turns, 1)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"sliding-window({self.turns})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep the newest turns."""
        groups = given.groups()
        begins = [place for place, group in enumerate(groups.groups) if group.role == "user"]
        first = begins[-self.turns] if len(begins) >= self.turns else 0
        return Reduction(groups.newest(len(groups.groups) - first))


@dataclass(frozen=True, slots=True)
class TokenBudget(Composable):
    """Keeps as many of the newest messages as ``tokens`` have room for, in whole groups.

    ``count`` gives the tokens of a text; without it, they are taken to be a quarter of its characters, which is about
    right for English and too few for many other languages. It is given the words of each message, its calls and its
    results; media count as what they are called, and what a request has beside messages and instructions (tools,
    formats, what context providers add) does not count: leave room for it, and for the answer.

    The agent's instructions, the first system message and the run's own input are sent in any case, and without such
    input the newest group. If they alone are more than ``tokens``, exactly they are sent, and the log says so. There is
    room for a summary before there is for any other message. As the run's rounds count, it is asked again before each
    model call, at whichever moment else it is asked.
    """

    tokens: int
    count: Callable[[str], int] | None = None
    when: Trigger = "before_retrieval"

    counts_own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_limit(self, "tokens", self.tokens, 1)
        checked_trigger(self, self.when)
        if self.count is not None and not callable(self.count):
            raise AgentConfigurationError(
                f"TokenBudget: count={self.count!r} is no function. Give one that takes a text and returns its tokens."
            )

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"token-budget({self.tokens})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep what must be kept, then the newest while there is room."""
        groups = given.groups()
        spent = self._tokens(given.instructions or "") + self._of(groups.system) + self._of(groups.own)
        older = list(groups.groups)
        if older and not groups.own.messages:
            spent += self._of(older.pop())
        if spent > self.tokens:
            return Reduction(groups.newest(len(groups.groups) - len(older), summary=False), over_budget=True)
        summary = spent + self._of(groups.summary) <= self.tokens
        spent += self._of(groups.summary) if summary else 0
        while older and (spent := spent + self._of(older[-1])) <= self.tokens:
            older.pop()
        return Reduction(groups.newest(len(groups.groups) - len(older), summary=summary))

    def _of(self, group: Group | None) -> int:
        return 0 if group is None else sum(self._tokens(words(message)) for message in group.messages)

    def _tokens(self, text: str) -> int:
        if self.count is None:
            return -(-len(text) // 4)
        found = self.count(text)
        if not isinstance(found, int) or found < 0:
            raise ReducerError(
                self.name, f"was told {found!r} by its count, which is no number of tokens: give a whole number."
            )
        return found


def words(message: Message) -> str:
    """What is counted of a message: its words, calls and results, one a line."""
    return "\n".join(_words(message))


def _words(message: Message) -> Iterable[str]:
    for content in message.contents:
        match content:
            case Text(text=text) | Reasoning(text=text):
                yield text
            case FunctionCall(name=name, arguments=arguments):
                yield f"{name} {arguments}"
            case FunctionResult(result=result):
                yield result_text(result)
            case Media():
                yield media_words(content)
            case Raw(value=value):
                yield result_text(value)
            case _:  # approvals are not sent
                pass
