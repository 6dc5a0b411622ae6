"""The behaviour of the side tables in every store: blobs, leases and drafts are written atomically with an append."""

from __future__ import annotations

import itertools
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.infrastructure.recorder_steps import PATIENCE, append, event, failure, fill, paused_writer

from clew.domain.errors import InvalidNameError
from clew.domain.event_index import number_of_blob
from clew.domain.ports import Appended, Blob, Claim, Draft, Fork, Key, Lease, Shred
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.infrastructure.recorder_ports import Append, IndexEntry, RecordedConflictError, Recorder

STREAMS = ("s", "t")
HOLDERS = ("me", "you", "they")
GONE = "gone"
_examples = itertools.count()

Leases = dict[str, Lease]


def blob(data: bytes) -> Blob:
    return Blob(sha256(data).digest(), "definition", data)


def naive(claims: list[Claim], leases: Leases) -> Leases | str:
    """The leases after an append's claims, or the holder that blocks them; GONE if a renewal has another holder."""
    after = dict(leases)
    for claim in claims:
        lease = after.get(claim.stream)
        is_blocked = lease is not None and lease.holder != claim.holder and lease.until > claim.now
        if claim.renews and (lease is None or lease.holder != claim.holder):
            return GONE
        if claim.until == 0:
            if lease is not None and lease.holder == claim.holder:
                del after[claim.stream]
        elif lease is not None and lease.until > claim.now >= claim.until and not claim.renews:
            continue
        elif lease is not None and is_blocked:
            return lease.holder
        else:
            after[claim.stream] = Lease(claim.stream, claim.holder, claim.until)
    return after


class BlobContract:
    """Bytes under their digest."""

    def test_stores_a_blob_under_its_digest(self, recorder: Recorder) -> None:
        blobs = [blob(b""), blob(bytes(range(256))), blob(b"x" * 70_000)]
        assert append(recorder, blobs=blobs[:1]) == Appended((), (), ())
        append(recorder, event("a", 1), blobs=blobs[1:])
        assert [recorder.blob(each.digest) for each in blobs] == blobs
        assert recorder.blob(sha256(b"nothing").digest()) is None

    def test_does_not_change_an_existing_blob(self, recorder: Recorder) -> None:
        first = blob(b"one")
        append(recorder, event("a", 1), blobs=[first, first])
        append(recorder, event("a", 2), blobs=[first._replace(kind="content"), blob(b"two")])
        assert recorder.blob(first.digest) == first
        assert recorder.blob(blob(b"two").digest) == blob(b"two")

    def test_refuses_a_blob_with_a_wrong_digest(self, recorder: Recorder) -> None:
        wrong = blob(b"one")._replace(data=b"two")
        error = failure(recorder, event("a", 1), blobs=[blob(b"three"), wrong])
        assert isinstance(error, ValueError)
        assert wrong.digest.hex() in str(error)
        assert recorder.last_position() == 0
        assert recorder.blobs(limit=9) == []

    def test_pages_through_the_blobs_in_insertion_order(self, recorder: Recorder) -> None:
        blobs = [blob(b"%d" % number) for number in range(7)]
        for each in blobs:
            append(recorder, blobs=[each, blobs[0]])
        listed: list[tuple[int, bytes]] = []
        while page := recorder.blobs(after=listed[-1][0] if listed else 0, limit=3):
            assert len(page) <= 3
            listed.extend(page)
        assert [digest for _, digest in listed] == [each.digest for each in blobs]
        assert recorder.blobs(after=-(2**70), limit=2**70) == listed


