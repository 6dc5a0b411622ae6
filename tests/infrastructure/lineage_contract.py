"""The behaviour of forks, lineages, snapshots and shredded rows in every store."""

from __future__ import annotations

import random

import pytest
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    addresses,
    append,
    event,
    failure,
    fill,
    paused_writer,
    recomputed_hashes,
)

from clew.domain.errors import IdempotencyKeyReusedError
from clew.domain.ports import Forget, Fork, Key, Row, Shred
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder_ports import Append, RecordedConflictError, Recorder, Snapshot


class ForkContract:
    """Forks, and lineages and snapshots along them."""

    def test_a_fork_has_the_events_of_its_parent_up_to_the_cut(self, recorder: Recorder) -> None:
        fill(recorder, "a", 5)
        append(recorder, event("f", 4), event("f", 5), forks={"f": Fork("a", 3)})
        fill(recorder, "a", 7, start=6)
        rows = recorder.lineage("f")
        assert addresses(rows) == [("a", 1), ("a", 2), ("a", 3), ("f", 4), ("f", 5)]
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert addresses(recorder.own_rows("f", limit=10)) == [("f", 4), ("f", 5)]
        assert addresses(recorder.own_rows("f", after=0, limit=1)) == [("f", 4)]
        info = recorder.stream("f")
        assert info is not None
        assert (info.name, info.parent, info.cut) == ("f", "a", 3)
        assert [fork.name for fork in recorder.forks("a")] == ["f"]
        assert recorder.forks("f") == recorder.forks("missing") == []
        append(recorder, event("g", 6), forks={"g": Fork("a", 5)})
        append(recorder, event("h", 5), forks={"h": Fork("a", 4)})
        assert [fork.name for fork in recorder.forks("a")] == ["f", "g", "h"]
        assert [fork.name for fork in recorder.forks("a", cut=4)] == ["g", "h"]
        assert [fork.name for fork in recorder.forks("a", cut=4, limit=1)] == ["g"]
        assert recorder.forks("a", cut=6) == recorder.forks("a", limit=0) == []

    def test_an_append_can_forbid_forks_from_a_version_on(self, recorder: Recorder) -> None:
        fill(recorder, "a", 5)
        append(recorder, event("f", 4), forks={"f": Fork("a", 3)})
        append(recorder, event("g", 5), forks={"g": Fork("f", 4)})
        refused = failure(recorder, event("a", 6), forgets=[Forget("a", unforked_from=3)])
        assert isinstance(refused, RecordedConflictError)
        append(recorder, event("a", 6), forgets=[Forget("a", unforked_from=4)])
        append(recorder, event("a", 7), forgets=[Forget("a")])
        with paused_writer(recorder, event("z", 1)):
            recorder.submit(Append([event("h", 8)], forks={"h": Fork("a", 7)}))
            later = recorder.submit(Append([event("a", 8)], forgets=[Forget("a", unforked_from=4)]))
        assert isinstance(later.exception(PATIENCE), RecordedConflictError)

    def test_a_lineage_can_be_limited_to_types(self, recorder: Recorder) -> None:
        types = ["noted", "named", "noted", "named", "marked"]
        append(recorder, *(event("a", version, type_=type_) for version, type_ in enumerate(types, start=1)))
        append(recorder, event("f", 5, type_="named"), event("f", 6), forks={"f": Fork("a", 4)})
        assert addresses(recorder.lineage("f", types=["named"])) == [("a", 2), ("a", 4), ("f", 5)]
        assert recorder.lineage("f", types=["named"], after=2, upto=4) == recorder.lineage("a", after=3, upto=4)
        assert addresses(recorder.lineage("a", types=("marked", "named"))) == [("a", 2), ("a", 4), ("a", 5)]
        assert recorder.lineage("a", types=()) == recorder.lineage("a", types=["other"]) == []
        assert recorder.lineage("missing", types=["named"]) == []

    def test_forks_at_version_zero(self, recorder: Recorder) -> None:
        append(recorder, event("a", 0), event("a", 1))
        append(recorder, event("f", 1), forks={"f": Fork("a", 0)})
        assert addresses(recorder.lineage("f")) == [("a", 0), ("f", 1)]

    def test_forks_a_stream_of_the_same_append(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("a", 2), event("f", 2), forks={"f": Fork("a", 1)})
        rows = recorder.lineage("f")
        assert addresses(rows) == [("a", 1), ("f", 2)]
        assert [row.hash for row in rows] == recomputed_hashes(rows)

    def test_forks_a_stream_of_an_unfinished_append(self, recorder: Recorder) -> None:
        with paused_writer(recorder, event("other", 1)):
            recorder.submit(Append([event("a", 1), event("a", 2)]))
            fork = recorder.submit(Append([event("f", 3)], forks={"f": Fork("a", 2)}))
            deeper = recorder.submit(Append([event("g", 4)], forks={"g": Fork("f", 3)}))
        assert fork.result(PATIENCE).versions == (3,)
        assert deeper.result(PATIENCE).versions == (4,)
        rows = recorder.lineage("g")
        assert addresses(rows) == [("a", 1), ("a", 2), ("f", 3), ("g", 4)]
        assert [row.hash for row in rows] == recomputed_hashes(rows)

    @pytest.mark.parametrize(("parent", "cut"), [("a", 4), ("a", 0), ("missing", 1), ("f", 2), ("a", 2**70)])
    def test_refuses_a_fork_at_a_version_that_the_parent_does_not_have(
        self, recorder: Recorder, parent: str, cut: int
    ) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("f", 3), forks={"f": Fork("a", 2)})
        error = failure(recorder, event("g", cut + 1), forks={"g": Fork(parent, cut)})
        assert isinstance(error, RecordedConflictError)
        assert error.stream == parent
        assert recorder.stream("g") is None

    def test_refuses_a_fork_that_does_not_continue_at_its_cut(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        for version in (1, 2, 4):
            error = failure(recorder, event("f", version), forks={"f": Fork("a", 2)})
            assert isinstance(error, RecordedConflictError)
            assert (error.stream, error.expected, error.actual) == ("f", version - 1, 2)

    def test_refuses_a_fork_onto_an_existing_stream(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        fill(recorder, "b", 2)
        error = failure(recorder, event("b", 3), forks={"b": Fork("a", 2)})
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.expected, error.actual) == ("b", 0, 2)

    def test_refuses_a_fork_without_its_first_event(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        assert isinstance(failure(recorder, event("a", 2), forks={"f": Fork("a", 1)}), ValueError)
        assert recorder.stream("f") is None

    def test_reads_any_part_of_a_lineage(self, recorder: Recorder) -> None:
        fill(recorder, "a", 4)
        append(recorder, *[event("b", version) for version in range(4, 8)], forks={"b": Fork("a", 3)})
        append(recorder, *[event("c", version) for version in range(6, 9)], forks={"c": Fork("b", 5)})
        whole = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("c", 6), ("c", 7), ("c", 8)]
        for after in range(-1, 10):
            for upto in (None, *range(-1, 10)):
                expected = [one for one in whole if one[1] > after and (upto is None or one[1] <= upto)]
                assert addresses(recorder.lineage("c", after=after, upto=upto)) == expected
        assert recorder.lineage("missing") == []

    def test_reads_a_lineage_a_hundred_forks_deep(self, recorder: Recorder) -> None:
        fill(recorder, "s0", 2)
        for depth in range(1, 101):
            cut = 2 * depth - (depth % 2)
            first = cut + 1
            versions = range(first, 2 * depth + 3)
            append(
                recorder,
                *[event(f"s{depth}", version) for version in versions],
                forks={f"s{depth}": Fork(f"s{depth - 1}", cut)},
            )
        rows = recorder.lineage("s100")
        assert [row.version for row in rows] == list(range(1, 203))
        assert [row.hash for row in rows] == recomputed_hashes(rows)
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
            assert [row.hash for row in rows] == recomputed_hashes(rows)

    def test_returns_the_newest_snapshot_along_the_lineage(self, recorder: Recorder) -> None:
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
        assert recorder.snapshot("missing") is None

    def test_replaces_a_snapshot_of_the_same_version(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), snapshots=[Snapshot("a", 1, b"old")])
        append(recorder, snapshots=[Snapshot("a", 1, b"new")])
        assert recorder.snapshot("a") == Snapshot("a", 1, b"new")

    def test_stores_a_snapshot_only_if_nothing_was_shredded_since_its_state_was_read(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        read = recorder.shredded()
        append(recorder, event("f", 3), forks={"f": Fork("a", 2)}, snapshots=[Snapshot("f", 3, b"f3", read)])
        assert recorder.snapshot("f") == Snapshot("f", 3, b"f3")
        append(recorder, event("a", 3), shreds=[Shred("a", 1, digest(b"a 1"), b"stub")])
        append(recorder, event("f", 4), snapshots=[Snapshot("f", 4, b"f4", read)])
        assert recorder.snapshot("f") == Snapshot("f", 3, b"f3")
        append(recorder, event("f", 5), snapshots=[Snapshot("f", 5, b"f5", recorder.shredded())])
        assert recorder.snapshot("f") == Snapshot("f", 5, b"f5")

    def test_refuses_a_snapshot_of_a_missing_version_or_stream(self, recorder: Recorder) -> None:
        error = failure(recorder, event("a", 1), snapshots=[Snapshot("a", 3, b"")])
        assert isinstance(error, RecordedConflictError)
        assert isinstance(failure(recorder, snapshots=[Snapshot("missing", 1, b"")]), RecordedConflictError)
        assert recorder.last_position() == 0


class ShredContract:
    """The behaviour of shredded rows."""

    def test_a_shredded_row_keeps_its_stub_its_digest_and_its_hash(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        before = recorder.lineage("a")
        shred = Shred("a", 2, digest(before[1].state), b"stub")
        append(recorder, event("a", 4), shreds=[shred])
        rows = recorder.lineage("a")
        assert rows[1] == before[1]._replace(state=b"stub", digest=shred.digest)
        assert [rows[0], rows[2]] == [before[0], before[2]]
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert recorder.shredded() == 1

    @pytest.mark.parametrize("length", [0, 1, 40, 300, 5_000])
    @pytest.mark.parametrize("stub", [b"", b"s" * 20, b"s" * 330, b"s" * 3_000])
    def test_accepts_a_stub_of_any_length(self, recorder: Recorder, length: int, stub: bytes) -> None:
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

    def test_every_fork_sees_a_shredded_row(self, recorder: Recorder) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("f", 3), forks={"f": Fork("a", 2)})
        append(recorder, event("a", 4), shreds=[Shred("a", 2, digest(b"a 2"), b"stub")])
        rows = recorder.lineage("f")
        assert rows[1].state == b"stub"
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        append(recorder, event("g", 3), forks={"g": Fork("a", 2)})
        rows = recorder.lineage("g")
        assert [row.hash for row in rows] == recomputed_hashes(rows)

    def test_refuses_a_wrong_digest_a_repetition_and_a_missing_row(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        good = Shred("a", 1, digest(b"a 1"), b"stub")
        for bad in (
            [Shred("a", 1, digest(b"other"), b"stub")],
            [Shred("a", 3, digest(b"a 3"), b"stub")],
            [Shred("a", 2**70, digest(b"a 1"), b"stub")],
            [Shred("missing", 1, digest(b""), b"stub")],
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

    def test_only_the_key_is_compared_after_a_row_of_its_append_is_shredded(self, recorder: Recorder) -> None:
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
        assert [row.hash for row in rows] == recomputed_hashes(rows)


class RestoreContract:
    """Appends of another store's rows, some of which are shredded there."""

    def test_accepts_rows_that_were_shredded_in_another_store(self, recorder: Recorder) -> None:
        original = digest(b"the original bytes")
        events = [event("a", 1), event("a", 2, b"s" * 3_000), event("a", 3)]
        append(recorder, *events, digests=[None, original, None])
        append(recorder, event("f", 3, b""), forks={"f": Fork("a", 2)}, digests=[original])
        rows = recorder.lineage("f")
        assert [(row.state, row.digest) for row in rows] == [(b"a 1", None), (b"s" * 3_000, original), (b"", original)]
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert recorder.shredded() == 2
        everything = recorder.rows(after=0, limit=9)
        assert [(row.stream, row.version) for row in everything] == [("a", 1), ("a", 2), ("a", 3), ("f", 3)]
        assert [row.position for row in everything] == sorted({row.position for row in everything})

    def test_accepts_links_with_digests(self, recorder: Recorder) -> None:
        original = digest(b"the original bytes")
        first = link(ROOT, "a", 1, "noted", original)
        append(recorder, event("a", 1, b"stub"), previous={"a": ROOT}, links=[first], digests=[original])
        append(recorder, event("a", 2), event("b", 1))
        rows = recorder.lineage("a")
        assert rows[0]._replace(position=1) == Row(1, "a", 1, "noted", b"stub", first, original)
        assert [row.hash for row in rows] == recomputed_hashes(rows)

    def test_keeps_the_order_of_concurrent_appends(self, recorder: Recorder) -> None:
        with paused_writer(recorder, event("z", 1)):
            futures = [
                recorder.submit(Append([event("a", 1)])),
                recorder.submit(Append([event("b", 1, b"-"), event("a", 2)], digests=[digest(b"b"), None])),
                recorder.submit(Append([event("b", 1)])),
                recorder.submit(Append([event("b", 2)])),
            ]
        assert isinstance(futures.pop(2).exception(PATIENCE), RecordedConflictError)
        positions = [position for future in futures for position in future.result(PATIENCE).positions]
        rows = recorder.rows(after=0, limit=9)[1:]
        assert [row.position for row in rows] == positions
        assert addresses(rows) == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
        assert [row.digest for row in rows] == [None, digest(b"b"), None, None]

    def test_does_not_shred_restored_rows_again(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1, b"stub"), digests=[digest(b"gone")])
        for again in (Shred("a", 1, digest(b"gone"), b""), Shred("a", 1, digest(b"stub"), b"")):
            assert isinstance(failure(recorder, event("a", 2), shreds=[again]), RecordedConflictError)
        assert recorder.shredded() == 1

    @pytest.mark.parametrize("count", [1, 3])
    def test_refuses_digests_if_their_number_is_not_that_of_the_events(self, recorder: Recorder, count: int) -> None:
        error = failure(recorder, event("a", 1), event("a", 2), digests=[None] * count)
        assert isinstance(error, ValueError)
        assert recorder.last_position() == 0
