"""A memory scope: a fold of its stream that can be read at any version, and the decisions on writes. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from clew.domain.errors import FactConflictError, InvalidContentError, InvalidTimeError, UnknownFactError
from clew.domain.events import Event, to_time
from clew.domain.json_values import JsonObject, check_json, check_text
from clew.domain.memory.events import (
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    MemoryEvent,
    Provenance,
    ScopeOpened,
    Statement,
)
from clew.domain.memory.facts import Fact, FactStatus

MAX_WORD = 200
"""The most characters of a key or a kind."""


class Inherited(NamedTuple):
    """The last version of an ancestor that belongs to a thread's past, and its position."""

    version: int
    position: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """How a thread reads scopes as of a cut: facts recorded up to ``position``, and facts that it learned since.

    ``version`` is the version of the cut. ``inherited`` are the threads between the fork at the cut and this thread;
    the facts that they learned in this thread's past belong to it, too. ``before`` is how the parent at the cut reads
    scopes, None for their current state. It limits the facts from the time before the cut.
    """

    thread: str
    version: int
    position: int
    inherited: Mapping[str, Inherited]
    before: AsOf | None = None

    @property
    def first(self) -> int:
        """The position up to which every fact is known, independent of where it was learned."""
        return self.position if self.before is None else self.before.first

    def sees(self, position: int, learned: Provenance | None) -> bool:
        """Whether the thread knows an event that was recorded at ``position`` and learned at ``learned``."""
        if position <= self.position:
            return self.before is None or self.before.sees(position, learned)
        if learned is None:
            return False
        if learned.thread == self.thread:
            return True
        ancestor = self.inherited.get(learned.thread)
        if ancestor is None or learned.version > ancestor.version:
            return False
        # A fact from a message before the cut may have been learned before this thread began, or after.
        return learned.version > self.version or position <= ancestor.position


class ReadPoint(NamedTuple):
    """The point at which a scope is read: the facts at ``version`` that are visible with ``as_of``.

    ``valid_at`` limits them to facts that are true at that time (microseconds since 1970), None for any.
    """

    version: int
    valid_at: int | None = None
    as_of: AsOf | None = None

    def sees(self, version: int, position: int, learned: Provenance | None) -> bool:
        """Whether an event is known at this point."""
        return version <= self.version and (self.as_of is None or self.as_of.sees(position, learned))

    def sees_fact(self, known: _RecordedFact) -> bool:
        """Whether a fact is known at this point, live or not."""
        return self.sees(known.version, known.position, known.statement.learned)


class _Ending(NamedTuple):
    """An event that ends a fact. The fact is true until before ``valid_to``."""

    version: int
    position: int
    status: FactStatus
    valid_to: int
    learned: Provenance | None


class _RecordedFact(NamedTuple):
    """A fact as it was recorded, with all its endings. Two threads with different pasts may each end it.

    ``created_at`` is the time of the first of the facts that it replaced, one after the other. ``earlier`` is the
    number of the newest fact with the same key that had no ending when this one was recorded.
    """

    id: str
    version: int
    position: int
    recorded_at: int
    actor: str | None
    statement: Statement
    replaces: str | None
    created_at: int
    earlier: int | None
    endings: tuple[_Ending, ...] = ()


