"""The behaviour of the index in every store: it finds the rows of a lineage under a number, newest first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.infrastructure.recorder_steps import addresses, append, event, failure, fill

from clew.domain.ports import Fork, Row, Shred
from clew.domain.streams import digest
from clew.infrastructure.recorder_ports import IndexEntry, RecordedConflictError, Recorder

_names = iter(range(1_000_000))


def found(
    recorder: Recorder, stream: str, number: int, after: int = 0, upto: int = 2**40, limit: int = 99
) -> list[Row]:
    return recorder.indexed(stream, number, after=after, upto=upto, limit=limit)


class IndexContract:
    """Rows under numbers."""

    def test_finds_the_newest_rows_under_a_number(self, recorder: Recorder) -> None:
        entries = [IndexEntry("a", version % 3, version) for version in range(1, 31)]
        append(recorder, *[event("a", version) for version in range(1, 31)], entries=entries)
        rows = {row.version: row for row in recorder.lineage("a")}
        assert found(recorder, "a", 1, limit=3) == [rows[28], rows[25], rows[22]]
        assert [row.version for row in found(recorder, "a", 2, after=5, upto=14)] == [14, 11, 8]
        assert len(found(recorder, "a", 0)) == 10
        assert recorder.entries("a") == {(entry.number, entry.version) for entry in entries}
        assert recorder.entries("b") == set()
        assert found(recorder, "a", 7) == found(recorder, "b", 1) == found(recorder, "a", 1, limit=0) == []
        assert found(recorder, "a", 1, after=28) == found(recorder, "a", 1, upto=0) == []

    def test_a_fork_finds_rows_of_its_ancestors_up_to_each_cut(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("a", 2), entries=[IndexEntry("a", 5, 1)])
        append(recorder, event("a", 3), entries=[IndexEntry("a", 5, 3)])
        append(recorder, event("f", 3), event("f", 4), forks={"f": Fork("a", 2)}, entries=[IndexEntry("f", 5, 4)])
        append(recorder, event("g", 5), forks={"g": Fork("f", 4)}, entries=[IndexEntry("g", 5, 5)])
        append(recorder, event("f", 5), entries=[IndexEntry("f", 5, 5)])
        assert addresses(found(recorder, "g", 5)) == [("g", 5), ("f", 4), ("a", 1)]
        assert addresses(found(recorder, "g", 5, limit=2)) == [("g", 5), ("f", 4)]
        assert addresses(found(recorder, "g", 5, after=1, upto=4)) == [("f", 4)]
        assert addresses(found(recorder, "f", 5)) == [("f", 5), ("f", 4), ("a", 1)]
        assert addresses(found(recorder, "a", 5)) == [("a", 3), ("a", 1)]

    def test_an_entry_is_stored_with_its_append_or_not_at_all(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        error = failure(recorder, event("a", 2), entries=[IndexEntry("a", 5, 2)])
        assert isinstance(error, RecordedConflictError)
        assert found(recorder, "a", 5) == []

    def test_a_shredded_row_loses_the_numbers_that_are_named(self, recorder: Recorder) -> None:
        entries = [IndexEntry("a", number, version) for version in (1, 2) for number in (5, 6, 7)]
        append(recorder, event("a", 1), event("a", 2), entries=entries)
        shred = Shred("a", 1, digest(b"a 1"), b"stub", (6, 7))
        append(recorder, event("a", 3), shreds=[shred])
        assert [row.state for row in found(recorder, "a", 5)] == [b"a 2", b"stub"]
        assert [row.version for row in found(recorder, "a", 6)] == [2]
        assert [row.version for row in found(recorder, "a", 7)] == [2]
        append(recorder, event("a", 4), shreds=[replace(shred, version=2, digest=digest(b"a 2"), numbers=())])
        assert [row.version for row in found(recorder, "a", 6)] == [2]

    @settings(
        max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(
        numbers=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=20),
        cut=st.integers(1, 20),
        number=st.integers(0, 3),
        after=st.integers(0, 25),
        upto=st.integers(0, 25),
        limit=st.integers(0, 9),
    )
    def test_equals_filtering_the_lineage(
        self, recorder: Recorder, numbers: list[set[int]], cut: int, number: int, after: int, upto: int, limit: int
    ) -> None:
        root, fork, cut = f"r{next(_names)}", f"f{next(_names)}", min(cut, len(numbers))
        of_root = [IndexEntry(root, each, version) for version, given in enumerate(numbers, 1) for each in given]
        append(recorder, *[event(root, version) for version in range(1, len(numbers) + 1)], entries=of_root)
        own = [IndexEntry(fork, each, version) for version, given in enumerate(numbers, cut + 1) for each in given]
        new = [event(fork, version) for version in range(cut + 1, cut + 1 + len(numbers))]
        append(recorder, *new, forks={fork: Fork(root, cut)}, entries=own)
        indexed = {(entry.stream, entry.version) for entry in (*of_root, *own) if entry.number == number}
        lineage = recorder.lineage(fork, after=after, upto=upto)
        expected = [row for row in reversed(lineage) if (row.stream, row.version) in indexed]
        assert found(recorder, fork, number, after, upto, limit) == expected[:limit]
