from __future__ import annotations

import sys

import pytest
from tests.infrastructure.recorder_steps import in_forked_child
from tests.infrastructure.vector_contract import SPACE, VectorIndexContract, entries, put

from clew.domain.memory.ports import VectorIndex
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.infrastructure.vector_matrices import Matrices


class TestMemoryVectors(VectorIndexContract):
    def make(self) -> VectorIndex:
        return InMemoryVectors()


def test_a_forked_child_searches_independently() -> None:
    index = InMemoryVectors()
    put(index, (1, 0))

    def search() -> None:
        assert [number for number, _ in index.nearest(SPACE, "c", entries({1: (1, 0)}), 1, (1, 0), 1)] == [1]

    search()
    index._matrices._lock.acquire()  # as if held by a parent's thread that the child does not have
    try:
        assert in_forked_child(search) == 0
    finally:
        index._matrices._lock.release()
    search()


def test_explains_what_to_install_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match=r"\.\[vectors\]"):
        put(InMemoryVectors(), (1, 0))


def test_extends_a_matrix_and_fetches_only_new_vectors() -> None:
    index, fetched = InMemoryVectors(), []
    put(index, (1, 0), (0, 1), (1, 1))
    matrices = Matrices()

    def nearest(members: dict[int, tuple[float, float]], stamp: int) -> list[int]:
        def fetch(digests: object) -> dict[bytes, bytes]:
            fetched.append(set(digests))  # type: ignore[call-overload]  # a collection of digests
            return {each: index._vectors[SPACE][each] for each in fetched[-1]}

        result = matrices.nearest((SPACE, "c"), entries(members), stamp, (1, 0), 9, fetch)
        return [number for number, _ in result]

    assert nearest({1: (1, 0), 2: (0, 1)}, 1) == [1, 2]
    assert nearest({1: (1, 0), 2: (0, 1)}, 1) == [1, 2]
    assert nearest({1: (1, 0), 2: (0, 1), 3: (1, 1)}, 2) == [1, 3, 2]
    assert nearest({2: (0, 1), 3: (1, 1)}, 3) == [3, 2]
    assert fetched == [set(entries({1: (1, 0), 2: (0, 1)}).values()), set(entries({3: (1, 1)}).values())]


def test_keeps_the_most_recently_used_matrices_within_the_limit() -> None:
    index, fetched = InMemoryVectors(), []
    put(index, (1, 0))
    matrices = Matrices(most_bytes=40)  # room for one matrix: two numbers of four bytes, and the entry

    def nearest(name: str) -> None:
        def fetch(_: object) -> dict[bytes, bytes]:
            fetched.append(name)
            return index._vectors[SPACE]

        assert matrices.nearest((SPACE, name), entries({1: (1, 0)}), 1, (1, 0), 1, fetch)

    for name in ("a", "b", "a", "c", "a", "b"):
        nearest(name)
    assert fetched == ["a", "b", "c", "b"]
