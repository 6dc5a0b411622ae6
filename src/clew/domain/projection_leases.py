"""Leases on projections: they divide the work among workers, and nothing else depends on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """A worker that can maintain a projection, and whether it ``held`` the lease when this was read."""

    worker: str
    projection: str
    held: bool


def claimed(shares: Sequence[Share], worker: str, names: Iterable[str]) -> list[str]:
    """The projections of ``names`` whose leases a worker has from now on; ``shares`` are those of all workers.

    A worker releases a lease that is assigned to another worker, and takes an assigned lease once it is free. So a
    transfer needs two claims, and the lease is free in between: the work is delayed, but never done twice.
    """
    wanted = list(names)
    others = [each for each in shares if each.worker != worker]
    before = {each.projection for each in shares if each.worker == worker and each.held}
    assigned = assign([*others, *(Share(worker, name, name in before) for name in wanted)])
    taken = {each.projection for each in others if each.held}
    return [name for name in wanted if assigned[name] == worker and name not in taken]


def assign(shares: Iterable[Share]) -> Mapping[str, str]:
    """The worker for each projection: as equal a number as possible, with as few changes of lease as possible.

    The same shares always give the same answer.
    """
    candidates: dict[str, list[str]] = {}
    assigned: dict[str, str] = {}
    for each in sorted(shares):
        candidates.setdefault(each.projection, []).append(each.worker)
        if each.held:
            assigned.setdefault(each.projection, each.worker)
    loads = Counter(assigned.values())
    while True:
        projection, to = _next(candidates, assigned, loads)
        if projection is None:
            return assigned
        if projection in assigned:
            loads[assigned[projection]] -= 1
        assigned[projection] = to
        loads[to] += 1


def _next(
    candidates: Mapping[str, Sequence[str]], assigned: Mapping[str, str], loads: Mapping[str, int]
) -> tuple[str | None, str]:
    """A projection to assign to a worker that has fewer, and that worker; unassigned projections come first."""
    for projection in sorted(candidates, key=lambda name: name in assigned):
        to = min(candidates[projection], key=lambda worker: loads[worker])
        if projection not in assigned or loads[to] + 1 < loads[assigned[projection]]:
            return projection, to
    return None, ""
