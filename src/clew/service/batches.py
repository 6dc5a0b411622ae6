"""Batches: appends to threads and facts by key in scopes, in one commit or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from clew.domain.decider import Append
from clew.domain.decider_state import Control
from clew.domain.errors import BatchError, ClewError, ConflictError, InvalidContentError
from clew.domain.events import Event, to_utc_microseconds
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json
from clew.domain.memory.events import Provenance, ScopeOpened
from clew.domain.memory.facts import Fact
from clew.domain.memory.scope import AsOf, Drop, KeyIntent, Put, ScopeFold, decide_keys
from clew.domain.ports import Appended, Key, Write
from clew.domain.projection import Recorded, Unreadable
from clew.domain.streams import ROOT, check_id, check_idempotency_key
from clew.service.authorization import check
from clew.service.core import (
    ATTEMPTS,
    CONTROL_BYTES,
    CommitOptions,
    Core,
    decide_events,
    load,
    load_to_decide,
    note_stored,
)
from clew.service.effects import Operation, Read, Wait
from clew.service.memory import scope_commands, streams
from clew.service.memory.scope_view import Scope, check_access, check_kind
from clew.service.thread_commands import (
    Appendable,
    Items,
    appended_item,
    check_expected_version,
    checked_items,
    key_content,
)
from clew.service.thread_queries import whole_event

T = TypeVar("T")


class BatchResult(Generic[T]):
    """What a part of a batch wrote, once the batch is stored."""

    __slots__ = ("_result",)

    _result: T

    @property
    def result(self) -> T:
        """The result. Raises BatchError before the batch is stored, and if it was not stored."""
        try:
            return self._result
        except AttributeError:
            raise BatchError("The batch is not stored. Its results are there after the end of its block.") from None

    def _set(self, result: T) -> None:
        self._result = result


@dataclass(frozen=True, slots=True, eq=False)
class _Appending:
    """Messages and records for a thread, checked."""

    core: Core
    thread_id: str
    intent: Append
    options: CommitOptions
    result: BatchResult[Items]


@dataclass(frozen=True, slots=True, eq=False)
class _Keyed:
    """A fact to put or to delete, checked."""

    scope: Scope
    intent: KeyIntent
    source: HistoryMessage | Provenance | None
    actor: str | None
    result: BatchResult[Fact]


class _Submission(NamedTuple):
    """The parts of a batch as they were submitted: the events of each append, and those of each scope's intents."""

    outcome: Future[Appended]
    appended: list[list[Event]]
    controls: dict[str, Control]
    keyed: dict[str, list[list[Event]]]


@dataclass(slots=True, eq=False)
class Batch:
    """The parts of a batch of one tenant, in order. ``key`` is an idempotency key."""

    core: Core
    key: str | None = None
    appends: list[_Appending] = field(default_factory=list)
    keyed: list[_Keyed] = field(default_factory=list)

    def append(  # as thread_commands.append
        self,
        core: Core,
        thread_id: str,
        appended: Appendable | Sequence[Appendable],
        *,
        actor: str | None,
        expected_version: int | None,
        said_at: datetime | None,
        on_behalf_of: str | None,
    ) -> BatchResult[Items]:
        """Add messages and records for a thread."""
        self._check_owner(core, f"append: the thread {thread_id!r}")
        items = checked_items(appended)
        if not items:
            raise InvalidContentError("append: the list of messages is empty. Give a message, or a list of messages.")
        if expected_version is not None:
            check_expected_version(expected_version)
        for name, what in ((actor, "actor"), (on_behalf_of, "on_behalf_of")):
            if name is not None:
                check_id(name, what)
        said = None if said_at is None else to_utc_microseconds(said_at, "said_at")
        options = CommitOptions(actor, expected_version, said=said, on_behalf_of=on_behalf_of)
        result: BatchResult[Items] = BatchResult()
        self.appends.append(_Appending(core, thread_id, Append(deepcopy(items)), options, result))
        return result

    def put(  # as scope_commands.put
        self,
        scope: Scope,
        key: str,
        value: Json,
        *,
        text: str | None,
        expected: int | None,
        source: HistoryMessage | Provenance | None,
        actor: str | None,
    ) -> BatchResult[Fact]:
        """Add a fact for a key of a scope."""
        return self._add(scope, scope_commands.put_intent(scope.core, key, value, text, expected), source, actor)

    def delete(
        self,
        scope: Scope,
        key: str,
        *,
        expected: int | None,
        reason: str | None,
        source: HistoryMessage | Provenance | None,
        actor: str | None,
    ) -> None:
        """Add the retraction of the live fact of a key."""
        self._add(scope, scope_commands.drop_intent(key, reason, expected), source, actor)

    def _add(
        self, scope: Scope, intent: KeyIntent, source: HistoryMessage | Provenance | None, actor: str | None
    ) -> BatchResult[Fact]:
        self._check_owner(scope.core, f"the scope {scope.name!r}")
        if actor is not None:
            check_id(actor, "actor")
        result: BatchResult[Fact] = BatchResult()
        self.keyed.append(_Keyed(scope, intent, source, actor, result))
        return result

    def _check_owner(self, core: Core, what: str) -> None:
        if core.log is not self.core.log or core.tenant != self.core.tenant:
            raise BatchError(
                f"{what} belongs to the tenant {core.tenant!r} of another service than the batch, whose tenant is "
                f"{self.core.tenant!r}. One commit has one tenant: open both with the same service."
            )


