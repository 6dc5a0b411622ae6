"""The core of a service: its log, actor, clock and caches; and `commit`, which writes to threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from clew.domain.application_folds import KnownStates
from clew.domain.authorization import Authorize, check_function
from clew.domain.decider import Actor, Checkpoint, Intent, decide
from clew.domain.decider_state import SNAPSHOT_EVERY, Control, advance
from clew.domain.errors import ClewError, ConflictError, CorruptEventError, InvalidContentError
from clew.domain.events import APPENDED_TYPES, LAST_MICROSECOND, TYPE_NAMES, Event, MessageRedacted
from clew.domain.history import HistoryBuilder, unshared
from clew.domain.json_values import check_flags
from clew.domain.memory.ports import VectorIndex
from clew.domain.models.prices import Prices
from clew.domain.ports import NOTHING, Appended, Blob, Claim, Draft, EventLog, Forget, Fork, Key, Restore, Shred, Write
from clew.domain.projection import Projection, check_projections
from clew.domain.runs.errors import RunInProgressError
from clew.domain.streams import ROOT, check_id, stream_prefix, thread_stream
from clew.infrastructure import clock, process_forks
from clew.infrastructure.genai_price_list import installed_prices
from clew.infrastructure.inmemory.vectors import OverlaidVectors
from clew.infrastructure.stores import store_at
from clew.projections import SHIPPED
from clew.service.effects import Operation, Read, Wait
from clew.service.read_models import ReadModels

T = TypeVar("T")

ATTEMPTS = 1_000
"""How often an append without an expected version is decided before the conflict is raised."""

CACHE_BYTES = 256 * 1024 * 1024
"""The memory for the caches of one service: about 150,000 messages of 200 characters."""

CONTROL_BYTES = 2_000
CHECKPOINT_BYTES = 150
FACT_BYTES = 2_000
"""Estimates of one value in memory; a control also has the names of checkpoints."""

LOCKS = 64

LOCKED = 4_096
"""The most streams whose locks are remembered. A remembered lock is found without a call of Python code."""


class CacheBudget:
    """The weight that some caches may hold together. They drop what was put longest ago, whichever of them holds it."""

    def __init__(self, max_weight: int) -> None:
        self.max_weight = max_weight
        self.weight = 0
        self.weights: dict[tuple[int, str], int] = {}
        self.caches: list[dict[str, Any]] = []
        self.lock = threading.Lock()


class BoundedCache(Generic[T]):
    """A cache whose weight counts in a budget. Thread-safe. Put a value again when it is used, to keep it longer."""

    def __init__(self, budget: CacheBudget) -> None:
        self._budget = budget
        self._values: dict[str, T] = {}
        self._number = len(budget.caches)
        budget.caches.append(self._values)
        self.get = self._values.get
        """The value of a name, None if it is not cached."""

    def put(self, name: str, value: T, weight: int) -> None:
        """Cache a value, and drop others if there is no room. A value that is heavier than the budget is not kept."""
        budget, key = self._budget, (self._number, name)
        with budget.lock:
            budget.weight -= budget.weights.pop(key, 0)
            if weight > budget.max_weight:
                self._values.pop(name, None)
                return
            self._values[name] = value
            budget.weights[key] = weight
            budget.weight += weight
            while budget.weight > budget.max_weight:
                number, oldest = next(iter(budget.weights))
                budget.weight -= budget.weights.pop((number, oldest))
                budget.caches[number].pop(oldest)

    def clear(self) -> None:
        """Remove all values."""
        for name in list(self._values):
            self.drop(name)

    def drop(self, name: str) -> None:
        """Remove a value."""
        with self._budget.lock:
            self._values.pop(name, None)
            self._budget.weight -= self._budget.weights.pop((self._number, name), 0)


@dataclass(frozen=True, slots=True)
class CachedHistory:
    """A thread's history, valid while ``shredded`` is the log's number of shredded rows; None if that was not read."""

    builder: HistoryBuilder
    shredded: int | None


@dataclass(frozen=True, slots=True)
class CachedFold:
    """The fold of a memory stream, valid until a row is shredded, with its search indexes by name."""

    fold: Any
    shredded: int
    indexes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CachedStates:
    """The known states of an application's fold, valid until a row is shredded."""

    states: KnownStates[Any]
    shredded: int


