"""Folds of a thread: an application's own states, folded from the events on the path and continued later."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TypeVar

from clew.domain.application_folds import Fold, KnownStates, check_fold, read_state, write_state
from clew.domain.decider_state import SNAPSHOT_EVERY, Control
from clew.domain.errors import ClosedError, ReadOnlyStoreError
from clew.domain.events import HISTORY_REWOUND, Event
from clew.domain.history import previous_version
from clew.domain.json_values import MAX_BYTES
from clew.domain.ports import FoldState, Write
from clew.service.core import CachedStates, Core
from clew.service.effects import Operation, read
from clew.service.history_reads import FIRST_PAGE_BACK, PAGE
from clew.service.thread_queries import At, checked_types, readable, resolve

StateT = TypeVar("StateT")

BYTES_PER_EVENT = 256
"""A state is stored once an event was folded for this many bytes of it, so that storing stays a part of the work."""

KEPT_BYTES_PER_EVENT = 64
KEPT_STATES = 1_024
"""About the most bytes and the most states that are kept for looks back."""


def fold(
    core: Core, thread_id: str, declared: Fold[StateT], at: At = None, at_message: int | None = None
) -> Operation[StateT]:
    """The state of a fold at a version.

    Raises InvalidContentError or InvalidNameError for what is not a fold, what readable() and resolve() raise, and what
    ``evolve`` raises.
    """
    check_fold(declared)
    types = checked_types(declared.types)
    control = yield from readable(core, thread_id, "fold")
    version = yield from resolve(core, thread_id, control, at, at_message)
    return (yield from read(partial(_folded, core, thread_id, declared, types, control, version)))


def _folded(
    core: Core,
    thread_id: str,
    declared: Fold[StateT],
    types: frozenset[str] | None,
    control: Control,
    version: int,
) -> StateT:
    """The state at a version: the path is walked back to a known state, and folded from there."""
    shredded = core.log.shredded()
    states = _known(core, thread_id, declared, shredded) or _of_parent(core, control, declared, shredded)
    stream, place, size, sought = core.stream(thread_id), version, FIRST_PAGE_BACK, version + 1
    pending: list[Event] = []
    wanted = None if types is None else types | {HISTORY_REWOUND}
    while place and states.get(place) is None:
        if declared.state_type is not None and place < sought and place - states.last(place) >= SNAPSHOT_EVERY:
            sought = _restore(core, stream, states, place)
            continue
        after = max(place - size, states.last(place))
        events = core.log.with_blobs(core.log.lineage(stream, after=after, upto=place, types=wanted))
        page = {event.version: event for event in events}
        size = min(2 * size, PAGE)
        while place > after and states.get(place) is None:
            event = page.get(place)
            if event is not None and (types is None or event.type in types):
                pending.append(event)
            place = previous_version(place, event)
    known = states.get(place)
    state = declared.initial if known is None else known[1]
    for event in reversed(pending):
        state = declared.evolve(state, event)
        states.put(event.version, state)
    if place != version:
        states.put(version, state)
        states.weigh()
    states.unstored += len(pending)
    if pending and declared.state_type is not None and states.unstored >= max(SNAPSHOT_EVERY, states.store_after):
        _store(core, states, state, pending[0], shredded)
    core.caches.folds.put(_name(core, thread_id, declared), CachedStates(states, shredded), states.weight)
    return state


def _restore(core: Core, stream: str, states: KnownStates[StateT], upto: int) -> int:
    """Add the newest stored state up to a version, if it is of these events; returns its version, 0 for none."""
    found = core.log.fold_state(stream, states.fold.name, upto)
    if found is None:
        return 0
    version, stored = found
    for event in core.log.lineage(stream, after=version - 1, upto=version):
        restored = read_state(states.fold, event.hash or b"", stored)
        if restored is not None:
            states.put(version, restored[0])
            states.weigh()
    return version


def _store(core: Core, states: KnownStates[StateT], state: StateT, last: Event, shredded: int) -> None:
    """Have another thread store the state after the event that was folded last.

    Nobody waits for it, and nothing is lost if it is not stored.
    """
    stored = write_state(states.fold, last.hash or b"", state)
    states.unstored = 0
    states.store_after = sys.maxsize if stored is None else len(stored) // BYTES_PER_EVENT
    if stored is not None and len(stored) <= MAX_BYTES:
        folded = FoldState(last.stream, states.fold.name, last.version, _slot(last.version, stored), stored, shredded)
        with suppress(ReadOnlyStoreError, ClosedError):
            stored_soon = core.log.submit(Write((), {}, folds=(folded,))).outcome
            stored_soon.add_done_callback(_do_nothing)  # so that another thread writes it now, and none wait in a queue


def _slot(version: int, stored: bytes) -> int:
    """Where a state is kept, in place of an earlier one there.

    States are kept at even distances, so a look back folds little: small ones in a thread that is not very long all,
    and else so many that they are few and take few bytes for each event. Of the others few are kept, whose distances
    grow with the distance from the end, as in the cache.
    """
    number = version // SNAPSHOT_EVERY
    by_size, by_length = len(stored) // (SNAPSHOT_EVERY * KEPT_BYTES_PER_EVENT), number // KEPT_STATES
    every = 1 << max(by_size, by_length).bit_length()
    return number if number % every == 0 else number & -number


def _do_nothing(_: object) -> None:
    pass


def _known(core: Core, thread_id: str, declared: Fold[StateT], shredded: int) -> KnownStates[StateT] | None:
    """The cached states of a thread, None if there are none, or if they may hold what was redacted since."""
    cached = core.caches.folds.get(_name(core, thread_id, declared))
    if cached is None or cached.shredded != shredded or cached.states.fold != declared:
        return None
    return cached.states


def _of_parent(core: Core, control: Control, declared: Fold[StateT], shredded: int) -> KnownStates[StateT]:
    """The states that a fork shares with its parent."""
    if control.parent_id is not None and control.forked_at is not None:
        states = _known(core, control.parent_id, declared, shredded)
        if states is not None:
            return states.upto(control.forked_at)
    return KnownStates(declared)


def _name(core: Core, thread_id: str, declared: Fold[StateT]) -> str:
    return f"{declared.name} {declared.version} {core.stream(thread_id)}"