class _Scope(NamedTuple):
    """The keyed writes of one scope, and what they are decided with."""

    scope: Scope
    writes: list[_Keyed]
    intents: list[KeyIntent]
    as_of: AsOf | None
    opening: ScopeOpened


def write(batch: Batch) -> Operation[None]:
    """Decide the parts of a batch and write them in one commit. After a conflict, decide all of them again.

    Raises ConflictError for a thread or a fact that does not have its expected version, and the errors of the parts.
    """
    threads = {batch.core.stream(each.thread_id): each for each in batch.appends}
    for part in batch.appends:
        yield from check(part.core, "read", part.thread_id)
    scopes = yield from _scopes(batch)
    key = _key(batch)
    conflict = ConflictError("batch", 0, 0)
    for _ in range(ATTEMPTS):
        try:
            submission = yield from _decide_and_submit(batch, threads, scopes, key)
        except ClewError:
            first: Appended | None = yield Read(lambda: key and batch.core.log.repeated(key))
            if first is None:
                raise
            return (yield from _set_first_results(batch, scopes, first))
        if submission is None:
            return None
        try:
            appended: Appended = yield Wait(submission.outcome)
        except BaseException as error:  # everything but a conflict is raised again
            for stream in threads:
                batch.core.caches.submitted.drop(stream)
            if not isinstance(error, ConflictError):
                raise
            conflict = error
        else:
            return (yield from _set_results(batch, scopes, submission, appended))
    raise conflict


def _decide_and_submit(
    batch: Batch, threads: Mapping[str, _Appending], scopes: Mapping[str, _Scope], key: Key | None
) -> Operation[_Submission | None]:
    """Decide on what was submitted to the threads. If that fails, decide on what is stored."""
    for reads_all in (False, True):
        loaded: dict[str, Control] = {}
        for stream, each in threads.items():
            reading = load if reads_all else partial(load_to_decide, intents=[part.intent for part in batch.appends])
            control = yield from reading(batch.core, each.thread_id)
            if control is not None:
                loaded[stream] = control
        folds: dict[str, ScopeFold] = {}
        for stream, scope in scopes.items():
            folds[stream] = yield from streams.load(batch.core, scope.scope.name, ScopeFold)
        try:
            return batch.core.caches.locked(threads, partial(_submit, batch, loaded, scopes, folds, key))
        except ClewError:
            if len(loaded) == len(threads):
                raise
    raise AssertionError  # pragma: no cover - the second time, all threads are loaded


def _scopes(batch: Batch) -> Operation[dict[str, _Scope]]:
    """The scopes of a batch by stream. Raises the errors of refused writes."""
    grouped: dict[str, list[_Keyed]] = {}
    for each in batch.keyed:
        grouped.setdefault(streams.scope_stream(batch.core, each.scope.name), []).append(each)
    scopes: dict[str, _Scope] = {}
    for stream, writes in grouped.items():
        scope = writes[0].scope
        if any(each.scope.learner is not scope.learner for each in writes):
            raise BatchError(f"The scope {scope.name!r} is written for two threads. Give all its facts the same scope.")
        as_of, opening = yield from scope_commands.writing(scope)
        scopes[stream] = _Scope(scope, writes, [], as_of, opening)
        for each in writes:
            yield from check_access(each.scope)
            intent = yield from scope_commands.learned(scope, each.intent, each.source)
            scopes[stream].intents.append(intent)
    return scopes


def _submit(
    batch: Batch,
    loaded: Mapping[str, Control],
    scopes: Mapping[str, _Scope],
    folds: Mapping[str, ScopeFold],
    key: Key | None,
) -> _Submission | None:
    """Decide all parts and pass their events to the writer; None if there is nothing to write.

    The caller holds the locks of the threads. As in `commit`, the controls are cached as submitted at once.
    """
    core = batch.core
    previous: dict[str, bytes] = {}
    controls: dict[str, Control] = {}
    snapshots: list[tuple[str, Control]] = []
    appended: list[list[Event]] = []
    for each in batch.appends:
        stream = core.stream(each.thread_id)
        control = controls.get(stream) or loaded.get(stream) or core.caches.submitted.get(stream) or Control()
        expected = each.options.expected_version
        if expected is not None and control.version != expected:
            raise ConflictError(each.thread_id, expected, control.version)
        previous.setdefault(stream, control.head or ROOT)
        intents = (each.intent,)
        events, taken, control = decide_events(each.core, each.thread_id, stream, control, intents, each.options)
        appended.append(events)
        snapshots += taken
        controls[stream] = _after_appended(control, events)
    keyed = {stream: _decide_keys(each, stream, folds[stream]) for stream, each in scopes.items()}
    previous |= {stream: folds[stream].head or ROOT for stream, written in keyed.items() if any(written)}
    written = [*chain.from_iterable(appended), *chain.from_iterable(chain.from_iterable(keyed.values()))]
    if not written:
        return None
    outcome, heads = core.log.submit(Write(written, previous, controls=snapshots, key=key))
    for stream, control in controls.items():
        controls[stream] = after = control._replace(head=heads[stream])
        submitted = core.caches.submitted.get(stream)
        if submitted is None or submitted.version < after.version:
            core.caches.submitted.put(stream, after, CONTROL_BYTES)
    return _Submission(outcome, appended, controls, keyed)