class ScopeFold:
    """The facts of a scope, which can be read at any version, because the fold only grows.

    Only one caller at a time may add events; others may read earlier versions meanwhile. ``recorded_at`` is the time of
    the newest event, ``opened`` the event that opened the scope, None before it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.head = b""
        self.recorded_at = 0
        self.opened: ScopeOpened | None = None
        self._known: list[_RecordedFact] = []
        self._places: dict[str, int] = {}
        self._times: list[int] = []
        self._by_key: dict[str, list[int]] = {}
        self._open: dict[str, dict[int, None]] = {}  # by key, the facts without an ending, oldest first

    def __len__(self) -> int:
        return len(self._known)

    def add(self, event: Event) -> None:
        """Add the next event of the stream. Shredded and unknown events change nothing."""
        self.recorded_at = max(self.recorded_at, event.recorded_at)
        self._times.append(self.recorded_at)
        position = event.position or 0
        match event.data:
            case ScopeOpened() as opened:
                self.opened = opened
            case FactRemembered(fact=fact, statement=statement):
                self._learn(event, fact, statement, None)
            case FactSuperseded(fact=fact, by=by, statement=statement):
                end = event.recorded_at if statement.valid_from is None else statement.valid_from
                self._end(fact, _Ending(event.version, position, "superseded", end, statement.learned))
                self._learn(event, by, statement, fact)
            case FactRetracted(fact=fact, valid_to=valid_to, learned=learned):
                end = event.recorded_at if valid_to is None else valid_to
                self._end(fact, _Ending(event.version, position, "retracted", end, learned))
            case _:
                pass
        self.head = event.hash or b""
        self.version = event.version  # last, because readers rely on the version

    def version_at(self, time: int) -> int:
        """The last version that was recorded at or before a time, 0 before the scope was opened."""
        return bisect_right(self._times, time)

    def time_of(self, version: int) -> int:
        """The time at which a version was recorded."""
        return self._times[version - 1] if version else 0

    def facts(
        self, scope: str, point: ReadPoint, *, key: str | None = None, kind: str | None = None, history: bool = False
    ) -> list[Fact]:
        """The facts that are true at a point, in the order of recording; with ``history`` also ended facts."""
        return [_as_fact(scope, known, point) for _, known in self._at(point, key, kind, history=history)]

    def numbers(self, point: ReadPoint, *, kind: str | None = None) -> set[int]:
        """The numbers of the facts that are true at a point: the places of their texts in texts()."""
        return {number for number, _ in self._at(point, None, kind)}

    def numbered(self, scope: str, number: int, point: ReadPoint) -> Fact:
        """The fact with a number."""
        return _as_fact(scope, self._known[number], point)

    def texts(self) -> list[str]:
        """The texts of all facts ever recorded, by fact number; numbers never change."""
        return [known.statement.words for known in list(self._known)]

    def fact_at(self, version: int) -> str | None:
        """The id of the fact that was remembered at a version."""
        place = bisect_left(self._known, version, key=lambda known: known.version)
        known = self._known[place] if place < len(self._known) else None
        return known.id if known is not None and known.version == version else None

    def fact(self, scope: str, id_: str, point: ReadPoint) -> Fact | None:
        """A fact, live or not; None if it is not known at the point."""
        place = self._places.get(id_)
        known = None if place is None else self._known[place]
        return None if known is None or not point.sees_fact(known) else _as_fact(scope, known, point)

    def live(self, scope: str, key: str, point: ReadPoint) -> list[Fact]:
        """The facts with a key that have no ending at a point, newest first, whenever they are true.

        Without ``as_of`` this reads only facts that were live together with the newest one.
        """
        numbers = self._by_key.get(key, ())
        place = bisect_right(numbers, point.version, key=lambda number: self._known[number].version)
        if point.as_of is None:
            found = self._chain(numbers[place - 1] if place else None)
        else:
            found = (
                known for known in map(self._known.__getitem__, reversed(numbers[:place])) if point.sees_fact(known)
            )
        return [_as_fact(scope, known, point) for known in found if _ending(known, point) is None]

    def _chain(self, number: int | None) -> Iterator[_RecordedFact]:
        while number is not None:
            known = self._known[number]
            yield known
            number = known.earlier

    def _at(
        self, point: ReadPoint, key: str | None, kind: str | None, *, history: bool = False
    ) -> Iterator[tuple[int, _RecordedFact]]:
        numbers = range(len(self._known)) if key is None else list(self._by_key.get(key, ()))
        for number in numbers:
            known = self._known[number]
            if known.version > point.version:
                return
            if kind is not None and known.statement.kind != kind:
                continue
            if (point.as_of is None or point.sees_fact(known)) and _is_true(known, point, history=history):
                yield number, known

    def _learn(self, event: Event, id_: str, statement: Statement, replaces: str | None) -> None:
        if id_ in self._places:
            return
        number, key = len(self._known), statement.key
        created_at, earlier = event.recorded_at, None
        if replaces in self._places:
            created_at = self._known[self._places[replaces]].created_at
        if key is not None:
            still_open = self._open.setdefault(key, {})
            earlier = next(reversed(still_open), None)
            still_open[number] = None
        known = _RecordedFact(
            id_,
            event.version,
            event.position or 0,
            event.recorded_at,
            event.actor,
            statement,
            replaces,
            created_at,
            earlier,
        )
        self._known.append(known)
        self._places[id_] = number
        if key is not None:
            self._by_key.setdefault(key, []).append(number)

    def _end(self, id_: str, ending: _Ending) -> None:
        place = self._places.get(id_)
        if place is not None:
            known = self._known[place]
            self._known[place] = known._replace(endings=(*known.endings, ending))
            if known.statement.key is not None:
                self._open[known.statement.key].pop(place, None)


def _ending(known: _RecordedFact, point: ReadPoint) -> _Ending | None:
    """The first ending of a fact that is known at a point."""
    if not known.endings:
        return None
    seen = [each for each in known.endings if point.sees(each.version, each.position, each.learned)]
    return min(seen, key=attrgetter("valid_to"), default=None)


def _span(known: _RecordedFact, ending: _Ending | None) -> tuple[int, int | None]:
    """The time span in which a fact is true. The end is not part of it; None means forever."""
    statement = known.statement
    valid_from = known.recorded_at if statement.valid_from is None else statement.valid_from
    if ending is None:
        return valid_from, statement.valid_to
    end = ending.valid_to if statement.valid_to is None else min(statement.valid_to, ending.valid_to)
    return valid_from, max(valid_from, end)


def _is_true(known: _RecordedFact, point: ReadPoint, *, history: bool) -> bool:
    """Whether a fact is true at the point's time; without a time, whether it is live, or any fact with ``history``."""
    ending = _ending(known, point)
    if point.valid_at is None:
        return history or ending is None
    valid_from, valid_to = _span(known, ending)
    return valid_from <= point.valid_at and (valid_to is None or point.valid_at < valid_to)