class RecordBlobContract:
    """The bytes of records: stored once, and destroyed with the last record that has them."""

    def test_stores_equal_bytes_once(self, recorder: Recorder) -> None:
        one, two = record_blob(b"one" * 999), record_blob(b"")
        appended = Append(
            [event("a", 1), event("b", 1)], entries=used(one, ("a", 1), ("b", 1)), record_blobs=[one, one]
        )
        recorder.submit(appended).result(PATIENCE)
        append(recorder, event("a", 2), entries=used(two, ("a", 2)), record_blobs=[two, one])
        wanted = [one.digest, two.digest, sha256(b"none").digest()]
        assert recorder.record_blobs("b", wanted) == {one.digest: one.data, two.digest: two.data}
        assert recorder.record_blobs("a", []) == {}
        assert recorder.unused_record_blobs(9) == []
        assert recorder.blob(one.digest) is None
        assert recorder.blobs(limit=9) == []

    def test_the_last_record_takes_its_bytes_along(self, recorder: Recorder) -> None:
        one, two = record_blob(b"1" * 5_000), record_blob(b"2" * 5_000)
        append(
            recorder,
            *[event("a", version) for version in (1, 2, 3)],
            entries=[*used(one, ("a", 1), ("a", 2)), *used(two, ("a", 3))],
            record_blobs=[one, two],
        )
        append(recorder, event("a", 4), shreds=[shredding(one, 1)])
        assert recorder.record_blobs("a", [one.digest, two.digest]) == {one.digest: one.data, two.digest: two.data}
        append(recorder, event("a", 5), shreds=[shredding(one, 2), shredding(two, 3)])
        assert recorder.record_blobs("a", [one.digest, two.digest]) == {}
        append(recorder, event("a", 6), entries=used(one, ("a", 6)), record_blobs=[one])
        assert recorder.record_blobs("a", [one.digest, two.digest]) == {one.digest: one.data}
        append(  # a record of the same append has the same bytes
            recorder, event("a", 7), shreds=[shredding(one, 6)], entries=used(one, ("a", 7)), record_blobs=[one]
        )
        assert recorder.record_blobs("a", [one.digest]) == {one.digest: one.data}
        assert recorder.unused_record_blobs(9) == []

    def test_bytes_are_stored_and_destroyed_with_their_append_or_not_at_all(self, recorder: Recorder) -> None:
        one, two = record_blob(b"1" * 5_000), record_blob(b"2" * 5_000)
        append(recorder, event("a", 1), entries=used(one, ("a", 1)), record_blobs=[one])
        error = failure(
            recorder,
            event("a", 1),
            entries=used(two, ("a", 1)),
            record_blobs=[two],
            shreds=[shredding(one, 1)],
        )
        assert isinstance(error, RecordedConflictError)
        wrong = two._replace(data=b"other")
        assert isinstance(failure(recorder, event("a", 2), record_blobs=[wrong]), ValueError)
        assert recorder.record_blobs("a", [one.digest, two.digest]) == {one.digest: one.data}

    def test_names_bytes_that_no_record_has(self, recorder: Recorder) -> None:
        one, two = record_blob(b"1" * 5_000), record_blob(b"2" * 5_000)
        append(recorder, event("a", 1), entries=used(one, ("a", 1)), record_blobs=[one, two])
        assert recorder.unused_record_blobs(9) == [two.digest]
        assert recorder.unused_record_blobs(0) == []


def record_blob(data: bytes) -> Blob:
    return Blob(sha256(data).digest(), "record", data)


def used(blob: Blob, *rows: tuple[str, int]) -> list[IndexEntry]:
    """The entries of the records that have these bytes."""
    return [IndexEntry(stream, number_of_blob(blob.digest), version) for stream, version in rows]


def shredding(blob: Blob, version: int) -> Shred:
    """Shred the row of stream a whose record has these bytes."""
    state = f"a {version}".encode()
    return Shred("a", version, sha256(state).digest(), b"", (number_of_blob(blob.digest),), (blob.digest,))


