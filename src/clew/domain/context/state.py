"""What components recorded in a thread: provider states, history reductions and providers of runs, as of a version.

``next_context_state`` defines it. ``ContextVersions`` says which events hold it, so that a reader finds them from the
control of a thread, without those before and between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clew.domain.context.events import ContextStateRecorded, HistoryReduced
from clew.domain.json_values import Json, bytes_in_memory
from clew.domain.runs.events import RunAbandoned, RunCompleted, RunFailed, RunStarted

if TYPE_CHECKING:
    from clew.domain.events import Event

T = TypeVar("T")

RESTARTED = "thread-restarted"
"""The type of the event with which the id of a purged thread is used again."""

CONTEXT_STATE_EVENTS = frozenset(
    {
        "context-state-recorded",
        "history-reduced",
        "run-started",
        "run-completed",
        "run-failed",
        "run-abandoned",
        RESTARTED,
    }
)
"""The types of the events that change the context state of a thread."""

HISTORY_STORE = "history-store"
"""The provider id of history stores: of their states, and of reductions that a history store made."""

STANDING_APPROVALS = "standing-approvals"
"""The provider id of the standing approvals of a thread."""

OWN_IDS = frozenset({HISTORY_STORE, STANDING_APPROVALS})
"""Ids that no context provider has."""

_EVENT_BYTES = 1_000
"""An estimate of the memory of an event without its state."""


class ProviderState(NamedTuple):
    """The state of a provider: the version and stream of its event, and the last message that the provider saw."""

    version: int
    stream: str
    state: Json
    seen: int


class ContextState(NamedTuple):
    """What components recorded up to a version. Its mappings are never changed in place.

    ``states`` are the provider states by provider id; ``reductions`` the history reductions by agent id, each with its
    version. ``completed`` is, by provider id, the version of the last completed run on the path that the provider
    served. ``thread_providers`` are the thread's own providers in the newest run, and those that it lacked.
    ``agent_providers`` are those of each agent in its last run, and those that it lacked. ``open_runs`` are the
    providers of the run that has not ended, by its id, if it has any.
    """

    states: Mapping[str, ProviderState] = MappingProxyType({})
    reductions: Mapping[str, tuple[int, HistoryReduced]] = MappingProxyType({})
    completed: Mapping[str, int] = MappingProxyType({})
    thread_providers: tuple[str, ...] = ()
    agent_providers: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    open_runs: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def seen_by(self, provider: str) -> int:
        """The version up to which a provider has seen all messages."""
        state, completed = self.states.get(provider), self.completed.get(provider, 0)
        return completed if state is None else max(completed, state.seen)


NO_CONTEXT_STATE = ContextState()

_NONE: dict[str, Any] = {}
"""The dict of new ContextVersions. No dict of them is changed in place."""


class ContextVersions(NamedTuple):
    """The versions of the events that hold a ContextState; the fields have the same names.

    After a rewind, a state, a reduction or a completed run whose version is 0 is that of version ``back``, the target
    of the newest rewind, if it has one.
    """

    states: dict[str, int] = _NONE
    reductions: dict[str, int] = _NONE
    completed: dict[str, int] = _NONE
    thread_providers: tuple[str, ...] = ()
    agent_providers: dict[str, tuple[str, ...]] = _NONE
    open_runs: dict[str, tuple[str, ...]] = _NONE
    back: int = 0

    def rewound(self, to: int) -> ContextVersions:
        """These versions after a rewind."""
        if not any(self[:3]):
            return self
        states, reductions, completed = (dict.fromkeys(each, 0) for each in self[:3])
        return self._replace(states=states, reductions=reductions, completed=completed, back=to)

    def known(self, versions_at: Callable[[int], ContextVersions]) -> ContextVersions:
        """These versions without any 0: ``versions_at`` is asked for those at the targets of rewinds."""
        known = self
        while not all(all(each.values()) for each in known[:3]):
            before = versions_at(known.back) if known.back else NO_CONTEXT_VERSIONS
            states, reductions, completed = (
                {key: version or earlier[key] for key, version in each.items() if version or key in earlier}
                for each, earlier in zip(known[:3], before[:3], strict=True)
            )
            known = known._replace(states=states, reductions=reductions, completed=completed, back=before.back)
        return known


NO_CONTEXT_VERSIONS = ContextVersions()

StateT = TypeVar("StateT", "ContextState", "ContextVersions")


def next_context_state(state: ContextState, event: Event) -> ContextState:
    """The context state after one more event. ContextStateBuilder computes the same for long lineages, faster.

    After a rewind, ``states``, ``reductions`` and ``completed`` are those of its target: the caller looks them up.
    """
    data = event.data
    match data:
        case ContextStateRecorded():
            return state._replace(states={**state.states, data.provider: _provider_state(event, data)})
        case HistoryReduced():
            return state._replace(reductions={**state.reductions, data.agent: (event.version, data)})
        case RunStarted():
            return after_run_began(state, event.run_id or "", data)
        case RunCompleted() | RunFailed() | RunAbandoned() if state.open_runs:
            return after_run_ended(state, event)
        case _:
            return NO_CONTEXT_STATE if event.type == RESTARTED else state


def context_state_of(versions: ContextVersions, events: Mapping[int, Event]) -> ContextState | None:
    """The context state that these events hold, which are all known; None if one of them does not hold it any more."""
    states: dict[str, ProviderState] = {}
    reductions: dict[str, tuple[int, HistoryReduced]] = {}
    for provider, version in versions.states.items():
        event = events.get(version)
        if event is None or not isinstance(event.data, ContextStateRecorded):
            return None
        states[provider] = _provider_state(event, event.data)
    for agent, version in versions.reductions.items():
        event = events.get(version)
        if event is None or not isinstance(event.data, HistoryReduced):
            return None
        reductions[agent] = version, event.data
    return ContextState(states, reductions, *versions[2:6])


def after_run_began(state: StateT, run_id: str, data: RunStarted) -> StateT:
    """The context state, or its versions, after the start of a run."""
    agent = data.agent.id
    own: tuple[str, ...] = data.fingerprint.providers
    of_thread: tuple[str, ...] = data.providers
    missing: tuple[str, ...] = data.missing
    if missing:
        before: tuple[str, ...] = state.agent_providers.get(agent, ())
        of_agent: list[str] = [id_ for id_ in before if id_ in missing and id_ not in state.thread_providers]
        own = (*own, *of_agent)
        of_thread = tuple(dict.fromkeys((*of_thread, *(id_ for id_ in missing if id_ not in of_agent))))
    serving = (*data.fingerprint.providers, *data.providers, *data.run_providers)
    return state._replace(
        open_runs={run_id: serving} if serving else {},
        thread_providers=of_thread,
        agent_providers={**state.agent_providers, agent: own},
    )


def after_run_ended(state: StateT, event: Event) -> StateT:
    """The context state, or its versions, after the end of a run."""
    serving = state.open_runs.get(event.run_id or "", ()) if isinstance(event.data, RunCompleted) else ()
    completed = {**state.completed, **dict.fromkeys(serving, event.version)} if serving else state.completed
    return state._replace(open_runs={}, completed=completed)


def _provider_state(event: Event, data: ContextStateRecorded) -> ProviderState:
    return ProviderState(event.version, event.stream, data.state, data.seen)


class ContextStateBuilder:
    """The context state at any version of a lineage that is read once and forwards.

    ``weight`` is an estimate of its size in bytes: it holds every state that the lineage ever had.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._states: dict[str, list[tuple[int, ProviderState]]] = {}
        self._reductions: dict[str, list[tuple[int, tuple[int, HistoryReduced]]]] = {}
        self._completed: dict[str, list[tuple[int, int]]] = {}
        self._runs: list[Event] = []
        self._newest = NO_CONTEXT_STATE

    def continue_from(self, state: ContextState) -> None:
        """Begin with the state at a version. Then states at earlier versions are not known."""
        self._newest = state
        self._states = {key: [(each.version, each)] for key, each in state.states.items()}
        self._reductions = {key: [(each[0], each)] for key, each in state.reductions.items()}
        self._completed = {key: [(version, version)] for key, version in state.completed.items()}
        self.weight = _EVENT_BYTES * (len(self._states) + len(self._reductions))
        self.weight += sum(bytes_in_memory(each.state) for each in state.states.values())

    def add(self, event: Event) -> None:
        """Add the next event of a type in CONTEXT_STATE_EVENTS."""
        self.weight += _EVENT_BYTES
        data = event.data
        if event.type == RESTARTED:  # no version before it can be read any more
            self.continue_from(NO_CONTEXT_STATE)
            self._runs.clear()
        elif isinstance(data, ContextStateRecorded):
            self.weight += bytes_in_memory(data.state)
            self._states.setdefault(data.provider, []).append((event.version, _provider_state(event, data)))
        elif isinstance(data, HistoryReduced):
            self._reductions.setdefault(data.agent, []).append((event.version, (event.version, data)))
        else:
            if isinstance(data, RunCompleted):
                for provider in self._newest.open_runs.get(event.run_id or "", ()):
                    self._completed.setdefault(provider, []).append((event.version, event.version))
            self._runs.append(event)
            self._newest = next_context_state(self._newest, event)

    def at(self, path: Sequence[tuple[int, int]]) -> ContextState:
        """The context state on a path that consists of these spans of versions."""
        last = path[-1][1] if path else 0
        state = self._newest
        if self._runs and self._runs[-1].version > last:
            state = NO_CONTEXT_STATE
            for event in takewhile(lambda event: event.version <= last, self._runs):
                state = next_context_state(state, event)
        if not self._states and not self._reductions and not self._completed:
            return state
        return state._replace(
            states=_newest_on(path, self._states),
            reductions=_newest_on(path, self._reductions),
            completed=_newest_on(path, self._completed),
        )


def in_spans(spans: Sequence[tuple[int, int]]) -> Callable[[int], bool]:
    """Tells whether a version is in one of these spans ``(first, last)``, which are in ascending order."""
    firsts = [first for first, _ in spans]

    def contains(version: int) -> bool:
        place = bisect_right(firsts, version) - 1
        return place >= 0 and version <= spans[place][1]

    return contains


def _newest_on(path: Sequence[tuple[int, int]], found: Mapping[str, list[tuple[int, T]]]) -> dict[str, T]:
    """The newest entry of each key whose version is on the path."""
    is_on_path = in_spans(path)
    newest: dict[str, T] = {}
    for key, entries in found.items():
        for version, entry in reversed(entries):
            if is_on_path(version):
                newest[key] = entry
                break
    return newest