def _after_appended(control: Control, events: Sequence[Event]) -> Control:
    """The control after messages and records that were decided on it, still without their head."""
    last = events[-1]
    return control._replace(version=last.version, messages=last.messages, updated_at=last.recorded_at)


def _decide_keys(each: _Scope, stream: str, fold: ScopeFold) -> list[list[Event]]:
    """The events of each intent on a scope."""
    scope = each.scope
    for write in each.writes:
        check_kind(write.scope, fold)
    decided = decide_keys(scope.name, fold, each.intents, as_of=each.as_of, opening=each.opening)
    events: list[list[Event]] = []
    version, now = fold.version, streams.time_after(scope.core, fold)
    for write, data in zip(each.writes, decided, strict=True):
        by = scope_commands.writer(scope, write.actor)
        run_id = None if scope.learner is None else scope.learner.run_id
        events.append(streams.new_events(write.scope.core, stream, version, now, data, by, run_id))
        version += len(data)
    return events


def _set_results(
    batch: Batch, scopes: Mapping[str, _Scope], submission: _Submission, appended: Appended
) -> Operation[None]:
    """Note what was stored, and set the results."""
    if appended.repeated:
        return (yield from _set_first_results(batch, scopes, appended))
    core = batch.core
    events: dict[str, list[Event]] = {}
    for written in submission.appended:
        events.setdefault(written[0].stream, []).extend(written)
    for stream, control in submission.controls.items():
        note_stored(core, stream, events[stream], control, appended, shreds=False)
    for each, written in zip(batch.appends, submission.appended, strict=True):
        each.result._set(list(filter(None, map(appended_item, written))))  # noqa: SLF001 - of this module
    for stream, scope in scopes.items():
        fold: ScopeFold = yield from streams.load(core, scope.scope.name, ScopeFold)
        for write, written in zip(scope.writes, submission.keyed[stream], strict=True):
            if isinstance(write.intent, Put):
                fact = scope_commands.written_fact(scope.scope, fold, written[-1].version)
                write.result._set(fact)  # noqa: SLF001 - as above
    core.models.notify()


def _set_first_results(batch: Batch, scopes: Mapping[str, _Scope], first: Appended) -> Operation[None]:
    """Set the results of an earlier batch with the same key. Its events are in the same order."""
    core = batch.core
    versions = iter(first.versions)
    for each in batch.appends:
        items: Items = []
        for version in islice(versions, len(each.intent.items)):
            item = appended_item((yield from whole_event(core, each.thread_id, version)))
            items += [] if item is None else [item]
        each.result._set(items)  # noqa: SLF001 - of this module
    positions = first.positions[len(first.positions) - len(list(versions)) :]
    rows: Sequence[Recorded | Unreadable] = yield Read(lambda: core.log.recorded_at(positions))
    for each_scope in scopes.values():
        scope = each_scope.scope
        fold: ScopeFold = yield from streams.load(core, scope.name, ScopeFold)
        own = [row.version for row in rows if isinstance(row, Recorded) and row.thread_id == scope.name]
        puts = [each for each in each_scope.writes if isinstance(each.intent, Put)]
        for put, version in zip(puts, filter(fold.fact_at, own), strict=False):  # a shredded fact is unknown
            put.result._set(scope_commands.written_fact(scope, fold, version))  # noqa: SLF001 - as above


def _key(batch: Batch) -> Key | None:
    """The idempotency key, for the first stream that the batch writes in any case."""
    if batch.key is None:
        return None
    check_idempotency_key(batch.key)
    core = batch.core
    names = [core.stream(each.thread_id) for each in batch.appends]
    names += [streams.scope_stream(core, each.scope.name) for each in batch.keyed if isinstance(each.intent, Put)]
    if not names:
        raise BatchError("An idempotency key needs an append or a put: to repeat a deletion has no effect anyway.")
    content: list[object] = [
        ["append", each.thread_id, key_content(each.intent.items, each.options.said, each.options.on_behalf_of)]
        for each in batch.appends
    ]
    for keyed in batch.keyed:
        match keyed.intent:
            case Put(statement=statement, expected=expected):
                content.append(["put", keyed.scope.name, statement.key, statement.text, expected, statement.value])
            case Drop(key=key, expected=expected, reason=reason):
                content.append(["delete", keyed.scope.name, key, expected, reason])
    return Key(names[0], batch.key, json.dumps(content, sort_keys=True).encode())
