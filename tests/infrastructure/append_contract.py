"""The behaviour of appends and idempotency keys in every store."""

from __future__ import annotations

from typing import Any

import pytest
from eventsourcing.persistence import IntegrityError, Tracking
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    addresses,
    append,
    event,
    failure,
    fill,
    last_version,
    paused_writer,
    recomputed_hashes,
    run_threads,
    submit_concurrently,
)

from clew.domain.errors import ConflictError, IdempotencyKeyReusedError, InvalidNameError
from clew.domain.ports import Appended, Fork, Key
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder_ports import Append, RecordedConflictError, Recorder


class AppendContract:
    """What an append does and refuses."""

    def test_returns_positions_hashes_and_versions_in_the_order_of_the_events(self, recorder: Recorder) -> None:
        outcome = append(recorder, event("a", 1), event("b", 1), event("a", 2))
        assert outcome.versions == (1, 1, 2)
        assert not outcome.repeated
        rows = recorder.rows(after=0, limit=10)
        assert outcome.positions == tuple(row.position for row in rows)
        assert outcome.hashes == tuple(row.hash for row in rows)
        assert addresses(rows) == [("a", 1), ("b", 1), ("a", 2)]

    def test_links_each_event_to_the_previous_one_and_the_first_to_the_root(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("a", 4, b"", "empty"), event("a", 5, bytes(range(256)), "größe"))
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed_hashes(rows)

    @pytest.mark.parametrize("first", [0, 1])
    def test_a_stream_can_start_at_version_zero_or_one(self, recorder: Recorder, first: int) -> None:
        append(recorder, event("a", first), event("a", first + 1))
        assert [row.version for row in recorder.lineage("a")] == [first, first + 1]

    @pytest.mark.parametrize("first", [-1, 2, 9])
    def test_refuses_a_stream_that_starts_at_another_version(self, recorder: Recorder, first: int) -> None:
        error = failure(recorder, event("a", first))
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("a", first - 1, 0)
        assert recorder.own_rows("a", limit=9) == []
        assert recorder.stream("a") is None

    @pytest.mark.parametrize("version", [0, 1, 3, 5, 6, 2**70])
    def test_refuses_any_version_but_the_next(self, recorder: Recorder, version: int) -> None:
        fill(recorder, "a", 3)
        error = failure(recorder, event("a", version))
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("a", version - 1, 3)
        assert [row.version for row in recorder.lineage("a")] == [1, 2, 3]

    def test_refuses_an_append_with_a_wrong_previous_hash(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        stored = recorder.lineage("a")
        wrong = link(stored[0].hash, "a", 2, "noted", digest(b"an event that was not stored"))
        error = failure(recorder, event("a", 3), previous={"a": wrong})
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("a", 2, 2)
        assert recorder.lineage("a") == stored
        append(recorder, event("a", 3), event("a", 4), previous={"a": stored[-1].hash})

    def test_accepts_links_with_the_previous_hash(self, recorder: Recorder) -> None:
        one, two = event("a", 1), event("a", 2)
        first = link(ROOT, "a", 1, one.topic, digest(one.state))
        second = link(first, "a", 2, two.topic, digest(two.state))
        append(recorder, one, previous={"a": ROOT}, links=[first])
        append(recorder, two, previous={"a": first}, links=[second])
        assert [row.hash for row in recorder.lineage("a")] == [first, second]

    @pytest.mark.parametrize(
        ("previous", "count"), [({}, 2), ({"a": ROOT}, 2), ({"a": ROOT, "b": ROOT}, 1), ({"a": ROOT, "b": ROOT}, 3)]
    )
    def test_refuses_links_without_all_previous_hashes(
        self, recorder: Recorder, previous: dict[str, bytes], count: int
    ) -> None:
        error = failure(recorder, event("a", 1), event("b", 1), previous=previous, links=[b"x" * 32] * count)
        assert isinstance(error, ValueError)
        assert "link" in str(error)
        assert recorder.last_position() == 0

    def test_a_conflict_is_an_error_of_clew_and_of_the_library(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        error = failure(recorder, event("a", 1))
        assert isinstance(error, ConflictError)
        assert isinstance(error, IntegrityError)

    def test_refuses_a_repeated_version_in_one_append(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), event("a", 1))
        assert isinstance(error, RecordedConflictError)
        assert recorder.last_position() == 0

    def test_refuses_a_gap_within_one_append(self, recorder: Recorder) -> None:
        assert isinstance(failure(recorder, event("a", 1), event("a", 3)), RecordedConflictError)
        assert recorder.last_position() == 0

    def test_writes_nothing_of_an_append_if_one_of_its_streams_conflicts(self, recorder: Recorder) -> None:
        fill(recorder, "b", 2)
        before = recorder.rows(after=0, limit=10)
        assert isinstance(failure(recorder, event("a", 1), event("b", 2), event("c", 1)), RecordedConflictError)
        assert recorder.rows(after=0, limit=10) == before
        assert [info.name for info in recorder.streams(limit=10)] == ["b"]
        append(recorder, event("a", 1), event("b", 3), event("c", 1))
        assert recorder.last_position() >= 5

    def test_a_refused_append_does_not_affect_other_appends(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        with paused_writer(recorder, event("other", 1)):
            good = recorder.submit(Append([event("a", 2)]))
            bad = recorder.submit(Append([event("b", 1), event("a", 2)]))
            after_good = recorder.submit(Append([event("a", 3)]))
            invalid = recorder.submit(Append([event("a", 4, type_="\ud800")]))
            last = recorder.submit(Append([event("a", 4)]))
        assert good.result(PATIENCE).versions == (2,)
        assert isinstance(bad.exception(PATIENCE), RecordedConflictError)
        assert after_good.result(PATIENCE).versions == (3,)
        assert isinstance(invalid.exception(PATIENCE), InvalidNameError)
        assert last.result(PATIENCE).versions == (4,)
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert recorder.stream("b") is None

    def test_one_of_two_conflicting_appends_to_two_streams_wins(self, recorder: Recorder) -> None:
        for version in range(1, 21):
            pair = [event("a", version), event("b", version)]
            futures = submit_concurrently(recorder, [Append(pair), Append(pair[::-1])])
            errors = [future.exception(PATIENCE) for future in futures]
            assert sorted(error is None for error in errors) == [False, True]
            assert any(isinstance(error, RecordedConflictError) for error in errors)
        for stream in ("a", "b"):
            rows = recorder.lineage(stream)
            assert [row.version for row in rows] == list(range(1, 21))
            assert [row.hash for row in rows] == recomputed_hashes(rows)

    def test_stores_every_byte_and_any_valid_name(self, recorder: Recorder) -> None:
        names = ["default/thread/x", "", " ", "'\"%_*?[", "naïve", "\x00", "a\x00b", "\U0010ffff", "日本", "x" * 2000]
        state = bytes(range(256)) * 300
        for name in names:
            append(recorder, event(name, 1, state, name or "t"))
        for name in names:
            (row,) = recorder.lineage(name)
            assert (row.stream, row.type, row.state) == (name, name or "t", state)

    def test_refuses_a_name_that_is_not_valid_unicode(self, recorder: Recorder) -> None:
        assert isinstance(failure(recorder, event("a\ud800", 1, b"")), InvalidNameError)
        assert isinstance(failure(recorder, event("a", 1), key=Key("a", "\ud800", b"")), InvalidNameError)
        assert recorder.last_position() == 0

    def test_accepts_an_append_without_events(self, recorder: Recorder) -> None:
        assert append(recorder) == Appended((), (), ())
        assert recorder.last_position() == 0

    def test_stores_tracking_and_events_atomically(self, recorder: Any) -> None:
        append(recorder, event("a", 1), tracking=Tracking("up", 5))
        error = failure(recorder, event("a", 2), event("b", 1), tracking=Tracking("up", 5))
        assert isinstance(error, IntegrityError)
        assert isinstance(error, ConflictError)
        assert last_version(recorder, "a") == 1
        assert recorder.stream("b") is None
        assert isinstance(failure(recorder, event("a", 1), tracking=Tracking("up", 6)), RecordedConflictError)
        assert recorder.max_tracking_id("up") == 5
        append(recorder, event("a", 2), tracking=Tracking("up", 6))
        assert recorder.max_tracking_id("up") == 6

    def test_loses_no_append_of_sixteen_threads(self, recorder: Recorder) -> None:
        outcomes: list[Appended] = []

        def work(number: int) -> None:
            outcomes.extend(
                append(recorder, event(f"s{number}", version), event(f"t{number}", version)) for version in range(1, 26)
            )

        run_threads([lambda number=number: work(number) for number in range(16)])  # type: ignore[misc] # a bound loop
        positions = sorted(position for outcome in outcomes for position in outcome.positions)
        assert len(set(positions)) == len(positions) == 800
        assert [row.position for row in recorder.rows(after=0, limit=1000)] == positions
        for number in range(16):
            rows = recorder.lineage(f"s{number}")
            assert [row.hash for row in rows] == recomputed_hashes(rows)
            assert len(rows) == 25

    def test_exactly_one_of_many_threads_appends_a_version(self, recorder: Recorder) -> None:
        wins: list[int] = []
        losses: list[BaseException] = []

        def work() -> None:
            for version in range(1, 21):
                error = failure(recorder, event("a", version))
                if error is None:
                    wins.append(version)
                else:
                    losses.append(error)

        run_threads([work] * 8)
        assert sorted(wins) == list(range(1, 21))
        assert len(losses) == 140
        assert all(isinstance(error, RecordedConflictError) for error in losses)


class KeyContract:
    """The behaviour of idempotency keys."""

    def test_a_repeated_key_returns_the_first_outcome_and_writes_nothing(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        first = append(recorder, event("a", 1), event("a", 2), key=key)
        fill(recorder, "a", 4, start=3)
        again = append(recorder, event("a", 1), event("a", 2), key=key)
        assert again == Appended(first.positions, first.hashes, first.versions, repeated=True)
        assert recorder.last_position() == recorder.rows(after=0, limit=10)[3].position
        assert recorder.repeated(key) == again

    def test_checks_the_key_before_the_versions(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        append(recorder, event("a", 1), key=key)
        fill(recorder, "a", 5, start=2)
        assert append(recorder, event("a", 77), key=key).repeated
        assert append(recorder, event("a", 6), key=key).versions == (1,)

    def test_refuses_a_key_with_other_content(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), key=Key("a", "k", b"content"))
        error = failure(recorder, event("a", 2), key=Key("a", "k", b"other"))
        assert isinstance(error, IdempotencyKeyReusedError)
        assert (error.stream, error.key) == ("a", "k")
        with pytest.raises(IdempotencyKeyReusedError):
            recorder.repeated(Key("a", "k", b"other"))
        assert recorder.last_position() == recorder.rows(after=0, limit=10)[0].position

    def test_a_key_without_content_asks_for_any_append_with_it(self, recorder: Recorder) -> None:
        assert recorder.repeated(Key("a", "k", b"")) is None
        first = append(recorder, event("a", 1), key=Key("a", "k", b"content"))
        assert recorder.repeated(Key("a", "k", b"")) == first._replace(repeated=True)

    def test_separates_keys_of_different_streams(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), key=Key("a", "k", b"one"))
        assert not append(recorder, event("b", 1), key=Key("b", "k", b"two")).repeated
        assert recorder.repeated(Key("c", "k", b"two")) is None
        assert recorder.repeated(Key("a", "l", b"one")) is None

    def test_does_not_store_the_key_of_a_refused_append(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        assert isinstance(failure(recorder, event("a", 5), key=key), RecordedConflictError)
        assert recorder.repeated(key) is None
        assert not append(recorder, event("a", 1), key=key).repeated

    def test_a_repeated_key_returns_the_outcome_for_all_streams(self, recorder: Recorder) -> None:
        fill(recorder, "b", 3)
        key = Key("a", "k", b"content")
        first = append(recorder, event("b", 4), event("a", 1), event("b", 5), key=key)
        again = append(recorder, event("b", 4), event("a", 1), event("b", 5), key=key)
        assert (again.positions, again.hashes, again.versions) == (first.positions, first.hashes, (4, 1, 5))

    def test_accepts_a_key_of_a_stream_that_the_append_only_forks(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        key = Key("a", "k", b"content")
        first = append(recorder, event("f", 3), forks={"f": Fork("a", 2)}, key=key)
        again = append(recorder, event("g", 3), forks={"g": Fork("a", 2)}, key=key)
        assert again.repeated
        assert again.hashes == first.hashes
        assert recorder.stream("g") is None

    def test_refuses_a_key_of_a_missing_stream(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), key=Key("missing", "k", b"content"))
        assert isinstance(error, RecordedConflictError)
        assert recorder.last_position() == 0

    def test_refuses_a_key_without_events(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        assert isinstance(failure(recorder, key=Key("a", "k", b"")), ValueError)

    @pytest.mark.parametrize("batched", [False, True])
    def test_concurrent_appends_with_the_same_key_write_once(self, recorder: Recorder, batched: bool) -> None:  # noqa: FBT001 - pytest's
        key = Key("a", "k", b"content")
        appends = [Append([event("a", 1)], key=key) for _ in range(12)]
        if batched:
            with paused_writer(recorder, event("other", 1)):
                futures = [recorder.submit(one) for one in appends]
        else:
            futures = submit_concurrently(recorder, appends)
        outcomes = [future.result(PATIENCE) for future in futures]
        assert sorted(outcome.repeated for outcome in outcomes) == [False] + [True] * 11
        assert len({outcome.positions for outcome in outcomes}) == 1
        assert len(recorder.lineage("a")) == 1
