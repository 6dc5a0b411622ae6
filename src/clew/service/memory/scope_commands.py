"""Writing to memory scopes: remember, store, supersede, retract and promote facts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from clew.domain.errors import FactRefusedError, InvalidContentError, ScopeError, UnknownFactError
from clew.domain.events import to_microseconds
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import MemoryEvent, Provenance, ScopeOpened, Statement
from clew.domain.memory.facts import Allow, Fact, Redact, Refuse
from clew.domain.memory.scope import (
    MemoryIntent,
    Point,
    Remember,
    Retract,
    ScopeFold,
    Store,
    Supersede,
    check_fact,
    decide,
)
from clew.domain.names import check_id
from clew.service.core import load as load_thread
from clew.service.memory.scopes import Scope, admit, as_read, check_kind, fact_id, known, moment
from clew.service.memory.streams import commit, key_of
from clew.service.operations import Operation, read


class Asked(NamedTuple):
    """What a write says beside the text. Times are aware; ``source`` is where it was learned."""

    key: str | None = None
    kind: str | None = None
    metadata: JsonObject | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    source: HistoryMessage | Provenance | None = None
    actor: str | None = None
    idempotency_key: str | None = None


def remember(scope: Scope, text: str, asked: Asked) -> Operation[Fact]:
    """Know something from now on."""
    statement = yield from _statement(scope, text, asked)
    intent = Remember(scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _words("remember", text, asked), asked))


def store(scope: Scope, text: str, asked: Asked) -> Operation[Fact]:
    """Know something from now on, and of its key, if it has one, that alone: others may do so at the same time."""
    statement = yield from _statement(scope, text, asked)
    intent = Store(scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _words("store", text, asked), asked))


def supersede(scope: Scope, fact: Fact | str, text: str, asked: Asked) -> Operation[Fact]:
    """Know something else instead of a fact that is live as the scope is read here."""
    old = fact_id(scope, fact)
    statement = yield from _statement(scope, text, asked)
    intent = Supersede(old, scope.core.thread_id(), statement)
    return (yield from _write(scope, intent, _words("supersede", text, asked, old), asked))


def retract(scope: Scope, fact: Fact | str, reason: str | None, asked: Asked) -> Operation[None]:
    """Hold a fact to be true no more that is live as the scope is read here."""
    old = fact_id(scope, fact)
    learned = yield from _learned(scope, asked.source)
    intent = Retract(old, reason, moment(asked.valid_to, "valid_to"), learned)
    yield from _commit(scope, intent, _words("retract", reason, asked, old), asked)


def promote(
    scope: Scope, fact: Fact | str, to: Scope, actor: str | None, idempotency_key: str | None
) -> Operation[Fact]:
    """Take a live fact into a wider scope, past that one's screen."""
    if (to.core.log is not scope.core.log) or to.core.tenant != scope.core.tenant:
        raise ScopeError(
            f"promote: scope {to.name!r} is of another tenant or store than {scope.name!r}. Facts do not leave theirs."
        )
    if to.name == scope.name:
        raise ScopeError(f"promote: the fact is in scope {scope.name!r} already. Give a wider one.")
    found = yield from known(scope, fact)
    if found.status != "live":
        raise UnknownFactError(scope.name, found.id)
    said = yield from read(partial(_screened, to, found))
    check_fact(said.text, said.key, found.kind, said.metadata)
    statement = Statement(
        text=said.text,
        key=said.key,
        kind=found.kind,
        metadata=said.metadata,
        valid_from=to_microseconds(found.valid_from),
        valid_to=None if found.valid_to is None else to_microseconds(found.valid_to),
        learned=found.learned,
        promoted=found.reference,
    )
    asked = Asked(actor=actor, idempotency_key=idempotency_key)
    intent = Remember(to.core.thread_id(), statement)
    learner = None if scope.learner is None else replace(scope.learner, reads_only=False)
    return (yield from _write(replace(to, learner=learner), intent, ["promote", scope.name, found.id, []], asked))


