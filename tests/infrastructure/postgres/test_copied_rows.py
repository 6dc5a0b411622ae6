"""Large appends use COPY: their rows, positions and conflicts are the same as with INSERT."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, append, event, failure, fill, recomputed_hashes

from clew.domain.ports import Fork
from clew.domain.streams import digest
from clew.infrastructure.postgres import append_transaction
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append, RecordedConflictError

MANY = append_transaction.COPY_THRESHOLD


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    recorder = PostgresRecorder.open(postgres)
    yield recorder
    recorder.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of copied rows of each append."""
    counts: list[int] = []
    copy = append_transaction.copy_rows

    def count_rows(*parts: object) -> None:
        counts.append(len(parts[1]))  # type: ignore[arg-type] # the rows
        copy(*parts)  # type: ignore[arg-type] # as above

    monkeypatch.setattr(append_transaction, "copy_rows", count_rows)
    return counts


def test_copied_rows_equal_the_append(recorder: PostgresRecorder, copied: list[int]) -> None:
    states = [b"", b"\\N\t\n\0", "Grüße 🧶".encode(), os.urandom(70_000), b"\xff\xff"]
    names = ["default/thread/b", "default/thread/a", "anderer/thread/ü\0"]
    events = [
        event(names[number % 3], number // 3 + 1, states[number % 5], type_=f"noted-{number % 7}-ä")
        for number in range(MANY * 12)
    ]
    outcome = append(recorder, *events)
    assert copied == [MANY * 12]
    assert outcome.positions == tuple(range(outcome.positions[0], outcome.positions[0] + len(events)))
    rows = recorder.rows(after=0, limit=10_000)
    assert [(row.position, row.hash) for row in rows] == list(zip(outcome.positions, outcome.hashes, strict=True))
    assert [(row.stream, row.version, row.type, row.state) for row in rows] == [
        (each.originator_id, each.originator_version, each.topic, each.state) for each in events
    ]
    for name in names:
        rows = recorder.lineage(name)
        assert [row.hash for row in rows] == recomputed_hashes(rows)
    assert fill(recorder, names[0], MANY * 4 + 1, start=MANY * 4 + 1).positions[0] > outcome.positions[-1]


def test_inserts_few_rows_and_copies_many(recorder: PostgresRecorder, copied: list[int]) -> None:
    fill(recorder, "a", MANY - 1)
    assert copied == []
    fill(recorder, "b", MANY)
    append(recorder, *[event("f", version) for version in range(4, 4 + MANY)], forks={"f": Fork("b", 3)})
    assert copied == [MANY, MANY]
    rows = recorder.lineage("f")
    assert [(row.stream, row.version) for row in rows[2:5]] == [("b", 3), ("f", 4), ("f", 5)]
    assert [row.hash for row in rows] == recomputed_hashes(rows)


def test_copies_rows_that_were_shredded_in_another_store(recorder: PostgresRecorder, copied: list[int]) -> None:
    digests = [digest(b"was here") if version % 3 == 0 else None for version in range(1, MANY + 1)]
    append(recorder, *[event("a", version) for version in range(1, MANY + 1)], digests=digests)
    assert copied == [MANY]
    assert [row.digest for row in recorder.lineage("a")] == digests
    assert recorder.shredded() == MANY // 3


def test_one_of_two_concurrent_copies_wins_and_the_other_stores_nothing(
    postgres: str, recorder: PostgresRecorder, copied: list[int]
) -> None:
    other = PostgresRecorder.open(postgres)
    fill(recorder, "a", 1)
    for start in range(2, 2 + 4 * MANY, MANY):
        futures = [
            each.submit(Append([event("a", version, os.urandom(9)) for version in range(start, start + MANY)]))
            for each in (recorder, other)
        ]
        errors = [future.exception(PATIENCE) for future in futures]
        assert sorted(isinstance(error, RecordedConflictError) for error in errors) == [False, True]
        assert errors.count(None) == 1
    assert len(copied) >= 4
    rows = recorder.lineage("a")
    assert [row.version for row in rows] == list(range(1, 2 + 4 * MANY))
    assert [row.hash for row in rows] == recomputed_hashes(rows)
    stale = failure(other, *[event("a", version) for version in range(2, 2 + MANY)])
    assert isinstance(stale, RecordedConflictError)
    assert stale.actual == 1 + 4 * MANY
    other.close()


@pytest.mark.parametrize("threshold", [1, 10_000])
def test_writes_eight_thousand_events_in_one_append(
    recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch, threshold: int, copied: list[int]
) -> None:
    monkeypatch.setattr(append_transaction, "COPY_THRESHOLD", threshold)
    state = os.urandom(652)
    outcome = append(recorder, *[event("a", version, state) for version in range(1, 8_001)])
    assert len(outcome.positions) == 8_000
    assert copied == ([8_000] if threshold == 1 else [])
    assert [row.version for row in recorder.own_rows("a", limit=9_000)] == list(range(1, 8_001))
