"""Lists of memory scopes, in both APIs and on each store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.colours import COLOURS, opened

from clew import Conversations
from clew.domain.errors import InvalidContentError
from clew.domain.memory.events import FactSuperseded, Statement
from clew.domain.memory.scope import ScopeFold
from clew.domain.projection import Query, Recorded
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Memory
from clew.service.effects import run
from clew.service.memory.scope_queries import ScopeSummary
from clew.service.memory.streams import commit


@pytest.fixture(params=COLOURS)
def service(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    with opened(request.param, url) as service:
        yield service


def names(service: Any, prefix: str = "") -> list[str]:
    return [scope.name for scope in service.scopes(prefix=prefix)]


def test_lists_the_scopes_whose_names_begin_with_a_prefix(service: Any) -> None:
    all_names = ["User", "user", "user/", "user/1", "user/1/a", "user/\uffff", "user/🧶", "user0", "us", "%", "_", "\0"]
    for name in all_names:
        service.memory(name).put("k", 1)
    assert names(service) == sorted(all_names)
    for prefix in ("user/", "user", "u", "user/\uffff", "user/🧶", "%", "_", "\0", "x", ""):
        assert names(service, prefix) == sorted(name for name in all_names if name.startswith(prefix)), prefix


@pytest.mark.parametrize("prefix", [5, None, "\ud800"], ids=repr)
def test_refuses_a_prefix_that_is_not_text(service: Any, prefix: Any) -> None:
    with pytest.raises(InvalidContentError, match="prefix"):
        names(service, prefix)


def test_counts_the_facts_that_were_not_ended(service: Any) -> None:
    scope = service.memory("user/42")
    kept, ended = scope.remember("kept"), scope.remember("ended")
    for each in range(3):
        scope.put("units", each)
    scope.put("gone", 1)
    scope.delete("gone")
    scope.retract(ended)
    scope.supersede(kept, "changed")
    (listed,) = service.scopes()
    assert (listed.facts, len(scope.facts()), listed.version) == (2, 2, 10)
    service.rebuild("memory")
    assert list(service.scopes()) == [listed]


def test_counts_a_fact_that_two_readers_ended_once(conversations: Conversations) -> None:
    fact = conversations.memory("user/42").remember("one")
    for number in range(2):
        again = FactSuperseded(fact=fact.id, by=f"by {number}", statement=Statement(text="two"))
        run(commit(conversations._core, "user/42", ScopeFold, lambda _fold, _now, event=again: [event]))  # type: ignore[misc]
    (listed,) = conversations.scopes()
    assert listed.facts == len(conversations.memory("user/42").facts()) == 2


def test_lists_a_thousand_scopes_with_one_query(conversations: Conversations) -> None:
    scopes = [f"user/{number}" for number in range(20)]
    for name in scopes:
        conversations.memory(name).put("k", 1)
    list(conversations.scopes())
    queries: list[Any] = []
    models = conversations._core.models
    values = models._store.values
    models._store.values = lambda name, query: queries.append(query) or values(name, query)  # type: ignore[method-assign, func-returns-value]
    reads: list[Any] = []
    conversations._core.log._recorder.lineage = reads.append  # type: ignore[attr-defined]
    assert names(conversations, "user/") == sorted(scopes)
    assert ([query.limit for query in queries], reads) == ([1_000], [])


def test_a_scope_whose_first_event_is_unknown_is_listed(store: SQLiteProjections) -> None:
    statement = {"text": "x"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("fact-remembered", {"fact": "a", "statement": statement}),
        ("fact-retracted", {"fact": "a"}),
    ]
    with store.session(0) as session:
        built = session.begin(Memory(), "code", live=True)
        rows = session.rows(built, Memory())
        for version, (type_, data) in enumerate(events, 2):
            event = Recorded(version, "t", "memory", "s", version, type_, 1_000 + version, 0, data, 9, b"", "e")
            rows.apply(version, "t", list(Memory().project(event, rows)))
    (row,) = store.select("memory", Query("scope"))
    assert ScopeSummary(*list(row.values())[1:]) == ScopeSummary("s", "facts", 3, 0, None, None, 1_002, 1_003)
