"""Documents of several tenants, stores and namespaces: none sees, replaces or removes another's, at any version."""

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
    """Whose store is seen, and in which namespace."""

    tenant: str
    store: str
    namespace: str


class Upsert(NamedTuple):
    place: Place
    link: str | None
    others: Namespaces


class Remove(NamedTuple):
    place: Place
    which: int


places = st.builds(Place, st.sampled_from(TENANTS), st.sampled_from(STORES), st.sampled_from(NAMESPACES))
upserts = st.builds(Upsert, places, st.sampled_from(LINKS), st.frozensets(st.sampled_from(NAMESPACES), max_size=1))
removes = st.builds(Remove, places, st.integers(0, 20))
histories = st.lists(st.one_of(upserts, upserts, removes), max_size=12)


class Held(NamedTuple):
    id: str
    text: str
    link: str | None
    namespaces: Namespaces


@dataclass
class Naive:
    """What each store should hold: by tenant and store, after each of its writes."""

    now: dict[tuple[str, str], list[Held]] = field(default_factory=dict)
    past: list[tuple[Place, int, set[str]]] = field(default_factory=list)

    def shown(self, place: Place) -> list[Held]:
        return [each for each in self.now.get(place[:2], []) if place.namespace in each.namespaces]

    def texts(self, place: Place) -> set[str]:
        return {each.text for each in self.shown(place)}

    def add(self, place: Place, new: Held) -> None:
        gone = [each for each in self.shown(place) if new.link is not None and each.link == new.link]
        self.now[place[:2]] = [each for each in self.now.get(place[:2], []) if each not in gone] + [new]

    def remove(self, place: Place, old: Held) -> None:
        self.now[place[:2]].remove(old)


@given(history=histories, embedded=st.booleans())
def test_no_view_ever_shows_or_touches_what_is_anothers(history: list[Upsert | Remove], *, embedded: bool) -> None:
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
        written: list[tuple[Place, Held]] = []
        for number, step in enumerate(history):
            if isinstance(step, Upsert):
                own = frozenset({step.place.namespace}) | step.others
                text = f"words of number {number}"
                document = Document(text, source_link=step.link, namespaces=sorted(own))
                [id_] = await stores[step.place].upsert([document])
                held = Held(id_, text, step.link, own)
                naive.add(step.place, held)
                written.append((step.place, held))
            elif written:
                await _remove(stores, naive, step.place, written[step.which % len(written)][1])
            for place in every[number % 3 :: 3]:
                naive.past.append((place, _version(one, place), naive.texts(place)))
        for place in every:
            assert await _found(stores[place]) == naive.texts(place)
        for place, version, expected in naive.past:
            assert await _found(stores[place], version) == expected


async def _remove(stores: dict[Place, DocumentStore], naive: Naive, place: Place, old: Held) -> None:
    """A view removes what it shows, and says that it does not know what it does not show."""
    if old in naive.shown(place):
        await stores[place].remove(old.id)
        naive.remove(place, old)
        return
    try:
        await stores[place].remove(old.id)
    except UnknownDocumentError:
        return
    message = "a document was removed that the namespace does not show"
    raise AssertionError(message)


async def _found(store: DocumentStore, at: int | None = None) -> set[str]:
    found = await store.search("words number of", top=EVERY, at=at)
    return {passage.text for passage in found}


def _version(engine: Engine, place: Place) -> int:
    return len(engine._core.log.lineage(f"{place.tenant}/memory/{place.store}"))


def _of_tenant(engine: Engine, tenant: str) -> Engine:
    """The engine of another tenant on the same store: what is remembered and the index of vectors are shared."""
    return Engine(replace(engine._core, tenant=tenant))