def _as_fact(scope: str, known: _RecordedFact, point: ReadPoint) -> Fact:
    """A fact as it is known at a point."""
    statement, ending = known.statement, _ending(known, point)
    valid_from, valid_to = _span(known, ending)
    return Fact(
        scope=scope,
        id=known.id,
        text=statement.words,
        version=known.version,
        recorded_at=to_time(known.recorded_at),
        valid_from=to_time(valid_from),
        valid_to=None if valid_to is None else to_time(valid_to),
        key=statement.key,
        kind=statement.kind,
        metadata=deepcopy(statement.metadata) if statement.metadata else {},
        learned=statement.learned,
        promoted=statement.promoted,
        replaces=known.replaces,
        actor=known.actor,
        status="live" if ending is None else ending.status,
        value=deepcopy(statement.value),
        created_at=to_time(known.created_at),
    )


@dataclass(frozen=True, slots=True)
class Remember:
    """Remember a new fact."""

    fact: str
    statement: Statement


@dataclass(frozen=True, slots=True)
class Store:
    """Remember a fact in place of the newest live fact with its key, if any."""

    fact: str
    statement: Statement


@dataclass(frozen=True, slots=True)
class Supersede:
    """Replace a live fact by one with the same key and kind."""

    fact: str
    by: str
    statement: Statement


@dataclass(frozen=True, slots=True)
class Retract:
    """Retract a live fact."""

    fact: str
    reason: str | None = None
    valid_to: int | None = None
    learned: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Make a fact the only live one with its key.

    ``expected`` is the version of the fact that is live before, 0 for none; None accepts any.
    """

    fact: str
    statement: Statement
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Retract the live facts with a key, if there are any."""

    key: str
    expected: int | None = None
    reason: str | None = None
    learned: Provenance | None = None


KeyIntent: TypeAlias = Put | Drop

MemoryIntent: TypeAlias = Remember | Store | Supersede | Retract | KeyIntent


def decide(
    scope: str, fold: ScopeFold, intent: MemoryIntent, *, now: int, as_of: AsOf | None, opening: ScopeOpened
) -> list[MemoryEvent]:
    """The events that carry out an intent at the time ``now``. The first fact opens the scope.

    Only facts that are live for the writer can be ended; ``as_of`` is how the writer reads the scope. A fact with a
    future end can be ended earlier. Raises UnknownFactError, FactConflictError, InvalidContentError or
    InvalidTimeError.
    """
    if isinstance(intent, KeyIntent):
        return decide_keys(scope, fold, (intent,), as_of=as_of, opening=opening)[0]
    if isinstance(intent, Store):
        intent = _resolve_store(scope, fold, intent, ReadPoint(fold.version, now, as_of))
    if isinstance(intent, Remember):
        _check_statement(intent.statement, now)
        first: list[MemoryEvent] = [] if fold.version else [opening]
        return [*first, FactRemembered(fact=intent.fact, statement=_own(intent.statement))]
    live = fold.fact(scope, intent.fact, ReadPoint(fold.version, as_of=as_of))
    if live is None or (live.status != "live" and not _ends_before(live, intent, now)):
        raise UnknownFactError(scope, intent.fact)
    if isinstance(intent, Supersede):
        statement = intent.statement.model_copy(update={"key": live.key, "kind": live.kind})
        _check_statement(statement, now)
        return [FactSuperseded(fact=live.id, by=intent.by, statement=_own(statement))]
    if intent.reason is not None:
        check_text(intent.reason, "reason")
    return [
        FactRetracted(fact=live.id, reason=intent.reason, valid_to=intent.valid_to, learned=intent.learned),
    ]


