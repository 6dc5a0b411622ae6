"""Commands on memory scopes: remember, store, supersede, retract and promote facts."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from clew.domain.decider import Actor
from clew.domain.errors import (
    FactRefusedError,
    InvalidContentError,
    ScopeError,
    UnknownFactError,
    UnknownVersionError,
)
from clew.domain.events import to_microseconds, to_utc_microseconds
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject, check_json, check_text
from clew.domain.memory.events import MemoryEvent, Provenance, ScopeOpened, Statement, text_of
from clew.domain.memory.facts import Allow, Fact, Redact, Refuse
from clew.domain.memory.scope import (
    AsOf,
    Drop,
    KeyIntent,
    MemoryIntent,
    Put,
    ReadPoint,
    Remember,
    Retract,
    ScopeFold,
    Store,
    Supersede,
    check_fact,
    check_key,
    decide,
)
from clew.domain.streams import check_id
from clew.service.core import Core
from clew.service.core import load as load_thread
from clew.service.effects import Operation, read
from clew.service.memory.scope_view import (
    Scope,
    check_access,
    check_kind,
    fact_id,
    load_fact,
    view_of_scope,
)
from clew.service.memory.streams import commit, idempotency_key


class WriteOptions(NamedTuple):
    """The options of a write. Times are aware; ``source`` is where the fact was learned."""

    key: str | None = None
    kind: str | None = None
    metadata: JsonObject | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    source: HistoryMessage | Provenance | None = None
    actor: str | None = None
    idempotency_key: str | None = None


def remember(scope: Scope, text: str, options: WriteOptions) -> Operation[Fact]:
    """Remember a new fact."""
    statement = yield from _statement(scope, text, options)
    intent = Remember(scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _content("remember", text, options), options))


def store(scope: Scope, text: str, options: WriteOptions) -> Operation[Fact]:
    """Remember a fact in place of the live fact with the same key, if any. Concurrent writers are safe."""
    statement = yield from _statement(scope, text, options)
    intent = Store(scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _content("store", text, options), options))


def supersede(scope: Scope, fact: Fact | str, text: str, options: WriteOptions) -> Operation[Fact]:
    """Replace a fact that is live for the caller."""
    old = fact_id(scope, fact)
    statement = yield from _statement(scope, text, options)
    intent = Supersede(old, scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _content("supersede", text, options, old), options))


def retract(scope: Scope, fact: Fact | str, reason: str | None, options: WriteOptions) -> Operation[None]:
    """Retract a fact that is live for the caller."""
    old = fact_id(scope, fact)
    learned = yield from _learned(scope, options.source)
    intent = Retract(old, reason, to_utc_microseconds(options.valid_to, "valid_to"), learned)
    yield from _commit(scope, intent, _content("retract", reason, options, old), options)


def put(
    scope: Scope, key: str, value: Json, text: str | None, expected: int | None, options: WriteOptions
) -> Operation[Fact]:
    """Make a value the only live fact with its key."""
    intent = yield from learned(scope, put_intent(scope.core, key, value, text, expected), options.source)
    content = ["put", None, key, text, expected, value, []]
    return (yield from _write(scope, intent, content, options))


def put_intent(core: Core, key: str, value: Json, text: str | None, expected: int | None) -> Put:
    """A checked put of a copy of a value."""
    _check_expected(expected)
    check_key(key)
    check_json(value, "value")
    if text is not None:
        check_fact(text, key, None, None)
    # The text of a value is made from it again, so it is not stored twice. None is what facts without a value have.
    stored = (text_of(value) if value is None else "") if text is None else text
    return Put(core.thread_id(), Statement(text=stored, key=key, value=deepcopy(value)), expected)


def drop_intent(key: str, reason: str | None, expected: int | None) -> Drop:
    """A checked deletion."""
    _check_expected(expected)
    check_key(key)
    if reason is not None:
        check_text(reason, "reason")
    return Drop(key, expected, reason)


def learned(scope: Scope, intent: KeyIntent, source: object) -> Operation[KeyIntent]:
    """The intent with where it was learned."""
    provenance = yield from _learned(scope, source)
    if provenance is None:
        return intent
    if isinstance(intent, Drop):
        return replace(intent, learned=provenance)
    return replace(intent, statement=intent.statement.model_copy(update={"learned": provenance}))


def delete(scope: Scope, key: str, reason: str | None, expected: int | None, options: WriteOptions) -> Operation[bool]:
    """Retract the live fact of a key; returns whether there was one."""
    intent = yield from learned(scope, drop_intent(key, reason, expected), options.source)
    _, versions = yield from _commit(scope, intent, ["delete", None, key, reason, expected, []], options)
    return bool(versions)


def _check_expected(expected: object) -> None:
    if expected is not None and (type(expected) is not int or expected < 0):
        raise UnknownVersionError(
            f"expected: {expected!r} is not the version of a fact. Give fact.version, or 0 if there must be no fact."
        )


def promote(
    scope: Scope, fact: Fact | str, to: Scope, actor: str | None, idempotency_key: str | None
) -> Operation[Fact]:
    """Copy a live fact into a wider scope, if the screen of that scope allows it."""
    if (to.core.log is not scope.core.log) or to.core.tenant != scope.core.tenant:
        raise ScopeError(f"promote: scope {to.name!r} belongs to another tenant or store than {scope.name!r}.")
    if to.name == scope.name:
        raise ScopeError(f"promote: the fact is already in scope {scope.name!r}. Give a wider one.")
    original = yield from load_fact(scope, fact)
    if original.status != "live":
        raise UnknownFactError(scope.name, original.id)
    screened = yield from read(partial(_screen, to, original))
    check_fact(screened.text, screened.key, original.kind, screened.metadata)
    statement = Statement(
        text=screened.text,
        key=screened.key,
        kind=original.kind,
        metadata=screened.metadata,
        value=screened.value,
        valid_from=to_microseconds(original.valid_from),
        valid_to=None if original.valid_to is None else to_microseconds(original.valid_to),
        learned=original.learned,
        promoted=original.reference,
    )
    options = WriteOptions(actor=actor, idempotency_key=idempotency_key)
    intent = Remember(to.core.thread_id(), statement)
    learner = None if scope.learner is None else replace(scope.learner, reads_only=False)
    return (yield from _write(replace(to, learner=learner), intent, ["promote", scope.name, original.id, []], options))


def _statement(scope: Scope, text: str, options: WriteOptions) -> Operation[Statement]:
    check_fact(text, options.key, options.kind, options.metadata)
    learned = yield from _learned(scope, options.source)
    return Statement(
        text=text,
        key=options.key,
        kind=options.kind,
        metadata=options.metadata or {},
        valid_from=to_utc_microseconds(options.valid_from, "valid_from"),
        valid_to=to_utc_microseconds(options.valid_to, "valid_to"),
        learned=learned,
    )


def _learned(scope: Scope, source: object) -> Operation[Provenance | None]:
    """Where a fact was learned: the given source, else the newest version of the thread."""
    learner = scope.learner
    if isinstance(source, Provenance):
        check_id(source.thread, "source, thread id")
        if source.version < 1:
            raise InvalidContentError(f"source: {source.version} is not a version. The first version of a thread is 1.")
        return source
    if isinstance(source, HistoryMessage):
        if learner is None:
            raise InvalidContentError(
                "source: a message does not name its thread. Give "
                "Provenance(thread=thread.id, version=message.version)."
            )
        return Provenance(thread=learner.thread_id, version=source.version)
    if source is not None:
        raise InvalidContentError(
            f"source: {type(source).__name__} is neither a message of a history nor a Provenance."
        )
    if learner is None:
        return None
    version = (yield from load_thread(scope.core, learner.thread_id)).version
    return Provenance(thread=learner.thread_id, version=version) if version else None


def _write(scope: Scope, intent: MemoryIntent, content: list[Any], options: WriteOptions) -> Operation[Fact]:
    """Write a fact, and return it; for a repeated key, return the fact of the first write."""
    fold, versions = yield from _commit(scope, intent, content, options)
    return written_fact(scope, fold, versions[-1])


def written_fact(scope: Scope, fold: ScopeFold, version: int) -> Fact:
    """The fact that was written at a version."""
    id_ = fold.fact_at(version)
    fact = None if id_ is None else fold.fact(scope.name, id_, ReadPoint(fold.version))
    if fact is None:
        raise UnknownFactError(scope.name, "" if id_ is None else id_)
    return fact


def _commit(
    scope: Scope, intent: MemoryIntent, content: list[Any], options: WriteOptions
) -> Operation[tuple[ScopeFold, tuple[int, ...]]]:
    learner = scope.learner
    as_of, opening = yield from writing(scope)

    def decide_now(fold: ScopeFold, now: int) -> list[MemoryEvent]:
        check_kind(scope, fold)  # another writer may have opened it meanwhile
        return decide(scope.name, fold, intent, now=now, as_of=as_of, opening=opening)

    key = options.idempotency_key
    if key is None and learner is not None and learner.run_id is not None:
        identity = json.dumps([learner.run_id, learner.provider, *content[:-1]])
        key, content = f"run {sha256(identity.encode()).hexdigest()}", content[:-1]
    by = writer(scope, options.actor)
    done = yield from commit(
        scope.core,
        scope.name,
        ScopeFold,
        decide_now,
        actor=by.name,
        on_behalf_of=by.on_behalf_of,
        run_id=None if learner is None else learner.run_id,
        key=idempotency_key(scope.core, scope.name, key, json.dumps(content, sort_keys=True).encode()),
    )
    return done.fold, done.versions


def writer(scope: Scope, actor: str | None) -> Actor:
    """Who writes; its name is None for the actor of the service."""
    learner = scope.learner
    return Actor(actor) if actor is not None or learner is None else Actor(learner.actor, learner.on_behalf_of)


def writing(scope: Scope) -> Operation[tuple[AsOf | None, ScopeOpened]]:
    """How the writer reads the scope, and the event that would open it. Raises the errors of a refused write."""
    learner = scope.learner
    if learner is not None and learner.reads_only:
        raise ScopeError(
            f"Scope {scope.name!r} does not belong to the provider {learner.provider!r}, which may only read it. "
            "Promote the fact with promote(fact, to=…), or give the provider that scope."
        )
    yield from check_access(scope)  # the result includes the state before
    as_of = yield from view_of_scope(scope)
    return as_of, ScopeOpened(holds="facts", embedder=scope.model, dimensions=scope.dimensions)


def _content(verb: str, text: str | None, options: WriteOptions, fact: str | None = None) -> list[Any]:
    """The content of a write with an idempotency key. The last item is not part of the key of a run's write."""
    times = [None if time is None else time.isoformat() for time in (options.valid_from, options.valid_to)]
    return [verb, fact, options.key, options.kind, text, [options.metadata or {}, *times]]


def _screen(to: Scope, fact: Fact) -> Fact:
    """The fact as the screen accepts it: unchanged, or with another text and key and without metadata.

    Raises FactRefusedError, also if the screen fails or returns an invalid object.
    """
    if to.screen is None:
        return fact
    try:
        screened: object = to.screen(fact)
    except Exception as error:
        raise FactRefusedError(to.name, f"its screen failed with {type(error).__name__}.") from error
    match screened:
        case Allow():
            return fact
        case Redact(text=text, key=key) if isinstance(text, str) and text.strip():
            return fact._replace(text=text, key=key, metadata={}, value=None)
        case Redact():
            raise FactRefusedError(to.name, "its screen removed the whole text.")
        case Refuse(reason=reason):
            raise FactRefusedError(to.name, str(reason))
        case _:
            name = screened.__name__ if isinstance(screened, type) else type(screened).__name__
            raise FactRefusedError(to.name, f"its screen returned {name}, not Allow(), Redact(text) or Refuse(reason).")
