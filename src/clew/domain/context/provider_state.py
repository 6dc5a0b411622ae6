"""What a thread keeps for components: their states, and what its history was reduced to, as a fold over the path."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from clew.domain.context.events import ContextStateRecorded, HistoryReduced
from clew.domain.json_values import Json
from clew.domain.runs.events import RunAbandoned, RunCompleted, RunFailed, RunStarted

if TYPE_CHECKING:
    from clew.domain.events import Event

T = TypeVar("T")

KEEPS = frozenset(
    {"context-state-recorded", "history-reduced", "run-started", "run-completed", "run-failed", "run-abandoned"}
)
"""The types of the events that matter here."""

HISTORY_STORE = "history-store"
"""The id under which the state of a history store is kept; also what the log calls a history that it bounded."""


_ORDINARY = 500
"""Characters of an ordinary message."""


class KeptState(NamedTuple):
    """A component's state, where it was recorded, and the version of the last message that it was shown by then."""

    version: int
    stream: str
    state: Json
    seen: int


class Kept(NamedTuple):
    """What a thread keeps at a version.

    ``states`` are by the ids of their providers, ``reductions`` by those of agents, each with its version. ``served``
    says where the last run on the path was completed that a provider served. ``named`` are the providers that served
    the newest run as the thread's, or were missing there; ``own`` are those of each agent, as it last ran, and that
    were missing there. ``serving`` are the providers of the runs that have begun and not ended, by run. Nothing in it
    is changed in place.
    """

    states: Mapping[str, KeptState] = MappingProxyType({})
    reductions: Mapping[str, tuple[int, HistoryReduced]] = MappingProxyType({})
    served: Mapping[str, int] = MappingProxyType({})
    named: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    serving: Mapping[str, tuple[str, ...]] = MappingProxyType({})


NOTHING_KEPT = Kept()


def kept_after(kept: Kept, event: Event) -> Kept:
    """What is kept after one more event. This is the definition; KeptBuilder is its fast form.

    A rewind goes back to the states, the reductions and ``served`` of its target, which the caller has to look up.
    """
    match event.data:
        case ContextStateRecorded(provider=provider, state=state, seen=seen):
            found = KeptState(event.version, event.stream, state, seen)
            return kept._replace(states={**kept.states, provider: found})
        case HistoryReduced(agent=agent):
            return kept._replace(reductions={**kept.reductions, agent: (event.version, event.data)})
        case RunStarted(agent=agent, fingerprint=fingerprint):
            providers, missing = event.data.providers, event.data.missing
            own = [id_ for id_ in kept.own.get(agent.id, ()) if id_ in missing and id_ not in kept.named]
            return kept._replace(
                serving={event.run_id or "": (*fingerprint.providers, *providers, *event.data.run_providers)},
                named=tuple(dict.fromkeys((*providers, *(id_ for id_ in missing if id_ not in own)))),
                own={**kept.own, agent.id: (*fingerprint.providers, *own)},
            )
        case RunCompleted():
            over = kept.serving.get(event.run_id or "", ())
            return kept._replace(serving={}, served={**kept.served, **dict.fromkeys(over, event.version)})
        case RunFailed() | RunAbandoned():
            return kept._replace(serving={})
        case _:
            return kept


class KeptBuilder:
    """What matters of a lineage that is read once and forwards, and from it what is kept at any of its versions.

    ``weight`` says how much that is, in messages of an ordinary length: every state that ever was is held.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._states: dict[str, list[tuple[int, KeptState]]] = {}
        self._reductions: dict[str, list[tuple[int, tuple[int, HistoryReduced]]]] = {}
        self._served: dict[str, list[tuple[int, int]]] = {}
        self._runs: list[Event] = []
        self._newest = NOTHING_KEPT

    def take(self, event: Event) -> None:
        """Take in the next event of a type that matters."""
        self.weight += 1
        match event.data:
            case ContextStateRecorded(provider=provider, state=state, seen=seen):
                self.weight += len(repr(state)) // _ORDINARY
                found = KeptState(event.version, event.stream, state, seen)
                self._states.setdefault(provider, []).append((event.version, found))
            case HistoryReduced(agent=agent):
                self._reductions.setdefault(agent, []).append((event.version, (event.version, event.data)))
            case _:
                completed = isinstance(event.data, RunCompleted)
                for provider in self._newest.serving.get(event.run_id or "", ()) if completed else ():
                    self._served.setdefault(provider, []).append((event.version, event.version))
                self._runs.append(event)
                self._newest = kept_after(self._newest, event)

    def kept(self, path: Sequence[tuple[int, int]]) -> Kept:
        """What is kept where the path consists of these spans of versions."""
        last = path[-1][1] if path else 0
        kept = self._newest
        if self._runs and self._runs[-1].version > last:
            kept = NOTHING_KEPT
            for event in takewhile(lambda event: event.version <= last, self._runs):
                kept = kept_after(kept, event)
        return kept._replace(
            states=_newest(self._states, path),
            reductions=_newest(self._reductions, path),
            served=_newest(self._served, path),
        )


def _newest(found: Mapping[str, list[tuple[int, T]]], path: Sequence[tuple[int, int]]) -> dict[str, T]:
    """Of each the newest one on the path."""
    starts = [first for first, _ in path]

    def on_path(version: int) -> bool:
        index = bisect_right(starts, version) - 1
        return index >= 0 and version <= path[index][1]

    newest = {name: next((each for at, each in reversed(them) if on_path(at)), None) for name, them in found.items()}
    return {name: each for name, each in newest.items() if each is not None}