class Caches(process_forks.ForkAware):
    """The caches of a service, shared by its actors. Together they hold at most ``max_bytes``, which are estimated.

    ``submitted`` holds the controls that appends are decided on, which include events that are not stored yet.
    ``stored`` and ``histories`` include only events in the log. ``blobs`` are digests of blobs in the log. ``scopes``
    are the folds of memory scopes, ``folds`` those of applications.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self.clear()
        process_forks.watch(self)

    def clear(self) -> None:
        """Empty the caches."""
        locks = [threading.Lock() for _ in range(LOCKS)]
        self.lock: Callable[[str], threading.Lock] = lru_cache(LOCKED)(lambda stream: locks[hash(stream) % LOCKS])
        """The lock under which one thread at a time decides on a stream, or adds to its cached history or fold."""
        self.budget = CacheBudget(self._max_bytes)
        self.submitted: BoundedCache[Control] = BoundedCache(self.budget)
        self.stored: BoundedCache[Control] = BoundedCache(self.budget)
        self.histories: BoundedCache[CachedHistory] = BoundedCache(self.budget)
        self.scopes: BoundedCache[CachedFold] = BoundedCache(self.budget)
        self.folds: BoundedCache[CachedStates] = BoundedCache(self.budget)
        self.blobs: set[bytes] = set()
        self.shredded = 0
        """The number of shredded rows in the log when it was last read."""

    def forget_control(self, stream: str) -> None:
        """Drop the controls of a thread."""
        self.submitted.drop(stream)
        self.stored.drop(stream)

    def locked(self, streams: Iterable[str], do: Callable[[], T]) -> T:
        """Call ``do`` under the locks of several streams. All callers take them in the same order.

        If Ctrl-C arrives, only a ``with`` statement of the lock itself takes and releases it safely: each lock has one.
        """
        locks = sorted({self.lock(stream) for stream in streams}, key=id)

        def under(number: int) -> T:
            if number == len(locks):
                return do()
            with locks[number]:
                return under(number + 1)

        return under(0)

    def after_fork_in_child(self) -> None:
        """Start empty, with new locks: nothing would release a lock that another thread of the parent held."""
        self.clear()


@dataclass(frozen=True, slots=True)
class Core:
    """The log of one tenant for one actor, with its caches. ``authorize`` decides what actors may read."""

    log: EventLog
    tenant: str
    now: Callable[[], int]
    event_id: Callable[[], str]
    thread_id: Callable[[], str]
    models: ReadModels
    vectors: VectorIndex
    actor: str | None = None
    caches: Caches = field(default_factory=Caches)
    prices: Prices | None = field(default_factory=installed_prices)
    authorize: Authorize | None = None

    def acting_as(self, actor: str | None) -> Core:
        """A copy for another actor."""
        if actor is not None:
            check_id(actor, "actor")
        return replace(self, actor=actor)

    def with_linked(self, linked: str) -> Core:
        """A copy that may also use a thread that the log of a permitted one names, as its caller or inner agent."""
        authorize = self.authorize
        if authorize is None:
            return self
        return replace(self, authorize=lambda actor, action, id_: id_ == linked or authorize(actor, action, id_))

    def read_barrier(self) -> Core:
        """A copy for one call that reads read models: see ReadModels.read_barrier."""
        return replace(self, models=self.models.read_barrier())

    def close(self) -> None:
        """Write all submitted appends, then release the store."""
        with ExitStack() as closing_all:  # even if one of them raises
            closing_all.callback(self.vectors.close)
            closing_all.callback(self.models.close)
            closing_all.callback(self.log.close)
            self.models.stop()

    def stream(self, thread_id: str) -> str:
        """The name of a thread's stream. Raises InvalidNameError."""
        try:
            return thread_stream(self.tenant, thread_id)
        except TypeError:  # not hashable, so not a string
            check_id(thread_id, "thread id")
            raise

    def prefix(self, thread_id: str = "") -> str:
        """The prefix of the names of this tenant's threads."""
        return stream_prefix(self.tenant, "thread", thread_id)


