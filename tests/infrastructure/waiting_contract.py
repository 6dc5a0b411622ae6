"""The behaviour of every store: futures, closing, forked processes, listeners, subscriptions and lost replies."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from eventsourcing.persistence import Tracking
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    Opener,
    append,
    event,
    failure,
    fill,
    in_forked_child,
    paused_writer,
    recomputed_hashes,
    run_threads,
    wait_until,
)

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Blob, Claim, Draft, Fork, Key, Lease, Shred
from clew.domain.streams import digest
from clew.infrastructure.recorder_ports import Append, Recorder

HANDED_OVER = ["a/thread/1", "a/thread/2", "b/thread/1", "b/thread/2"]


class Woken:
    """Listeners of these names, and how often each was woken."""

    def __init__(self, recorder: Recorder, *names: str) -> None:
        self.counts = Counter[str]()
        self._ends = [recorder.listen(partial(self._note, name), name) for name in names]
        self._recorder = recorder

    def _note(self, name: str) -> None:
        self.counts[name] += 1

    def wait_for(self, expected: Mapping[str, int]) -> None:
        """Wait until the listeners have been woken so often, and make sure that they are not woken again."""
        wait_until(lambda: self.counts.total() >= sum(expected.values()))
        wait_for_polls(self._recorder)
        assert self.counts == expected

    def end(self) -> None:
        for end in self._ends:
            end()


def wait_for_polls(recorder: Any) -> None:
    """Wait until the poller has completed a poll, if the store has one."""
    polls = threading.Semaphore(0)
    datastore = getattr(recorder, "datastore", None)
    if datastore is None:
        return
    visible = datastore.visible

    def counted() -> int:
        polls.release()
        position: int = visible()
        return position

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datastore, "visible", counted)
        for _ in range(2):
            assert polls.acquire(timeout=PATIENCE)


def pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "clew-poller"}


def hand_over(writer: Recorder, recorder: Recorder, name: str, count: int) -> None:
    """Append events one by one, each when two readers have read the one before: by name, and in position order."""
    tenant = name.split("/", maxsplit=1)[0] + "/"
    read = [threading.Semaphore(0) for _ in range(2)]

    def follow(of: str, last: Callable[[], int], seen: threading.Semaphore) -> None:
        woken = threading.Event()
        end = recorder.listen(woken.set, of)
        version = 0
        while version < count:
            woken.clear()
            if (now := last()) > version:
                version = now
                seen.release()
            else:
                assert woken.wait(PATIENCE), f"{of}: a wake-up was lost after version {version}"
        end()

    def by_name() -> int:
        return max((row.version for row in recorder.own_rows(name, limit=99)), default=0)

    def in_order() -> int:
        rows = recorder.rows(after=0, limit=999, prefix=tenant)
        return max((row.version for row in rows if row.stream == name), default=0)

    def write() -> None:
        for version in range(1, count + 1):
            append(writer, event(name, version))
            for semaphore in read:
                assert semaphore.acquire(timeout=PATIENCE)

    run_threads([write, lambda: follow(name, by_name, read[0]), lambda: follow(tenant, in_order, read[1])])


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

    def test_a_commit_wakes_the_listeners_of_its_streams_and_tenants(self, recorder: Recorder) -> None:
        woken = Woken(recorder, "", "acme/", "acme/thread/", "acme/thread/1", "acme/thread/2", "acme2/", "other/")
        append(recorder, event("acme/thread/1", 1))
        append(recorder, event("acme/memory/1", 1), event("other/thread/1", 1))
        fill(recorder, "acme/thread/11", 3)
        woken.wait_for({"": 3, "acme/": 3, "acme/thread/": 2, "acme/thread/1": 1, "other/": 1})
        woken.end()
        append(recorder, event("acme/thread/1", 2))
        assert woken.counts[""] == 3

    def test_a_fork_wakes_its_own_listeners_and_not_those_of_its_parent(self, recorder: Recorder) -> None:
        fill(recorder, "parent", 2)
        woken = Woken(recorder, "parent", "child")
        append(recorder, event("child", 2), forks={"child": Fork("parent", 1)})
        append(recorder, event("child", 3))
        woken.wait_for({"child": 2})
        woken.end()

    def test_a_commit_without_events_wakes_nobody(self, recorder: Recorder) -> None:
        fill(recorder, "a", 1)
        woken = Woken(recorder, "", "a")
        append(recorder, claims=[Claim("a", "me", 1, 2)], drafts=[Draft("a", "run", b"He")])
        append(recorder, tracking=Tracking("up", 3))
        append(recorder, event("a", 2))
        woken.wait_for({"": 1, "a": 1})
        woken.end()

    def test_no_wake_up_is_lost_among_concurrent_commits(self, recorder: Recorder) -> None:
        """Each writer waits until the event has been read: no later commit makes up for a lost wake-up."""
        run_threads([lambda name=name: hand_over(recorder, recorder, name, 40) for name in HANDED_OVER])  # type: ignore[misc] # a bound loop variable


class TwoProcessContract:
    """Listeners of a store that several processes write to. It needs the fixtures ``opener`` and ``recorder``."""

    def test_a_commit_of_another_process_wakes_the_listeners_of_its_streams(self, recorder: Recorder) -> None:
        woken = Woken(recorder, "", "a/", "a/thread/1", "a/thread/2", "b/")
        assert in_forked_child(lambda: append(recorder, event("a/thread/1", 1))) == 0
        woken.wait_for({"": 1, "a/": 1, "a/thread/1": 1})
        woken.end()

    def test_a_commit_of_another_store_of_the_process_wakes_the_listeners_of_its_streams(
        self, recorder: Recorder, opener: Opener
    ) -> None:
        woken = Woken(recorder, "", "a", "b")
        with closing(opener()) as other:
            append(other, event("a", 1))
        woken.wait_for({"": 1, "a": 1})
        woken.end()

    def test_a_commit_of_the_parent_wakes_a_listener_of_a_forked_child(self, recorder: Recorder) -> None:
        end = recorder.listen(lambda: None)  # the parent polls, and the child does not inherit that
        is_listening, listening = os.pipe()

        def work() -> None:
            mine = threading.Event()
            recorder.listen(mine.set, "a")
            os.write(listening, b"!")
            assert mine.wait(PATIENCE)

        def write() -> None:
            os.read(is_listening, 1)
            append(recorder, event("b", 1), event("a", 1))

        writing = threading.Thread(target=write)
        writing.start()
        assert in_forked_child(work) == 0
        os.close(listening)
        writing.join(PATIENCE)
        os.close(is_listening)
        end()

    def test_one_poller_serves_all_stores_of_the_process_and_ends_with_the_last_listener(self, opener: Opener) -> None:
        recorders, before = [opener() for _ in range(5)], pollers()
        ends = [recorder.listen(lambda: None) for recorder in recorders for _ in range(3)]
        (poller,) = pollers() - before
        recorders.pop(0).close()
        assert poller.is_alive()
        for end in ends:
            end()
        poller.join(PATIENCE)
        assert not poller.is_alive()
        for recorder in recorders:
            recorder.close()

    def test_the_poller_does_not_wake_a_process_again_for_its_own_commits(self, recorder: Any) -> None:
        woken = Woken(recorder, "", "a/", "a/thread/1")
        for version in range(1, 21):
            append(recorder, event("a/thread/1", version))
            wait_for_polls(recorder)
        # A poll can be between the commit and the answer of a server.
        assert all(20 <= count <= 22 for count in woken.counts.values())
        woken.end()

    def test_no_wake_up_is_lost_among_commits_of_two_processes(self, recorder: Recorder, opener: Opener) -> None:
        with closing(opener()) as other:
            run_threads(
                [
                    lambda name=name, writer=writer: hand_over(writer, recorder, name, 15)  # type: ignore[misc] # bound loop variables
                    for name, writer in zip(HANDED_OVER, (recorder, other) * len(HANDED_OVER), strict=False)
                ]
            )


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
    def test_loses_no_wake_up_at_a_broken_commit(
        self,
        recorder: Recorder,
        opener: Opener,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        """Another process may write at the positions of a commit that did not happen."""
        woken = {name: threading.Event() for name in "ab"}
        ends = [recorder.listen(event.set, name) for name, event in woken.items()]
        break_commit(happens)
        if failure(recorder, event("a", 1)) is None:
            assert woken["a"].wait(PATIENCE)
        with closing(opener()) as other:
            append(other, event("b", 1))
        assert woken["b"].wait(PATIENCE)
        for end in ends:
            end()

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