def _statement(scope: Scope, text: str, asked: Asked) -> Operation[Statement]:
    check_fact(text, asked.key, asked.kind, asked.metadata)
    learned = yield from _learned(scope, asked.source)
    return Statement(
        text=text,
        key=asked.key,
        kind=asked.kind,
        metadata=asked.metadata or {},
        valid_from=moment(asked.valid_from, "valid_from"),
        valid_to=moment(asked.valid_to, "valid_to"),
        learned=learned,
    )


def _learned(scope: Scope, source: object) -> Operation[Provenance | None]:
    """Where something was learned: as it is said, else the thread's newest version."""
    learner = scope.learner
    if isinstance(source, Provenance):
        check_id(source.thread, "source, thread id")
        if source.version < 1:
            raise InvalidContentError(f"source: version {source.version} is none. The first of a thread is 1.")
        return source
    if isinstance(source, HistoryMessage):
        if learner is None:
            raise InvalidContentError(
                "source: a message does not say which thread it is of. Give "
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


def _write(scope: Scope, intent: Remember | Store | Supersede, words: list[Any], asked: Asked) -> Operation[Fact]:
    """Write, and read what was written; by a key that was there before, what was written then."""
    fold, version = yield from _commit(scope, intent, words, asked)
    id_ = fold.fact_at(version)
    found = None if id_ is None else fold.fact(scope.name, id_, Point(fold.version))
    if found is None:
        raise UnknownFactError(scope.name, "" if id_ is None else id_)
    return found


def _commit(scope: Scope, intent: MemoryIntent, words: list[Any], asked: Asked) -> Operation[tuple[ScopeFold, int]]:
    learner = scope.learner
    if learner is not None and learner.reads_only:
        raise ScopeError(
            f"Scope {scope.name!r} is not that of the provider {learner.provider!r}, which may only look into it: what "
            "is learned in a thread gets there by promote(fact, to=…). Promote it, or give the provider that scope."
        )
    yield from admit(scope)  # what is written comes back with what was there
    as_of = yield from as_read(scope)
    opening = ScopeOpened(holds="facts", embedder=scope.model, dimensions=scope.dimensions)

    def decided(fold: ScopeFold, now: int) -> list[MemoryEvent]:
        check_kind(scope, fold)  # somebody may have begun it since
        return decide(scope.name, fold, intent, now=now, as_of=as_of, opening=opening)

    key = asked.idempotency_key
    if key is None and learner is not None and learner.run_id is not None:
        said = json.dumps([learner.run_id, learner.provider, *words[:-1]])
        key, words = f"run {sha256(said.encode()).hexdigest()}", words[:-1]
    done = yield from commit(
        scope.core,
        scope.name,
        ScopeFold,
        decided,
        actor=learner.actor if asked.actor is None and learner is not None else asked.actor,
        run_id=None if learner is None else learner.run_id,
        key=key_of(scope.core, scope.name, key, json.dumps(words, sort_keys=True).encode()),
    )
    return done.fold, done.versions[-1]


def _words(verb: str, text: str | None, asked: Asked, fact: str | None = None) -> list[Any]:
    """What an idempotency key stands for. The last of it is no part of the key that a run makes."""
    times = [None if time is None else time.isoformat() for time in (asked.valid_from, asked.valid_to)]
    return [verb, fact, asked.key, asked.kind, text, [asked.metadata or {}, *times]]


def _screened(to: Scope, fact: Fact) -> Fact:
    """The fact as it may enter: as it is, or with other words, and then with no more than those and their key.

    Raises FactRefusedError, also for a screen that does not say.
    """
    if to.screen is None:
        return fact
    try:
        said: object = to.screen(fact)
    except Exception as error:
        raise FactRefusedError(to.name, f"its screen failed with {type(error).__name__}.") from error
    match said:
        case Allow():
            return fact
        case Redact(text=text, key=key) if isinstance(text, str) and text.strip():
            return fact._replace(text=text, key=key, metadata={})
        case Redact():
            raise FactRefusedError(to.name, "its screen left nothing of it.")
        case Refuse(reason=reason):
            raise FactRefusedError(to.name, str(reason))
        case _:
            name = said.__name__ if isinstance(said, type) else type(said).__name__
            raise FactRefusedError(to.name, f"its screen gave {name}, and not Allow(), Redact(text) or Refuse(reason).")
