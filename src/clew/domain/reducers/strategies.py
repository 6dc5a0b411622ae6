"""The reducers of Clew, and pipelines of reducers: they keep the newest messages, or shorten long tool results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, ClassVar

from clew.domain.errors import ReducerError
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text
from clew.domain.models.chat_requests import media_words, result_text, result_words
from clew.domain.reducers.history_reduction import SHORTEST, checked, cut, summary_at, text_of_result, with_summary
from clew.domain.reducers.reducer import (
    Group,
    Reducer,
    Reducible,
    Reduction,
    ReductionTrigger,
    checked_limit,
    checked_reducer,
    checked_trigger,
    counts_own,
    decides_from_newest,
)
from clew.domain.runs.errors import AgentConfigurationError

NEW = 0
"""The version of a summary that is not recorded yet."""


class Composable:
    """A reducer that ``|`` chains with another."""

    __slots__ = ()

    def __or__(self, other: Reducer) -> Reducers:
        return Reducers(self, other)

    def __ror__(self, other: Reducer) -> Reducers:
        return Reducers(other, self)


@dataclass(frozen=True, init=False)
class Reducers(Composable):
    """A pipeline of reducers: each reduces the result of the one before it. Write ``Reducers(a, b)``, or ``a | b``.

    They all run at the same moment: give ``when`` if their own values differ. Put a budget last, because a later
    reducer could exceed it again. The result is ``over_budget`` if the result of any reducer is.
    """

    reducers: tuple[Reducer, ...]
    when: ReductionTrigger

    def __init__(self, *reducers: Any, when: ReductionTrigger | None = None) -> None:
        if not reducers:
            raise AgentConfigurationError("Reducers() is empty. Give at least one, such as KeepLast(20).")
        flat: list[Reducer] = []
        for each in reducers:
            flat += each.reducers if isinstance(each, Reducers) else [checked_reducer(each)]
        moments = {each.when for each in reducers} if when is None else {when}
        if len(moments) > 1:
            names = ", ".join(f"{each.name}: {each.when}" for each in flat)
            raise AgentConfigurationError(f"These reducers run at different moments ({names}). Give when=.")
        moment = moments.pop()
        checked_trigger(self, moment)
        object.__setattr__(self, "reducers", tuple(flat))
        object.__setattr__(self, "when", moment)

    @property
    def name(self) -> str:
        """Its name in the log."""
        return " | ".join(each.name for each in self.reducers)

    @property
    def counts_own(self) -> bool:
        """Whether the run's own messages count for one of them."""
        return any(map(counts_own, self.reducers))

    @property
    def from_newest(self) -> bool:
        """Whether all of them need only the newest part of a history."""
        return all(map(decides_from_newest, self.reducers))

    def reduce(self, given: Reducible) -> Reduction | Awaitable[Reduction]:
        """The result of the last reducer; an awaitable if one of them returns an awaitable."""
        return _reduce_all(self.reducers, given)


def _reduce_all(reducers: Sequence[Reducer], given: Reducible) -> Reduction | Awaitable[Reduction]:
    first = reducers[0].reduce(given)
    return _reduce_later(first, reducers, given) if isawaitable(first) else _reduce_rest(first, reducers, given)


async def _reduce_later(first: Awaitable[Reduction], reducers: Sequence[Reducer], given: Reducible) -> Reduction:
    last = _reduce_rest(await first, reducers, given)
    return await last if isawaitable(last) else last


def _reduce_rest(result: Reduction, reducers: Sequence[Reducer], given: Reducible) -> Reduction | Awaitable[Reduction]:
    """Apply the reducers after the first to its result."""
    first = checked(result, given, reducers[0].name)
    if len(reducers) == 1:
        return first
    last = _reduce_all(reducers[1:], _next_input(given, first))
    return _combined_later(first, last) if isawaitable(last) else _combined(first, last)


async def _combined_later(first: Reduction, last: Awaitable[Reduction]) -> Reduction:
    return _combined(first, await last)


def _next_input(given: Reducible, result: Reduction) -> Reducible:
    """The input of the next reducer, from the result of the one before it."""
    kept = set(result.kept)
    history = [
        cut(each, result.trimmed[each.version]) if each.version in result.trimmed else each
        for each in given.history
        if each.version in kept
    ]
    if result.summary is not None:
        return replace(given, history=with_summary(history, summary_at(NEW, result.summary)), summary=NEW)
    return replace(given, history=history, summary=given.summary if given.summary in kept else None)


def _combined(first: Reduction, last: Reduction) -> Reduction:
    kept = [version for version in last.kept if version != NEW or first.summary is None]
    versions = set(kept)
    summary = first.summary if last.summary is None and NEW in last.kept else last.summary
    trimmed = {version: most for version, most in first.trimmed.items() if version in versions}
    for version, most in last.trimmed.items():
        trimmed[version] = min(most, trimmed.get(version, most))
    return Reduction(kept, summary, trimmed, first.over_budget or last.over_budget)


