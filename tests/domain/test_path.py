from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.history import spans


@st.composite
def lineages(draw: st.DrawFn) -> tuple[dict[int, int], int]:
    """Return the rewinds of a lineage, by version, and its head."""
    head = draw(st.integers(min_value=1, max_value=60))
    jumps = draw(st.sets(st.integers(min_value=2, max_value=60), max_size=20))
    return {at: draw(st.integers(min_value=1, max_value=at - 1)) for at in sorted(jumps) if at <= head}, head


def walked(rewinds: dict[int, int], at: int) -> list[int]:
    """Return the path by its definition: go back from a version and jump at each rewind."""
    path = []
    while at > 0:
        path.append(at)
        at = rewinds.get(at, at - 1)
    return path[::-1]


@given(lineages())
def test_the_spans_are_the_path_back_from_a_version(lineage: tuple[dict[int, int], int]) -> None:
    rewinds, head = lineage
    for at in range(head + 1):
        spans_at = spans(rewinds, at)
        assert [version for first, last in spans_at for version in range(first, last + 1)] == walked(rewinds, at)
        assert len(spans_at) <= len(rewinds) + 1


def test_a_rewind_to_an_abandoned_version_restores_it() -> None:
    rewinds = {4: 2, 6: 3}
    assert spans(rewinds, 5) == [(1, 2), (4, 5)]
    assert spans(rewinds, 7) == [(1, 3), (6, 7)]


def test_a_stored_target_ahead_of_the_rewind_does_not_block_a_reader() -> None:
    assert spans({3: 9}, 5) == [(1, 2), (3, 5)]
    assert spans({3: 3}, 3) == [(1, 2), (3, 3)]
    assert spans({3: -4}, 4) == [(3, 4)]
