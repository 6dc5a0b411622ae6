"""The port of reducers: what a reducer receives and returns, message groups, and checks of its configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from clew.domain.history import HistoryMessage
from clew.domain.messages import Message, Role, only_text
from clew.domain.model_view import model_view
from clew.domain.runs.errors import AgentConfigurationError

if TYPE_CHECKING:
    from clew.domain.history import HistoryMessage


_OWN = -1
"""Stands for the run's own messages; versions begin at 1, and 0 is a summary that is on no log yet."""


class Group(NamedTuple):
    """A message with calls and the results of these, or any other message.

    ``versions`` are in their order. ``messages`` is what a model is sent of it, each call with its result right after
    it, also one that says that there is none.
    """

    versions: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def role(self) -> Role | None:
        """Who begins it, None when nothing of it is sent."""
        return self.messages[0].role if self.messages else None


@dataclass(frozen=True, slots=True)
class Groups:
    """A history in groups, oldest first.

    ``system`` is the first system message, and ``summary`` what was said in place of older messages: they stand apart,
    and no limit counts them. ``own`` are the run's own messages, with what belongs to them of the history: calls whose
    results have only come with the run. ``unsaid`` are the versions of which a model is sent nothing: redacted messages
    and results without a call.
    """

    system: Group | None
    summary: Group | None
    groups: tuple[Group, ...]
    own: Group
    unsaid: tuple[int, ...]

    def newest(self, count: int, *, summary: bool = True) -> tuple[int, ...]:
        """The versions that are kept when of the groups only the newest ``count`` are, with all that stands apart."""
        chosen = self.groups[max(0, len(self.groups) - count) :]
        if len(chosen) == len(self.groups) and (summary or self.summary is None):
            unsaid = self.unsaid
        else:
            first = chosen[0].versions[0] if chosen else None
            unsaid = tuple(version for version in self.unsaid if first is not None and version > first)
        apart = (self.system, self.summary if summary else None, self.own)
        versions = [version for group in (*apart, *chosen) if group is not None for version in group.versions]
        return tuple(sorted((*versions, *unsaid)))


def groups_of(
    history: Iterable[HistoryMessage], own: Iterable[HistoryMessage] = (), *, summary: int | None = None
) -> Groups:
    """The groups of a history, with what a run has of its own after it; ``summary`` is the version of one in it.

    Calls and results are paired as they are for the model: by order, since call ids recur. Where one message has
    results of several, these are one group.
    """
    said = list(history)
    after = list(own)
    view = model_view((*said, *after))
    whole = _Whole()
    for each in after:
        whole.join(_OWN, each.version)
    caller = 0
    for version, message in zip(view.versions, view.messages, strict=True):
        if only_text(message) is not None:  # by far the most
            continue
        if message.results:
            whole.join(caller, version)
        elif message.calls:
            caller = version
    sent: dict[int, list[Message]] = {}
    for version, message in zip(view.versions, view.messages, strict=True):
        sent.setdefault(whole.of(version), []).append(message)
    shown = set(view.versions)
    versions: dict[int, list[int]] = {}
    unsaid = []
    for each in said:
        if each.version in shown:
            versions.setdefault(whole.of(each.version), []).append(each.version)
        else:
            unsaid.append(each.version)
    groups = {root: Group(tuple(versions.get(root, ())), tuple(messages)) for root, messages in sent.items()}
    system = next((each.version for each in said if _instructs(each) and each.version in shown), None)
    mine = groups.pop(whole.of(_OWN), Group())
    first = None if system is None else groups.pop(whole.of(system), None)
    older = None if summary is None else groups.pop(whole.of(summary), None)
    return Groups(first, older, tuple(groups.values()), mine, tuple(unsaid))


def _instructs(said: HistoryMessage) -> bool:
    return said.role in {"system", "developer"}


class _Whole:
    """Which versions belong together: each leads to one that stands for all of them."""

    def __init__(self) -> None:
        self._to: dict[int, int] = {}

    def of(self, version: int) -> int:
        """The version that stands for this one and those with it."""
        to = self._to
        while (above := to.get(version, version)) != version:
            to[version] = to.get(above, above)  # half the way next time
            version = above
        return version

    def join(self, one: int, other: int) -> None:
        """Say that two belong together."""
        self._to[self.of(other)] = self.of(one)


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


def checked_limit(owner: object, word: str, value: Any, least: int) -> None:
    """Raise AgentConfigurationError for a limit that is no whole number, or is below ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise AgentConfigurationError(
            f"{type(owner).__name__}: {word}={value!r} is no limit. Give a whole number, {least} or more."
        )


def checked_trigger(owner: object, when: Any) -> None:
    """Raise AgentConfigurationError for a moment that is none."""
    if when not in get_args(Trigger):
        known = " or ".join(map(repr, get_args(Trigger)))
        raise AgentConfigurationError(f"{type(owner).__name__}: when={when!r} is no moment to reduce at. Give {known}.")


def counts_own(reducer: Reducer) -> bool:
    """Whether what a reducer leaves depends on the run's own messages, so that it is asked again as they grow."""
    return getattr(reducer, "counts_own", False) is True


def checked_reducer(reducer: Any) -> Reducer:
    """The reducer, if it is one. Raises AgentConfigurationError for what has no name, no moment or no ``reduce``."""
    called = getattr(reducer, "name", None)
    if isinstance(reducer, type) or not isinstance(called, str) or not called:
        raise AgentConfigurationError(
            f"reducer={reducer!r} is none: it has no name. Give one such as KeepLast(20), or an object with name, when "
            "and reduce(given)."
        )
    checked_trigger(reducer, getattr(reducer, "when", None))
    if not callable(getattr(reducer, "reduce", None)):
        raise AgentConfigurationError(f"The reducer {called} has no method reduce(given). Give it one.")
    found: Reducer = reducer
    return found