@dataclass(frozen=True, slots=True)
class KeepLast(Composable):
    """Keeps the newest ``n`` messages before the run's own input. A call with its results counts as one message.

    The first system message and a summary are kept as well.
    """

    n: int
    when: ReductionTrigger = "before_retrieval"

    from_newest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_limit(self, "n", self.n, 1)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """Its name in the log."""
        return f"keep-last({self.n})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep the newest groups."""
        return Reduction(given.groups().newest(self.n))


@dataclass(frozen=True, slots=True)
class SlidingWindow(Composable):
    """Keeps the newest ``turns`` turns before the run's own input. Each message of a user begins a turn.

    If there are fewer turns, the messages before them stay, too. The first system message and a summary always stay.
    """

    turns: int
    when: ReductionTrigger = "before_retrieval"

    from_newest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_limit(self, "turns", self.turns, 1)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """Its name in the log."""
        return f"sliding-window({self.turns})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep the newest turns."""
        groups = given.groups()
        begins = [place for place, group in enumerate(groups.groups) if group.role == "user"]
        first = begins[-self.turns] if len(begins) >= self.turns else 0
        return Reduction(groups.newest(len(groups.groups) - first))


@dataclass(frozen=True, slots=True)
class TokenBudget(Composable):
    """Keeps as many of the newest messages as fit into ``tokens``, in whole groups.

    ``count`` returns the number of tokens of a text. Without it, four characters count as one token. That is about
    right for English, but many other languages have more tokens. The text of each message, its calls and its results
    count; media count by their address. Tools, formats and the contributions of context providers do not count: leave
    room for them, and for the answer.

    The agent's instructions, the first system message and the run's own input are always sent; without such input, the
    newest group is. If they exceed ``tokens``, only they are sent, and the log records it. A summary is kept before any
    other message. Because the run's rounds count, the history is also reduced before each model call.
    """

    tokens: int
    count: Callable[[str], int] | None = None
    when: ReductionTrigger = "before_retrieval"

    counts_own: ClassVar[bool] = True
    from_newest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_limit(self, "tokens", self.tokens, 1)
        checked_trigger(self, self.when)
        if self.count is not None and not callable(self.count):
            raise AgentConfigurationError(
                f"TokenBudget: count={self.count!r} is not a function. Give one from text to number of tokens."
            )

    @property
    def name(self) -> str:
        """Its name in the log."""
        return f"token-budget({self.tokens})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep what must be sent, then the newest groups that fit."""
        groups = given.groups()
        spent = (
            self._tokens(given.instructions or "") + self._group_tokens(groups.system) + self._group_tokens(groups.own)
        )
        older = list(groups.groups)
        if older and not groups.own.messages:
            spent += self._group_tokens(older.pop())
        if spent > self.tokens:
            return Reduction(groups.newest(len(groups.groups) - len(older), summary=False), over_budget=True)
        summary = spent + self._group_tokens(groups.summary) <= self.tokens
        spent += self._group_tokens(groups.summary) if summary else 0
        while older and (spent := spent + self._group_tokens(older[-1])) <= self.tokens:
            older.pop()
        return Reduction(groups.newest(len(groups.groups) - len(older), summary=summary))

    def _group_tokens(self, group: Group | None) -> int:
        return 0 if group is None else sum(map(self._tokens, map(counted_text, group.messages)))

    def _tokens(self, text: str) -> int:
        if self.count is None:
            return -(-len(text) // 4)
        number = self.count(text)
        if not isinstance(number, int) or number < 0:
            raise ReducerError(
                self.name, f"got {number!r} from its count, which is not a number of tokens. Return a whole number."
            )
        return number


def counted_text(message: Message) -> str:
    """The text of a message that counts: its text, calls and results, each on a line."""
    return "\n".join(_counted_parts(message))


def _counted_parts(message: Message) -> Iterable[str]:
    for content in message.contents:
        match content:
            case Text(text=text) | Reasoning(text=text):
                yield text
            case FunctionCall(name=name, arguments=arguments):
                yield f"{name} {arguments}"
            case FunctionResult():
                yield result_words(content)
            case Media():
                yield media_words(content)
            case Raw(value=value):
                yield result_text(value)
            case _:  # approvals are not sent
                pass


@dataclass(frozen=True, slots=True)
class TrimToolResults(Composable):
    """Cuts long results of functions to ``characters``, except in the newest ``keep_last`` groups.

    A result that is not text is measured as JSON. A cut result ends with a note on its full length. The note counts, so
    ``characters`` must be at least 40. The run's own results are never cut.
    """

    characters: int
    keep_last: int = 1
    when: ReductionTrigger = "before_retrieval"

    from_newest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_limit(self, "characters", self.characters, SHORTEST)
        checked_limit(self, "keep_last", self.keep_last, 0)
        checked_trigger(self, self.when)

    @property
    def name(self) -> str:
        """Its name in the log."""
        return f"trim-tool-results({self.characters}, {self.keep_last})"

    def reduce(self, given: Reducible) -> Reduction:
        """Keep all messages, with shorter results."""
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
        return any(len(text_of_result(each)) > self.characters for each in message.results)
