from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.service.embedders import SPOILT, BrokenEmbedder, CountingEmbedder
from tests.service.settable_clock import SettableClock

from clew import Document, DocumentStore, Engine, HashingEmbedder, Passage
from clew.domain.errors import (
    EmbeddingError,
    EmbeddingMismatchError,
    InvalidContentError,
    InvalidNameError,
    InvalidTimeError,
    ScopeError,
    StoreUnavailableError,
    UnknownDocumentError,
    UnknownVersionError,
)
from clew.domain.events import to_time
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.infrastructure.postgres.sql_files import statements

Work = Callable[[Engine], Coroutine[Any, Any, None]]

CONTOSO = Document(
    "The financial results of Contoso Corp for 2023 is as follows:\nIncome EUR 174 000 000\nExpenses EUR 152 000 000",
    source_name="Contoso 2023 Financial Report",
    source_link="https://www.consoso.com/reports/2023.pdf",
    namespaces=["group/g2"],
    metadata={"year": 2023},
)
QUESTION = "What was the income of Contoso for 2023"


def on(url: str, work: Work, **options: Any) -> None:
    async def run() -> None:
        async with Engine.open(url, **options) as engine:
            await work(engine)

    asyncio.run(run())


def events(engine: Engine, name: str = "Memories") -> list[str]:
    return [event.type for event in engine._core.log.lineage(f"default/memory/{name}")]


def doc(text: str, link: str | None = None, *namespaces: str) -> Document:
    return Document(text, source_link=link, namespaces=namespaces or ["n"])


def texts(passages: Sequence[Passage]) -> set[str]:
    return {passage.text for passage in passages}


def ignore(_: object) -> None:
    """Discard the value."""


async def everything(store: DocumentStore, **options: Any) -> set[str]:
    return texts(await store.search("words", top=100, **options))


def test_finds_a_passage_with_its_source_only_in_its_namespace(url: str) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="group/g2", embedder=embedder)
        [id_] = await store.upsert([CONTOSO], actor="user:42")
        [passage] = await store.search(QUESTION)
        assert "174 000 000" in passage.text
        assert (passage.source_name, passage.source_link) == (CONTOSO.source_name, CONTOSO.source_link)
        assert (passage.document, passage.version, passage.metadata) == (id_, 2, {"year": 2023})
        assert 0.3 < passage.score <= 1
        other = await engine.documents("Memories", namespace="group/g1", embedder=embedder)
        assert await other.search(QUESTION) == []
        assert (store.name, store.namespace) == ("Memories", "group/g2")
        assert engine._core.log.lineage("default/memory/Memories")[1].actor == "user:42"

    on(url, work)


