from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.fork_tree import Branch, BranchCheckpoint, branches, containing


class Thread(NamedTuple):
    id: str
    parent_id: str | None = None
    forked_at: int | None = None


def tree(*threads: Thread) -> list[tuple[str, int, int]]:
    return [(branch.thread.id, branch.depth, branch.forks) for branch in branches(threads)]


def test_forks_follow_their_parents_by_cut() -> None:
    threads = (
        Thread("one"),
        Thread("late", "one", 9),
        Thread("two"),
        Thread("early", "one", 2),
        Thread("deep", "late", 11),
        Thread("also early", "one", 2),
    )
    assert tree(*threads) == [
        ("one", 0, 3),
        ("early", 1, 0),
        ("also early", 1, 0),
        ("late", 1, 1),
        ("deep", 2, 0),
        ("two", 0, 0),
    ]


def test_a_thread_with_an_unknown_parent_is_a_root() -> None:
    assert tree(Thread("fork", "missing", 3), Thread("its", "fork", 5)) == [("fork", 0, 1), ("its", 1, 0)]


def test_checkpoints_are_in_order_of_version() -> None:
    marks = {"one": [BranchCheckpoint("b", 9), BranchCheckpoint("a", 2)]}
    assert list(branches([Thread("one")], marks)) == [
        Branch(Thread("one"), 0, 0, (BranchCheckpoint("a", 2), BranchCheckpoint("b", 9)))
    ]


def test_a_very_deep_chain_of_forks_is_a_tree() -> None:
    chain = [Thread("0"), *(Thread(str(number), str(number - 1), number) for number in range(1, 5_000))]
    assert tree(*chain)[-1] == ("4999", 4_999, 0)
    assert len(containing(chain, "10", 11)) == 4_999 - 10


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=30), st.integers(0, 99), st.integers(1, 30))
def test_a_fork_contains_the_messages_of_its_past(forks: list[tuple[int, int]], owner: int, version: int) -> None:
    threads, lineages = [Thread("0")], {"0": ["0"] * 10}
    for number, (parent, wanted) in enumerate(forks, start=1):
        lineage = lineages[threads[parent % len(threads)].id]
        cut = min(wanted, len(lineage))
        # The parent is the thread that owns the event at the cut.
        threads.append(Thread(str(number), lineage[cut - 1], cut))
        lineages[str(number)] = [*lineage[:cut], *([str(number)] * 4)]
    assert sorted(each.thread.id for each in branches(threads)) == sorted(lineages)
    thread_id = threads[owner % len(threads)].id
    if lineages[thread_id][version - 1 : version] == [thread_id]:
        containing_ids = [
            id_
            for id_, lineage in lineages.items()
            if id_ != thread_id and lineage[version - 1 : version] == [thread_id]
        ]
        assert [thread.id for thread in containing(threads, thread_id, version)] == containing_ids
