"""The behaviour of every store: futures, closing, forked processes, listeners, subscriptions and lost replies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from eventsourcing.persistence import Tracking
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    append,
    event,
    failure,
    fill,
    in_forked_child,
    paused_writer,
    recomputed_hashes,
)

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Blob, Claim, Draft, Key, Lease, Shred
from clew.domain.streams import digest
from clew.infrastructure.recorder_ports import Append, Recorder


def release(semaphore: threading.Semaphore) -> Callable[[], None]:
    def wake() -> None:
        semaphore.release()

    return wake


class FutureContract:
    """Cancelling, closing and forking the process."""

    def test_never_stores_an_append_that_was_cancelled_in_time(self, recorder: Recorder) -> None:
        with paused_writer(recorder, event("other", 1)):
            first = recorder.submit(Append([event("a", 1)]))
            second = recorder.submit(Append([event("a", 2)]))
            assert second.cancel()
            third = recorder.submit(Append([event("b", 1)]))
        assert first.result(PATIENCE).versions == (1,)
        assert third.result(PATIENCE).versions == (1,)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)
        assert len(recorder.lineage("a")) == 1

    def test_a_stored_append_cannot_be_cancelled(self, recorder: Recorder) -> None:
        with paused_writer(recorder, event("a", 1)) as writer:
            assert not writer.future.cancel()
        assert writer.future.result(PATIENCE).versions == (1,)
        assert len(recorder.lineage("a")) == 1

    def test_close_writes_all_submitted_appends(self, recorder: Recorder) -> None:
        futures = [recorder.submit(Append([event("a", version)])) for version in range(1, 101)]
        recorder.close()
        assert all(future.done() for future in futures)
        assert [future.result().versions for future in futures] == [(version,) for version in range(1, 101)]

    def test_raises_closed_error_after_close(self, recorder: Any) -> None:
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

    def test_works_in_both_processes_after_a_fork(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)

        def work() -> None:
            append(recorder, event("child", 1))
            append(recorder, event("child", 2))
            assert [row.version for row in recorder.lineage("child")] == [1, 2]
            assert [row.version for row in recorder.lineage("a")] == [1]
            recorder.close()

        assert in_forked_child(work) == 0
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
                assert in_forked_child(lambda name=f"child{number}": fill(recorder, name, 3)) == 0  # type: ignore[misc] # a bound loop
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert errors == []
        for number in range(3):
            rows = recorder.lineage(f"s{number}")
            assert [row.hash for row in rows] == recomputed_hashes(rows)


class WakeContract:
    """Listeners and subscriptions."""

    def test_wakes_a_listener_after_a_commit_until_it_is_removed(self, recorder: Recorder) -> None:
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

    def test_a_listener_can_read_the_committed_events(self, recorder: Recorder) -> None:
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
            msg = "the test's listener failed"
            raise RuntimeError(msg)

        good = threading.Semaphore(0)
        ends = [recorder.listen(bad), recorder.listen(release(good)), recorder.listen(bad)]
        for version in (1, 2):
            append(recorder, event("a", version))
            assert good.acquire(timeout=PATIENCE)
        for end in ends:
            end()
        assert "the test's listener failed" in caplog.text

    def test_gives_a_subscription_every_event_once_and_in_order(self, recorder: Any) -> None:
        fill(recorder, "a", 700)
        received: list[int] = []
        with recorder.subscribe(gt=0) as subscription:

            def read() -> None:
                for notification in subscription:
                    received.append(notification.id)
                    if len(received) == 1000:
                        return

            reader = threading.Thread(target=read)
            reader.start()
            for version in range(701, 1001):
                recorder.submit(Append([event("a", version)]))
            reader.join(PATIENCE)
        assert received == [row.position for row in recorder.rows(after=0, limit=2000)]

    def test_stop_ends_a_waiting_subscription(self, recorder: Any) -> None:
        subscription = recorder.subscribe(gt=0)
        ended: list[bool] = []
        reader = threading.Thread(target=lambda: ended.append(list(subscription) == []))
        reader.start()
        subscription.stop()
        reader.join(PATIENCE)
        assert ended == [True]

    def test_a_waiting_subscription_raises_closed_error_when_the_store_is_closed(self, recorder: Any) -> None:
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

    def test_a_forked_child_starts_without_listeners(self, recorder: Recorder) -> None:
        parent = threading.Event()
        end = recorder.listen(parent.set)

        def work() -> None:
            mine = threading.Event()
            recorder.listen(mine.set)
            append(recorder, event("child", 1))
            assert mine.wait(PATIENCE)
            assert not parent.is_set()

        assert in_forked_child(work) == 0
        end()


class LostReplyContract:
    """The behaviour of a store that can lose the reply to a commit. It needs the fixture ``break_commit``.

    ``break_commit(happens)`` makes the next commit raise, after it happened or without happening. A store that
    ``retries`` writes again if nothing was committed. Other stores report an error.
    """

    retries = False

    def test_finds_committed_events_if_the_reply_was_lost(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        key = Key("a", "k", b"content")
        break_commit(True)  # noqa: FBT003 - its only parameter
        outcome = append(recorder, event("a", 2), event("b", 1), key=key, shreds=[Shred("a", 1, digest(b"a 1"), b"")])
        assert outcome.hashes == tuple(row.hash for row in recorder.rows(after=outcome.positions[0] - 1, limit=2))
        assert append(recorder, event("a", 9), key=key).positions == outcome.positions
        assert append(recorder, event("a", 3)).versions == (3,)
        rows = recorder.lineage("a")
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert recorder.shredded() == 1

    def test_reports_an_error_if_nothing_was_committed(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        break_commit(False)  # noqa: FBT003 - as above
        error = failure(recorder, event("a", 2))
        assert len(recorder.lineage("a")) == 1 + self.retries
        if not self.retries:
            assert isinstance(error, StoreUnavailableError)
            assert append(recorder, event("a", 2)).versions == (2,)
        assert append(recorder, event("a", 3)).versions == (3,)

    @pytest.mark.parametrize("happens", [True, False])
    def test_all_appends_of_a_batch_have_the_same_outcome(
        self,
        recorder: Recorder,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        with paused_writer(recorder, event("other", 1)):
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
        stored = happens or self.retries
        break_commit(happens)
        assert (failure(recorder, tracking=Tracking("up", 3)) is None) == stored
        assert (recorder.max_tracking_id("up") == 3) == stored
        break_commit(happens)
        assert (failure(recorder, shreds=[Shred("a", 1, digest(b"a 1"), b"")]) is None) == stored
        assert recorder.shredded() == stored
        side_tables: list[dict[str, Any]] = [
            {"claims": [Claim("a", "me", 1, 2)]},
            {"drafts": [Draft("a", "run", b"He")]},
            {"blobs": [Blob(digest(b"one"), "definition", b"one")]},
        ]
        for each in side_tables:
            break_commit(happens)
            assert (failure(recorder, **each) is None) == stored
        assert recorder.lease("a") == (Lease("a", "me", 2) if stored else None)
        assert recorder.draft("a") == (Draft("a", "run", b"He") if stored else None)
        assert len(recorder.blobs(limit=9)) == stored

    def test_finds_the_leases_and_drafts_of_a_batch_if_the_reply_was_lost(
        self, recorder: Recorder, break_commit: Callable[[bool], None]
    ) -> None:
        fill(recorder, "a", 1)
        steps = (Claim("a", "me", 1, 2), b"He"), (Claim("a", "me", 1, 0), None), (Claim("a", "you", 1, 9), b"Hm")
        with paused_writer(recorder, event("other", 1)):
            futures = [
                recorder.submit(Append([], claims=[claim], drafts=[Draft("a", "run", data)])) for claim, data in steps
            ]
            break_commit(True)  # noqa: FBT003 - as above
        assert [future.exception(PATIENCE) for future in futures] == [None] * 3
        assert recorder.lease("a") == Lease("a", "you", 9)
        assert recorder.draft("a") == Draft("a", "run", b"Hm")
