from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clew.domain.history import spans


@st.composite
def lineages(draw: st.DrawFn) -> tuple[dict[int, int], int]:
    """The rewinds of a lineage, by version, and its head."""
    head = draw(st.integers(min_value=1, max_value=60))
    jumps = draw(st.sets(st.integers(min_value=2, max_value=60), max_size=20))
    return {at: draw(st.integers(min_value=1, max_value=at - 1)) for at in sorted(jumps) if at <= head}, head


def walked(rewinds: dict[int, int], at: int) -> list[int]:
    """The path by its definition: walking back from a version, jumping where it was rewound."""
    met = []
    while at > 0:
        met.append(at)
        at = rewinds.get(at, at - 1)
    return met[::-1]


@given(lineages())
def test_spans_are_the_path_that_walking_back_meets(lineage: tuple[dict[int, int], int]) -> None:
    rewinds, head = lineage
    for at in range(head + 1):
        found = spans(rewinds, at)
        assert [version for first, last in found for version in range(first, last + 1)] == walked(rewinds, at)
        assert len(found) <= len(rewinds) + 1


def test_a_rewind_to_an_abandoned_version_brings_it_back() -> None:
    rewinds = {4: 2, 6: 3}
    assert spans(rewinds, 5) == [(1, 2), (4, 5)]
    assert spans(rewinds, 7) == [(1, 3), (6, 7)]


def test_a_stored_target_that_lies_ahead_does_not_hold_a_reader_for_ever() -> None:
    assert spans({3: 9}, 5) == [(1, 2), (3, 5)]
    assert spans({3: 3}, 3) == [(1, 2), (3, 3)]
    assert spans({3: -4}, 4) == [(3, 4)]