def open_core(  # noqa: PLR0913  # every setting has its own parameter
    url: str | Path,
    *,
    tenant: str,
    create: bool,
    now: Callable[[], int],
    projections: Sequence[Projection] | None,
    embedded: bool,
    authorize: Authorize | None = None,
    read_only: bool = False,
    cache_bytes: int = CACHE_BYTES,
    prices: Prices | None = None,
) -> Core:
    """The core of a service on the store that a URL names.

    Raises StoreError, InvalidNameError, InvalidProjectionError, InvalidAuthorizeError or InvalidContentError.
    """
    check_id(tenant, "tenant")
    if not isinstance(cache_bytes, int) or isinstance(cache_bytes, bool) or cache_bytes < 0:
        raise InvalidContentError(f"cache_bytes={cache_bytes!r} is not a number of bytes. Give an integer, 0 or more.")
    check_flags(create=create, embedded=embedded, read_only=read_only)
    check_function(authorize)
    declared = SHIPPED if projections is None else projections
    check_projections(declared)
    store = store_at(url, read_only=read_only)
    create = create and not store.read_only
    store = store.of_tenant(tenant, create=create)
    with ExitStack() as opened:  # closes what is open if a later part fails
        log = opened.enter_context(closing(store.open_log(create=create, tenant=tenant)))
        if store.read_only:
            log.refuse_writes(store.name)
        can_maintain, one_tenant = log.may_fill(), log.is_bound()
        can_maintain = can_maintain and (store.has_own_read_models or not store.read_only)
        tables = opened.enter_context(closing(store.open_projections(tenant=tenant)))
        models = ReadModels(
            log,
            tables,
            declared,
            embedded=embedded and can_maintain,
            awaited=embedded and one_tenant,
            on_standby=embedded and not can_maintain and not one_tenant,
        )
        vectors: VectorIndex = store.open_vectors(tenant=tenant)
        if store.read_only:
            vectors = OverlaidVectors(vectors)
        opened.pop_all()
    ids = clock.event_id, clock.thread_id
    core = Core(log, tenant, now, *ids, models, vectors, caches=Caches(cache_bytes), authorize=authorize)
    return core if prices is None else replace(core, prices=prices)