def test_a_second_upsert_of_a_link_leaves_one_live_document_and_both_events(url: str) -> None:
    async def work(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n")
        await store.upsert([doc("old words", "l"), doc("other words", "m"), doc("words without a link")])
        await store.upsert([doc("new words", "l")])
        assert await everything(store) == {"new words", "other words", "words without a link"}
        assert events(engine) == ["scope-opened", *["document-added"] * 4]

    on(url, work)


def test_the_last_document_of_a_link_in_an_upsert_wins(url: str) -> None:
    async def work(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n")
        assert len(await store.upsert([doc("one words", "l"), doc("two words", "l")])) == 2
        assert await everything(store) == {"two words"}
        assert await store.upsert([]) == []

    on(url, work)


def test_a_removed_document_is_found_only_at_earlier_versions(url: str) -> None:
    clock = SettableClock()
    at = to_time(clock())

    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="group/g2", embedder=embedder)
        clock.move(1)
        await store.upsert([CONTOSO])
        clock.move(1)
        await store.remove(str(CONTOSO.source_link), reason="wrong")
        assert await store.search(QUESTION) == []
        assert [passage.version for passage in await store.search(QUESTION, at=2)] == [2]
        assert await store.search(QUESTION, at=at + timedelta(seconds=1))
        assert await store.search(QUESTION, at=at + timedelta(seconds=2)) == []
        assert await store.search(QUESTION, at=at) == []
        assert await store.search(QUESTION, at=at - timedelta(days=9)) == []
        assert await store.search(QUESTION, at=0) == []
        assert embedder.texts.count(CONTOSO.text) == 1
        with pytest.raises(UnknownVersionError, match="1 to 3"):
            await store.search(QUESTION, at=4)
        with pytest.raises(InvalidTimeError):
            await store.search(QUESTION, at=datetime(2026, 1, 1))  # noqa: DTZ001  # the test refuses it
        with pytest.raises(UnknownVersionError):
            await store.search(QUESTION, at="2")  # type: ignore[arg-type]
        with pytest.raises(UnknownDocumentError, match="group/g2"):
            await store.remove(str(CONTOSO.source_link))

    on(url, work, now=clock)


def test_removes_by_id_only_documents_of_the_namespace(url: str) -> None:
    async def work(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n")
        other = await engine.documents("Memories", namespace="o")
        shared, own = await store.upsert([doc("shared words", "l", "n", "o"), doc("own words")])
        with pytest.raises(UnknownDocumentError):
            await other.remove(own)
        await other.remove(shared)
        assert await everything(store) == {"own words"}
        assert await everything(other) == set()

    on(url, work)


def test_a_link_in_another_namespace_is_another_document(url: str) -> None:
    async def work(engine: Engine) -> None:
        mine = await engine.documents("Memories", namespace="n")
        theirs = await engine.documents("Memories", namespace="o")
        await theirs.upsert([doc("their words", "l", "o")])
        await mine.upsert([doc("my words", "l", "n")])
        assert (await everything(mine), await everything(theirs)) == ({"my words"}, {"their words"})
        await mine.upsert([doc("our words", "l", "n", "o")])
        assert (await everything(mine), await everything(theirs)) == ({"our words"}, {"our words", "their words"})
        await theirs.upsert([doc("last words", "l", "o")])
        assert (await everything(mine), await everything(theirs)) == (set(), {"last words"})

    on(url, work)


def test_a_long_document_is_found_in_passages(url: str) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        parts = [
            f"Paragraph {number} about {topic}. " * 30 for number, topic in enumerate(("parcels", "lamps", "rain"))
        ]
        await store.upsert([doc("\n\n".join(parts))])
        [passage] = await store.search("lamps", top=1)
        assert passage.text == parts[1].strip()
        assert len(embedder.texts) == 4

    on(url, work)


def test_the_same_text_is_embedded_only_once(url: str) -> None:
    embedder = CountingEmbedder()

    async def work(engine: Engine) -> None:
        for namespace in ("n", "o"):
            store = await engine.documents("Memories", namespace=namespace, embedder=embedder)
            for _ in range(2):
                await store.upsert([doc("some words", "l", namespace), doc("more words", None, namespace)])
            await store.search("words")
        other = await engine.documents("Others", namespace="n", embedder=embedder)
        await other.upsert([doc("some words")])
        assert sorted(embedder.texts) == ["more words", "some words", "words", "words"]
        small = CountingEmbedder(8)
        await (await engine.documents("Small", namespace="n", embedder=small)).upsert([doc("some words")])
        assert small.texts == ["some words"]

    on(url, work)


def test_a_dropped_index_is_rebuilt_from_the_log_with_equal_results(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    embedder, results = CountingEmbedder(), []
    file = tmp_path / "clew.db.vectors"

    async def fill(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        await store.upsert([doc(f"words number {number}") for number in range(20)])
        results.append(await store.search("number seven words", top=9))
        embedder.texts.clear()
        engine._core.vectors.drop()
        results.append(await store.search("number seven words", top=9))
        assert len(embedder.texts) == 21
        file.unlink()
        results.append(await store.search("number seven words", top=9))
        assert len(embedder.texts) == 42

    async def read(engine: Engine) -> None:
        embedder.texts.clear()
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        results.append(await store.search("number seven words", top=9))

    on(url, fill)
    on(url, read)
    assert embedder.texts == ["number seven words"], "the vectors are stored next to the log"
    file.write_bytes(b"damaged" * 999)
    on(url, read)
    assert len(embedder.texts) == 21
    assert len(results[0]) == 9
    assert all(each == results[0] for each in results)


def test_finds_documents_that_could_not_be_indexed(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="n", embedder=embedder)

        def fail(*_: Any) -> None:
            raise StoreUnavailableError("the disk is full.")

        with monkeypatch.context() as patch:
            patch.setattr(type(engine._core.vectors), "put", fail)
            await store.upsert([doc("some words")])
        assert "the disk is full" in caplog.text
        assert await everything(store) == {"some words"}
        assert embedder.texts == ["some words", "words", "some words"]

    on(url, work)


@pytest.mark.parametrize("spoilt", list(SPOILT))
def test_a_failing_or_invalid_embedder_stores_nothing(spoilt: str) -> None:
    async def work(engine: Engine) -> None:
        embedder = BrokenEmbedder(SPOILT[spoilt])
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        await store.upsert([doc("first words", "l")])
        embedder.broken = True
        with pytest.raises(EmbeddingError) as caught:
            await store.upsert([doc("second words", "l"), doc("third words")])
        with pytest.raises(EmbeddingError):
            await store.search("words")
        embedder.broken = False
        assert "secret" not in str(caught.value)
        assert isinstance(caught.value, EmbeddingMismatchError) is ("size" in spoilt)
        assert await everything(store) == {"first words"}
        assert events(engine) == ["scope-opened", "document-added"]
        digests = engine._core.vectors._vectors["hashing-1/4"]  # type: ignore[attr-defined]
        assert len(digests) == 1

    on("memory:", work)


@pytest.mark.parametrize(
    ("name", "value"), [("model", "another"), ("dimensions", 5), ("model", ""), ("dimensions", None)]
)
def test_a_changed_embedder_is_refused(name: str, value: Any) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder(4)
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        await store.upsert([doc("first words")])
        setattr(embedder, name, value)
        with pytest.raises(EmbeddingError):
            await store.upsert([doc("second words")])
        with pytest.raises(EmbeddingError):
            await store.search("words")
        assert events(engine) == ["scope-opened", "document-added"]

    on("memory:", work)


def test_a_store_uses_the_embedder_that_opened_it() -> None:
    async def work(engine: Engine) -> None:
        first = BrokenEmbedder(SPOILT["raises"])
        store = await engine.documents("Memories", namespace="n", embedder=first)
        await store.upsert([doc("first words")])
        assert await everything(store) == {"first words"}
        first.broken = True
        embedder = CountingEmbedder(4)
        again = await engine.documents("Memories", namespace="n", embedder=embedder)
        assert await everything(again) == {"first words"}
        assert embedder.texts == ["words"], "the passages have their vectors already"

    on("memory:", work)


def test_a_store_opens_only_with_its_first_embedder(url: str) -> None:
    async def work(engine: Engine) -> None:
        await engine.documents("Memories", namespace="n", embedder=HashingEmbedder(1_536))
        await engine.documents("Memories", namespace="o", embedder=HashingEmbedder(1_536))
        with pytest.raises(EmbeddingMismatchError, match=r"with 1536 dimensions.* with 384 dimensions"):
            await engine.documents("Memories", namespace="n", embedder=HashingEmbedder(384))
        with pytest.raises(EmbeddingMismatchError, match="words alone"):
            await engine.documents("Memories", namespace="n")
        other = HashingEmbedder(1_536)
        other.model = "other"
        with pytest.raises(EmbeddingMismatchError, match="'other'"):
            await engine.documents("Memories", namespace="n", embedder=other)
        await engine.documents("Words", namespace="n")
        with pytest.raises(EmbeddingMismatchError):
            await engine.documents("Words", namespace="n", embedder=other)
        with pytest.raises(EmbeddingError, match="not an embedder"):
            await engine.documents("Words", namespace="n", embedder=object())  # type: ignore[arg-type]
        assert events(engine) == ["scope-opened"]

    on(url, work)


@pytest.mark.parametrize("namespace", [None, "", "  ", 7])
def test_a_store_needs_a_namespace(namespace: Any) -> None:
    async def work(engine: Engine) -> None:
        with pytest.raises(ScopeError, match="namespace"):
            await engine.documents("Memories", namespace=namespace)
        assert events(engine) == []

    on("memory:", work)


def test_a_store_needs_a_name_without_facts(url: str) -> None:
    async def work(engine: Engine) -> None:
        for name in (None, ""):
            with pytest.raises(ScopeError):
                await engine.documents(name, namespace="n")  # type: ignore[arg-type]
        with pytest.raises(InvalidNameError):
            await engine.documents("x" * 201, namespace="n")
        await (await engine.memory("user/42")).remember("Likes lamps.")
        with pytest.raises(ScopeError, match="facts"):
            await engine.documents("user/42", namespace="n")
        await engine.documents("Memories", namespace="n")
        with pytest.raises(ScopeError):
            await (await engine.memory("Memories")).remember("Likes lamps.")

    on(url, work)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    ([doc("fine"), doc("outside", None, "o")], ScopeError, "document 1 is for the namespaces"),
    ([doc("fine"), Document("nowhere")], ScopeError, "document 1"),
    ([doc("fine"), doc("x", None, "n", "")], ScopeError, "namespace"),
    ([doc("x" * 16 * 1024 * 1024)], InvalidContentError, "16,777,216"),
    ([doc("\n" * 9 * 1024 * 1024)], InvalidContentError, "Split it"),
    ([doc("a\ud800")], InvalidContentError, "surrogate"),
    ([Document("x", namespaces=["n"], metadata={"a": float("nan")})], InvalidContentError, "metadata"),
    ([Document("x", namespaces=["n"], source_link=7)], InvalidContentError, "source_link"),  # type: ignore[arg-type]
    (["text"], InvalidContentError, "not a Document"),
    (doc("x"), InvalidContentError, "not a list"),
    (None, InvalidContentError, "not a list"),
]


@pytest.mark.parametrize(("documents", "kind", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_refuses_invalid_documents_before_embedding(documents: Any, kind: type[Exception], reason: str) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        with pytest.raises(kind, match=reason):
            await store.upsert(documents)
        assert (embedder.texts, events(engine)) == ([], ["scope-opened"])

    on("memory:", work)


def test_refuses_a_document_of_100_megabytes() -> None:
    async def work(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n")
        with pytest.raises(InvalidContentError, match="100,000,000"):
            await store.upsert([doc("x" * 100_000_000)])
        with pytest.raises(InvalidContentError, match="bytes, not a string"):
            Document(b"text")  # type: ignore[arg-type]
        with pytest.raises(InvalidContentError, match="a list of them"):
            Document("text", namespaces="n")  # type: ignore[arg-type]

    on("memory:", work)


def test_stores_a_document_as_given_even_if_the_caller_changes_it() -> None:
    async def work(engine: Engine) -> None:
        embedder, document = CountingEmbedder(), Document("first words", namespaces=["n"], metadata={"a": [1]})
        store = await engine.documents("Memories", namespace="n", embedder=embedder)

        def change() -> None:
            document.text, document.namespaces = "other words", ("o",)
            document.metadata["a"] = "changed"

        embedder.then = change
        await store.upsert([document])
        [passage] = await store.search("words")
        assert (passage.text, passage.namespaces, passage.metadata) == ("first words", ("n",), {"a": [1]})
        passage.metadata["a"] = "changed"
        assert (await store.search("words"))[0].metadata == {"a": [1]}

    on("memory:", work)


def test_many_writers_of_one_link_leave_one_document(url: str) -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        stores = await asyncio.gather(
            *(engine.documents("Memories", namespace="n", embedder=embedder) for _ in range(4))
        )
        await asyncio.gather(*(store.upsert([doc(f"words {n}", "l")]) for n, store in enumerate(stores * 3)))
        assert len(await everything(stores[0])) == 1
        assert events(engine) == ["scope-opened", *["document-added"] * 12]
        verdict = await engine.verify()
        assert verdict.first_bad is None

    on(url, work)


def test_two_engines_on_one_file_see_what_the_other_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"

    async def run() -> None:
        embedder = CountingEmbedder()
        async with Engine.open(url) as one, Engine.open(url) as other:
            mine = await one.documents("Memories", namespace="n", embedder=embedder)
            theirs = await other.documents("Memories", namespace="n", embedder=embedder)
            for number in range(3):
                await mine.upsert([doc(f"my words {number}", "mine")])
                assert f"my words {number}" in await everything(theirs)
                await theirs.upsert([doc(f"their words {number}")])
                assert len(await everything(mine)) == number + 2
        assert len([text for text in embedder.texts if text != "words"]) == 6

    asyncio.run(run())


def test_min_score_excludes_passages_with_a_low_score(url: str) -> None:
    async def work(engine: Engine) -> None:
        for name, embedder in (("Words", None), ("Meanings", HashingEmbedder())):
            store = await engine.documents(name, namespace="n", embedder=embedder)
            await store.upsert([doc("the lost parcel"), doc("a lost letter"), doc("bananas are yellow")])
            every = await store.search("the lost parcel", top=9)
            assert [passage.text for passage in every][:2] == ["the lost parcel", "a lost letter"]
            scores = [passage.score for passage in every]
            assert scores == sorted(scores, reverse=True)
            assert scores[0] == pytest.approx(1)
            assert texts(await store.search("the lost parcel", min_score=0.9)) == {"the lost parcel"}
            assert len(await store.search("the lost parcel", top=1)) == 1
            assert await store.search("   ") == []

    on(url, work)


@pytest.mark.parametrize(
    "options", [{"top": 0}, {"top": True}, {"top": 2.5}, {"min_score": -1}, {"min_score": 2}, {"min_score": "x"}]
)
def test_refuses_invalid_search_options(options: dict[str, Any]) -> None:
    async def work(engine: Engine) -> None:
        store = await engine.documents("Memories", namespace="n")
        with pytest.raises(InvalidContentError):
            await store.search("words", **options)
        for query in (None, 7, "a\ud800"):
            with pytest.raises(InvalidContentError):
                await store.search(query)  # type: ignore[arg-type]

    on("memory:", work)


def test_a_cancelled_upsert_stores_nothing_and_the_next_one_works() -> None:
    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Memories", namespace="n", embedder=embedder)
        task = asyncio.ensure_future(store.upsert([doc("first words")]))
        embedder.then = lambda: ignore(task.cancel())
        with pytest.raises(asyncio.CancelledError):
            await task
        embedder.then = lambda: None
        assert events(engine) == ["scope-opened"]
        await store.upsert([doc("second words")])
        assert await everything(store) == {"second words"}

    on("memory:", work)


@pytest.mark.parametrize("any_url", ["memory", "sqlite"], indirect=True)  # a server with pgvector needs no numpy
def test_names_the_missing_extra_before_it_creates_a_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With pgvector a PostgreSQL server compares vectors by itself.
    monkeypatch.setitem(statements("vectors.sql"), "can have the extension", "SELECT false")

    async def work(engine: Engine) -> None:
        embedder = CountingEmbedder()
        store = await engine.documents("Others", namespace="n", embedder=embedder)
        monkeypatch.setitem(sys.modules, "numpy", None)
        with pytest.raises(MissingExtraError, match=r"\.\[vectors\]"):
            await engine.documents("Memories", namespace="n", embedder=embedder)
        with pytest.raises(MissingExtraError):
            await store.upsert([doc("words")])
        assert (events(engine), events(engine, "Others"), embedder.texts) == ([], ["scope-opened"], [])
        assert await everything(await engine.documents("Words", namespace="n")) == set()

    on(url, work)


def test_the_default_index_of_a_store_in_memory_is_in_memory() -> None:
    async def work(engine: Engine) -> None:
        assert isinstance(engine._core.vectors, InMemoryVectors)

    on("memory:", work)


def test_search_reads_a_namespace_under_the_lock_of_its_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: set[str] = set()

    async def work(engine: Engine) -> None:
        store = await engine.documents("docs", namespace="n")
        await store.upsert([doc("A parcel was lost.")])
        lock = engine._core.caches.lock

        def recording_lock(stream: str) -> threading.Lock:
            locked.add(stream)
            return lock(stream)

        monkeypatch.setattr(engine._core.caches, "lock", recording_lock)
        assert await store.search("parcel", top=1)
        assert not await store.search("parcel", top=1, at=1)
        assert locked == {"default/memory/docs"}

    on("memory:", work)
