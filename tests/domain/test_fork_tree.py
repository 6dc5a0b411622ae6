from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.fork_tree import Branch, BranchCheckpoint, branches, containing


class Thread(NamedTuple):
    id: str
    parent_id: str | None = None
    forked_at: int | None = None


def drawn(*threads: Thread) -> list[tuple[str, int, int]]:
    return [(branch.thread.id, branch.depth, branch.forks) for branch in branches(threads)]


def test_forks_come_after_their_parents_by_their_cuts() -> None:
    threads = (
        Thread("one"),
        Thread("late", "one", 9),
        Thread("two"),
        Thread("early", "one", 2),
        Thread("deep", "late", 11),
        Thread("also early", "one", 2),
    )
    assert drawn(*threads) == [
        ("one", 0, 3),
        ("early", 1, 0),
        ("also early", 1, 0),
        ("late", 1, 1),
        ("deep", 2, 0),
        ("two", 0, 0),
    ]


def test_a_thread_whose_parent_is_not_there_is_a_root() -> None:
    assert drawn(Thread("fork", "gone", 3), Thread("its", "fork", 5)) == [("fork", 0, 1), ("its", 1, 0)]


def test_checkpoints_come_by_version() -> None:
    marks = {"one": [BranchCheckpoint("b", 9), BranchCheckpoint("a", 2)]}
    assert list(branches([Thread("one")], marks)) == [
        Branch(Thread("one"), 0, 0, (BranchCheckpoint("a", 2), BranchCheckpoint("b", 9)))
    ]


def test_a_chain_of_forks_of_any_depth_is_a_tree() -> None:
    chain = [Thread("0"), *(Thread(str(number), str(number - 1), number) for number in range(1, 5_000))]
    assert drawn(*chain)[-1] == ("4999", 4_999, 0)
    assert len(containing(chain, "10", 11)) == 4_999 - 10


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=30), st.integers(0, 99), st.integers(1, 30))
def test_a_fork_contains_what_lies_in_its_past(forks: list[tuple[int, int]], owner: int, version: int) -> None:
    threads, lines = [Thread("0")], {"0": ["0"] * 10}
    for number, (which, wanted) in enumerate(forks, start=1):
        line = lines[threads[which % len(threads)].id]
        cut = min(wanted, len(line))
        threads.append(Thread(str(number), line[cut - 1], cut))  # named is whoever has the cut as its own
        lines[str(number)] = [*line[:cut], *([str(number)] * 4)]
    assert sorted(each.thread.id for each in branches(threads)) == sorted(lines)
    asked = threads[owner % len(threads)].id
    if lines[asked][version - 1 : version] == [asked]:
        having = [id_ for id_, line in lines.items() if id_ != asked and line[version - 1 : version] == [asked]]
        assert [thread.id for thread in containing(threads, asked, version)] == having
