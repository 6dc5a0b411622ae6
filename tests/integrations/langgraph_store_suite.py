"""LangGraph's store in Clew: the same calls to LangGraph's own store, and what only Clew has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from examples.integrations.langgraph_store import ClewStore
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from clew import Conversations

ITEMS: list[tuple[tuple[str, ...], str, dict[str, Any] | None]] = [
    (("docs",), "a", {"title": "One", "size": 1, "meta": {"tags": ["x"], "lang": "en"}}),
    (("docs",), "b", {"title": "Two", "size": 2, "meta": {"tags": ["y"], "lang": "de"}}),
    (("docs", "old"), "a", {"title": "Three", "size": 3.5, "meta": None}),
    (("docs-2",), "a", {"title": 'Ünïcode\n"quoted"', "size": 4}),
    (("users", "u 1", "prefs"), "a/b.c", {"size": 5}),
    (("users", "u 2", "prefs"), "a", {"size": 6}),
    (("users", "u 2", "prefs"), "gone", {"size": 7}),
    (("docs",), "a", {"title": "One again", "size": 1}),
    (("users", "u 2", "prefs"), "gone", None),
]


@pytest.fixture
def conversations(tmp_path: Path) -> Iterator[Conversations]:
    with Conversations.open(tmp_path / "clew.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[ClewStore, InMemoryStore]]:
    """The same items in both stores, for reading."""
    with Conversations.open("memory:") as opened:
        yield filled(opened)


def filled(conversations: Conversations) -> tuple[ClewStore, InMemoryStore]:
    both = ClewStore(conversations), InMemoryStore()
    for store in both:
        for namespace, key, value in ITEMS:
            store.put(namespace, key, value) if value is not None else store.delete(namespace, key)
    return both


def plain(answer: Any) -> Any:
    """An answer without times; lists of items in one order."""
    if isinstance(answer, list):
        return sorted((plain(each) for each in answer), key=repr)
    return (answer.namespace, answer.key, answer.value) if hasattr(answer, "namespace") else answer


READS = {
    **{f"get {namespace} {key}": GetOp(namespace, key) for namespace, key, _ in ITEMS},
    "get what never was": GetOp(("docs",), "z"),
    "search all": SearchOp(()),
    "search a prefix of labels, not of letters": SearchOp(("docs",)),
    "search one namespace": SearchOp(("users", "u 2")),
    "search nothing": SearchOp(("do",)),
    "filter by a value": SearchOp((), {"size": 2}),
    "filter by another type": SearchOp((), {"size": "2"}),
    "filter by a missing field": SearchOp((), {"none": None}),
    "filter in an object": SearchOp((), {"meta": {"lang": "de"}}),
    "filter by a list": SearchOp((), {"meta": {"tags": ["y"]}}),
    "filter equal": SearchOp((), {"size": {"$eq": 5}}),
    "filter not equal": SearchOp((), {"title": {"$ne": "Two"}}),
    "filter greater": SearchOp((), {"size": {"$gt": 3.5}}),
    "filter between": SearchOp((), {"size": {"$gte": 2, "$lt": 5}}),
    "filter at most": SearchOp((), {"size": {"$lte": 2}}),
    "list namespaces": ListNamespacesOp(),
    "list to a depth": ListNamespacesOp(max_depth=2),
    "list the first": ListNamespacesOp(limit=2),
    "list the rest": ListNamespacesOp(offset=2),
    "list by prefix": ListNamespacesOp((MatchCondition("prefix", ("users", "*")),)),
    "list by suffix": ListNamespacesOp((MatchCondition("suffix", ("prefs",)),)),
    "list by both": ListNamespacesOp((MatchCondition("prefix", ("users",)), MatchCondition("suffix", ("u 1", "*")))),
    "list none": ListNamespacesOp((MatchCondition("prefix", ("docs", "old", "more")),)),
}


@pytest.mark.parametrize("name", READS)
def test_answers_as_the_store_of_langgraph_does(name: str, stores: tuple[ClewStore, InMemoryStore]) -> None:
    clew, own = (store.batch([READS[name]]) for store in stores)
    assert plain(clew[0]) == plain(own[0])


@pytest.mark.parametrize("name", ["list namespaces", "search all"])
def test_answers_the_same_for_asyncio(name: str, stores: tuple[ClewStore, InMemoryStore]) -> None:
    clew, own = (asyncio.run(store.abatch([READS[name]])) for store in stores)
    assert plain(clew[0]) == plain(own[0])


def test_a_batch_reads_what_was_there_before_it_and_its_last_put_counts(conversations: Conversations) -> None:
    stores = filled(conversations)
    ops = [PutOp(("n",), "k", {"v": 1}), GetOp(("n",), "k"), PutOp(("n",), "k", {"v": 2}), PutOp(("docs",), "b", None)]
    for store in stores:
        assert store.batch(ops) == [None] * 4
    reads = [GetOp(("n",), "k"), GetOp(("docs",), "b")]
    clew, own = (plain(store.batch(reads)) for store in stores)
    assert clew == own


def test_a_page_of_a_search_has_the_items_between(stores: tuple[ClewStore, InMemoryStore]) -> None:
    clew, own = stores
    pages = [clew.search((), limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert plain([item for page in pages for item in page]) == plain(own.search((), limit=10))
    assert [len(page) for page in pages] == [2, 2, 2, 0]


def test_the_puts_of_a_batch_are_stored_together_or_not_at_all(conversations: Conversations) -> None:
    store = ClewStore(conversations)
    with pytest.raises(Exception, match="nan"):
        store.batch([PutOp(("a",), "k", {"v": 1}), PutOp(("b",), "k", {"v": float("nan")})])
    assert store.list_namespaces() == []
    before = conversations.position()
    store.batch([PutOp(("a",), "k", {"v": 1}), PutOp(("b",), "k", {"v": 2})])
    assert store.list_namespaces() == [("a",), ("b",)]
    assert conversations.position() > before
    assert conversations.verify().first_bad is None


def test_a_namespace_whose_items_were_deleted_is_not_listed(conversations: Conversations) -> None:
    store = ClewStore(conversations)
    store.put(("n",), "k", {"v": 1})
    store.delete(("n",), "k")
    store.delete(("never",), "k")
    assert store.list_namespaces() == []
    assert [(fact.value, fact.status) for fact in conversations.memory("langgraph/n").facts(history=True)] == [
        ({"v": 1}, "retracted")
    ]


def test_of_eight_puts_at_once_one_is_live(conversations: Conversations) -> None:
    store, barrier = ClewStore(conversations), Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        store.put(("n",), "k", {"v": number})

    threads = [Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.search(("n",))) == 1
    assert len(conversations.memory("langgraph/n").facts(history=True)) == 8


def test_an_item_keeps_when_it_was_created_and_says_when_it_was_changed(conversations: Conversations) -> None:
    store = ClewStore(conversations)
    store.put(("n",), "k", {"v": 1})
    first = store.get(("n",), "k")
    store.put(("n",), "k", {"v": 2})
    second = store.get(("n",), "k")
    assert first is not None
    assert second is not None
    assert second.created_at == first.created_at == first.updated_at < second.updated_at


def test_a_query_finds_items_by_their_words(conversations: Conversations) -> None:
    store = ClewStore(conversations)
    store.put(("n", "a"), "1", {"text": "The parcel is in Cork"})
    store.put(("n", "b"), "2", {"text": "Nothing of the kind"})
    assert [item.key for item in store.search(("n",), query="parcel Cork")] == ["1"]
