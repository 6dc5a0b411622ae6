"""What every operation works on: the log, who acts, the clock, and what was read before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from clew.domain.authorization import Authorize, check_function
from clew.domain.chain import ROOT
from clew.domain.control import SNAPSHOT_EVERY, Control, advance
from clew.domain.decider import Decided, Intent, decide
from clew.domain.errors import ClewError, ConflictError, CorruptEventError
from clew.domain.events import MESSAGE_APPENDED, TYPE_NAMES, Event
from clew.domain.history import unshared
from clew.domain.memory.ports import VectorIndex
from clew.domain.names import check_id, stream_name, stream_prefix
from clew.domain.ports import NOTHING, Appended, Blob, Claim, Draft, EventLog, Fork, Key, Shred, Write
from clew.domain.projection import Projection, check_projections
from clew.domain.runs.errors import RunInProgressError
from clew.infrastructure import clock
from clew.infrastructure.stores import store_at
from clew.projections import SHIPPED
from clew.service.caches import Remembered
from clew.service.operations import Operation, read, wait
from clew.service.read_models import ReadModels

ATTEMPTS = 1_000
"""How often an append without an expected version is decided again before the conflict is reported."""


@dataclass(frozen=True, slots=True)
class Core:
    """The log of one tenant, seen by one actor, and what is remembered of it.

    ``authorize`` says what actors may read; see authorizing.py, which asks it.
    """

    log: EventLog
    tenant: str
    now: Callable[[], int]
    event_id: Callable[[], str]
    thread_id: Callable[[], str]
    models: ReadModels
    vectors: VectorIndex
    actor: str | None = None
    known: Remembered = field(default_factory=Remembered)
    authorize: Authorize | None = None

    def acting_as(self, actor: str | None) -> Core:
        """The same for another actor."""
        if actor is not None:
            check_id(actor, "actor")
        return replace(self, actor=actor)

    def read_barrier(self) -> Core:
        """The same for one call that reads read models: see ReadModels.read_barrier."""
        return replace(self, models=self.models.read_barrier())

    def close(self) -> None:
        """Write what was submitted, then let go of the store."""
        with ExitStack() as last:  # each of them, whatever another raises
            last.callback(self.vectors.close)
            last.callback(self.models.close)
            last.callback(self.log.close)
            self.models.stop()

    def stream(self, thread_id: str) -> str:
        """The name of a thread's stream. Raises InvalidNameError."""
        check_id(thread_id, "thread id")
        return stream_name(self.tenant, "thread", thread_id)

    def prefix(self, thread_id: str = "") -> str:
        """What the names of this tenant's threads begin with."""
        return stream_prefix(self.tenant, "thread", thread_id)


def open_core(
    url: str | Path,
    *,
    tenant: str,
    create: bool,
    now: Callable[[], int],
    projections: Sequence[Projection] | None,
    embedded: bool,
    authorize: Authorize | None = None,
) -> Core:
    """The core of a service on the store that a URL names.

    Raises StoreError, InvalidNameError, InvalidProjectionError or InvalidAuthorizeError.
    """
    check_id(tenant, "tenant")
    check_function(authorize)
    shown = SHIPPED if projections is None else projections
    check_projections(shown)
    store = store_at(url).of_tenant(tenant, create=create)
    with ExitStack() as opened:  # nothing stays open where the rest cannot be had
        log = opened.enter_context(closing(store.open_log(create=create, tenant=tenant)))
        fills, bound = log.may_fill(), log.is_bound()
        tables = opened.enter_context(closing(store.open_projections(tenant=tenant)))
        models = ReadModels(
            log,
            tables,
            shown,
            embedded=embedded and fills,
            awaited=embedded and bound,
            on_standby=embedded and not fills and not bound,
        )
        vectors = store.open_vectors(tenant=tenant)
        opened.pop_all()
    ids = clock.event_id, clock.thread_id
    return Core(log, tenant, now, *ids, models, vectors, authorize=authorize)