class CommitOptions(NamedTuple):
    """The options of a commit.

    ``actor`` replaces the core's; ``expected_version`` is the thread's; ``key`` is an idempotency key with its content.
    ``base`` is the control that a new stream begins with, and ``fork`` its fork point. ``retry`` says whether to decide
    again after a conflict. ``blobs``, ``claims`` and ``drafts`` are written in the same append.
    ``said`` and ``on_behalf_of`` are those of all its events. ``restored`` are rows of other threads.
    """

    actor: str | None = None
    expected_version: int | None = None
    key: Key | None = None
    base: Control | None = None
    fork: Fork | None = None
    shreds: tuple[Shred, ...] = ()
    forgets: tuple[Forget, ...] = ()
    retry: bool = True
    blobs: tuple[Blob, ...] = ()
    claims: tuple[Claim, ...] = ()
    drafts: tuple[Draft, ...] = ()
    said: int | None = None
    on_behalf_of: str | None = None
    restored: Restore | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The events as they were submitted, and their versions.

    If an earlier append with the same key wrote them, only the versions are known.
    """

    events: tuple[Event, ...]
    versions: tuple[int, ...]


def load(core: Core, thread_id: str) -> Operation[Control]:
    """The control of a thread at its head in the log; ``Control()`` if the thread does not exist."""
    stream = core.stream(thread_id)
    control: Control = yield Read(partial(newest_control, core, stream))
    before = core.caches.stored.get(stream)
    if control.version > (0 if before is None else before.version):
        core.caches.stored.put(stream, control, CONTROL_BYTES + CHECKPOINT_BYTES * len(control.checkpoints))
    return control


def with_checkpoints(core: Core, thread_id: str, control: Control) -> Operation[Control]:
    """The control with the names of all checkpoints. They are read once, as long as the control is cached."""
    if not control.unnamed:
        return control
    stream = core.stream(thread_id)
    named: Control = yield Read(partial(core.log.with_checkpoints, stream, control))
    with core.caches.lock(stream):
        for cache in (core.caches.stored, core.caches.submitted):
            if cache.get(stream) is control:
                cache.put(stream, named, CONTROL_BYTES + CHECKPOINT_BYTES * len(named.checkpoints))
    return named


def with_checkpoint(core: Core, thread_id: str, control: Control, name: object) -> Operation[Control]:
    """The control with the checkpoint of a name, if the thread has one. It may lack others."""
    if not control.unnamed or not isinstance(name, str) or name in control.checkpoints:
        return control
    named: Control = yield Read(partial(core.log.with_checkpoint, core.stream(thread_id), control, name))
    return named


def newest_control(core: Core, stream: str) -> Control:
    """The control of a stream at its head in the log, advanced from the cached one if there is one."""
    control = core.caches.stored.get(stream)
    if control is not None and control.parent_id is not None and _is_outdated(core, control):
        core.caches.stored.drop(stream)
        control = None
    if control is None:
        return _control(core, stream)
    try:
        for event in core.log.lineage(stream, after=control.version):
            if isinstance(event.data, MessageRedacted):  # of a title, a label or a checkpoint, perhaps
                return _control(core, stream)
            control = advance(control, event)
    except CorruptEventError:  # the control does not depend on the content of a damaged message
        return _control(core, stream)
    return control


def _control(core: Core, stream: str) -> Control:
    shredded = core.caches.shredded  # before the state is read
    return core.log.control(stream)._replace(shredded=shredded)


def _is_outdated(core: Core, control: Control) -> bool:
    """Whether something was shredded since a fork's control was read: the control may hold an inherited text of it."""
    shredded = core.caches.shredded = core.log.shredded()  # another thread may set an older number
    return shredded != control.shredded


def commit(
    core: Core, thread_id: str, intent: Intent | Sequence[Intent], options: CommitOptions
) -> Operation[Committed]:
    """Decide and write. After a conflict, decide again on the new events, unless the options forbid it.

    Several intents are decided one after the other, and written together.

    The first decision includes events that this process has submitted and that may not be stored yet. If such an event
    is not stored in the end, the writer refuses the append. If the decision fails on a cached control, the control is
    read and the decision repeated; only then is the error raised.
    """
    stream = core.stream(thread_id)
    if options.actor is not None:
        check_id(options.actor, "actor")
    intents = (intent,) if isinstance(intent, Intent) else tuple(intent)
    conflict: ConflictError | None = None
    loaded = options.base
    for _ in range(ATTEMPTS):
        submitted = core.caches.submitted.get(stream)
        if loaded is None and (submitted is None or submitted.parent_id is not None):
            loaded = yield from load_to_decide(core, thread_id, intents)
        new = intents[0].name if intents and isinstance(intents[0], Checkpoint) else None
        latest = None if new is None else loaded or core.caches.submitted.get(stream) or Control()
        known = loaded if latest is None else (yield from with_checkpoint(core, thread_id, latest, new))
        try:
            events, control, outcome = _submit(core, thread_id, stream, known, intents, options)
        except ClewError:
            if loaded is None:
                loaded = yield from load(core, thread_id)
                _drop_older(core, stream, loaded)
                continue
            # A repeated key returns the first outcome, even if the thread would refuse the append now.
            first: Appended | None = yield Read(lambda: options.key and core.log.repeated(options.key))
            if first is None:
                raise
            return Committed((), first.versions)
        try:
            appended: Appended = yield Wait(outcome)
        except BaseException as error:  # noqa: BLE001  # everything but a conflict is raised again
            core.caches.submitted.drop(stream)
            conflict = _conflict(thread_id, error)
            if options.base is not None or not options.retry:
                break
            loaded = None
        else:
            shreds, forgets = bool(options.shreds), bool(options.forgets)
            return note_stored(core, stream, events, control, appended, shreds=shreds, forgets=forgets)
    raise conflict or ConflictError(thread_id, 0, 0)


