"""The calculated size of the capacity plan agrees with the measured size of a small store."""

from __future__ import annotations

import pytest
from benchmarks.capacity_plan import TOLERANCE, fill, measure, off, plan


@pytest.mark.parametrize(("threads", "turns"), [(20, 10), (100, 3)])
def test_the_plan_matches_the_size_of_a_store(postgres: str, threads: int, turns: int) -> None:
    state, name = fill(postgres, threads, turns)
    planned, actual = plan(threads, turns, state, round(name)), measure(postgres)
    assert (actual.streams, actual.events) == (planned.streams, planned.events) == (threads, threads * (1 + 2 * turns))
    assert off(planned, actual) <= TOLERANCE
    assert off(plan(threads, turns, 2 * state, round(name)), actual) > TOLERANCE