class Terms(NamedTuple):
    """On what terms something is written.

    ``actor`` instead of the core's; ``expected_version`` of the thread; ``key`` is an idempotency key with what it
    stands for; ``base`` is the control that a new stream begins with, ``fork`` where it leaves its parent; ``again``
    says whether a conflict is decided again. ``blobs``, ``claims`` and ``drafts`` are written with it.
    """

    actor: str | None = None
    expected_version: int | None = None
    key: Key | None = None
    base: Control | None = None
    fork: Fork | None = None
    shreds: tuple[Shred, ...] = ()
    again: bool = True
    blobs: tuple[Blob, ...] = ()
    claims: tuple[Claim, ...] = ()
    drafts: tuple[Draft, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """What was written: the events, as they were handed to the writer, and their versions.

    When an earlier append with the same key had done it there are only its versions.
    """

    events: tuple[Event, ...]
    versions: tuple[int, ...]


def load(core: Core, thread_id: str) -> Operation[Control]:
    """The control of a thread at its head as the log has it: ``Control()`` if there is no such thread."""
    stream = core.stream(thread_id)
    control = core.known.controls.get(stream)
    if control is None:
        control = yield from read(lambda: core.log.control(stream))
    else:
        control = yield from read(partial(_gone_on, core.log, stream, control))
    if control.version:
        _remember(core, stream, control)
    return control


def _gone_on(log: EventLog, stream: str, control: Control) -> Control:
    """The control at the head, from one that was read before."""
    try:
        for event in log.lineage(stream, after=control.version):
            control = advance(control, event)
    except CorruptEventError:  # of a damaged message the control need not be told
        return log.control(stream)
    return control


def commit(core: Core, thread_id: str, intent: Intent | Sequence[Intent], terms: Terms) -> Operation[Committed]:
    """Decide and write; a conflict is decided again on what is there then, unless the terms say otherwise.

    Several intents are decided one on the other, and written together.

    It is decided first on the tip, which counts on what this process has submitted; the writer refuses what was decided
    on an event that was not written in the end. The thread itself refuses only on a control that was just read.
    """
    stream = core.stream(thread_id)
    if terms.actor is not None:
        check_id(terms.actor, "actor")
    intents = (intent,) if isinstance(intent, Intent) else tuple(intent)
    conflict: ConflictError | None = None
    loaded = terms.base
    for _ in range(ATTEMPTS):
        if loaded is None and core.known.tips.get(stream) is None:
            loaded = yield from load(core, thread_id)
        try:
            submitted = _submit(core, thread_id, stream, loaded, intents, terms)
        except ClewError:
            if loaded is None:
                loaded = yield from load(core, thread_id)
                _drop_older(core, stream, loaded)
                continue
            first = yield from _repeated(core, terms.key)
            if first is None:
                raise
            return Committed((), first.versions)
        try:
            return (yield from _outcome(core, stream, submitted, shreds=bool(terms.shreds)))
        except RunInProgressError as found:
            raise RunInProgressError(thread_id, found.holder) from None
        except ConflictError as found:
            conflict = ConflictError(thread_id, found.expected, found.actual)
            if terms.base is not None or not terms.again:
                break
            loaded = None
    raise conflict or ConflictError(thread_id, 0, 0)


def _drop_older(core: Core, stream: str, found: Control) -> None:
    """Forget a tip that somebody else has written after: what reads would be decided on has gone on without it."""
    with core.known.lock(stream):
        tip = core.known.tips.get(stream)
        if tip is not None and tip.version < found.version:
            core.known.tips.drop(stream)


def _outcome(core: Core, stream: str, submitted: _Submitted, *, shreds: bool) -> Operation[Committed]:
    """Wait for the writer. What was not written is no tip any more."""
    try:
        appended = yield from wait(submitted.outcome)
    except BaseException:
        core.known.tips.drop(stream)
        raise
    if appended.repeated:
        core.known.tips.drop(stream)
        return Committed((), appended.versions)
    _remember(core, stream, submitted.after)
    if not shreds:
        _take_in(core, stream, submitted.events)
    core.models.notify()
    return Committed(submitted.events, appended.versions)


def _repeated(core: Core, key: Key | None) -> Operation[Appended | None]:
    """What an append with this key did the first time: it counts also when the thread would refuse it today."""
    if key is None:
        return None
    return (yield from read(lambda: core.log.repeated(key)))


def _remember(core: Core, stream: str, control: Control) -> None:
    before = core.known.controls.get(stream)
    if before is None or before.version < control.version:
        core.known.controls.put(stream, control)


def _take_in(core: Core, stream: str, events: tuple[Event, ...]) -> None:
    """Go on with the history that was read of a thread, so that it need not be read again."""
    known = core.known.histories.get(stream)
    if known is None or not events:
        return
    own = [each for each in map(unshared, events) if each is not None]
    with core.known.lock(stream):
        if len(own) < len(events) or known.builder.version != own[0].version - 1:
            return
        known.builder.add(own)
    core.known.histories.put(stream, known, known.builder.weight)


class _Submitted(NamedTuple):
    """What is on its way: the events, the control after them, and the writer's answer."""

    events: tuple[Event, ...]
    after: Control
    outcome: Future[Appended]


def _submit(
    core: Core, thread_id: str, stream: str, loaded: Control | None, intents: tuple[Intent, ...], terms: Terms
) -> _Submitted:
    """Decide on what was loaded, else on the tip; hand the events to the writer, and count on their being written.

    So appends of many threads of control to one conversation are decided one on the other and can share a commit. Where
    one is not written after all, those after it conflict and are decided again.
    """
    with core.known.lock(stream):
        tip = core.known.tips.get(stream)
        control = loaded or tip or Control()
        if terms.expected_version is not None and control.version != terms.expected_version:
            raise ConflictError(thread_id, terms.expected_version, control.version)
        events: list[Event] = []
        passed: list[Control] = []
        after = control
        for intent in intents:
            after = _record(core, stream, after, decide(thread_id, after, intent), terms.actor, events, passed)
        submitted = core.log.submit(
            Write(
                events,
                {stream: control.head or ROOT},
                forks=NOTHING if terms.fork is None else {stream: terms.fork},
                shreds=terms.shreds,
                controls=[(stream, each) for each in passed],
                key=terms.key,
                blobs=terms.blobs,
                claims=terms.claims,
                drafts=terms.drafts,
            )
        )
        after = after._replace(head=submitted.heads[stream])
        if tip is None or tip.version < after.version:
            core.known.tips.put(stream, after)
    return _Submitted(tuple(events), after, submitted.outcome)


def _record(
    core: Core,
    stream: str,
    control: Control,
    decided: list[Decided],
    actor: str | None,
    events: list[Event],
    passed: list[Control],
) -> Control:
    """Put what was decided into envelopes, after ``events``; returns the control after them.

    Those to keep snapshots of on the way come to ``passed``. Recorded time never decreases along a lineage.
    """
    now = max(core.now(), control.updated_at)
    by = core.actor if actor is None else actor
    last = control.version + len(decided)
    for version, (data, messages, run_id) in enumerate(decided, control.version + 1):
        type_ = TYPE_NAMES[type(data)]
        event = Event(stream, version, type_, core.event_id(), now, messages, data, by, run_id)
        events.append(event)
        snapshot = version % SNAPSHOT_EVERY == 0
        # Of messages in succession the last says what is true after them.
        if snapshot or version == last or type_ != MESSAGE_APPENDED:
            control = advance(control, event)
        if snapshot:
            passed.append(control)
    return control
