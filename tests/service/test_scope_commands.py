"""Writing and reading memory scopes from an application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE
from tests.service.recorded_runs import JOKER, called, record
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.domain.context.events import ContextProvided
from clew.domain.errors import (
    FactRefusedError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    InvalidNameError,
    InvalidTimeError,
    ScopeError,
    UnknownFactError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.events import Event
from clew.domain.memory.events import FactReference, FactRemembered, FactRetracted, Provenance, ScopeOpened, Statement
from clew.domain.memory.facts import Allow, Fact, FactOrigin, FactUse, Redact, Refuse
from clew.domain.memory.scope import ScopeFold
from clew.domain.messages import Message
from clew.domain.ports import Shred, Write
from clew.domain.runs.events import Failure, RunFailed
from clew.service.effects import run
from clew.service.memory.streams import commit
from clew.sync.memory import MemoryScope

NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


@pytest.fixture
def scope(conversations: Conversations) -> MemoryScope:
    return conversations.memory("user/42")


def texts(facts: list[Fact]) -> list[str]:
    return [fact.text for fact in facts]


def stored(conversations: Conversations) -> int:
    return conversations.verify().events


@pytest.mark.parametrize("name", [None, "", "  ", 42, b"user", ["user/42"]], ids=repr)
def test_refuses_an_invalid_scope_at_once(conversations: Conversations, name: Any) -> None:
    with pytest.raises(ScopeError, match="everybody would share the memory"):
        conversations.memory(name)
    assert stored(conversations) == 0


def test_refuses_an_invalid_name(conversations: Conversations) -> None:
    for name in ("x" * 201, "\ud800"):
        with pytest.raises(InvalidNameError):
            conversations.memory(name)
    assert conversations.memory("x" * 200).remember("x").scope == "x" * 200


def test_refuses_a_screen_that_is_not_a_function(conversations: Conversations) -> None:
    screen: Any = Allow()
    with pytest.raises(ScopeError, match="screen"):
        conversations.memory("app", screen=screen)


def test_reading_does_not_open_a_scope(conversations: Conversations, scope: MemoryScope) -> None:
    assert (scope.facts(), scope.search("tea"), scope.facts(history=True), scope.facts(at=NOON)) == ([], [], [], [])
    assert (stored(conversations), list(conversations.scopes())) == (0, [])


def test_a_fact_is_remembered_superseded_and_retracted(scope: MemoryScope, clock: SettableClock) -> None:
    cork = scope.remember("Lives in Cork", key="home", kind="place", metadata={"sure": True}, actor="agent:a")
    moved = clock.move(10)
    dublin = scope.supersede(cork, "Lives in Dublin")
    assert scope.facts() == [dublin]
    assert (dublin.key, dublin.kind, dublin.metadata, dublin.replaces) == ("home", "place", {}, cork.id)
    retracted_at = clock.move(10)
    scope.retract(dublin.id, reason="moved on")
    assert scope.facts() == []
    before, after = scope.facts(history=True)
    assert (before.status, before.valid_to, before.actor) == ("superseded", moved, "agent:a")
    assert (after.status, after.valid_to) == ("retracted", retracted_at)


def test_earlier_facts_are_read_by_version_and_time(scope: MemoryScope, clock: SettableClock) -> None:
    start = clock.move(0)
    cork = scope.remember("Lives in Cork")
    clock.move(10)
    scope.supersede(cork, "Lives in Dublin")
    assert [texts(scope.facts(at=version)) for version in (1, 2, 3)] == [[], ["Lives in Cork"], ["Lives in Dublin"]]
    assert texts(scope.facts(at=start)) == ["Lives in Cork"]
    assert texts(scope.facts(at=clock.move(-0.5))) == ["Lives in Cork"]
    assert texts(scope.facts(at=clock.move(99))) == ["Lives in Dublin"]
    assert scope.facts(at=datetime(1999, 1, 1, tzinfo=UTC)) == []
    assert texts(scope.facts(valid_at=start)) == ["Lives in Cork"]
    [then] = scope.facts(at=2)
    assert (then.status, then.valid_to) == ("live", None)
    assert [hit.fact.text for hit in scope.search("lives", at=2)] == ["Lives in Cork"]
    assert [hit.fact.text for hit in scope.search("lives", valid_at=start)] == ["Lives in Cork"]


def test_lists_only_facts_that_are_valid_now(scope: MemoryScope, clock: SettableClock) -> None:
    later = clock.move(100)
    clock.move(-50)
    scope.remember("Will live in Galway", valid_from=later)
    scope.remember("Lived in Cork", valid_from=NOON, valid_to=clock.move(-10))
    assert scope.facts() == []
    assert texts(scope.facts(valid_at=later)) == ["Will live in Galway"]
    assert texts(scope.facts(valid_at=NOON)) == ["Lived in Cork"]
    assert len(scope.facts(history=True)) == 2
    clock.move(100)
    assert texts(scope.facts()) == ["Will live in Galway"]


def test_a_fact_with_a_planned_end_can_end_earlier(scope: MemoryScope, clock: SettableClock) -> None:
    now = clock.move(0)
    later, still_later = now + timedelta(days=1), now + timedelta(days=9)
    fact = scope.remember("Lives in Oslo")
    moved = scope.supersede(fact, "Lives in Rome", valid_from=still_later)
    for refused in (still_later, still_later + timedelta(days=1)):
        with pytest.raises(UnknownFactError):
            scope.retract(fact, valid_to=refused)
    with pytest.raises(UnknownFactError):
        scope.supersede(fact, "Lives in Bergen")
    scope.retract(fact, valid_to=later)
    assert texts(scope.facts()) == ["Lives in Oslo"]
    assert texts(scope.facts(valid_at=later)) == []
    assert texts(scope.facts(at=3, valid_at=later)) == ["Lives in Oslo"]
    scope.retract(fact)
    assert scope.facts() == []
    with pytest.raises(UnknownFactError):
        scope.retract(fact)
    assert [each.status for each in scope.facts(history=True)] == ["retracted", "live"]
    assert texts(scope.facts(valid_at=still_later)) == [moved.text]


@pytest.mark.parametrize("at", [0, -1, 3, True, "2", 1.0])
def test_refuses_a_missing_version(scope: MemoryScope, at: Any) -> None:
    scope.remember("x")
    with pytest.raises(UnknownVersionError):
        scope.facts(at=at)
    with pytest.raises(UnknownVersionError):
        scope.search("x", at=at)


@pytest.mark.parametrize("time", [datetime(2026, 1, 1), "2026-01-01", 5], ids=repr)  # noqa: DTZ001  # the test refuses it
def test_refuses_a_time_without_an_offset(conversations: Conversations, scope: MemoryScope, time: Any) -> None:
    for name in ("valid_from", "valid_to"):
        with pytest.raises(InvalidTimeError, match=name):
            scope.remember("x", **{name: time})
    with pytest.raises(InvalidTimeError, match="valid_at"):
        scope.facts(valid_at=time)
    assert stored(conversations) == 0
    fact = scope.remember("x")
    with pytest.raises(InvalidTimeError):
        scope.retract(fact, valid_to=time)
    assert scope.facts() == [fact]


@pytest.mark.parametrize(
    "time",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
    ids=["before the year 1", "after 9999"],
)
def test_refuses_a_time_that_utc_cannot_express(scope: MemoryScope, time: datetime) -> None:
    fact = scope.remember("x")
    calls: list[Callable[[], object]] = [
        lambda: scope.remember("y", valid_from=time),
        lambda: scope.remember("y", valid_to=time),
        lambda: scope.retract(fact, valid_to=time),
        lambda: scope.facts(at=time),
        lambda: scope.facts(valid_at=time),
    ]
    for call in calls:
        with pytest.raises(InvalidTimeError, match="in UTC"):
            call()
    assert scope.facts(history=True) == [fact]


def test_accepts_the_first_and_last_moment_in_utc(scope: MemoryScope) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    fact = scope.remember("x", valid_from=first, valid_to=last)
    assert scope.facts(valid_at=first) == scope.facts() == [fact]
    assert scope.facts(valid_at=last) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"text": 5},
        {"text": "\ud800"},
        {"text": "x" * (16 * 1024 * 1024)},
        {"text": "x", "key": ""},
        {"text": "x", "key": 5},
        {"text": "x", "metadata": {"a": {1, 2}}},
        {"text": "x", "metadata": [1]},
        {"text": "x", "source": "thread"},
        {"text": "x", "source": Provenance(thread="t", version=0)},
    ],
    ids=lambda wrong: str(wrong)[:60],
)
def test_invalid_facts_store_nothing(conversations: Conversations, scope: MemoryScope, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError):
        scope.remember(**wrong)
    assert stored(conversations) == 0
    fact = scope.remember("good")
    arguments = {name: value for name, value in wrong.items() if name != "key"}
    if arguments != {"text": "x"}:
        with pytest.raises(InvalidContentError):
            scope.supersede(fact, **arguments)
    assert (scope.facts(), stored(conversations)) == ([fact], 2)


def test_accepts_only_a_live_fact_of_the_scope(conversations: Conversations, scope: MemoryScope) -> None:
    mine, theirs = scope.remember("mine"), conversations.memory("user/7").remember("theirs")
    scope.retract(mine)
    for fact in (mine, mine.id, theirs, theirs.id, "missing", theirs._replace(scope="user/42")):
        with pytest.raises(UnknownFactError):
            scope.supersede(fact, "x")
        with pytest.raises(UnknownFactError):
            scope.retract(fact)
        with pytest.raises(UnknownFactError):
            scope.promote(fact, to=conversations.memory("app"))
    for fact in (theirs, theirs.id, "missing", mine._replace(scope="user/7")):
        with pytest.raises(UnknownFactError):
            scope.why(fact)
        with pytest.raises(UnknownFactError):
            scope.used_by(fact)
    wrong: Any = None
    with pytest.raises(InvalidContentError, match="neither a fact"):
        scope.why(wrong)
    assert len(scope.facts(history=True)) == 1


def test_a_repeated_idempotency_key_writes_nothing(scope: MemoryScope) -> None:
    first = scope.remember("Likes tea", idempotency_key="k1")
    scope.remember("Likes jam")
    assert scope.remember("Likes tea", idempotency_key="k1") == first
    with pytest.raises(IdempotencyKeyReusedError):
        scope.remember("Likes milk", idempotency_key="k1")
    second = scope.supersede(first, "Likes coffee", idempotency_key="k2")
    assert scope.supersede(first, "Likes coffee", idempotency_key="k2") == second
    scope.retract(second, idempotency_key="k3")
    scope.retract(second, idempotency_key="k3")
    with pytest.raises(InvalidNameError):
        scope.remember("x", idempotency_key="")
    assert texts(scope.facts()) == ["Likes jam"]
    assert len(scope.facts(history=True)) == 3


def test_changing_metadata_changes_nothing_stored(scope: MemoryScope) -> None:
    metadata: Any = {"a": {"b": 1}}
    fact = scope.remember("x", metadata=metadata)
    metadata["a"]["b"] = 2
    fact.metadata["a"]["b"] = 3  # type: ignore[index, call-overload]  # JSON of any shape
    assert scope.facts()[0].metadata == {"a": {"b": 1}}


def test_recorded_time_does_not_go_back_with_the_clock(scope: MemoryScope, clock: SettableClock) -> None:
    first = scope.remember("one")
    clock.move(-100)
    second = scope.remember("two")
    assert second.recorded_at == first.recorded_at
    assert texts(scope.facts()) == ["one", "two"]


def test_the_actor_is_recorded_and_checked(conversations: Conversations) -> None:
    scope = conversations.acting_as("user:42").memory("user/42")
    assert (scope.remember("one").actor, scope.remember("two", actor="agent:a").actor) == ("user:42", "agent:a")
    with pytest.raises(InvalidNameError):
        scope.remember("three", actor="")


def test_finds_facts_by_their_words(scope: MemoryScope) -> None:
    scope.remember("Prefers kilometres to miles", kind="preference")
    scope.remember("Has a dog called Bran")
    old = scope.remember("Has a cat called Bran", kind="pet")
    scope.retract(old)
    [hit] = scope.search("what is the dog's name?")
    assert (hit.fact.text, 0 < hit.score <= 1) == ("Has a dog called Bran", True)
    assert scope.search("dog", kind="preference") == []
    assert texts([each.fact for each in scope.search("kilometres dog Bran has", top=1)]) == ["Has a dog called Bran"]
    scope.supersede(hit.fact, "Has a dog called Conn")
    assert texts([each.fact for each in scope.search("dog")]) == ["Has a dog called Conn"]
    for wrong in ({"top": 0}, {"min_score": 2}):
        with pytest.raises(InvalidContentError):
            scope.search("dog", **wrong)  # type: ignore[arg-type]  # the test passes wrong options


def test_why_leads_to_the_message_and_shows_that_it_was_redacted(
    conversations: Conversations, scope: MemoryScope
) -> None:
    thread = conversations.start_thread()
    message = thread.append(Message.user("I am vegetarian"))
    fact = scope.remember(
        "Is vegetarian", source=Provenance(thread=thread.id, version=message.version), actor="agent:a"
    )
    why = scope.why(fact)
    assert (why.fact, why.thread_id, why.version, why.actor) == (fact, thread.id, message.version, "agent:a")
    assert (why.message, why.redacted, why.promoted_from) == (message, False, None)
    branch = thread.fork()
    inherited = scope.remember("Eats no meat", source=Provenance(thread=branch.id, version=message.version))
    assert scope.why(inherited).message == message
    thread.redact(message)
    for each in (fact, inherited):
        why = scope.why(each)
        assert (why.message, why.redacted, why.version) == (None, True, message.version)
    scope.retract(fact)
    assert scope.why(fact).fact.status == "retracted"


def test_why_returns_the_source_of_an_unreadable_message(conversations: Conversations, scope: MemoryScope) -> None:
    thread = conversations.start_thread(messages=[Message.user("Hello")])
    sources = [Provenance(thread="missing", version=3), Provenance(thread=thread.id, version=9)]
    sources += [Provenance(thread=thread.id, version=1), Provenance(thread=thread.id, version=2)]
    thread.delete()
    for source in sources:
        why = scope.why(scope.remember("x", source=source))
        assert (why.thread_id, why.version, why.message, why.redacted) == (*source.__dict__.values(), None, False)
    alone = scope.why(scope.remember("x"))
    assert (alone.thread_id, alone.version, alone.message) == (None, None, None)


def test_refuses_a_message_as_source_without_its_thread(conversations: Conversations, scope: MemoryScope) -> None:
    message = conversations.start_thread().append(Message.user("Hello"))
    with pytest.raises(InvalidContentError, match="does not name its thread"):
        scope.remember("x", source=message)


def test_a_shredded_fact_is_unknown(conversations: Conversations, scope: MemoryScope) -> None:
    scope.remember("Likes tea")
    other = scope.remember("Likes jam")
    assert len(scope.search("likes")) == 2
    core, stream = conversations._core, "default/memory/user%2F42"
    row = core.log.redactable(stream, 2)
    head = core.log.lineage(stream)[-1].hash
    assert row is not None
    assert head is not None
    retraction = FactRetracted(fact="missing")
    event = Event(stream, 4, "fact-retracted", core.event_id(), core.now(), 0, retraction)
    core.log.submit(Write([event], {stream: head}, shreds=[Shred(stream, 2, row.digest, row.stub)])).outcome.result()
    assert scope.facts(history=True) == [other]
    assert [hit.fact for hit in scope.search("likes")] == [other]


def test_follows_a_cycle_of_promotions_once(conversations: Conversations) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        promoted = FactReference(scope=other, fact="f", version=1)
        remembered = FactRemembered(fact="f", statement=Statement(text=name, promoted=promoted))
        run(commit(conversations._core, name, ScopeFold, lambda _fold, _now, event=remembered: [event]))  # type: ignore[misc]
    why = conversations.memory("a").why("f")
    scopes = []
    each: FactOrigin | None = why
    while each is not None:
        scopes.append(each.fact.scope)
        each = each.promoted_from
    assert scopes == ["a", "b", "a"]


def test_a_fact_that_no_model_received_was_not_used(conversations: Conversations, scope: MemoryScope) -> None:
    fact, thread = scope.remember("Likes tea"), conversations.start_thread()
    provided_context = ContextProvided(provider="facts", facts=(fact.reference,))
    failed = RunFailed(error=Failure(kind="TimeoutError"))
    record(conversations, thread.id, "run-1", JOKER, provided_context, failed)
    assert scope.used_by(fact) == []
    [*_, provided, call] = record(conversations, thread.id, "run-2", JOKER, provided_context, called(-2))
    assert scope.used_by(fact) == [FactUse(thread.id, call, provided, "run-2")]
    thread.delete()
    assert scope.used_by(fact) == [FactUse(thread.id, call, provided, "run-2")]


# Promoting


def test_promotes_a_fact_to_a_wider_scope_with_its_provenance(
    conversations: Conversations, scope: MemoryScope, clock: SettableClock
) -> None:
    source = Provenance(thread=conversations.start_thread().id, version=1)
    fact = scope.remember("Returns take 5 days", key="returns", metadata={"a": 1}, source=source)
    clock.move(60)
    app, all_apps = conversations.memory("app/shop"), conversations.memory("all")
    wide = scope.promote(fact, to=app, actor="user:boss")
    assert (wide.text, wide.key, wide.metadata, wide.learned) == (fact.text, "returns", {"a": 1}, source)
    assert (wide.promoted, wide.actor, wide.valid_from) == (fact.reference, "user:boss", fact.valid_from)
    wider = app.promote(wide.id, to=all_apps)
    why = all_apps.why(wider)
    assert (why.thread_id, why.promoted_from) == (source.thread, app.why(wide))
    assert app.why(wide).promoted_from == scope.why(fact)
    assert (scope.facts(), app.facts()) == ([fact], [wide])


def test_a_screen_allows_redacts_or_refuses(conversations: Conversations, scope: MemoryScope) -> None:
    seen: list[Fact] = []

    def screen(fact: Fact) -> Allow | Redact | Refuse:
        seen.append(fact)
        if "card" in fact.text:
            return Refuse("no payment data")
        return Redact("A customer likes tea") if "Caoimhe" in fact.text else Allow()

    app = conversations.memory("app", screen=screen)
    plain = scope.remember("Tea sells well", metadata={"a": 1})
    named = scope.remember("Caoimhe likes tea", key="Caoimhe", metadata={"name": "Caoimhe"})
    card = scope.remember("Pays by card 4111")
    assert scope.promote(plain, to=app).metadata == {"a": 1}
    redacted = scope.promote(named, to=app)
    assert (redacted.text, redacted.key, redacted.metadata) == ("A customer likes tea", None, {})
    with pytest.raises(FactRefusedError, match="no payment data") as raised:
        scope.promote(card, to=app)
    assert (raised.value.scope, raised.value.reason) == ("app", "no payment data")
    assert seen == [plain, named, card]
    assert texts(app.facts(history=True)) == ["Tea sells well", "A customer likes tea"]


_NO_TEXT: Any = 5


@pytest.mark.parametrize(
    "verdict",
    [None, True, "yes", Allow, Redact(""), Redact("\n"), Redact(_NO_TEXT), Redact, KeyError("4111")],
    ids=repr,
)
def test_a_screen_without_a_valid_verdict_refuses_the_fact(
    conversations: Conversations, scope: MemoryScope, verdict: Any
) -> None:
    def screen(_fact: Fact) -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    app = conversations.memory("app", screen=screen)
    with pytest.raises(FactRefusedError, match="its screen") as raised:
        scope.promote(scope.remember("x"), to=app)
    assert "4111" not in str(raised.value)
    assert app.facts(history=True) == []


def test_refuses_to_promote_to_another_tenant_or_the_same_scope(
    conversations: Conversations, scope: MemoryScope
) -> None:
    fact = scope.remember("x")
    other = Conversations(conversations._core.acting_as(None))
    wrong: Any = "app"
    with pytest.raises(ScopeError, match="is not a memory scope"):
        scope.promote(fact, to=wrong)
    with pytest.raises(ScopeError, match="already"):
        scope.promote(fact, to=other.memory("user/42"))
    with Conversations.open("memory:") as elsewhere, pytest.raises(ScopeError, match="another tenant or store"):
        scope.promote(fact, to=elsewhere.memory("app"))
    assert stored(conversations) == 2


def test_a_fact_is_promoted_once_for_a_key(conversations: Conversations, scope: MemoryScope) -> None:
    fact, app = scope.remember("x"), conversations.memory("app")
    assert scope.promote(fact, to=app, idempotency_key="k") == scope.promote(fact, to=app, idempotency_key="k")
    assert len(app.facts(history=True)) == 1


# Scopes and threads


def test_lists_scopes_in_the_order_of_their_names(conversations: Conversations, clock: SettableClock) -> None:
    first = conversations.memory("user/42")
    fact = first.remember("one")
    opened = clock.move(0)
    conversations.memory("b").remember("x")
    updated = clock.move(5)
    first.supersede(fact, "two")
    listed = list(conversations.scopes())
    assert [(each.name, each.holds, each.version, each.facts) for each in listed] == [
        ("b", "facts", 2, 1),
        ("user/42", "facts", 3, 1),
    ]
    assert (listed[1].opened_at, listed[1].updated_at, listed[1].embedder) == (opened, updated, None)


def test_thread_queries_do_not_show_scopes(conversations: Conversations, scope: MemoryScope) -> None:
    thread = conversations.start_thread(title="Tea", messages=[Message.user("I like tea")])
    before = conversations.usage()
    for _ in range(3):
        fact = scope.remember("Likes tea, says thread user/42")
    scope.retract(fact)
    assert [each.id for each in conversations.threads()] == [thread.id]
    assert [hit.thread_id for hit in conversations.search("tea")] == [thread.id]
    assert conversations.usage() == before
    assert [branch.thread.id for branch in conversations.tree()] == [thread.id]
    assert len(list(conversations.export())) == 1
    with pytest.raises(UnknownThreadError):
        conversations.thread("user/42")
    assert conversations.start_thread(thread_id="user/42").version == 1
    assert len(scope.facts()) == 2
    with conversations.subscribe() as subscription:
        types = {subscription.wait(PATIENCE).type for _ in range(3)}  # type: ignore[union-attr]  # there are three
        assert (types, subscription.wait(0)) == ({"thread-started", "message-appended"}, None)
    assert conversations.verify().first_bad is None
    assert conversations.verify().events == 8


def test_concurrent_writes_to_a_scope_are_all_stored(conversations: Conversations) -> None:
    def remember(number: int) -> None:
        scope = conversations.memory("user/42")
        for each in range(5):
            scope.remember(f"{number}.{each}")

    writers = [threading.Thread(target=remember, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    facts = conversations.memory("user/42").facts()
    assert sorted(texts(facts)) == sorted(f"{number}.{each}" for number in range(6) for each in range(5))
    assert [fact.version for fact in facts] == list(range(2, 32))


def test_refuses_a_scope_that_another_process_opened_for_documents(shared_url: str) -> None:
    first_events = [ScopeOpened(holds="documents")]

    def now() -> int:
        if first_events:
            opened = first_events.pop()
            run(commit(others._core, "user/42", ScopeFold, lambda _fold, _now: [opened]))
        return 1_700_000_000_000_000

    with Conversations.open(shared_url) as others, Conversations.open(shared_url, now=now) as mine:
        scope = mine.memory("user/42")
        with pytest.raises(ScopeError, match="holds documents"):
            scope.remember("Likes tea")
        assert first_events == []
        assert stored(others) == 1


def test_one_of_many_concurrent_calls_supersedes_a_fact(conversations: Conversations, scope: MemoryScope) -> None:
    fact = scope.remember("one")
    lost: list[UnknownFactError] = []

    def supersede(number: int) -> None:
        try:
            conversations.memory("user/42").supersede(fact, f"by {number}")
        except UnknownFactError as error:
            lost.append(error)

    writers = [threading.Thread(target=supersede, args=(number,)) for number in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (len(lost), len(scope.facts()), len(scope.facts(history=True))) == (4, 1, 2)


def test_reads_the_writes_of_another_process(shared_url: str) -> None:
    with Conversations.open(shared_url) as here, Conversations.open(shared_url) as there:
        fact = here.memory("user/42").remember("one")
        assert there.memory("user/42").facts() == [fact]
        there.memory("user/42").supersede(fact, "two")
        assert texts(here.memory("user/42").facts()) == ["two"]
        here.memory("user/42").remember("three")
        assert [hit.fact.text for hit in there.memory("user/42").search("three two")] == ["two", "three"]


def test_facts_persist_after_reopening(shared_url: str) -> None:
    with Conversations.open(shared_url) as service:
        service.memory("user/42").remember("one", valid_from=NOON)
    with Conversations.open(shared_url, create=False) as service:
        [fact] = service.memory("user/42").facts()
        assert (fact.text, fact.valid_from, fact.version) == ("one", NOON, 2)