def _conflict(thread_id: str, error: BaseException) -> ConflictError:
    """A conflict of the writer, in terms of the thread. Raises every other error."""
    if isinstance(error, RunInProgressError):
        raise RunInProgressError(thread_id, error.holder) from None
    if not isinstance(error, ConflictError):
        raise error
    return ConflictError(thread_id, error.expected, error.actual)


def note_stored(
    core: Core,
    stream: str,
    events: list[Event],
    control: Control,
    appended: Appended,
    *,
    shreds: bool,
    forgets: bool = False,
) -> Committed:
    """Update the caches and notify the read models."""
    if appended.repeated:
        core.caches.submitted.drop(stream)
        return Committed((), appended.versions)
    before = core.caches.stored.get(stream)
    if forgets:  # they may hold what was redacted; those of forks are compared with the number of shredded rows
        core.caches.forget_control(stream)
    elif before is None or before.version < control.version:
        core.caches.stored.put(stream, control, CONTROL_BYTES + CHECKPOINT_BYTES * len(control.checkpoints))
    if shreds:
        core.caches.folds.clear()  # they may hold what was redacted, and may never be asked for again
    elif core.caches.histories.get(stream) is not None:
        _extend_history(core, stream, events)
    if core.models.follows_appends:
        core.models.notify()
    return Committed(tuple(events), appended.versions)


def _submit(
    core: Core,
    thread_id: str,
    stream: str,
    loaded: Control | None,
    intents: tuple[Intent, ...],
    options: CommitOptions,
) -> tuple[list[Event], Control, Future[Appended]]:
    """Decide on the loaded control, else on the submitted one, and pass the events to the writer.

    Returns the events, the control after them, and the outcome. The control is cached as submitted at once, so appends
    of many callers to one thread are decided one after the other and can share a commit. If one of them is not stored,
    those after it conflict and are decided again.
    """
    with core.caches.lock(stream):
        submitted = core.caches.submitted.get(stream)
        control = loaded or submitted or Control()
        if options.expected_version is not None and control.version != options.expected_version:
            raise ConflictError(thread_id, options.expected_version, control.version)
        events, snapshots, after = decide_events(core, thread_id, stream, control, intents, options)
        outcome, heads = core.log.submit(
            Write(
                events,
                {stream: control.head or ROOT},
                forks=NOTHING if options.fork is None else {stream: options.fork},
                shreds=options.shreds,
                forgets=options.forgets,
                controls=snapshots and lasting(snapshots, options.shreds, options.forgets),
                key=options.key,
                blobs=options.blobs,
                claims=options.claims,
                drafts=options.drafts,
                restored=options.restored,
            )
        )
        if events:
            version, messages, updated_at = events[-1].version, events[-1].messages, events[-1].recorded_at
            after = after._replace(version=version, head=heads[stream], messages=messages, updated_at=updated_at)
        if options.forgets:  # it may hold what is shredded here: no append is decided on it
            core.caches.submitted.drop(stream)
        elif submitted is None or submitted.version < after.version:
            core.caches.submitted.put(stream, after, CONTROL_BYTES + CHECKPOINT_BYTES * len(after.checkpoints))
    return events, after, outcome


