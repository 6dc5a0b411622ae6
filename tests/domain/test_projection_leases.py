from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.projection_leases import Share, assign, claimed

WORKERS = [f"worker-{number}" for number in range(5)]
NAMES = [f"projection_{number}" for number in range(7)]

wishes = st.dictionaries(st.sampled_from(WORKERS), st.sets(st.sampled_from(NAMES), min_size=1), min_size=1)


class Table:
    """The workers' claims, as a store keeps them."""

    def __init__(self) -> None:
        self.shares: list[Share] = []

    def claim(self, worker: str, names: set[str]) -> list[str]:
        others = [each for each in self.shares if each.worker != worker]
        held = claimed(self.shares, worker, sorted(names))
        self.shares = others + [Share(worker, name, name in held) for name in sorted(names)]
        return held

    def end(self, worker: str) -> None:
        self.shares = [each for each in self.shares if each.worker != worker]


def held_projections(shares: list[Share]) -> set[str]:
    return {each.projection for each in shares if each.held}


def settled(table: Table, wanted: dict[str, set[str]]) -> dict[str, str]:
    """Return the worker of each projection after enough claims for all leases to settle."""
    for _ in range(6):
        for worker, names in sorted(wanted.items()):
            table.claim(worker, names)
    return {each.projection: each.worker for each in table.shares if each.held}


@given(wishes, st.data())
def test_each_wanted_projection_has_one_worker_after_workers_join_and_leave(
    wanted: dict[str, set[str]], data: st.DataObject
) -> None:
    table = Table()
    for worker in data.draw(st.lists(st.sampled_from(sorted(wanted)), max_size=8)):
        table.claim(worker, wanted[worker])
        assert len(held_projections(table.shares)) == sum(each.held for each in table.shares), "two have the same lease"
    for left in data.draw(st.sets(st.sampled_from(sorted(wanted)), max_size=len(wanted) - 1)):
        table.end(left)
        del wanted[left]
    assigned = settled(table, wanted)
    assert set(assigned) == set.union(*wanted.values())
    assert all(name in wanted[worker] for name, worker in assigned.items())
    assert settled(table, wanted) == assigned, "the leases keep moving"


@given(st.sets(st.sampled_from(WORKERS), min_size=1), st.sets(st.sampled_from(NAMES), min_size=1))
def test_no_worker_has_more_than_its_share(workers: set[str], names: set[str]) -> None:
    table = Table()
    loads = Counter(settled(table, dict.fromkeys(workers, names)).values())
    assert max(loads.values()) == -(-len(names) // len(workers))
    assert len(loads) == min(len(names), len(workers))


@given(st.sets(st.sampled_from(WORKERS), min_size=2), st.sets(st.sampled_from(NAMES)), st.data())
def test_no_lease_moves_without_need(workers: set[str], names: set[str], data: st.DataObject) -> None:
    table = Table()
    before = settled(table, dict.fromkeys(workers, names))
    left = data.draw(st.sampled_from(sorted(workers)))
    table.end(left)
    after = settled(table, dict.fromkeys(workers - {left}, names))
    assert {name: worker for name, worker in before.items() if worker != left}.items() <= after.items()
    assert set(after) == names


def test_a_projection_with_one_willing_worker_stays_with_it_when_others_join() -> None:
    assigned = assign([Share("a", name, held=True) for name in NAMES] + [Share("b", NAMES[0], held=False)])
    assert assigned == {name: "b" if name == NAMES[0] else "a" for name in NAMES}
