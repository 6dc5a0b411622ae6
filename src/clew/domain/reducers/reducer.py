"""The port of reducers: their input and result, groups of messages, and checks of their configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from clew.domain.call_pairing import model_view
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message, Role, only_text
from clew.domain.runs.errors import AgentConfigurationError

_OWN = -1
"""Stands for the run's own messages. It is not a version: those begin at 1, and 0 is a summary not yet recorded."""


SYSTEM_ROLES = frozenset({"system", "developer"})


class Group(NamedTuple):
    """A message with calls and their results, or any other message.

    ``versions`` are in order. ``messages`` are those that a model receives, results directly after their calls; a
    missing result is replaced by one that says so.
    """

    versions: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def role(self) -> Role | None:
        """The role of its first message, None if nothing of it is sent."""
        return self.messages[0].role if self.messages else None


@dataclass(frozen=True, slots=True)
class Groups:
    """A history in groups, oldest first.

    ``system`` is the first system message, ``summary`` the message in place of older ones. Both are separate, and no
    limit counts them. ``own`` are the run's own messages, and the calls of the history whose results are among them.
    ``unsaid`` are the versions that are not sent: redacted messages and results without a call.
    """

    system: Group | None
    summary: Group | None
    groups: tuple[Group, ...]
    own: Group
    unsaid: tuple[int, ...]

    def newest(self, count: int, *, summary: bool = True) -> tuple[int, ...]:
        """The versions to keep if only the newest ``count`` groups stay, including versions outside the groups."""
        chosen = self.groups[max(0, len(self.groups) - count) :]
        if len(chosen) == len(self.groups) and (summary or self.summary is None):
            unsaid = self.unsaid
        else:
            first = chosen[0].versions[0] if chosen else None
            unsaid = tuple(version for version in self.unsaid if first is not None and version > first)
        separate = (self.system, self.summary if summary else None, self.own)
        versions = [version for group in (*separate, *chosen) if group is not None for version in group.versions]
        return tuple(sorted((*versions, *unsaid)))


def groups_of(
    history: Iterable[HistoryMessage], own: Iterable[HistoryMessage] = (), *, summary: int | None = None
) -> Groups:
    """The groups of a history and of the run's own messages after it; ``summary`` is the version of a summary in it.

    Calls and results are matched as in the model view: by order, because call ids repeat. Messages that share a message
    of results are one group.
    """
    before = list(history)
    after = list(own)
    view = model_view((*before, *after))
    unions = _Unions()
    for each in after:
        unions.join(_OWN, each.version)
    caller = 0
    for version, message in zip(view.versions, view.messages, strict=True):
        if only_text(message) is not None:  # most messages
            continue
        if message.results:
            unions.join(caller, version)
        elif message.calls:
            caller = version
    sent: dict[int, list[Message]] = {}
    for version, message in zip(view.versions, view.messages, strict=True):
        sent.setdefault(unions.of(version), []).append(message)
    viewed = set(view.versions)
    versions: dict[int, list[int]] = {}
    unsaid = []
    for each in before:
        if each.version in viewed:
            versions.setdefault(unions.of(each.version), []).append(each.version)
        else:
            unsaid.append(each.version)
    groups = {root: Group(tuple(versions.get(root, ())), tuple(messages)) for root, messages in sent.items()}
    system = next((each.version for each in before if each.role in SYSTEM_ROLES and each.version in viewed), None)
    own_group = groups.pop(unions.of(_OWN), Group())
    system_group = None if system is None else groups.pop(unions.of(system), None)
    summary_group = None if summary is None else groups.pop(unions.of(summary), None)
    return Groups(system_group, summary_group, tuple(groups.values()), own_group, tuple(unsaid))


class _Unions:
    """Sets of versions that belong together; each set is represented by one version."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def of(self, version: int) -> int:
        """The representative of a version's set."""
        parents = self._parents
        while (parent := parents.get(version, version)) != version:
            parents[version] = parents.get(parent, parent)  # shorten the chain for the next call
            version = parent
        return version

    def join(self, one: int, other: int) -> None:
        """Join the sets of two versions."""
        self._parents[self.of(other)] = self.of(one)


