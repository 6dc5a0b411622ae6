from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.projection_leases import Share, assign, claimed

WORKERS = [f"worker-{number}" for number in range(5)]
NAMES = [f"projection_{number}" for number in range(7)]

wishes = st.dictionaries(st.sampled_from(WORKERS), st.sets(st.sampled_from(NAMES), min_size=1), min_size=1)


class Table:
    """What the workers have said, as a store keeps it."""

    def __init__(self) -> None:
        self.shares: list[Share] = []

    def claim(self, worker: str, names: set[str]) -> list[str]:
        others = [each for each in self.shares if each.worker != worker]
        held = claimed(self.shares, worker, sorted(names))
        self.shares = others + [Share(worker, name, name in held) for name in sorted(names)]
        return held

    def end(self, worker: str) -> None:
        self.shares = [each for each in self.shares if each.worker != worker]


def taken(shares: list[Share]) -> set[str]:
    return {each.projection for each in shares if each.held}


def settled(table: Table, wanted: dict[str, set[str]]) -> dict[str, str]:
    """Who has which some claims after the last change: one to give up, one to take, and more where that lets others."""
    for _ in range(6):
        for worker, names in sorted(wanted.items()):
            table.claim(worker, names)
    return {each.projection: each.worker for each in table.shares if each.held}


@given(wishes, st.data())
def test_everything_that_somebody_would_fill_is_filled_by_one_after_workers_come_and_go(
    wanted: dict[str, set[str]], data: st.DataObject
) -> None:
    table = Table()
    for worker in data.draw(st.lists(st.sampled_from(sorted(wanted)), max_size=8)):
        table.claim(worker, wanted[worker])
        assert len(taken(table.shares)) == sum(each.held for each in table.shares), "two have the same lease"
    for gone in data.draw(st.sets(st.sampled_from(sorted(wanted)), max_size=len(wanted) - 1)):
        table.end(gone)
        del wanted[gone]
    found = settled(table, wanted)
    assert set(found) == set.union(*wanted.values())
    assert all(name in wanted[worker] for name, worker in found.items())
    assert settled(table, wanted) == found, "it goes on moving"


@given(st.sets(st.sampled_from(WORKERS), min_size=1), st.sets(st.sampled_from(NAMES), min_size=1))
def test_no_worker_has_more_than_its_share(workers: set[str], names: set[str]) -> None:
    table = Table()
    loads = Counter(settled(table, dict.fromkeys(workers, names)).values())
    assert max(loads.values()) == -(-len(names) // len(workers))
    assert len(loads) == min(len(names), len(workers))


@given(st.sets(st.sampled_from(WORKERS), min_size=2), st.sets(st.sampled_from(NAMES)), st.data())
def test_no_lease_is_moved_without_need(workers: set[str], names: set[str], data: st.DataObject) -> None:
    table = Table()
    before = settled(table, dict.fromkeys(workers, names))
    gone = data.draw(st.sampled_from(sorted(workers)))
    table.end(gone)
    after = settled(table, dict.fromkeys(workers - {gone}, names))
    assert {name: worker for name, worker in before.items() if worker != gone}.items() <= after.items()
    assert set(after) == names


def test_what_a_worker_alone_would_fill_stays_with_it_while_others_come() -> None:
    found = assign([Share("a", name, held=True) for name in NAMES] + [Share("b", NAMES[0], held=False)])
    assert found == {name: "b" if name == NAMES[0] else "a" for name in NAMES}