def load_to_decide(core: Core, thread_id: str, intents: Sequence[Intent]) -> Operation[Control | None]:
    """The control of a thread in the log; None if the submitted one can be used.

    A fork gets no snapshot of a control with inherited texts that another process has redacted.
    """
    stream = core.stream(thread_id)
    submitted = core.caches.submitted.get(stream)
    may_reach = submitted is not None and submitted.parent_id is not None and _may_reach_snapshot(submitted, intents)
    if submitted is not None and may_reach and (yield Read(partial(_is_outdated, core, submitted))):
        core.caches.submitted.drop(stream)
        submitted = None
    return (yield from load(core, thread_id)) if submitted is None else None


def _may_reach_snapshot(control: Control, intents: Sequence[Intent]) -> bool:
    """Whether an event of the intents may get a snapshot. There is at most one event for each item."""
    items = (getattr(intent, name, ()) for intent in intents for name in ("items", "steps", "events"))
    return control.version % SNAPSHOT_EVERY + 2 * len(intents) + sum(map(len, items)) >= SNAPSHOT_EVERY


def lasting(
    snapshots: list[tuple[str, Control]], shreds: Sequence[Shred], forgets: Sequence[Forget]
) -> list[tuple[str, Control]]:
    """The snapshots without those that may have a text that the same append shreds."""
    if forgets:
        return []
    return [each for each in snapshots if each[1].parent_id is None] if shreds else snapshots


def decide_events(
    core: Core, thread_id: str, stream: str, control: Control, intents: tuple[Intent, ...], options: CommitOptions
) -> tuple[list[Event], list[tuple[str, Control]], Control]:
    """The events of the intents, the snapshots on the way, and the control after the last event.

    Recorded time never decreases along a lineage, unless it is beyond the year 9999, as in a forged event.
    """
    committing = Actor(core.actor if options.actor is None else options.actor, options.on_behalf_of)
    events: list[Event] = []
    snapshots: list[tuple[str, Control]] = []
    for number, intent in enumerate(intents, start=1):
        decided = decide(thread_id, control, intent)
        now = max(core.now(), min(control.updated_at, LAST_MICROSECOND))
        last = control.version + len(decided)
        for version, (data, messages, run_id, own_said, by) in enumerate(decided, control.version + 1):
            type_ = TYPE_NAMES[type(data)]
            id_ = core.event_id()
            said = options.said if own_said is None else own_said
            actor, behalf = by or committing
            rest = None, None, None, None, None, said, behalf  # the cause to the hash are not known
            event = Event(stream, version, type_, id_, now, messages, data, actor, run_id, *rest)
            events.append(event)
            is_snapshot = version % SNAPSHOT_EVERY == 0
            # Of consecutive messages and records only the last one matters for the control.
            if is_snapshot or type_ not in APPENDED_TYPES or (version == last and number < len(intents)):
                control = advance(control, event)
            if is_snapshot:
                snapshots.append((stream, control))
    return events, snapshots, control


def _drop_older(core: Core, stream: str, stored: Control) -> None:
    """Drop a submitted control if other processes have appended after it."""
    with core.caches.lock(stream):
        submitted = core.caches.submitted.get(stream)
        if submitted is not None and submitted.version < stored.version:
            core.caches.submitted.drop(stream)


def cache_new_history(core: Core, thread_id: str, events: Sequence[Event]) -> None:
    """Cache the history of a new thread from its first events, so that the next run need not read it."""
    stream = core.stream(thread_id)
    core.caches.histories.put(stream, CachedHistory(HistoryBuilder(thread_id), None), 0)
    _extend_history(core, stream, events)


def _extend_history(core: Core, stream: str, events: Sequence[Event]) -> None:
    """Add the events to the cached history, so that it need not be read again."""
    cached = core.caches.histories.get(stream)
    if cached is None or not (private := unshared(events)):
        return
    with core.caches.lock(stream):
        if cached.builder.version != private[0].version - 1:
            return
        cached.builder.add(private)
    core.caches.histories.put(stream, cached, cached.builder.weight)
