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


def test_a_child_of_a_fork_searches_on_its_own() -> None:
    index = InMemoryVectors()
    put(index, (1, 0))

    def search() -> None:
        assert [number for number, _ in index.nearest(SPACE, "c", entries({1: (1, 0)}), 1, (1, 0), 1)] == [1]

    search()
    index._matrices._lock.acquire()  # as a thread of the parent's would hold it, that the child does not have
    try:
        assert in_forked_child(search) == 0
    finally:
        index._matrices._lock.release()
    search()


def test_says_what_to_install_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match=r"\.\[vectors\]"):
        put(InMemoryVectors(), (1, 0))


def test_goes_on_with_a_matrix_when_entries_are_added_and_asks_for_the_new_vectors_only() -> None:
    index, asked = InMemoryVectors(), []
    put(index, (1, 0), (0, 1), (1, 1))
    matrices = Matrices()

    def nearest(held: dict[int, tuple[float, float]], stamp: int) -> list[int]:
        def fetch(digests: object) -> dict[bytes, bytes]:
            asked.append(set(digests))  # type: ignore[call-overload]  # a collection of digests
            return {each: index._vectors[SPACE][each] for each in asked[-1]}

        found = matrices.nearest((SPACE, "c"), entries(held), stamp, (1, 0), 9, fetch)
        return [number for number, _ in found]

    assert nearest({1: (1, 0), 2: (0, 1)}, 1) == [1, 2]
    assert nearest({1: (1, 0), 2: (0, 1)}, 1) == [1, 2]
    assert nearest({1: (1, 0), 2: (0, 1), 3: (1, 1)}, 2) == [1, 3, 2]
    assert nearest({2: (0, 1), 3: (1, 1)}, 3) == [3, 2]
    assert asked == [set(entries({1: (1, 0), 2: (0, 1)}).values()), set(entries({3: (1, 1)}).values())]


def test_keeps_the_matrices_that_were_used_last_as_far_as_there_is_room() -> None:
    index, asked = InMemoryVectors(), []
    put(index, (1, 0))
    matrices = Matrices(most_bytes=40)  # two numbers of four bytes, and the number of the entry

    def nearest(name: str) -> None:
        def fetch(_: object) -> dict[bytes, bytes]:
            asked.append(name)
            return index._vectors[SPACE]

        assert matrices.nearest((SPACE, name), entries({1: (1, 0)}), 1, (1, 0), 1, fetch)

    for name in ("a", "b", "a", "c", "a", "b"):
        nearest(name)
    assert asked == ["a", "b", "c", "b"]
