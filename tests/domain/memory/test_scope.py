from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.memory.scope_histories import (
    OPENED,
    SCOPE,
    SECOND,
    START,
    at,
    folded,
    micros,
    recorded,
    remembered,
    retracted,
    superseded,
)

from clew.domain.errors import InvalidContentError, InvalidTimeError, UnknownFactError
from clew.domain.events import Opaque, Shredded
from clew.domain.memory.events import FactRemembered, FactRetracted, FactSuperseded, MemoryEvent, Provenance, Statement
from clew.domain.memory.facts import Fact
from clew.domain.memory.scope import (
    AsOf,
    Drop,
    MemoryIntent,
    Put,
    ReadPoint,
    Remember,
    Retract,
    ScopeFold,
    Store,
    Supersede,
    decide,
)

HOME = remembered("f1", "Lives in Cork", key="home", kind="place", metadata={"sure": [1]})


def facts(fold: ScopeFold, point: ReadPoint | None = None, **filters: Any) -> list[Fact]:
    return fold.facts(SCOPE, point or ReadPoint(fold.version), **filters)


def fact_ids(fold: ScopeFold, point: ReadPoint | None = None, **filters: Any) -> list[str]:
    return [fact.id for fact in facts(fold, point, **filters)]


def decided(fold: ScopeFold, intent: MemoryIntent, as_of: AsOf | None = None) -> list[MemoryEvent]:
    return decide(SCOPE, fold, intent, now=micros(1_000), as_of=as_of, opening=OPENED)


def test_a_fact_has_all_recorded_fields() -> None:
    learned = Provenance(thread="t", version=3)
    fold = folded(recorded([OPENED, remembered("f1", "Lives in Cork", learned, key="home", metadata={"sure": [1]})]))
    [fact] = facts(fold)
    assert (fact.scope, fact.id, fact.text, fact.version, fact.key) == (SCOPE, "f1", "Lives in Cork", 2, "home")
    assert (fact.recorded_at, fact.valid_from, fact.valid_to) == (at(1), at(1), None)
    assert (fact.learned, fact.actor, fact.status, fact.metadata) == (learned, "user:42", "live", {"sure": [1]})
    assert (fold.version, fold.recorded_at, fold.opened) == (2, micros(1), OPENED)
    assert fact.reference.version == 2


def test_changing_a_returned_fact_changes_nothing() -> None:
    fold = folded(recorded([OPENED, HOME]))
    [fact] = facts(fold)
    fact.metadata["sure"].append(2)  # type: ignore[union-attr]  # JSON of any shape
    assert facts(fold)[0].metadata == {"sure": [1]}


def test_storing_a_fact_replaces_the_newest_of_its_key() -> None:
    stored = Store("f9", Statement(text="Lives in Rome", key="home", kind="town"))
    assert decided(ScopeFold(), stored) == [OPENED, FactRemembered(fact="f9", statement=stored.statement)]
    history: list[MemoryEvent] = [
        OPENED,
        HOME,
        remembered("f2", key="home", kind="place"),
        remembered("f3", key="work"),
    ]
    [event] = decided(folded(recorded(history)), stored)
    assert isinstance(event, FactSuperseded)
    assert (event.fact, event.by, event.statement.text, event.statement.kind) == ("f2", "f9", "Lives in Rome", "place")
    endings: list[tuple[MemoryEvent, str]] = [
        (retracted("f2"), "f1"),
        (retracted("f2", valid_to=micros(2_000)), "f1"),
        (superseded("f2", "f4", key="home"), "f4"),
    ]
    for ended, newest in endings:
        [event] = decided(folded(recorded([*history, ended])), stored)
        assert isinstance(event, FactSuperseded)
        assert event.fact == newest
    later = folded(recorded([OPENED, remembered("f1", key="home", valid_from=micros(2_000))]))
    assert decided(later, stored) == [FactRemembered(fact="f9", statement=stored.statement)]
    without = Store("f9", Statement(text="Likes tea"))
    [event] = decided(folded(recorded([OPENED, remembered("f1")])), without)
    assert isinstance(event, FactRemembered)


def test_a_fact_is_valid_until_the_new_one_becomes_valid() -> None:
    fold = folded(recorded([OPENED, HOME, superseded("f1", "f2"), superseded("f2", "f3", valid_from=micros(-9))]))
    assert fact_ids(fold) == ["f3"]
    first, second, third = facts(fold, history=True)
    assert (first.status, first.valid_to, second.replaces) == ("superseded", at(2), "f1")
    assert (second.valid_from, second.valid_to) == (at(2), at(2))  # the scope now knows that it was never valid
    assert (third.status, third.valid_from, third.replaces) == ("live", at(-9), "f2")


