"""What every event store must do: one suite, subclassed once for each store with the function that opens one."""

from __future__ import annotations

import os
import random
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking

from clew.domain.chain import ROOT, digest, link
from clew.domain.errors import (
    ClosedError,
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidNameError,
    StoreUnavailableError,
)
from clew.infrastructure.recorder import (
    Append,
    Appended,
    Fork,
    Key,
    RecordedConflictError,
    Recorder,
    Row,
    Shred,
    Snapshot,
)

Opener = Callable[[], Any]
PATIENCE = 20.0
"""Seconds after which a test gives up waiting: nothing is measured with it."""


def event(stream: str, version: int, state: bytes | None = None, type_: str = "noted") -> StoredEvent:
    return StoredEvent(stream, version, type_, state if state is not None else f"{stream} {version}".encode())


def append(recorder: Recorder, *events: StoredEvent, **more: Any) -> Appended:
    return recorder.submit(Append(events, **more)).result(PATIENCE)


def fill(recorder: Recorder, stream: str, upto: int, start: int = 1) -> Appended:
    return append(recorder, *[event(stream, version) for version in range(start, upto + 1)])


def failure(recorder: Recorder, *events: StoredEvent, **more: Any) -> BaseException | None:
    return recorder.submit(Append(events, **more)).exception(PATIENCE)