class LeaseContract:
    """The lease of a stream: its holder can run on the stream."""

    def test_the_first_claim_gets_the_lease_and_the_second_learns_the_holder(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        assert recorder.lease("a") is None
        append(recorder, claims=[Claim("a", "me", now=10, until=20)])
        assert recorder.lease("a") == Lease("a", "me", 20)
        error = failure(recorder, event("a", 2), claims=[Claim("a", "you", now=19, until=30)])
        assert isinstance(error, RunInProgressError)
        assert (error.stream, error.holder) == ("a", "me")
        assert recorder.lease("a") == Lease("a", "me", 20)
        assert len(recorder.lineage("a")) == 1

    def test_another_holder_can_claim_an_expired_lease(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        append(recorder, claims=[Claim("a", "me", now=10, until=20)])
        append(recorder, claims=[Claim("a", "you", now=20, until=30)])
        assert recorder.lease("a") == Lease("a", "you", 30)
        assert isinstance(failure(recorder, claims=[Claim("a", "me", now=25, until=40)]), RunInProgressError)

    def test_the_holder_can_extend_and_release_the_lease(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        append(recorder, claims=[Claim("a", "me", now=10, until=20)])
        append(recorder, claims=[Claim("a", "me", now=15, until=25)])
        append(recorder, claims=[Claim("a", "me", now=99, until=110)])
        assert recorder.lease("a") == Lease("a", "me", 110)
        append(recorder, claims=[Claim("a", "me", now=100, until=0)])
        assert recorder.lease("a") is None
        append(recorder, claims=[Claim("a", "you", now=100, until=120)])
        assert recorder.lease("a") == Lease("a", "you", 120)

    @pytest.mark.parametrize("now", [15, 99])
    def test_releasing_a_lease_of_another_holder_does_nothing(self, recorder: Recorder, now: int) -> None:
        append(recorder, event("a", 1), claims=[Claim("a", "me", now=10, until=20)])
        append(recorder, event("a", 2), claims=[Claim("a", "you", now=now, until=0), Claim("none", "you", 1, 0)])
        assert recorder.lease("a") == Lease("a", "me", 20)
        assert len(recorder.lineage("a")) == 2

    def test_claims_a_stream_in_the_append_that_starts_it(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("a", 2), claims=[Claim("a", "me", now=10, until=20)])
        append(recorder, event("b", 2), forks={"b": Fork("a", 1)}, claims=[Claim("b", "you", now=10, until=20)])
        assert recorder.lease("a") == Lease("a", "me", 20)
        assert recorder.lease("b") == Lease("b", "you", 20)

    def test_refuses_a_lease_of_a_missing_stream(self, recorder: Recorder) -> None:
        error = failure(recorder, event("b", 1), claims=[Claim("a", "me", now=10, until=20)])
        assert isinstance(error, RecordedConflictError)
        assert (error.stream, error.actual) == ("a", 0)
        assert recorder.lease("a") is None
        assert recorder.stream("b") is None

    def test_writes_nothing_of_an_append_with_a_refused_claim(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("b", 1), claims=[Claim("a", "me", now=10, until=20)])
        before = recorder.rows(after=0, limit=9)
        error = failure(
            recorder,
            event("b", 2),
            event("c", 1),
            key=Key("b", "k", b""),
            blobs=[blob(b"one")],
            claims=[Claim("b", "you", now=10, until=20), Claim("a", "you", now=10, until=20)],
            drafts=[Draft("b", "run", b"He")],
        )
        assert isinstance(error, RunInProgressError)
        assert recorder.rows(after=0, limit=9) == before
        assert recorder.repeated(Key("b", "k", b"")) is None
        assert (recorder.lease("b"), recorder.draft("b"), recorder.blobs(limit=9)) == (None, None, [])

    def test_writes_no_claim_of_an_append_that_conflicts(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        side_rows: dict[str, Any] = {
            "blobs": [blob(b"one")],
            "claims": [Claim("a", "me", now=10, until=20)],
            "drafts": [Draft("a", "run", b"He")],
        }
        assert isinstance(failure(recorder, event("a", 7), **side_rows), RecordedConflictError)
        assert (recorder.lease("a"), recorder.draft("a"), recorder.blobs(limit=9)) == (None, None, [])

    def test_a_run_in_progress_takes_precedence_over_a_version_conflict(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("a", 2), claims=[Claim("a", "me", now=10, until=20)])
        error = failure(recorder, event("a", 2), claims=[Claim("a", "you", now=10, until=20)])
        assert isinstance(error, RunInProgressError)

    def test_a_repeated_key_does_not_claim_again(self, recorder: Recorder) -> None:
        key = Key("a", "k", b"content")
        append(recorder, event("a", 1), key=key, claims=[Claim("a", "me", now=10, until=20)])
        append(recorder, claims=[Claim("a", "me", now=11, until=0)])
        assert append(recorder, event("a", 1), key=key, claims=[Claim("a", "me", now=12, until=30)]).repeated
        assert recorder.lease("a") is None

    def test_evaluates_the_claims_of_a_batch_in_order(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        with paused_writer(recorder, event("other", 1)):
            futures = [
                recorder.submit(Append([event("a", version)], claims=[Claim("a", holder, now, until)]))
                for version, holder, now, until in (
                    (2, "me", 10, 20),
                    (3, "you", 10, 20),
                    (3, "me", 11, 25),
                    (4, "me", 12, 0),
                    (5, "you", 12, 30),
                    (6, "they", 29, 40),
                    (6, "they", 30, 40),
                )
            ]
        errors = [future.exception(PATIENCE) for future in futures]
        assert [error.holder if isinstance(error, RunInProgressError) else error for error in errors] == [
            None, "me", None, None, None, "you", None
        ]  # fmt: skip
        assert recorder.lease("a") == Lease("a", "they", 40)
        assert len(recorder.lineage("a")) == 6

    def test_evaluates_the_claims_of_an_append_in_order(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        append(recorder, claims=[Claim("a", "me", 10, 20), Claim("a", "me", 10, 0), Claim("a", "you", 10, 30)])
        assert recorder.lease("a") == Lease("a", "you", 30)
        append(recorder, claims=[Claim("a", "you", 10, 0), Claim("a", "they", 10, 20), Claim("a", "they", 10, 0)])
        assert recorder.lease("a") is None
        two = [Claim("a", "me", 10, 20), Claim("a", "you", 10, 20)]
        assert isinstance(failure(recorder, claims=two), RunInProgressError)
        assert recorder.lease("a") is None

    def test_only_the_holder_renews_a_lease_even_an_expired_one(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        renewal = Claim("a", "me", now=10, until=20, renews=True)
        assert isinstance(failure(recorder, claims=[renewal]), RunTakenOverError)
        append(recorder, claims=[Claim("a", "me", now=1, until=5)])
        append(recorder, claims=[renewal])
        assert recorder.lease("a") == Lease("a", "me", 20)
        append(recorder, claims=[Claim("a", "you", now=20, until=30)])
        late = failure(recorder, claims=[renewal._replace(now=99, until=120)], drafts=[Draft("a", "run", b"x")])
        assert isinstance(late, RunTakenOverError)
        assert recorder.lease("a") == Lease("a", "you", 30)
        assert recorder.draft("a") is None

    def test_a_claim_that_has_expired_at_once_leaves_a_lease_that_has_not(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        for holder in ("me", "you"):
            append(recorder, claims=[Claim("a", "me", now=10, until=20)])
            append(recorder, event("a", len(recorder.lineage("a")) + 1), claims=[Claim("a", holder, now=15, until=15)])
            assert recorder.lease("a") == Lease("a", "me", 20)
            append(recorder, claims=[Claim("a", "me", now=20, until=0)])
            append(recorder, claims=[Claim("a", holder, now=20, until=20)])
            assert recorder.lease("a") == Lease("a", holder, 20)

    @pytest.mark.parametrize("until", [-1, 2**63])
    def test_refuses_an_invalid_time(self, recorder: Recorder, until: int) -> None:
        fill(recorder, "a", 1)
        assert isinstance(failure(recorder, claims=[Claim("a", "me", 0, until)]), ValueError)

    def test_refuses_names_that_are_not_valid_unicode(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        for bad in ("\ud800", "a\ud800"):
            assert isinstance(failure(recorder, claims=[Claim("a", bad, 0, 1)]), InvalidNameError)
            assert isinstance(failure(recorder, claims=[Claim(bad, "me", 0, 0)]), InvalidNameError)
            assert isinstance(failure(recorder, drafts=[Draft("a", bad, b"")]), InvalidNameError)
            assert isinstance(failure(recorder, drafts=[Draft(bad, "run", None)]), InvalidNameError)
            assert recorder.lease(bad) is None
            assert recorder.draft(bad) is None

    @given(
        st.lists(
            st.lists(
                st.builds(
                    Claim,
                    stream=st.sampled_from(STREAMS),
                    holder=st.sampled_from(HOLDERS),
                    now=st.integers(0, 6),
                    until=st.integers(0, 8),
                    renews=st.booleans(),
                ),
                min_size=1,
                max_size=3,
            ),
            max_size=12,
        )
    )
    # All examples share one recorder, each with its own streams. Every store runs this test.
    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    def test_claims_agree_with_a_naive_model_also_within_one_commit(
        self, recorder: Recorder, appends: list[list[Claim]]
    ) -> None:
        number = next(_examples)
        names = {name: f"{name}{number}" for name in STREAMS}
        append(recorder, *[event(name, 1) for name in names.values()])
        leases: Leases = {}
        expected: list[str | None] = []
        futures = []
        for claims_of_append in appends:
            claims = [claim._replace(stream=names[claim.stream]) for claim in claims_of_append]
            after = naive(claims, leases)
            expected.append(after if isinstance(after, str) else None)
            leases = leases if isinstance(after, str) else after
            futures.append(recorder.submit(Append([], claims=claims)))
        errors = [future.exception(PATIENCE) for future in futures]
        holders = [
            GONE if isinstance(error, RunTakenOverError) else getattr(error, "holder", error) for error in errors
        ]
        assert holders == expected
        assert [recorder.lease(name) for name in names.values()] == [leases.get(name) for name in names.values()]


class DraftContract:
    """The received part of an unfinished answer."""

    def test_keeps_the_last_draft_of_a_stream_until_it_is_removed(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1), event("b", 1), drafts=[Draft("a", "run", b"He")])
        assert recorder.draft("a") == Draft("a", "run", b"He")
        append(recorder, drafts=[Draft("a", "run", b"Hello" * 2_000), Draft("b", "other", b"")])
        assert recorder.draft("a") == Draft("a", "run", b"Hello" * 2_000)
        assert recorder.draft("b") == Draft("b", "other", b"")
        append(recorder, drafts=[Draft("a", "next", b"Hm")])
        assert recorder.draft("a") == Draft("a", "next", b"Hm")
        append(recorder, event("a", 2), drafts=[Draft("a", "next", None)])
        assert recorder.draft("a") is None
        assert recorder.draft("b") == Draft("b", "other", b"")

    def test_removing_a_missing_draft_does_nothing(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        append(recorder, drafts=[Draft("a", "run", None), Draft("none", "run", None)])
        assert recorder.draft("a") is None

    def test_refuses_a_draft_of_a_missing_stream(self, recorder: Recorder) -> None:
        error = failure(recorder, event("b", 1), drafts=[Draft("a", "run", b"He")])
        assert isinstance(error, RecordedConflictError)
        assert recorder.stream("b") is None

    def test_drafts_and_leases_are_not_events(self, recorder: Recorder) -> None:
        fill(recorder, "a", 2)
        before = recorder.rows(after=0, limit=9)
        append(recorder, claims=[Claim("a", "me", 1, 2)], drafts=[Draft("a", "run", b"He")], blobs=[blob(b"one")])
        assert recorder.rows(after=0, limit=9) == before
        append(recorder, event("a", 3), previous={"a": before[-1].hash})