ReductionTrigger: TypeAlias = Literal["after_message_added", "before_retrieval"]
"""When a history is reduced: after a run has added its messages, or before a run reads it."""


@dataclass(frozen=True, slots=True)
class Reducible:
    """The input of a reducer.

    ``history`` are the messages before the run's own input, oldest first. The summary of an earlier reduction comes
    first, or after a leading system message, in place of the messages that it summarizes. ``summary`` is then its
    version: that of the ``history-reduced`` event, or 0 if the previous reducer in a pipeline has just made it.
    ``input`` are the new messages of the run and its rounds. They are always sent, and count for budgets, as the
    agent's ``instructions`` do.
    """

    history: Sequence[HistoryMessage]
    input: Sequence[HistoryMessage] = ()
    instructions: str | None = None
    summary: int | None = None

    def groups(self) -> Groups:
        """The history in groups. Each group is kept or left out as a whole."""
        return groups_of(self.history, self.input, summary=self.summary)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The part of a history that a model receives: the versions that are ``kept``.

    ``summary`` is sent in place of all other messages, including an earlier summary. ``trimmed`` maps versions of kept
    messages to the number of characters to which each of their results is cut, including the note on the cut.
    ``over_budget`` is true if the messages that must be sent exceed the budget.
    """

    kept: Sequence[int]
    summary: Message | None = None
    trimmed: Mapping[int, int] = field(default_factory=dict)
    over_budget: bool = False


class Reducer(Protocol):
    """Chooses the messages that a model receives. Pure: the same messages give the same reduction.

    Only whole groups can be left out: a message with calls and their results. The first system message always stays. A
    reducer that asks a model for a summary returns an awaitable. With ``counts_own = True`` the run's own messages
    count, and the reducer also runs before each model call, independent of ``when``. A history of more than 500
    messages is reduced in a thread.

    A reducer gets the whole history, unless an earlier summary stands for a part of it. With ``from_newest = True`` it
    promises to decide about each group by the newer ones, the first system message and the summary, and to leave out
    every group before one that it leaves out. Then it gets only the newest part, however long the thread is.
    """

    @property
    def name(self) -> str:
        """Its name in the log, with its limits, such as ``keep-last(2)``."""
        ...

    @property
    def when(self) -> ReductionTrigger:
        """When it reduces."""
        ...

    def reduce(self, given: Reducible) -> Reduction | Awaitable[Reduction]:
        """The part of the history to keep."""
        ...


def checked_limit(owner: object, word: str, value: Any, least: int) -> None:
    """Raise AgentConfigurationError for a limit that is not a whole number, or is below ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise AgentConfigurationError(
            f"{type(owner).__name__}: {word}={value!r} is not a limit. Give a whole number, {least} or more."
        )


def checked_trigger(owner: object, when: Any) -> None:
    """Raise AgentConfigurationError for an unknown trigger."""
    if when not in get_args(ReductionTrigger):
        known = " or ".join(map(repr, get_args(ReductionTrigger)))
        raise AgentConfigurationError(
            f"{type(owner).__name__}: when={when!r} is not a moment to reduce at. Give {known}."
        )


def counts_own(reducer: Reducer) -> bool:
    """Whether the run's own messages count for a reducer, so that it runs again as they grow."""
    return getattr(reducer, "counts_own", False) is True


def decides_from_newest(reducer: Reducer) -> bool:
    """Whether a reducer needs only the newest part of a history."""
    return getattr(reducer, "from_newest", False) is True


def checked_reducer(reducer: Any) -> Reducer:
    """The reducer. Raises AgentConfigurationError for an object without a name, a trigger or ``reduce``."""
    name = getattr(reducer, "name", None)
    if isinstance(reducer, type) or not isinstance(name, str) or not name:
        raise AgentConfigurationError(
            f"reducer={reducer!r} is not a reducer: it has no name. Give KeepLast(20), or an object with name, when "
            "and reduce(given)."
        )
    checked_trigger(reducer, getattr(reducer, "when", None))
    if not callable(getattr(reducer, "reduce", None)):
        raise AgentConfigurationError(f"The reducer {name} has no method reduce(given). Give it one.")
    checked: Reducer = reducer
    return checked