def addresses(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return [(row.stream, row.version) for row in rows]


def recomputed(rows: Sequence[Row]) -> list[bytes]:
    found, previous = [], ROOT
    for row in rows:
        previous = link(previous, row.stream, row.version, row.type, row.digest or digest(row.state))
        found.append(previous)
    return found


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked child that does the work: 0 when it was done."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Held:
    """A writer thread that is held inside a future's callback until the test lets it go."""

    def __init__(self, recorder: Recorder, first: StoredEvent) -> None:
        self._go = threading.Event()
        inside = threading.Event()

        def hold(_: Future[Appended]) -> None:
            inside.set()
            assert self._go.wait(PATIENCE)

        # A callback that is added while the append is pending runs in the writer thread; one that comes too late
        # would run here and hold the test itself, so the listener holds the writer instead.
        self._unlisten = recorder.listen(lambda: hold(Future()))
        self.future = recorder.submit(Append([first]))
        assert inside.wait(PATIENCE)

    def let_go(self) -> None:
        self._unlisten()
        self._go.set()


@contextmanager
def held(recorder: Recorder, first: StoredEvent) -> Iterator[Held]:
    """The writer thread has written ``first`` and takes nothing more until the end of the block."""
    writer = Held(recorder, first)
    try:
        yield writer
    finally:
        writer.let_go()


class AppendContract:
    """What an append does and refuses."""

    def test_gives_positions_hashes_and_versions_in_the_order_of_the_events(self, recorder: Recorder) -> None:
        outcome = append(recorder, event("a", 1), event("b", 1), event("a", 2))
        assert outcome.versions == (1, 1, 2)
        assert not outcome.repeated
        rows = recorder.rows(after=0, limit=10)
        assert outcome.positions == tuple(row.position for row in rows)
        assert outcome.hashes == tuple(row.hash for row in rows)
        assert addresses(rows) == [("a", 1), ("b", 1), ("a", 2)]

    def test_links_each_event_to_the_one_before_and_the_first_to_the_root(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("a", 4, b"", "empty"), event("a", 5, bytes(range(256)), "größe"))
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed(rows)
        head = recorder.head("a")
        assert head is not None
        assert (head.version, head.hash) == (5, rows[-1].hash)

    @pytest.mark.parametrize("first", [0, 1])
    def test_lets_a_stream_begin_at_nought_or_one(self, recorder: Recorder, first: int) -> None:
        append(recorder, event("a", first), event("a", first + 1))
        assert [row.version for row in recorder.lineage("a")] == [first, first + 1]

    @pytest.mark.parametrize("first", [-1, 2, 9])
    def test_refuses_a_stream_that_begins_elsewhere(self, recorder: Recorder, first: int) -> None:
        error = failure(recorder, event("a", first))
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("a", first - 1, 0)
        assert recorder.head("a") is None
        assert recorder.stream("a") is None

    @pytest.mark.parametrize("version", [0, 1, 3, 5, 6])
    def test_refuses_a_version_that_is_not_the_next(self, recorder: Recorder, version: int) -> None:
        fill(recorder, "a", 3)
        error = failure(recorder, event("a", version))
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("a", version - 1, 3)
        assert [row.version for row in recorder.lineage("a")] == [1, 2, 3]

    def test_raises_a_conflict_that_is_both_of_clew_s_and_of_the_library_s(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        error = failure(recorder, event("a", 1))
        assert isinstance(error, ConflictError)
        assert isinstance(error, IntegrityError)

    def test_refuses_the_same_version_twice_in_one_append(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), event("a", 1))
        assert isinstance(error, RecordedConflictError)
        assert recorder.last_position() == 0

    def test_refuses_a_gap_within_one_append(self, recorder: Recorder) -> None:
        assert isinstance(failure(recorder, event("a", 1), event("a", 3)), RecordedConflictError)
        assert recorder.last_position() == 0

    def test_writes_nothing_of_an_append_when_one_of_its_streams_is_elsewhere(self, recorder: Recorder) -> None:
        fill(recorder, "b", 2)
        before = recorder.rows(after=0, limit=10)
        assert isinstance(failure(recorder, event("a", 1), event("b", 2), event("c", 1)), RecordedConflictError)
        assert recorder.rows(after=0, limit=10) == before
        assert [info.name for info in recorder.streams(limit=10)] == ["b"]
        append(recorder, event("a", 1), event("b", 3), event("c", 1))
        assert recorder.last_position() >= 5

    def test_leaves_the_appends_beside_a_refused_one_as_they_are(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        with held(recorder, event("other", 1)):
            good = recorder.submit(Append([event("a", 2)]))
            bad = recorder.submit(Append([event("b", 1), event("a", 2)]))
            after_good = recorder.submit(Append([event("a", 3)]))
            strange = recorder.submit(Append([event("a", 4, type_="\ud800")]))
            last = recorder.submit(Append([event("a", 4)]))
        assert good.result(PATIENCE).versions == (2,)
        assert isinstance(bad.exception(PATIENCE), RecordedConflictError)
        assert after_good.result(PATIENCE).versions == (3,)
        assert isinstance(strange.exception(PATIENCE), InvalidNameError)
        assert last.result(PATIENCE).versions == (4,)
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed(rows)
        assert recorder.stream("b") is None

    def test_lets_one_of_two_opposite_appends_across_streams_win(self, recorder: Recorder) -> None:
        for version in range(1, 21):
            pair = [event("a", version), event("b", version)]
            futures = together(recorder, [Append(pair), Append(pair[::-1])])
            errors = [future.exception(PATIENCE) for future in futures]
            assert sorted(error is None for error in errors) == [False, True]
            assert any(isinstance(error, RecordedConflictError) for error in errors)
        for stream in ("a", "b"):
            rows = recorder.lineage(stream)
            assert [row.version for row in rows] == list(range(1, 21))
            assert [row.hash for row in rows] == recomputed(rows)

    def test_keeps_every_byte_and_any_valid_name(self, recorder: Recorder) -> None:
        names = ["default/thread/x", "", " ", "'\"%_*?[", "naïve", "\x00", "a\x00b", "\U0010ffff", "日本", "x" * 2000]
        state = bytes(range(256)) * 300
        for name in names:
            append(recorder, event(name, 1, state, name or "t"))
        for name in names:
            (row,) = recorder.lineage(name)
            assert (row.stream, row.type, row.state) == (name, name or "t", state)

    def test_refuses_a_name_that_is_no_valid_unicode(self, recorder: Recorder) -> None:
        assert isinstance(failure(recorder, event("a\ud800", 1, b"")), InvalidNameError)
        assert isinstance(failure(recorder, event("a", 1), key=Key("a", "\ud800", b"")), InvalidNameError)
        assert recorder.last_position() == 0

    def test_takes_an_append_without_events(self, recorder: Recorder) -> None:
        assert append(recorder) == Appended((), (), ())
        assert recorder.last_position() == 0

    def test_records_tracking_with_the_events_or_neither(self, recorder: Any) -> None:
        append(recorder, event("a", 1), tracking=Tracking("up", 5))
        error = failure(recorder, event("a", 2), event("b", 1), tracking=Tracking("up", 5))
        assert isinstance(error, IntegrityError)
        assert isinstance(error, ConflictError)
        assert recorder.head("a").version == 1
        assert recorder.stream("b") is None
        assert isinstance(failure(recorder, event("a", 1), tracking=Tracking("up", 6)), RecordedConflictError)
        assert recorder.max_tracking_id("up") == 5
        append(recorder, event("a", 2), tracking=Tracking("up", 6))
        assert recorder.max_tracking_id("up") == 6

    def test_serves_sixteen_threads_without_loss(self, recorder: Recorder) -> None:
        outcomes: list[Appended] = []

        def work(number: int) -> None:
            for version in range(1, 26):
                outcomes.append(append(recorder, event(f"s{number}", version), event(f"t{number}", version)))

        run_threads([lambda number=number: work(number) for number in range(16)])  # type: ignore[misc] # a bound loop
        positions = sorted(position for outcome in outcomes for position in outcome.positions)
        assert len(set(positions)) == len(positions) == 800
        assert [row.position for row in recorder.rows(after=0, limit=1000)] == positions
        for number in range(16):
            rows = recorder.lineage(f"s{number}")
            assert [row.hash for row in rows] == recomputed(rows)
            assert len(rows) == 25

    def test_lets_exactly_one_of_many_threads_have_a_version(self, recorder: Recorder) -> None:
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
    """What idempotency keys stand for."""

    def test_answers_a_repeated_key_with_the_first_outcome_and_writes_nothing(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        first = append(recorder, event("a", 1), event("a", 2), key=key)
        fill(recorder, "a", 4, start=3)
        again = append(recorder, event("a", 1), event("a", 2), key=key)
        assert again == Appended(first.positions, first.hashes, first.versions, repeated=True)
        assert recorder.last_position() == recorder.rows(after=0, limit=10)[3].position
        assert recorder.repeated(key) == again

    def test_looks_at_the_key_before_the_versions(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        append(recorder, event("a", 1), key=key)
        fill(recorder, "a", 5, start=2)
        assert append(recorder, event("a", 77), key=key).repeated
        assert append(recorder, event("a", 6), key=key).versions == (1,)

    def test_refuses_a_key_that_stands_for_other_content(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), key=Key("a", "k", b"content"))
        error = failure(recorder, event("a", 2), key=Key("a", "k", b"other"))
        assert isinstance(error, IdempotencyKeyReusedError)
        assert (error.stream, error.key) == ("a", "k")
        with pytest.raises(IdempotencyKeyReusedError):
            recorder.repeated(Key("a", "k", b"other"))
        assert recorder.last_position() == recorder.rows(after=0, limit=10)[0].position

    def test_keeps_keys_of_different_streams_apart(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), key=Key("a", "k", b"one"))
        assert not append(recorder, event("b", 1), key=Key("b", "k", b"two")).repeated
        assert recorder.repeated(Key("c", "k", b"two")) is None
        assert recorder.repeated(Key("a", "l", b"one")) is None

    def test_forgets_the_key_of_an_append_that_was_refused(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        assert isinstance(failure(recorder, event("a", 5), key=key), RecordedConflictError)
        assert recorder.repeated(key) is None
        assert not append(recorder, event("a", 1), key=key).repeated

    def test_answers_for_all_streams_of_the_append(self, recorder: Recorder) -> None:
        fill(recorder, "b", 3)
        key = Key("a", "k", b"content")
        first = append(recorder, event("b", 4), event("a", 1), event("b", 5), key=key)
        again = append(recorder, event("b", 4), event("a", 1), event("b", 5), key=key)
        assert (again.positions, again.hashes, again.versions) == (first.positions, first.hashes, (4, 1, 5))

    def test_takes_a_key_of_a_stream_that_the_append_only_forks(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        key = Key("a", "k", b"content")
        first = append(recorder, event("f", 3), forks={"f": Fork("a", 2)}, key=key)
        again = append(recorder, event("g", 3), forks={"g": Fork("a", 2)}, key=key)
        assert again.repeated
        assert again.hashes == first.hashes
        assert recorder.stream("g") is None

    def test_refuses_a_key_of_a_stream_that_is_not_there(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), key=Key("nowhere", "k", b"content"))
        assert isinstance(error, RecordedConflictError)
        assert recorder.last_position() == 0

    def test_refuses_a_key_without_events(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        assert isinstance(failure(recorder, key=Key("a", "k", b"")), ValueError)

    @pytest.mark.parametrize("batched", [False, True])
    def test_writes_once_when_the_same_key_comes_many_times_at_once(self, recorder: Recorder, batched: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
        key = Key("a", "k", b"content")
        wanted = [Append([event("a", 1)], key=key) for _ in range(12)]
        if batched:
            with held(recorder, event("other", 1)):
                futures = [recorder.submit(one) for one in wanted]
        else:
            futures = together(recorder, wanted)
        outcomes = [future.result(PATIENCE) for future in futures]
        assert sorted(outcome.repeated for outcome in outcomes) == [False] + [True] * 11
        assert len({outcome.positions for outcome in outcomes}) == 1
        assert len(recorder.lineage("a")) == 1


class ForkContract:
    """Forks, lineages and snapshots along them."""

    def test_reads_a_fork_with_its_parent_up_to_the_cut(self, recorder: Recorder) -> None:
        fill(recorder, "a", 5)
        append(recorder, event("f", 4), event("f", 5), forks={"f": Fork("a", 3)})
        fill(recorder, "a", 7, start=6)
        rows = recorder.lineage("f")
        assert addresses(rows) == [("a", 1), ("a", 2), ("a", 3), ("f", 4), ("f", 5)]
        assert [row.hash for row in rows] == recomputed(rows)
        assert addresses(recorder.own_rows("f", limit=10)) == [("f", 4), ("f", 5)]
        info = recorder.stream("f")
        assert info is not None
        assert (info.name, info.parent, info.cut) == ("f", "a", 3)
        assert [fork.name for fork in recorder.forks("a")] == ["f"]
        assert recorder.forks("f") == recorder.forks("nowhere") == []

    def test_forks_at_version_nought(self, recorder: Recorder) -> None:
        append(recorder, event("a", 0), event("a", 1))
        append(recorder, event("f", 1), forks={"f": Fork("a", 0)})
        assert addresses(recorder.lineage("f")) == [("a", 0), ("f", 1)]

    def test_forks_a_stream_of_the_same_append(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("a", 2), event("f", 2), forks={"f": Fork("a", 1)})
        rows = recorder.lineage("f")
        assert addresses(rows) == [("a", 1), ("f", 2)]
        assert [row.hash for row in rows] == recomputed(rows)

    def test_forks_what_was_submitted_just_before(self, recorder: Recorder) -> None:
        with held(recorder, event("other", 1)):
            recorder.submit(Append([event("a", 1), event("a", 2)]))
            fork = recorder.submit(Append([event("f", 3)], forks={"f": Fork("a", 2)}))
            deeper = recorder.submit(Append([event("g", 4)], forks={"g": Fork("f", 3)}))
        assert fork.result(PATIENCE).versions == (3,)
        assert deeper.result(PATIENCE).versions == (4,)
        rows = recorder.lineage("g")
        assert addresses(rows) == [("a", 1), ("a", 2), ("f", 3), ("g", 4)]
        assert [row.hash for row in rows] == recomputed(rows)

    @pytest.mark.parametrize(("parent", "cut"), [("a", 4), ("a", 0), ("nowhere", 1), ("f", 2)])
    def test_refuses_a_fork_at_a_version_that_the_parent_does_not_have(
        self, recorder: Recorder, parent: str, cut: int
    ) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("f", 3), forks={"f": Fork("a", 2)})
        error = failure(recorder, event("g", cut + 1), forks={"g": Fork(parent, cut)})
        assert isinstance(error, RecordedConflictError)
        assert error.stream == parent
        assert recorder.stream("g") is None

    def test_refuses_a_fork_that_does_not_go_on_from_its_cut(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        for version in (1, 2, 4):
            error = failure(recorder, event("f", version), forks={"f": Fork("a", 2)})
            assert isinstance(error, RecordedConflictError)
            assert (error.stream, error.expected, error.actual) == ("f", version - 1, 2)

    def test_refuses_a_fork_onto_a_stream_that_is_there(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        fill(recorder, "b", 2)
        error = failure(recorder, event("b", 3), forks={"b": Fork("a", 2)})
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("b", 0, 2)

    def test_refuses_a_fork_without_its_first_event(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        assert isinstance(failure(recorder, event("a", 2), forks={"f": Fork("a", 1)}), ValueError)
        assert recorder.stream("f") is None

    def test_reads_the_part_of_a_lineage_that_is_asked_for(self, recorder: Recorder) -> None:
        fill(recorder, "a", 4)
        append(recorder, *[event("b", version) for version in range(4, 8)], forks={"b": Fork("a", 3)})
        append(recorder, *[event("c", version) for version in range(6, 9)], forks={"c": Fork("b", 5)})
        whole = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("c", 6), ("c", 7), ("c", 8)]
        for after in range(-1, 10):
            for upto in (None, *range(-1, 10)):
                expected = [one for one in whole if one[1] > after and (upto is None or one[1] <= upto)]
                assert addresses(recorder.lineage("c", after=after, upto=upto)) == expected
        assert recorder.lineage("nowhere") == []

    def test_reads_a_lineage_a_hundred_forks_deep(self, recorder: Recorder) -> None:
        fill(recorder, "s0", 2)
        for depth in range(1, 101):
            cut = 2 * depth - (depth % 2)
            first = cut + 1
            more = range(first, 2 * depth + 3)
            append(
                recorder,
                *[event(f"s{depth}", version) for version in more],
                forks={f"s{depth}": Fork(f"s{depth - 1}", cut)},
            )
        rows = recorder.lineage("s100")
        assert [row.version for row in rows] == list(range(1, 203))
        assert [row.hash for row in rows] == recomputed(rows)
        assert len({row.stream for row in rows}) == 101

    def test_agrees_with_a_naive_model_on_random_trees(self, recorder: Recorder) -> None:
        random_ = random.Random(7)
        model: dict[str, list[tuple[str, int]]] = {"t0": [("t0", 1)]}
        own: dict[str, int] = {"t0": 1}
        fill(recorder, "t0", 1)
        for step in range(120):
            name = random_.choice(sorted(model))
            if random_.random() < 0.4:
                owner, cut = random_.choice(model[name])
                new = f"t{step + 1}"
                append(recorder, event(new, cut + 1), forks={new: Fork(owner, cut)})
                parent = [one for one in model[name] if one[1] <= cut]
                model[new] = [*parent, (new, cut + 1)]
                own[new] = cut + 1
            else:
                own[name] += 1
                append(recorder, event(name, own[name]))
                model[name].append((name, own[name]))
        for name, expected in model.items():
            rows = recorder.lineage(name)
            assert addresses(rows) == expected
            assert [row.hash for row in rows] == recomputed(rows)

    def test_finds_the_newest_snapshot_along_the_lineage(self, recorder: Recorder) -> None:
        fill(recorder, "a", 4)
        append(recorder, event("a", 5), snapshots=[Snapshot("a", 2, b"a2"), Snapshot("a", 5, b"a5")])
        append(recorder, event("f", 5), event("f", 6), forks={"f": Fork("a", 4)})
        assert recorder.snapshot("a") == Snapshot("a", 5, b"a5")
        assert recorder.snapshot("a", 4) == Snapshot("a", 2, b"a2")
        assert recorder.snapshot("a", 1) is None
        assert recorder.snapshot("f") == Snapshot("a", 2, b"a2")
        append(recorder, event("f", 7), snapshots=[Snapshot("f", 7, b"f7")])
        assert recorder.snapshot("f") == Snapshot("f", 7, b"f7")
        assert recorder.snapshot("f", 6) == Snapshot("a", 2, b"a2")
        assert recorder.snapshot("nowhere") is None

    def test_replaces_a_snapshot_of_the_same_version(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), snapshots=[Snapshot("a", 1, b"old")])
        append(recorder, snapshots=[Snapshot("a", 1, b"new")])
        assert recorder.snapshot("a") == Snapshot("a", 1, b"new")

    def test_refuses_a_snapshot_of_what_is_not_there(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), snapshots=[Snapshot("a", 3, b"")])
        assert isinstance(error, RecordedConflictError)
        assert isinstance(failure(recorder, snapshots=[Snapshot("nowhere", 1, b"")]), RecordedConflictError)
        assert recorder.last_position() == 0


class ShredContract:
    """What is left of a row that was shredded."""

    def test_leaves_the_stub_the_digest_and_the_hash(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        before = recorder.lineage("a")
        shred = Shred("a", 2, digest(before[1].state), b"stub")
        append(recorder, event("a", 4), shreds=[shred])
        rows = recorder.lineage("a")
        assert rows[1] == before[1]._replace(state=b"stub", digest=shred.digest)
        assert [rows[0], rows[2]] == [before[0], before[2]]
        assert [row.hash for row in rows] == recomputed(rows)
        assert recorder.shredded() == 1

    @pytest.mark.parametrize("length", [0, 1, 40, 300, 5_000])
    @pytest.mark.parametrize("stub", [b"", b"s" * 20, b"s" * 330, b"s" * 3_000])
    def test_takes_a_stub_of_any_length(self, recorder: Recorder, length: int, stub: bytes) -> None:
        state = bytes(index % 251 for index in range(length))
        append(recorder, event("a", 1, state), event("a", 2))
        append(recorder, event("b", 1), shreds=[Shred("a", 1, digest(state), stub)])
        expected = Row(1, "a", 1, "noted", stub, recorder.lineage("a")[0].hash, digest(state))
        for rows in (
            recorder.lineage("a"),
            recorder.own_rows("a", limit=5),
            recorder.rows(after=0, limit=5),
            recorder.rows(after=0, limit=5, prefix="a"),
        ):
            assert rows[0]._replace(position=1) == expected
            assert rows[0].position < rows[1].position

    def test_shows_in_every_fork(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("f", 3), forks={"f": Fork("a", 2)})
        append(recorder, event("a", 4), shreds=[Shred("a", 2, digest(b"a 2"), b"stub")])
        rows = recorder.lineage("f")
        assert rows[1].state == b"stub"
        assert [row.hash for row in rows] == recomputed(rows)
        append(recorder, event("g", 3), forks={"g": Fork("a", 2)})
        rows = recorder.lineage("g")
        assert [row.hash for row in rows] == recomputed(rows)

    def test_refuses_another_digest_a_second_time_or_a_missing_row(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        good = Shred("a", 1, digest(b"a 1"), b"stub")
        for bad in (
            [Shred("a", 1, digest(b"other"), b"stub")],
            [Shred("a", 3, digest(b"a 3"), b"stub")],
            [Shred("nowhere", 1, digest(b""), b"stub")],
            [good, good],
        ):
            assert isinstance(failure(recorder, event("a", 3), shreds=bad), RecordedConflictError)
        assert recorder.shredded() == 0
        append(recorder, event("a", 3), shreds=[good])
        assert isinstance(failure(recorder, event("a", 4), shreds=[good]), RecordedConflictError)
        again = Shred("a", 1, digest(b"stub"), b"stub")
        assert isinstance(failure(recorder, event("a", 4), shreds=[again]), RecordedConflictError)
        assert len(recorder.lineage("a")) == 3
        assert recorder.shredded() == 1

    def test_lets_the_key_alone_decide_once_a_row_of_its_append_is_shredded(self, recorder: Recorder) -> None:
        fill(recorder, "b", 1)
        keys = [Key("a", "k1", b"one"), Key("a", "k2", b"two"), Key("a", "k3", b"three")]
        append(recorder, event("a", 1), key=keys[0])
        append(recorder, event("a", 2), event("b", 2), event("a", 3), key=keys[1])
        append(recorder, event("a", 4), key=keys[2])
        append(recorder, event("a", 5), shreds=[Shred("b", 2, digest(b"b 2"), b"")])
        again = append(recorder, event("a", 9), key=Key("a", "k2", b"other"))
        assert again.repeated
        assert again.versions == (2, 2, 3)
        for key in (keys[0], keys[2]):
            other = Key("a", key.key, b"other")
            assert isinstance(failure(recorder, event("a", 6), key=other), IdempotencyKeyReusedError)

    def test_shreds_many_rows_in_one_append(self, recorder: Recorder) -> None:
        fill(recorder, "a", 30)
        shreds = [Shred("a", version, digest(f"a {version}".encode()), b"-") for version in range(1, 31, 2)]
        append(recorder, event("a", 31), shreds=shreds)
        assert recorder.shredded() == 15
        rows = recorder.lineage("a")
        assert [row.digest is not None for row in rows] == [row.version % 2 == 1 and row.version < 31 for row in rows]
        assert [row.hash for row in rows] == recomputed(rows)


class ReadContract:
    """Reading rows, streams and positions."""

    def test_is_empty_at_first(self, recorder: Recorder) -> None:
        assert recorder.last_position() == 0
        assert recorder.rows(after=0, limit=10) == []
        assert recorder.streams(limit=10) == []
        assert recorder.head("a") is None
        assert recorder.stream("a") is None
        assert recorder.lineage("a") == recorder.own_rows("a", limit=10) == recorder.orphans(10) == []
        assert recorder.shredded() == 0

    def test_pages_through_all_rows_in_position_order(self, recorder: Recorder) -> None:
        for version in range(1, 11):
            append(recorder, event("a", version), event("b", version))
        found: list[Row] = []
        while page := recorder.rows(after=found[-1].position if found else 0, limit=3):
            assert len(page) <= 3
            found.extend(page)
        assert len(found) == 20
        assert all(one.position < two.position for one, two in pairwise(found))
        assert recorder.last_position() == found[-1].position

    def test_pages_through_a_stream_s_own_rows(self, recorder: Recorder) -> None:
        fill(recorder, "a", 10)
        found: list[Row] = []
        while page := recorder.own_rows("a", after=found[-1].version if found else -1, limit=4):
            assert len(page) <= 4
            found.extend(page)
        assert found == recorder.lineage("a")

    NAMES: ClassVar[list[str]] = [
        "default/thread/a", "default/thread/b", "default/memory/a", "default/threads", "Default/thread/a", "default",
        "default%", "default_x", "d\U0010ffff", "d\U0010ffffz", "d\ud7ff", "d\ue000", "é", "e", "日本語", "日本",
    ]  # fmt: skip

    @pytest.mark.parametrize(
        "prefix", ["", "default/thread/", "default/thread", "default", "default%", "default_", "d", "d\U0010ffff",
                   "d\ud7ff", "\U0010ffff", "日", "D", "e", "nothing", "default/thread/a"],
    )  # fmt: skip
    def test_filters_by_the_exact_beginning_of_a_name(self, recorder: Recorder, prefix: str) -> None:
        for name in self.NAMES:
            append(recorder, event(name, 1))
        for name in self.NAMES:
            append(recorder, event(name, 2))
        expected = [name for name in self.NAMES if name.startswith(prefix)]
        assert [info.name for info in recorder.streams(prefix=prefix, limit=100)] == expected
        assert [row.stream for row in recorder.rows(after=0, limit=100, prefix=prefix)] == expected * 2

    def test_pages_through_streams_and_rows_with_a_prefix(self, recorder: Recorder) -> None:
        for number in range(20):
            append(recorder, event(f"{'x' if number % 3 else 'y'}/{number}", 1))
        expected = [f"x/{number}" for number in range(20) if number % 3]
        names: list[str] = []
        after = 0
        while page := recorder.streams(prefix="x/", after=after, limit=4):
            names.extend(info.name for info in page)
            after = page[-1].key
        assert names == expected
        names = []
        after = 0
        while rows := recorder.rows(prefix="x/", after=after, limit=4):
            names.extend(row.stream for row in rows)
            after = rows[-1].position
        assert names == expected

    def test_shows_positions_only_in_growing_order_to_a_reader_that_tails(self, recorder: Recorder) -> None:
        done = threading.Event()
        seen: list[int] = []

        def tail() -> None:
            ending = False
            while True:
                ending = done.is_set()
                page = recorder.rows(after=seen[-1] if seen else 0, limit=50)
                seen.extend(row.position for row in page)
                if ending and not page:
                    return

        def write(number: int) -> None:
            for version in range(1, 41):
                append(recorder, event(f"s{number}", version))

        reader = threading.Thread(target=tail)
        reader.start()
        try:
            run_threads([lambda number=number: write(number) for number in range(6)])  # type: ignore[misc] # as above
        finally:
            done.set()
            reader.join(PATIENCE)
        assert seen == [row.position for row in recorder.rows(after=0, limit=1000)]
        assert len(seen) == 240


class FutureContract:
    """Cancelling, closing, forking the process."""

    def test_never_stores_what_was_cancelled_before_the_writer_took_it(self, recorder: Recorder) -> None:
        with held(recorder, event("other", 1)):
            first = recorder.submit(Append([event("a", 1)]))
            second = recorder.submit(Append([event("a", 2)]))
            assert second.cancel()
            third = recorder.submit(Append([event("b", 1)]))
        assert first.result(PATIENCE).versions == (1,)
        assert third.result(PATIENCE).versions == (1,)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)
        assert len(recorder.lineage("a")) == 1

    def test_cannot_be_cancelled_once_it_is_stored(self, recorder: Recorder) -> None:
        with held(recorder, event("a", 1)) as writer:
            assert not writer.future.cancel()
        assert writer.future.result(PATIENCE).versions == (1,)
        assert len(recorder.lineage("a")) == 1

    def test_writes_what_was_submitted_before_it_was_closed(self, opener: Opener, recorder: Recorder) -> None:
        futures = [recorder.submit(Append([event("a", version)])) for version in range(1, 101)]
        recorder.close()
        assert all(future.done() for future in futures)
        assert [future.result().versions for future in futures] == [(version,) for version in range(1, 101)]
        del opener

    def test_raises_closed_after_it_was_closed(self, recorder: Any) -> None:
        fill(recorder, "a", 1)
        recorder.close()
        recorder.close()
        for use in (
            lambda: recorder.submit(Append([event("a", 2)])),
            lambda: recorder.insert_events([event("a", 2)]),
            lambda: recorder.head("a"),
            lambda: recorder.lineage("a"),
            lambda: recorder.own_rows("a", limit=1),
            lambda: recorder.rows(after=0, limit=1),
            lambda: recorder.rows(after=0, limit=1, prefix="a"),
            lambda: recorder.streams(limit=1),
            lambda: recorder.stream("a"),
            lambda: recorder.forks("a"),
            lambda: recorder.orphans(1),
            lambda: recorder.snapshot("a"),
            lambda: recorder.shredded(),
            lambda: recorder.last_position(),
            lambda: recorder.repeated(Key("a", "k", b"")),
            lambda: recorder.select_events("a"),
            lambda: recorder.select_notifications(1, 10),
            lambda: recorder.max_notification_id(),
        ):
            with pytest.raises(ClosedError):
                use()

    def test_goes_on_in_both_processes_after_a_fork(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)

        def work() -> None:
            append(recorder, event("child", 1))
            append(recorder, event("child", 2))
            assert [row.version for row in recorder.lineage("child")] == [1, 2]
            assert [row.version for row in recorder.lineage("a")] == [1]
            recorder.close()

        assert in_child(work) == 0
        fill(recorder, "a", 3, start=2)
        assert [row.version for row in recorder.lineage("a")] == [1, 2, 3]

    def test_forks_while_other_threads_append_and_read(self, recorder: Recorder) -> None:
        stop = threading.Event()
        errors: list[BaseException] = []

        def write(name: str) -> None:
            version = 0
            while not stop.is_set():
                version += 1
                try:
                    append(recorder, event(name, version))
                    recorder.lineage(name, after=version - 5)
                except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                    errors.append(error)
                    return

        threads = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(8):
                assert in_child(lambda name=f"child{number}": fill(recorder, name, 3)) == 0  # type: ignore[misc] # a bound loop
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert errors == []
        for number in range(3):
            rows = recorder.lineage(f"s{number}")
            assert [row.hash for row in rows] == recomputed(rows)


class WakeContract:
    """Listeners and subscriptions."""

    def test_wakes_a_listener_after_a_commit_until_it_has_enough(self, recorder: Recorder) -> None:
        woken = threading.Semaphore(0)
        unlisten = recorder.listen(lambda: woken.release())
        fill(recorder, "a", 1)
        assert woken.acquire(timeout=PATIENCE)
        unlisten()
        unlisten()
        other = threading.Event()
        end = recorder.listen(other.set)
        fill(recorder, "a", 2, start=2)
        assert other.wait(PATIENCE)
        end()

    def test_lets_a_listener_read_what_was_committed(self, recorder: Recorder) -> None:
        seen: list[int] = []
        enough = threading.Event()

        def wake() -> None:
            seen.append(len(recorder.lineage("a")))
            if seen[-1] == 3:
                enough.set()

        end = recorder.listen(wake)
        for version in (1, 2, 3):
            append(recorder, event("a", version))
        assert enough.wait(PATIENCE)
        assert seen == sorted(seen)
        end()

    def test_survives_a_listener_that_raises(self, recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
        def bad() -> None:
            msg = "a listener of the test's"
            raise RuntimeError(msg)

        good = threading.Semaphore(0)
        ends = [recorder.listen(bad), recorder.listen(lambda: good.release()), recorder.listen(bad)]
        for version in (1, 2):
            append(recorder, event("a", version))
            assert good.acquire(timeout=PATIENCE)
        for end in ends:
            end()
        assert "a listener of the test's" in caplog.text

    def test_gives_a_subscription_every_event_once_and_in_order(self, recorder: Any) -> None:
        fill(recorder, "a", 700)
        got: list[int] = []
        with recorder.subscribe(gt=0) as subscription:

            def read() -> None:
                for notification in subscription:
                    got.append(notification.id)
                    if len(got) == 1000:
                        return

            reader = threading.Thread(target=read)
            reader.start()
            for version in range(701, 1001):
                recorder.submit(Append([event("a", version)]))
            reader.join(PATIENCE)
        assert got == [row.position for row in recorder.rows(after=0, limit=2000)]

    def test_ends_a_subscription_that_waits_when_it_is_stopped(self, recorder: Any) -> None:
        subscription = recorder.subscribe(gt=0)
        ended: list[bool] = []
        reader = threading.Thread(target=lambda: ended.append(list(subscription) == []))
        reader.start()
        subscription.stop()
        reader.join(PATIENCE)
        assert ended == [True]

    def test_fails_a_subscription_that_waits_when_the_store_is_closed(self, recorder: Any) -> None:
        subscription = recorder.subscribe(gt=0)
        errors: list[BaseException] = []

        def read() -> None:
            try:
                next(subscription)
            except ClosedError as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        recorder.close()
        reader.join(PATIENCE)
        assert len(errors) == 1

    def test_begins_without_listeners_in_a_forked_child(self, recorder: Recorder) -> None:
        parent = threading.Event()
        end = recorder.listen(parent.set)

        def work() -> None:
            mine = threading.Event()
            recorder.listen(mine.set)
            append(recorder, event("child", 1))
            assert mine.wait(PATIENCE)
            assert not parent.is_set()

        assert in_child(work) == 0
        end()


class LostReplyContract:
    """What a store that can lose the reply to a commit makes of it; needs the fixture ``break_commit``.

    ``break_commit(happens)`` lets the next commit raise, after it happened or instead of happening.
    """

    def test_finds_what_was_committed_though_the_reply_was_lost(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        key = Key("a", "k", b"content")
        break_commit(True)  # noqa: FBT003 - the parameter is the whole of it
        outcome = append(
            recorder, event("a", 2), event("b", 1), key=key, shreds=[Shred("a", 1, digest(b"a 1"), b"")]
        )
        assert outcome.hashes == tuple(row.hash for row in recorder.rows(after=outcome.positions[0] - 1, limit=2))
        assert append(recorder, event("a", 9), key=key).positions == outcome.positions
        assert append(recorder, event("a", 3)).versions == (3,)
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed(rows)
        assert recorder.shredded() == 1

    def test_says_that_it_failed_when_nothing_was_committed(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        break_commit(False)  # noqa: FBT003 - as above
        assert isinstance(failure(recorder, event("a", 2)), StoreUnavailableError)
        assert len(recorder.lineage("a")) == 1
        assert append(recorder, event("a", 2)).versions == (2,)

    @pytest.mark.parametrize("happens", [True, False])
    def test_answers_a_batch_alike(
        self, recorder: Recorder, break_commit: Callable[[bool], None], happens: bool  # noqa: FBT001 - pytest's
    ) -> None:
        with held(recorder, event("other", 1)):
            futures = [recorder.submit(Append([event(f"s{number}", 1)])) for number in range(10)]
            break_commit(happens)
        for number, future in enumerate(futures):
            assert (future.exception(PATIENCE) is None) == happens
            assert (recorder.head(f"s{number}") is not None) == happens

    @pytest.mark.parametrize("happens", [True, False])
    def test_knows_whether_a_commit_without_events_happened(
        self, recorder: Any, break_commit: Callable[[bool], None], happens: bool  # noqa: FBT001 - pytest's
    ) -> None:
        fill(recorder, "a", 2)
        break_commit(happens)
        assert (failure(recorder, tracking=Tracking("up", 3)) is None) == happens
        assert (recorder.max_tracking_id("up") == 3) == happens
        break_commit(happens)
        assert (failure(recorder, shreds=[Shred("a", 1, digest(b"a 1"), b"")]) is None) == happens
        assert recorder.shredded() == happens


class RecorderContract(AppendContract, KeyContract, ForkContract, ShredContract, ReadContract, FutureContract, WakeContract):
    """The whole of it; a subclass gives the fixture ``opener``."""

    @pytest.fixture
    def recorder(self, opener: Opener) -> Iterator[Recorder]:
        recorder = opener()
        yield recorder
        recorder.close()


def together(recorder: Recorder, appends: Sequence[Append]) -> list[Future[Appended]]:
    """Submit from as many threads at the same moment."""
    barrier = threading.Barrier(len(appends))
    futures: list[Future[Appended]] = []

    def work(one: Append) -> None:
        barrier.wait()
        futures.append(recorder.submit(one))

    run_threads([lambda one=one: work(one) for one in appends])  # type: ignore[misc] # a bound loop variable
    return futures


def run_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once and raise the first error of any."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)
    if errors:
        raise errors[0]
