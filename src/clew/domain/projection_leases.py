"""Which worker fills which projection: leases that divide the work, and nothing else hangs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """A worker that would fill a projection, and whether it ``held`` the lease when this was read."""

    worker: str
    projection: str
    held: bool


def claimed(others: Sequence[Share], worker: str, names: Iterable[str], holds: Iterable[str]) -> list[str]:
    """Those of ``names`` whose leases a worker has from now on, where it ``holds`` some and ``others`` are there.

    It gives up what another is to have, and takes what it is to have itself once nobody holds it. So a lease goes over
    with two claims, and in between nobody has it: the work is late by that, and never done twice.
    """
    wanted, before = list(names), set(holds)
    goes = divided([*others, *(Share(worker, name, name in before) for name in wanted)])
    taken = {each.projection for each in others if each.held}
    return [name for name in wanted if goes[name] == worker and name not in taken]


def divided(shares: Iterable[Share]) -> Mapping[str, str]:
    """The worker that is to fill each projection: as many for each as can be, and no change that is not needed for it.

    Everybody who asks with the same shares is told the same.
    """
    would: dict[str, list[str]] = {}
    goes: dict[str, str] = {}
    for each in sorted(shares):
        would.setdefault(each.projection, []).append(each.worker)
        if each.held:
            goes.setdefault(each.projection, each.worker)
    loads = Counter(goes.values())
    while True:
        projection, to = _next(would, goes, loads)
        if projection is None:
            return goes
        if projection in goes:
            loads[goes[projection]] -= 1
        goes[projection] = to
        loads[to] += 1


def _next(
    would: Mapping[str, Sequence[str]], goes: Mapping[str, str], loads: Mapping[str, int]
) -> tuple[str | None, str]:
    """A projection that is to go to a worker with fewer, and that one; those that nobody has come first."""
    for projection in sorted(would, key=lambda name: name in goes):
        to = min(would[projection], key=lambda worker: loads[worker])
        if projection not in goes or loads[to] + 1 < loads[goes[projection]]:
            return projection, to
    return None, ""
