"""Futures, closing, forked processes, listeners and subscriptions, and lost replies, in every store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from eventsourcing.persistence import Tracking
from tests.infrastructure.recording import (
    PATIENCE,
    append,
    event,
    failure,
    fill,
    held,
    in_child,
    recomputed,
)

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.streams import digest
from clew.infrastructure.recorder import Append, Blob, Claim, Draft, Key, Lease, Recorder, Shred


def release(semaphore: threading.Semaphore) -> Callable[[], None]:
    def wake() -> None:
        semaphore.release()

    return wake


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

    def test_writes_what_was_submitted_before_it_was_closed(self, recorder: Recorder) -> None:
        futures = [recorder.submit(Append([event("a", version)])) for version in range(1, 101)]
        recorder.close()
        assert all(future.done() for future in futures)
        assert [future.result().versions for future in futures] == [(version,) for version in range(1, 101)]

    def test_raises_closed_after_it_was_closed(self, recorder: Any) -> None:
        fill(recorder, "a", 1)
        recorder.close()
        recorder.close()
        for use in (
            lambda: recorder.submit(Append([event("a", 2)])),
            lambda: recorder.insert_events([event("a", 2)]),
            lambda: recorder.lineage("a"),
            lambda: recorder.own_rows("a", limit=1),
            lambda: recorder.rows(after=0, limit=1),
            lambda: recorder.rows(after=0, limit=1, prefix="a"),
            lambda: recorder.streams(limit=1),
            lambda: recorder.stream("a"),
            lambda: recorder.forks("a"),
            lambda: recorder.orphans(1),
            lambda: recorder.snapshot("a"),
            recorder.shredded,
            recorder.last_position,
            lambda: recorder.repeated(Key("a", "k", b"")),
            lambda: recorder.select_events("a"),
            lambda: recorder.select_notifications(1, 10),
            recorder.max_notification_id,
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
        unlisten = recorder.listen(release(woken))
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
        ends = [recorder.listen(bad), recorder.listen(release(good)), recorder.listen(bad)]
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

    ``break_commit(happens)`` lets the next commit raise, after it happened or instead of happening. A store that
    ``goes_on`` writes again what was not committed; any other says so.
    """

    goes_on = False

    def test_finds_what_was_committed_though_the_reply_was_lost(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        key = Key("a", "k", b"content")
        break_commit(True)  # noqa: FBT003 - the parameter is the whole of it
        outcome = append(recorder, event("a", 2), event("b", 1), key=key, shreds=[Shred("a", 1, digest(b"a 1"), b"")])
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
        error = failure(recorder, event("a", 2))
        assert len(recorder.lineage("a")) == 1 + self.goes_on
        if not self.goes_on:
            assert isinstance(error, StoreUnavailableError)
            assert append(recorder, event("a", 2)).versions == (2,)
        assert append(recorder, event("a", 3)).versions == (3,)

    @pytest.mark.parametrize("happens", [True, False])
    def test_answers_a_batch_alike(
        self,
        recorder: Recorder,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        with held(recorder, event("other", 1)):
            futures = [recorder.submit(Append([event(f"s{number}", 1)])) for number in range(10)]
            break_commit(happens)
        for number, future in enumerate(futures):
            assert (future.exception(PATIENCE) is None) == happens
            assert bool(recorder.own_rows(f"s{number}", limit=1)) == happens

    @pytest.mark.parametrize("happens", [True, False])
    def test_knows_whether_a_commit_without_events_happened(
        self,
        recorder: Any,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        fill(recorder, "a", 2)
        stored = happens or self.goes_on
        break_commit(happens)
        assert (failure(recorder, tracking=Tracking("up", 3)) is None) == stored
        assert (recorder.max_tracking_id("up") == 3) == stored
        break_commit(happens)
        assert (failure(recorder, shreds=[Shred("a", 1, digest(b"a 1"), b"")]) is None) == stored
        assert recorder.shredded() == stored
        beside: list[dict[str, Any]] = [
            {"claims": [Claim("a", "me", 1, 2)]},
            {"drafts": [Draft("a", "run", b"He")]},
            {"blobs": [Blob(digest(b"one"), "definition", b"one")]},
        ]
        for each in beside:
            break_commit(happens)
            assert (failure(recorder, **each) is None) == stored
        assert recorder.lease("a") == (Lease("a", "me", 2) if stored else None)
        assert recorder.draft("a") == (Draft("a", "run", b"He") if stored else None)
        assert len(recorder.blobs(limit=9)) == stored

    def test_finds_what_a_batch_has_left_of_leases_and_drafts_though_the_reply_was_lost(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        steps = (Claim("a", "me", 1, 2), b"He"), (Claim("a", "me", 1, 0), None), (Claim("a", "you", 1, 9), b"Hm")
        with held(recorder, event("other", 1)):
            futures = [
                recorder.submit(Append([], claims=[claim], drafts=[Draft("a", "run", data)])) for claim, data in steps
            ]
            break_commit(True)  # noqa: FBT003 - as above
        assert [future.exception(PATIENCE) for future in futures] == [None] * 3
        assert recorder.lease("a") == Lease("a", "you", 9)
        assert recorder.draft("a") == Draft("a", "run", b"Hm")
