"""What property tests draw from: the data of every event of context providers, of reducers and of memory scopes."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from clew.domain.context.events import (
    ContextEvent,
    ContextFailed,
    ContextProvided,
    ContextStateRecorded,
    HistoryReduced,
    Hook,
)
from clew.domain.events import StateClaimed
from clew.domain.memory.events import (
    DocumentAdded,
    DocumentRemoved,
    FactReference,
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    MemoryEvent,
    Provenance,
    ScopeOpened,
    ScopeRead,
    Statement,
)
from clew.domain.runs.events import Failure

counts = st.integers(min_value=0, max_value=2**53)
versions = st.integers(min_value=1, max_value=2**53)
times = st.none() | st.integers(min_value=-(2**53), max_value=2**53)


def context_data(
    texts: st.SearchStrategy[str],
    objects: st.SearchStrategy[dict[str, Any]],
    jsons: st.SearchStrategy[Any],
    messages: st.SearchStrategy[Any],
) -> dict[type[Any], Any]:
    """A strategy for each event of components in a thread."""
    some = st.none() | texts
    failures = st.builds(Failure, kind=texts, message=some, status=st.none() | counts, code=some)
    pairs = _few(st.tuples(versions, counts))
    found: dict[type[Any], Any] = {
        ContextProvided: st.builds(
            ContextProvided,
            provider=texts,
            instructions=some,
            messages=_few(messages),
            before=counts,
            tools=_few(texts),
            reads=_few(st.builds(ScopeRead, scope=texts, version=counts)),
            facts=_few(_references(texts)),
            citations=_few(objects),
        ),
        ContextFailed: st.builds(ContextFailed, provider=texts, hook=st.sampled_from(get_args(Hook)), error=failures),
        ContextStateRecorded: st.builds(ContextStateRecorded, provider=texts, state=jsons, seen=counts),
        HistoryReduced: st.builds(
            HistoryReduced,
            agent=texts,
            reducer=texts,
            upto=counts,
            left_out=pairs,
            summary=st.none() | messages,
            trimmed=pairs,
            over_budget=st.booleans(),
        ),
    }
    assert set(found) == set(get_args(ContextEvent))
    return found


def memory_data(texts: st.SearchStrategy[str], objects: st.SearchStrategy[dict[str, Any]]) -> dict[type[Any], Any]:
    """A strategy for each event of a memory scope, and for those that say whose a state is."""
    some = st.none() | texts
    learned = st.none() | st.builds(Provenance, thread=texts, version=versions)
    statements = st.builds(
        Statement,
        text=texts,
        key=some,
        kind=some,
        metadata=objects,
        valid_from=times,
        valid_to=times,
        learned=learned,
        promoted=st.none() | _references(texts),
    )
    found: dict[type[Any], Any] = {
        ScopeOpened: st.builds(
            ScopeOpened, holds=st.sampled_from(["facts", "documents"]), embedder=some, dimensions=st.none() | counts
        ),
        FactRemembered: st.builds(FactRemembered, fact=texts, statement=statements),
        FactSuperseded: st.builds(FactSuperseded, fact=texts, by=texts, statement=statements),
        FactRetracted: st.builds(FactRetracted, fact=texts, reason=some, valid_to=times, learned=learned),
        DocumentAdded: st.builds(
            DocumentAdded,
            document=texts,
            text=texts,
            namespaces=_few(texts),
            source_name=some,
            source_link=some,
            metadata=objects,
            replaces=some,
        ),
        DocumentRemoved: st.builds(DocumentRemoved, document=texts, reason=some),
    }
    assert set(found) == set(get_args(MemoryEvent))
    return {**found, StateClaimed: st.builds(StateClaimed, provider=texts, thread_id=texts)}


def _references(texts: st.SearchStrategy[str]) -> st.SearchStrategy[FactReference]:
    return st.builds(FactReference, scope=texts, fact=texts, version=versions)


def _few(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=2).map(tuple)
