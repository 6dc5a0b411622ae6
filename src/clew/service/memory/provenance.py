"""Where facts are from, and where they went: the message behind a fact, and the model calls that were given it."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

from clew.domain.context.events import ContextProvided
from clew.domain.control import Control
from clew.domain.history import HistoryMessage, as_message
from clew.domain.memory.events import FactReference, Provenance
from clew.domain.memory.facts import Fact, Use, Why
from clew.domain.memory.scope import Point, ScopeFold
from clew.domain.projection import Query, Where
from clew.domain.runs.events import ModelCalled
from clew.service import thread_queries
from clew.service.authorization import permitted
from clew.service.core import Core
from clew.service.core import load as load_thread
from clew.service.memory.scopes import Scope, known
from clew.service.memory.streams import load
from clew.service.operations import Operation, read

MEMORY = "memory"
"""The projection that knows which facts were passed on."""

EVENTS = 100
"""Events that are read at once to find the model calls that came next."""


def why(scope: Scope, fact: Fact | str) -> Operation[Why]:
    """Where a fact came from, as far as that can still be told."""
    return (yield from _why(scope.core, (yield from known(scope, fact)), frozenset()))


def used_by(scope: Scope, fact: Fact | str) -> Operation[list[Use]]:
    """The model calls that were given a fact, in the order of the store, of threads that may be read."""
    core, found = scope.core, (yield from known(scope, fact))
    where = (Where("tenant", "=", core.tenant), Where("scope", "=", scope.name), Where("fact", "=", found.id))
    uses: list[Use] = []
    rows = yield from core.models.select(MEMORY, Query("used", where, ["position"]))
    for row in (yield from permitted(core, "read", rows, itemgetter("thread_id"))):
        calls = yield from read(partial(_calls, core, row["thread_id"], row["version"], row["run_id"]))
        uses += (Use(row["thread_id"], call, row["version"], row["run_id"]) for call in calls)
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
    message = yield from _message(core, learned)
    redacted = message is not None and message.redacted
    return Why(
        fact,
        thread_id=learned.thread,
        version=learned.version if message is None else message.version,
        message=None if redacted else message,
        redacted=redacted,
        actor=fact.actor,
        promoted_from=earlier,
    )


def _message(core: Core, learned: Provenance) -> Operation[HistoryMessage | None]:
    """The message at a version of a thread; None when the thread is not there, or is not to be read.

    What a tool or a hook remembers has a step of its run as its provenance: it is from what the user last said there.
    """
    thread_id, version = learned.thread, learned.version
    control: Control = yield from load_thread(core, thread_id)
    if not version <= control.version or control.status == "deleted":
        return None
    if not (yield from permitted(core, "read", [thread_id], lambda id_: id_)):
        return None
    message = as_message((yield from thread_queries.event(core, thread_id, version)))
    if message is not None:
        return message
    then = yield from thread_queries.history(core, thread_id, version)
    return next((each for each in reversed(then.messages) if each.role == "user"), None)


def _calls(core: Core, thread_id: str, provided: int, run_id: str | None) -> list[int]:
    """The versions at which the run asked the model with what was provided: until it ended, or that was replaced."""
    stream, after, calls = core.stream(thread_id), provided - 1, list[int]()
    provider: str | None = None
    while page := core.log.lineage(stream, after=after, upto=after + EVENTS):
        for event in page:
            if event.version == provided:
                provider = event.data.provider if isinstance(event.data, ContextProvided) else None
            elif event.run_id != run_id:
                continue
            elif isinstance(event.data, ModelCalled):
                calls.append(event.version)
            elif event.type in _LAST or (isinstance(event.data, ContextProvided) and event.data.provider == provider):
                return calls
        after = page[-1].version
    return calls


_LAST = frozenset({"run-completed", "run-failed", "run-abandoned"})
"""Events after which a run asks nothing more."""