def test_reads_validity_by_earlier_or_present_knowledge() -> None:
    moved = superseded("f1", "f2", valid_from=micros(-100))
    fold = folded(recorded([OPENED, remembered("f1", valid_from=micros(-200)), moved]))
    assert fact_ids(fold, ReadPoint(3, micros(-150))) == ["f1"]
    assert fact_ids(fold, ReadPoint(3, micros(-50))) == ["f2"]
    assert fact_ids(fold, ReadPoint(2, micros(-50))) == ["f1"]
    assert fact_ids(fold, ReadPoint(1, micros(-50))) == []
    assert fact_ids(fold, ReadPoint(3, micros(-201))) == []


def test_a_fact_is_not_valid_before_or_after_its_time() -> None:
    fold = folded(recorded([OPENED, remembered("f1", valid_from=micros(10), valid_to=micros(20))]))
    assert [fact_ids(fold, ReadPoint(2, micros(second))) for second in (9, 10, 19, 20)] == [[], ["f1"], ["f1"], []]
    assert fact_ids(fold, ReadPoint(2), history=True) == ["f1"]


def test_a_retracted_fact_was_valid_until_then() -> None:
    fold = folded(recorded([OPENED, HOME, retracted("f1", valid_to=micros(1) + SECOND // 2), retracted("f1")]))
    assert fact_ids(fold) == []
    [fact] = facts(fold, history=True)
    assert (fact.status, fact.valid_to) == ("retracted", at(1).replace(microsecond=500_000))
    assert fact_ids(fold, ReadPoint(2)) == ["f1"]


def test_a_retraction_never_extends_the_validity() -> None:
    first = remembered("f1", valid_to=micros(5))
    fold = folded(recorded([OPENED, first, retracted("f1", valid_to=micros(9))]))
    assert fold.facts(SCOPE, ReadPoint(3), history=True)[0].valid_to == at(5)


def test_filters_facts_by_key_and_kind() -> None:
    fold = folded(recorded([OPENED, HOME, remembered("f2", key="units"), remembered("f3", kind="place")]))
    assert fact_ids(fold, key="home") == ["f1"]
    assert fact_ids(fold, kind="place") == ["f1", "f3"]
    assert fact_ids(fold, key="units", kind="place") == []


def test_ignores_shredded_and_unknown_facts() -> None:
    fold = folded(recorded([OPENED, Shredded(None), Opaque(b"?"), superseded("gone", "f2"), retracted("unknown")]))
    assert fact_ids(fold) == ["f2"]
    assert (fold.version, len(fold), fold.fact(SCOPE, "gone", ReadPoint(5))) == (5, 1, None)


def test_each_fact_keeps_its_number() -> None:
    fold = folded(recorded([OPENED, HOME, superseded("f1", "f2"), remembered("f3"), retracted("f2")]))
    assert fold.texts() == ["Lives in Cork", "f2", "f3"]
    assert (fold.numbers(ReadPoint(5)), fold.numbered(SCOPE, 2, ReadPoint(5))) == ({2}, *facts(fold))
    assert [fold.fact_at(version) for version in range(7)] == [None, None, "f1", "f2", "f3", None, None]


def test_a_time_selects_the_last_version_recorded_by_then() -> None:
    fold = folded(recorded([OPENED, HOME, retracted("f1")]))
    assert [fold.version_at(START + second) for second in (-1, 0, SECOND, 9 * SECOND)] == [0, 1, 2, 3]
    assert [fold.time_of(version) for version in (0, 1, 3)] == [0, START, micros(2)]


def test_two_threads_with_different_views_may_each_end_a_fact() -> None:
    inside, outside = Provenance(thread="leaf", version=9), Provenance(thread="other", version=9)
    leaf = AsOf("leaf", 5, 2, {})
    events = recorded([OPENED, HOME, superseded("f1", "theirs", outside), retracted("theirs", inside)])
    before = folded(events[:3])
    assert decided(before, Supersede("f1", "ours", Statement(text="Lives in Galway", learned=inside)), leaf)
    fold = folded(recorded([OPENED, HOME, superseded("f1", "theirs", outside), superseded("f1", "ours", inside)]))
    assert fact_ids(fold) == ["theirs", "ours"]
    assert fact_ids(fold, ReadPoint(4, as_of=leaf)) == ["ours"]
    assert fact_ids(before, ReadPoint(3, as_of=leaf)) == ["f1"]


def test_a_scope_opens_with_its_first_fact() -> None:
    statement = Statement(text="Lives in Cork")
    first = decided(ScopeFold(), Remember("f1", statement))
    assert first == [OPENED, FactRemembered(fact="f1", statement=statement)]
    assert decided(folded(recorded(first)), Remember("f2", statement)) == [first[1].model_copy(update={"fact": "f2"})]


def test_a_superseding_fact_keeps_key_and_kind() -> None:
    fold = folded(recorded([OPENED, HOME]))
    new = Statement(text="Lives in Dublin", key="no", metadata={"a": 1})
    filters = Statement(text="Lives in Dublin", key="home", kind="place", metadata={"a": 1})
    assert decided(fold, Supersede("f1", "f2", new)) == [FactSuperseded(fact="f1", by="f2", statement=filters)]


def test_a_retraction_records_reason_and_provenance() -> None:
    learned = Provenance(thread="t", version=3)
    decision = decided(folded(recorded([OPENED, HOME])), Retract("f1", "moved", micros(5), learned))
    assert decision == [FactRetracted(fact="f1", reason="moved", valid_to=micros(5), learned=learned)]


@pytest.mark.parametrize("intent", [Supersede("f1", "f2", Statement(text="x")), Retract("f1")], ids=["new", "none"])
def test_only_a_live_fact_can_be_superseded_or_retracted(intent: MemoryIntent) -> None:
    endings = folded(recorded([OPENED, HOME, retracted("f1")]))
    for fold in (ScopeFold(), folded(recorded([OPENED])), endings):
        with pytest.raises(UnknownFactError, match="no live fact 'f1'") as raised:
            decided(fold, intent)
        assert (raised.value.scope, raised.value.fact) == (SCOPE, "f1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": " \n"},
        {"text": "\ud800"},
        {"text": "x", "key": ""},
        {"text": "x", "kind": "k" * 201},
        {"text": "x", "key": "\udfff"},
        {"text": "x", "metadata": {"a": float("nan")}},
    ],
    ids=str,
)
def test_refuses_invalid_statements(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError):
        decided(ScopeFold(), Remember("f1", Statement.model_construct(**{"metadata": {}, **wrong})))


@pytest.mark.parametrize("times", [(5, 5), (6, 5), (None, 1_000), (None, 999)], ids=str)
def test_refuses_a_fact_that_is_never_valid(times: tuple[int | None, int]) -> None:
    valid_from, valid_to = (None if time is None else micros(time) for time in times)
    statement = Statement(text="x", valid_from=valid_from, valid_to=valid_to)
    with pytest.raises(InvalidTimeError, match="is not after the time from which"):
        decided(ScopeFold(), Remember("f1", statement))
    with pytest.raises(InvalidTimeError):
        decided(folded(recorded([OPENED, HOME])), Supersede("f1", "f2", statement))


_times = st.none() | st.integers(-5, 25).map(micros)
_ids = st.sampled_from([f"f{number}" for number in range(6)])
_learned = st.none() | st.builds(Provenance, thread=st.sampled_from(["leaf", "other"]), version=st.integers(1, 9))
_statements = st.builds(
    Statement,
    text=st.just("x"),
    key=st.sampled_from([None, "k"]),
    valid_from=_times,
    valid_to=_times,
    learned=_learned,
)
_events = st.one_of(
    st.builds(FactRemembered, fact=_ids, statement=_statements),
    st.builds(FactSuperseded, fact=_ids, by=_ids, statement=_statements),
    st.builds(FactRetracted, fact=_ids, valid_to=_times, learned=_learned),
)


@given(
    later_events=st.lists(_events, max_size=14),
    point=st.builds(
        ReadPoint,
        st.integers(0, 15),
        _times,
        st.none() | st.builds(AsOf, st.just("leaf"), st.just(4), st.integers(0, 15), st.just({})),
    ),
    history=st.booleans(),
)
def test_an_old_version_reads_as_it_did_when_it_was_the_newest(
    later_events: list[MemoryEvent], point: ReadPoint, *, history: bool
) -> None:
    events = recorded([OPENED, *later_events])
    then = folded(events[: point.version])
    now = folded(events)
    assert facts(now, point, history=history) == facts(then, point, history=history)
    for fact in facts(then, point, history=True):
        assert now.fact(SCOPE, fact.id, point) == fact
    live = facts(now, point._replace(valid_at=None))
    assert all(fact.status == "live" for fact in live)
    assert {fact.id for fact in live} <= {fact.id for fact in facts(now, point._replace(valid_at=None), history=True)}


@given(
    events=st.lists(_events, max_size=14),
    version=st.integers(0, 15),
    as_of=st.none() | st.builds(AsOf, st.just("leaf"), st.just(4), st.integers(0, 15), st.just({})),
)
def test_the_live_facts_of_a_key_are_those_without_an_ending(
    events: list[MemoryEvent], version: int, as_of: AsOf | None
) -> None:
    fold, point = folded(recorded([OPENED, *events])), ReadPoint(version, as_of=as_of)
    assert fold.live(SCOPE, "k", point) == facts(fold, point, key="k")[::-1]
    assert fold.live(SCOPE, "other", point) == []
    for intent in (Put("new", Statement(text="new", key="k")), Drop("k")):
        after = folded(recorded([OPENED, *events, *decided(fold, intent, as_of)]))
        live = fact_ids(after, ReadPoint(after.version, as_of=as_of), key="k")
        if as_of is None:
            assert live == (["new"] if isinstance(intent, Put) else [])
