"""Documents of several tenants, stores and namespaces are isolated from each other at every version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.service.embedders import CountingEmbedder

from clew import Document, DocumentStore, Engine
from clew.domain.errors import UnknownDocumentError

TENANTS, STORES, NAMESPACES, LINKS = ("acme", "default"), ("Memories", "memories"), ("n", "o", "n/o"), ("k", "l", None)
EVERY = 100

Namespaces = frozenset[str]


class Place(NamedTuple):
    """A view: the store of a tenant, seen in one namespace."""

    tenant: str
    store: str
    namespace: str


class Upsert(NamedTuple):
    place: Place
    link: str | None
    others: Namespaces


class Remove(NamedTuple):
    place: Place
    choice: int


places = st.builds(Place, st.sampled_from(TENANTS), st.sampled_from(STORES), st.sampled_from(NAMESPACES))
upserts = st.builds(Upsert, places, st.sampled_from(LINKS), st.frozensets(st.sampled_from(NAMESPACES), max_size=1))
removes = st.builds(Remove, places, st.integers(0, 20))
histories = st.lists(st.one_of(upserts, upserts, removes), max_size=12)


class StoredDocument(NamedTuple):
    id: str
    text: str
    link: str | None
    namespaces: Namespaces


@dataclass
class Naive:
    """The expected documents of each (tenant, store), now and after each write."""

    now: dict[tuple[str, str], list[StoredDocument]] = field(default_factory=dict)
    past: list[tuple[Place, int, set[str]]] = field(default_factory=list)

    def visible(self, place: Place) -> list[StoredDocument]:
        return [each for each in self.now.get(place[:2], []) if place.namespace in each.namespaces]

    def texts(self, place: Place) -> set[str]:
        return {each.text for each in self.visible(place)}

    def add(self, place: Place, new: StoredDocument) -> None:
        replaced = [each for each in self.visible(place) if new.link is not None and each.link == new.link]
        self.now[place[:2]] = [each for each in self.now.get(place[:2], []) if each not in replaced] + [new]

    def remove(self, place: Place, old: StoredDocument) -> None:
        self.now[place[:2]].remove(old)


@given(history=histories, embedded=st.booleans())
def test_no_view_shows_or_changes_documents_of_another(history: list[Upsert | Remove], *, embedded: bool) -> None:
    asyncio.run(_check(history, embedded=embedded))


async def _check(history: list[Upsert | Remove], *, embedded: bool) -> None:
    naive, every = Naive(), [Place(*each) for each in product(TENANTS, STORES, NAMESPACES)]
    embedder = CountingEmbedder(4) if embedded else None
    async with Engine.open("memory:", projections=()) as one:
        engines = {"default": one, "acme": _of_tenant(one, "acme")}
        stores = {
            place: await engines[place.tenant].documents(place.store, namespace=place.namespace, embedder=embedder)
            for place in every
        }
        written: list[tuple[Place, StoredDocument]] = []
        for number, step in enumerate(history):
            if isinstance(step, Upsert):
                own = frozenset({step.place.namespace}) | step.others
                text = f"words of number {number}"
                document = Document(text, source_link=step.link, namespaces=sorted(own))
                [id_] = await stores[step.place].upsert([document])
                stored = StoredDocument(id_, text, step.link, own)
                naive.add(step.place, stored)
                written.append((step.place, stored))
            elif written:
                await _remove(stores, naive, step.place, written[step.choice % len(written)][1])
            for place in every[number % 3 :: 3]:
                naive.past.append((place, _version(one, place), naive.texts(place)))
        for place in every:
            assert await _texts_in(stores[place]) == naive.texts(place)
        for place, version, expected in naive.past:
            assert await _texts_in(stores[place], version) == expected


async def _remove(stores: dict[Place, DocumentStore], naive: Naive, place: Place, old: StoredDocument) -> None:
    """Check that a view removes only the documents that it shows."""
    if old in naive.visible(place):
        await stores[place].remove(old.id)
        naive.remove(place, old)
        return
    try:
        await stores[place].remove(old.id)
    except UnknownDocumentError:
        return
    message = "the view removed a document that it does not show"
    raise AssertionError(message)


async def _texts_in(store: DocumentStore, at: int | None = None) -> set[str]:
    passages = await store.search("words number of", top=EVERY, at=at)
    return {passage.text for passage in passages}


def _version(engine: Engine, place: Place) -> int:
    return len(engine._core.log.lineage(f"{place.tenant}/memory/{place.store}"))


def _of_tenant(engine: Engine, tenant: str) -> Engine:
    """Return the engine of another tenant on the same store; caches and the vector index are shared."""
    return Engine(replace(engine._core, tenant=tenant))