def decide_keys(
    scope: str, fold: ScopeFold, intents: Sequence[KeyIntent], *, as_of: AsOf | None, opening: ScopeOpened
) -> list[list[MemoryEvent]]:
    """The events of each intent on a key, which follow each other. The event of a new fact is the last one of its put.

    A fact that is put over others supersedes the newest of them, and the rest are retracted. Raises FactConflictError.
    """
    version = head = fold.version
    decided: list[list[MemoryEvent]] = []
    written: dict[str, tuple[tuple[str, int, str | None], ...]] = {}
    for intent in intents:
        key = intent.key if isinstance(intent, Drop) else intent.statement.key or ""
        live = written.get(key)
        if live is None:
            facts = fold.live(scope, key, ReadPoint(head, as_of=as_of))
            live = tuple((fact.id, fact.version, fact.kind) for fact in facts)
        newest = live[0] if live else ("", 0, None)
        if intent.expected not in (None, newest[1]):
            raise FactConflictError(scope, key, intent.expected or 0, newest[1])
        events: list[MemoryEvent] = []
        if isinstance(intent, Drop):
            events += [FactRetracted(fact=each[0], reason=intent.reason, learned=intent.learned) for each in live]
        else:
            statement = _own(intent.statement)
            events += [FactRetracted(fact=each[0], learned=statement.learned) for each in live[1:]]
            if live:
                kept = statement.model_copy(update={"kind": newest[2]})
                events.append(FactSuperseded(fact=newest[0], by=intent.fact, statement=kept))
            else:
                events += [] if version else [opening]
                events.append(FactRemembered(fact=intent.fact, statement=statement))
        version += len(events)
        written[key] = () if isinstance(intent, Drop) else ((intent.fact, version, newest[2]),)
        decided.append(events)
    return decided


def _resolve_store(scope: str, fold: ScopeFold, intent: Store, point: ReadPoint) -> Remember | Supersede:
    """Store means remember, or supersede the live fact with the same key."""
    key = intent.statement.key
    live = [] if key is None else [fact for fact in fold.facts(scope, point, key=key) if fact.status == "live"]
    if not live:
        return Remember(intent.fact, intent.statement)
    return Supersede(live[-1].id, intent.fact, intent.statement)


def _ends_before(fact: Fact, intent: MemoryIntent, now: int) -> bool:
    """Whether a retraction ends a fact before its current end."""
    if not isinstance(intent, Retract) or fact.valid_to is None:
        return False
    return to_time(now if intent.valid_to is None else intent.valid_to) < fact.valid_to


def check_key(key: str) -> None:
    """Raise InvalidContentError for a key that no fact can have."""
    _check_word(key, "key")


def _check_word(word: str, name: str) -> None:
    check_text(word, name)
    if not 1 <= len(word) <= MAX_WORD:
        raise InvalidContentError(f"{name}: {len(word)} characters, but it must have 1 to {MAX_WORD}.")


def check_fact(text: str, key: str | None, kind: str | None, metadata: JsonObject | None) -> None:
    """Raise InvalidContentError for content that is not valid in a fact."""
    check_text(text, "text")
    if not text.strip():
        raise InvalidContentError("text: it is empty. Give the text of the fact.")
    for name, word in (("key", key), ("kind", kind)):
        if word is not None:
            _check_word(word, name)
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidContentError(f"metadata: {type(metadata).__name__} is not a dict of JSON values.")
    check_json(metadata or {}, "metadata")


def _check_statement(statement: Statement, now: int) -> None:
    check_fact(statement.text, statement.key, statement.kind, statement.metadata)
    valid_from = now if statement.valid_from is None else statement.valid_from
    if statement.valid_to is not None and statement.valid_to <= valid_from:
        raise InvalidTimeError(
            f"valid_to={to_time(statement.valid_to).isoformat()} is not after the time from which the fact is true, "
            f"{to_time(valid_from).isoformat()}. Give a valid_from before it."
        )


def _own(statement: Statement) -> Statement:
    """A copy that shares no object with the caller."""
    copied = {"metadata": deepcopy(statement.metadata), "value": deepcopy(statement.value)}
    return statement.model_copy(update=copied)
