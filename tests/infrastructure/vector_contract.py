"""The contract of every vector index. A subclass of the suite creates the index."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.domain.errors import ClosedError, EmbeddingError
from clew.domain.memory.ports import VectorIndex

SPACE = "model/2"
Vector = tuple[float, float]

coordinates = st.integers(-4, 4).map(float)
vectors = st.tuples(coordinates, coordinates).filter(any)
collections = st.lists(st.dictionaries(st.integers(0, 9), vectors, max_size=8), min_size=1, max_size=3)
_names = itertools.count()


def digest(vector: Vector) -> bytes:
    return sha256(repr(tuple(map(float, vector))).encode()).digest()


def put(index: VectorIndex, *stored: Vector, space: str = SPACE) -> None:
    index.put(space, {digest(vector): vector for vector in stored})


def entries(vectors: Mapping[int, Vector]) -> dict[int, bytes]:
    return {number: digest(vector) for number, vector in vectors.items()}


def cosine(one: Vector, other: Vector) -> float:
    return (one[0] * other[0] + one[1] * other[1]) / math.hypot(*one) / math.hypot(*other)


def naive(vectors: Mapping[int, Vector], query: Vector) -> list[float]:
    return sorted((cosine(vector, query) for vector in vectors.values()), reverse=True)


class VectorIndexContract(ABC):
    """The suite."""

    @abstractmethod
    def make(self) -> VectorIndex:
        """Create an empty index. The test closes it."""

    def test_lists_missing_vectors_for_each_model(self) -> None:
        with closing(self.make()) as index:
            assert index.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
            put(index, (1, 0), (0, 1))
            put(index, (1, 0), space="other/2")
            assert index.missing(SPACE, [digest((1, 0)), digest((0, 1)), digest((2, 0))]) == {digest((2, 0))}
            assert index.missing("other/2", [digest((1, 0)), digest((0, 1))]) == {digest((0, 1))}
            assert index.missing("third/2", [digest((1, 0))]) == {digest((1, 0))}
            assert index.missing(SPACE, []) == set()

    def test_stores_more_vectors_than_fit_into_one_query(self) -> None:
        with closing(self.make()) as index:
            many = [(float(x), float(y)) for x in range(1, 40) for y in range(1, 40)]
            put(index, *many)
            assert index.missing(SPACE, [digest(vector) for vector in many]) == set()
            members = dict(enumerate(many))
            parallel = [number for number, vector in members.items() if vector[1] * 3 == vector[0] * 4]
            nearest = index.nearest(SPACE, "c", entries(members), 1, (3, 4), len(parallel))
            assert dict(nearest) == pytest.approx(dict.fromkeys(parallel, 1.0))

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])
    @given(collections, vectors, st.integers(1, 9))
    def test_finds_the_nearest_of_a_collection_that_changes(
        self, versions: list[dict[int, Vector]], query: Vector, top: int
    ) -> None:
        with closing(self.make()) as index:
            name = f"c{next(_names)}"
            for stamp, members in enumerate(versions):
                put(index, *members.values())
                for _ in range(2):
                    nearest = index.nearest(SPACE, name, entries(members), stamp, query, top)
                    assert [score for _, score in nearest] == pytest.approx(naive(members, query)[:top], abs=1e-6)
                    assert all(
                        score == pytest.approx(cosine(members[number], query), abs=1e-6) for number, score in nearest
                    )
                    assert len({number for number, _ in nearest}) == len(nearest)

    def test_equally_near_vectors_are_in_the_order_of_their_numbers(self) -> None:
        with closing(self.make()) as index:
            put(index, (1, 0), (0, 1))
            members = entries(dict.fromkeys((5, 3, 9, 1), (1, 0)) | {2: (0, 1)})
            assert [number for number, _ in index.nearest(SPACE, "c", members, 1, (1, 0), 3)] == [1, 3, 5]

    def test_ignores_members_without_a_vector(self) -> None:
        with closing(self.make()) as index:
            members = entries({1: (1, 0), 2: (0, 1)})
            assert index.nearest(SPACE, "c", members, 7, (1, 0), 5) == []
            put(index, (0, 1))
            assert [number for number, _ in index.nearest(SPACE, "c", members, 7, (1, 0), 5)] == [2]
            put(index, (1, 0))
            assert [number for number, _ in index.nearest(SPACE, "c", members, 7, (1, 0), 5)] == [1, 2]

    def test_does_not_change_an_existing_vector(self) -> None:
        with closing(self.make()) as index:
            index.put(SPACE, {b"x": (1, 0)})
            index.put(SPACE, {b"x": (0, 1)})
            assert dict(index.nearest(SPACE, "c", {1: b"x"}, 1, (1, 0), 1)) == pytest.approx({1: 1})

    def test_a_zero_vector_has_the_score_zero(self) -> None:
        with closing(self.make()) as index:
            index.put(SPACE, {b"zero": (0, 0), b"one": (1, 0)})
            assert dict(index.nearest(SPACE, "c", {1: b"zero", 2: b"one"}, 1, (2, 0), 5)) == pytest.approx({2: 1, 1: 0})
            assert index.nearest(SPACE, "c", {1: b"zero", 2: b"one"}, 1, (0, 0), 1) == [(1, 0)]

    def test_refuses_a_vector_of_another_size(self) -> None:
        with closing(self.make()) as index:
            put(index, (1, 0))
            with pytest.raises(EmbeddingError, match="3 numbers"):
                index.nearest(SPACE, "c", entries({1: (1, 0)}), 1, (1, 0, 0), 1)

    def test_a_dropped_vector_is_missing_until_it_is_stored_again(self) -> None:
        with closing(self.make()) as index:
            members = entries({1: (1, 0)})
            put(index, (1, 0))
            assert index.nearest(SPACE, "c", members, 1, (1, 0), 1)
            index.drop()
            assert index.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
            assert index.nearest(SPACE, "c", members, 1, (1, 0), 1) == []
            put(index, (1, 0))
            assert dict(index.nearest(SPACE, "c", members, 1, (1, 0), 1)) == pytest.approx({1: 1})

    def test_works_with_many_threads(self) -> None:
        with closing(self.make()) as index, ThreadPoolExecutor(8) as pool:
            members: dict[int, Vector] = {number: (1.0, float(number)) for number in range(200)}

            def work(part: int) -> list[int]:
                put(index, *(members[number] for number in range(part, 200, 8)))
                own = entries({number: members[number] for number in range(part, 200, 8)})
                return [number for number, _ in index.nearest(SPACE, f"part {part % 3}", own, part, (1, 0), 25)]

            assert list(pool.map(work, range(8))) == [list(range(part, 200, 8)) for part in range(8)]
            nearest = index.nearest(SPACE, "all", entries(members), 1, (1, 0), 200)
            assert [number for number, _ in nearest] == list(range(200))

    def test_raises_closed_error_after_close(self) -> None:
        index = self.make()
        put(index, (1, 0))
        index.close()
        index.close()
        with pytest.raises(ClosedError):
            put(index, (0, 1))
        with pytest.raises(ClosedError):
            index.missing(SPACE, [b"x"])
        with pytest.raises(ClosedError):
            index.nearest(SPACE, "c", {1: b"x"}, 1, (1, 0), 1)
        with pytest.raises(ClosedError):
            index.drop()
