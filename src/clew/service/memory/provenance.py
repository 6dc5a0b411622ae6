"""Where facts are from, and where they went: the message behind a fact, and the model calls that were given it."""

from __future__ import annotations

from functools import partial

from clew.domain.control import Control
from clew.domain.events import Event
from clew.domain.history import as_message
from clew.domain.memory.events import FactReference
from clew.domain.memory.facts import Fact, Use, Why
from clew.domain.memory.scope import Point, ScopeFold
from clew.domain.projection import Query, Where
from clew.domain.runs.events import ModelCalled
from clew.service.core import Core
from clew.service.core import load as load_thread
from clew.service.memory.scopes import Scope, known
from clew.service.memory.streams import load
from clew.service.operations import Operation, read

MEMORY = "memory"
"""The projection that knows which facts were passed on."""

EVENTS = 100
"""Events that are read at once to find the model call that came next."""


def why(scope: Scope, fact: Fact | str) -> Operation[Why]:
    """Where a fact came from, as far as that can still be told."""
    return (yield from _why(scope.core, (yield from known(scope, fact)), frozenset()))


def used_by(scope: Scope, fact: Fact | str) -> Operation[list[Use]]:
    """The model calls that were given a fact, in the order of the store."""
    core, found = scope.core, (yield from known(scope, fact))
    where = (Where("tenant", "=", core.tenant), Where("scope", "=", scope.name), Where("fact", "=", found.id))
    uses: list[Use] = []
    for row in (yield from core.models.select(MEMORY, Query("used", where, ["position"]))):
        call = yield from read(partial(_next_call, core, row["thread_id"], row["version"], row["run_id"]))
        if call is not None:
            uses.append(Use(row["thread_id"], call, row["version"], row["run_id"]))
    return uses


def _why(core: Core, fact: Fact, seen: frozenset[FactReference]) -> Operation[Why]:
    from_ = fact.promoted
    earlier: Why | None = None
    if from_ is not None and from_ not in seen:  # only what was imported could go round in a circle
        fold = yield from load(core, from_.scope, ScopeFold)
        source = fold.fact(from_.scope, from_.fact, Point(fold.version))
        if source is not None:
            earlier = yield from _why(core, source, seen | {from_})
    learned = fact.learned
    if learned is None:
        return Why(fact, actor=fact.actor, promoted_from=earlier)
    event = yield from _event(core, learned.thread, learned.version)
    message = None if event is None else as_message(event)
    redacted = message is not None and message.redacted
    return Why(
        fact,
        thread_id=learned.thread,
        version=learned.version,
        message=None if redacted else message,
        redacted=redacted,
        actor=fact.actor,
        promoted_from=earlier,
    )


def _event(core: Core, thread_id: str, version: int) -> Operation[Event | None]:
    """An event of a thread's lineage; None when the thread is not there, or is not to be read any more."""
    control: Control = yield from load_thread(core, thread_id)
    if not version <= control.version or control.status == "deleted":
        return None
    found = yield from read(lambda: core.log.lineage(core.stream(thread_id), after=version - 1, upto=version))
    return found[0] if found else None


def _next_call(core: Core, thread_id: str, after: int, run_id: str | None) -> int | None:
    """The version at which the run asked the model next, None if it never did."""
    stream = core.stream(thread_id)
    while page := core.log.lineage(stream, after=after, upto=after + EVENTS):
        for event in page:
            if event.run_id == run_id and isinstance(event.data, ModelCalled):
                return event.version
            if event.type in _LAST and event.run_id == run_id:
                return None
        after = page[-1].version
    return None


_LAST = frozenset({"run-completed", "run-failed", "run-abandoned"})
"""Events after which a run asks nothing more."""
