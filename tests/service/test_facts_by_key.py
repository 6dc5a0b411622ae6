"""Facts by key: put, get and delete, in both APIs and on each store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.service.colours import COLOURS, opened
from tests.service.settable_clock import SettableClock

from clew import Conversations
from clew.domain.errors import (
    ConflictError,
    FactConflictError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    UnknownVersionError,
)
from clew.domain.memory.events import FactRetracted, FactSuperseded, Provenance
from clew.domain.memory.facts import Redact
from clew.domain.memory.scope import ReadPoint, ScopeFold
from clew.service.effects import run
from clew.service.memory.streams import load
from clew.sync.memory import MemoryScope

NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


@pytest.fixture(params=COLOURS)
def service(request: pytest.FixtureRequest, url: str, clock: SettableClock) -> Iterator[Any]:
    with opened(request.param, url, now=clock) as service:
        yield service


@pytest.fixture
def scope(service: Any) -> Any:
    return service.memory("user/42")


@pytest.fixture
def plain(conversations: Conversations) -> MemoryScope:
    return conversations.memory("user/42")


@pytest.mark.parametrize(
    "value", [None, "", " ", "kilometres", 0, 2.5, False, [], {"a": [1, None, {"ü": "🧶"}]}], ids=repr
)
def test_a_value_is_put_and_read(scope: Any, value: Any) -> None:
    put = scope.put("units", value)
    assert (put.key, put.value, put.version, put.status) == ("units", value, 2, "live")
    assert scope.get("units") == put
    assert scope.facts() == [put]
    assert scope.get("other") is None


def test_a_put_supersedes_the_live_fact_in_one_commit(service: Any, scope: Any, clock: SettableClock) -> None:
    created = clock.move(0)
    first = scope.put("units", "km")
    changed = clock.move(60)
    second = scope.put("units", "miles")
    assert (second.version, second.replaces, second.created_at, second.recorded_at) == (3, first.id, created, changed)
    assert [(fact.value, fact.status) for fact in scope.facts(history=True)] == [
        ("km", "superseded"),
        ("miles", "live"),
    ]
    verdict = service.verify()
    assert (verdict.events, verdict.first_bad) == (3, None)


def test_a_put_leaves_one_live_fact_of_many_with_its_key(scope: Any) -> None:
    old = [scope.remember(f"{each}", key="units", kind="preference") for each in range(3)]
    scope.remember("other", key="other")
    put = scope.put("units", "km")
    assert (put.replaces, put.kind) == (old[2].id, "preference")
    assert [fact.id for fact in scope.facts(key="units")] == [put.id]
    assert [fact.status for fact in scope.facts(key="units", history=True)] == [
        "retracted",
        "retracted",
        "superseded",
        "live",
    ]
    assert len(scope.facts()) == 2


def test_a_deleted_fact_is_gone_and_can_be_put_again(service: Any, scope: Any) -> None:
    assert scope.delete("units") is False
    assert service.verify().events == 0
    scope.put("units", "km")
    assert scope.delete("units", reason="moved") is True
    assert (scope.get("units"), scope.facts(), scope.delete("units")) == (None, [], False)
    again = scope.put("units", "miles", expected=0)
    assert (again.replaces, again.created_at) == (None, again.recorded_at)
    assert service.verify().events == 4


def test_a_deletion_retracts_all_facts_with_the_key(scope: Any) -> None:
    for each in range(3):
        scope.remember(f"{each}", key="units")
    assert scope.delete("units")
    assert scope.get("units") is None


def test_an_expected_version_must_be_that_of_the_live_fact(service: Any, scope: Any) -> None:
    with pytest.raises(FactConflictError, match="expected the fact of version 2, found no fact"):
        scope.put("units", "km", expected=2)
    first = scope.put("units", "km", expected=0)
    with pytest.raises(
        FactConflictError, match="'user/42', key 'units': expected no fact, found the fact of version 2"
    ):
        scope.put("units", "miles", expected=0)
    second = scope.put("units", "miles", expected=first.version)
    calls: list[Callable[[], Any]] = [
        lambda: scope.put("units", "m", expected=2),
        lambda: scope.delete("units", expected=first.version),
    ]
    for refused in calls:
        with pytest.raises(ConflictError) as raised:
            refused()
        assert (raised.value.stream, raised.value.expected, raised.value.actual) == ("user/42", 2, 3)
    assert service.verify().events == 3
    assert scope.delete("units", expected=second.version)
    assert scope.delete("units", expected=0) is False


def test_an_expected_version_is_of_the_fact_not_of_the_scope(scope: Any) -> None:
    units = scope.put("units", "km")
    for each in range(3):
        scope.put("other", each)
    assert scope.put("units", "miles", expected=units.version).version == 6


@pytest.mark.parametrize("wrong", [-1, "2", True, 1.0])
def test_refuses_an_expected_version_that_is_none(scope: Any, wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: scope.put("units", 1, expected=wrong),
        lambda: scope.delete("units", expected=wrong),
    ]
    for refused in calls:
        with pytest.raises(UnknownVersionError, match="or 0 if there must be no fact"):
            refused()


@pytest.mark.parametrize("key", ["", "x" * 201, 5, None, "\ud800"], ids=repr)
def test_refuses_a_key_that_no_fact_can_have(service: Any, scope: Any, key: Any) -> None:
    calls: list[Callable[[], Any]] = [lambda: scope.put(key, 1), lambda: scope.get(key), lambda: scope.delete(key)]
    for refused in calls:
        with pytest.raises(InvalidContentError, match="key"):
            refused()
    assert service.verify().events == 0


def test_refuses_what_is_not_json_and_an_empty_text(scope: Any) -> None:
    for value in (object(), {1: 2}, float("nan")):
        with pytest.raises(InvalidContentError, match="value"):
            scope.put("units", value)
    with pytest.raises(InvalidContentError, match="text"):
        scope.put("units", 1, text=" ")
    with pytest.raises(InvalidContentError, match="reason"):
        scope.delete("units", reason="\ud800")


def test_a_repeated_idempotency_key_returns_the_first_outcome(service: Any, scope: Any) -> None:
    first = scope.put("units", "km", expected=0, idempotency_key="a")
    assert scope.put("units", "km", expected=0, idempotency_key="a") == first
    with pytest.raises(IdempotencyKeyReusedError):
        scope.put("units", "miles", expected=0, idempotency_key="a")
    assert scope.delete("units", idempotency_key="b") is True
    assert scope.delete("units", idempotency_key="b") is True
    assert service.verify().events == 3


def test_a_put_keeps_its_source_and_actor(service: Any, scope: Any) -> None:
    source = Provenance(thread="t", version=4)
    put = scope.put("units", "km", source=source, actor="user:ann")
    assert (put.learned, put.actor) == (source, "user:ann")
    scope.delete("units", source=source, actor="user:bob")
    entries = [(entry.type, entry.actor) for entry in service.audit(scope="user/42")][1:]
    assert entries == [("fact-remembered", "user:ann"), ("fact-retracted", "user:bob")]


def test_reads_a_fact_at_a_version_and_a_time(scope: Any, clock: SettableClock) -> None:
    scope.put("units", "km")
    then = clock.move(0)
    clock.move(60)
    scope.put("units", "miles")
    scope.put("other", 1)
    scope.delete("units")
    values = [
        None if fact is None else fact.value for fact in (scope.get("units", at=version) for version in range(1, 6))
    ]
    assert values == [None, "km", "miles", "miles", None]
    assert scope.get("units", at=then).value == "km"
    assert scope.get("units", at=NOON) is None
    with pytest.raises(UnknownVersionError):
        scope.get("units", at=6)


def test_finds_the_text_or_else_the_value(scope: Any) -> None:
    scope.put("units", {"distance": "kilometres"})
    scope.put("city", "Cork", text="lives by the sea")
    scope.put("name", "Caoimhe")
    found = {query: [hit.fact.key for hit in scope.search(query)] for query in ("kilometres", "sea", "cork", "caoimhe")}
    assert found == {"kilometres": ["units"], "sea": ["city"], "cork": [], "caoimhe": ["name"]}
    assert [fact.text for fact in scope.facts()] == ['{"distance": "kilometres"}', "lives by the sea", "Caoimhe"]
    scope.put("units", {"distance": "miles"})
    assert scope.search("kilometres") == []


def test_stores_a_value_once(service: Any, scope: Any) -> None:
    scope.put("units", "x" * 100_000)
    assert len(b"".join(service.export_events())) < 150_000


def test_a_value_shares_nothing_with_the_caller(scope: Any) -> None:
    value = {"list": [1]}
    scope.put("units", value)
    value["list"].append(2)
    scope.get("units").value["list"].append(3)
    assert scope.get("units").value == {"list": [1]}


def test_a_screen_that_redacts_a_fact_removes_its_value(plain: MemoryScope, conversations: Conversations) -> None:
    fact = plain.put("phone", "555-1234")
    app = conversations.memory("app")
    assert plain.promote(fact, to=app).value == "555-1234"
    screened = conversations.memory("screened", screen=lambda _: Redact("has a phone", "phone"))
    copied = plain.promote(fact, to=screened)
    assert (copied.text, copied.value) == ("has a phone", None)


def test_of_eight_writers_at_once_one_fact_is_live(conversations: Conversations) -> None:
    together = threading.Barrier(8)

    def write(number: int) -> None:
        scope = conversations.memory("user/42")
        together.wait()
        for each in range(5):
            scope.put("units", [number, each])

    _in_threads(write, 8)
    scope = conversations.memory("user/42")
    assert len(scope.facts(history=True)) == 40
    (live,) = scope.facts()
    assert live == scope.get("units")


def test_of_many_writers_that_expect_no_fact_one_succeeds(conversations: Conversations) -> None:
    together = threading.Barrier(8)
    outcomes: list[object] = []

    def write(number: int) -> None:
        scope = conversations.memory("user/42")
        together.wait()
        try:
            outcomes.append(scope.put("units", number, expected=0).value)
        except FactConflictError as error:
            outcomes.append(error.actual)

    _in_threads(write, 8)
    (live,) = conversations.memory("user/42").facts()
    assert outcomes.count(live.version) >= 7


def test_reads_and_puts_visit_only_the_facts_that_were_live_together(
    plain: MemoryScope, conversations: Conversations
) -> None:
    fold = _filled(plain, conversations, others=300, puts=300)
    visits = _counted(fold)
    point = ReadPoint(fold.version)
    assert [fact.value for fact in fold.live("user/42", "k", point)] == [299]
    assert fold.live("user/42", "gone", point) == []
    assert [fact.value for fact in fold.live("user/42", "k", ReadPoint(450))] == [148]
    assert len(visits) < 60


def _filled(scope: MemoryScope, conversations: Conversations, *, others: int, puts: int) -> ScopeFold:
    for each in range(others):
        scope.put(f"other {each}", each)
    for each in range(puts):
        scope.put("k", each)
    for each in range(20):
        scope.put("gone", each)
        scope.delete("gone")
    fold: ScopeFold = run(load(conversations._core, "user/42", ScopeFold))
    return fold


def _counted(fold: ScopeFold) -> list[int]:
    visits: list[int] = []

    class Counted(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            visits.append(place)
            return super().__getitem__(place)

    fold._known = Counted(fold._known)
    return visits


def test_the_events_of_a_put_name_one_new_fact(conversations: Conversations, plain: MemoryScope) -> None:
    for each in range(3):
        plain.remember(f"{each}", key="units")
    put = plain.put("units", "km")
    stream = conversations._core.log.lineage("default/memory/user%2F42")
    written = [event.data for event in stream][4:]
    assert [type(data) for data in written] == [FactRetracted, FactRetracted, FactSuperseded]
    assert written[-1].by == put.id  # type: ignore[union-attr]  # it is superseded


def _in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
