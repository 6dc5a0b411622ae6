"""The groups of a history: what stays or goes together when it is reduced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clew.domain.messages import Message, Role, only_text
from clew.domain.model_view import model_view

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
