"""Workers share the projections of a store; each event counts once although workers are killed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import in_forked_child, wait_until
from tests.service.counting_projections import (
    Counting,
    Failing,
    NewerCounting,
    assert_every_event_counts_once,
    ignore_notification,
    opened,
)
from tests.service.marking_processes import mark_until_signalled, note
from tests.service.projection_contents import batches_of, rebuild

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.infrastructure.stores import store_at
from clew.projections import Query
from clew.service import projection_worker
from clew.service.core import Core
from clew.service.projection_status import read_statuses
from clew.service.projection_worker import Runner
from clew.service.worker_processes import Workers, ended_by_signals

NAMES = ["directory", "search", "audit", "usage", "memory"]


def start_child(work: Callable[[], object]) -> int:
    """Start a child process that does the work; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # the child must not run the parent's code
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use leases that expire quickly."""
    monkeypatch.setattr(projection_worker, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(projection_worker, "RENEW_SECONDS", 0.05)


# Leases


def test_leases_are_shared_released_and_claimed_again(any_url: str) -> None:
    with closing(opened(any_url)) as core:
        store = core.models.projector.store
        assert store.holders() == {}
        assert store.claim("a", NAMES, 60) == NAMES
        assert store.claim("b", NAMES, 60) == []
        first = store.claim("a", NAMES, 60)
        assert len(first) == 3
        second = store.claim("b", NAMES, 60)
        assert sorted(first + second) == sorted(NAMES)
        assert store.holders() == dict.fromkeys(first, "a") | dict.fromkeys(second, "b")
        assert store.claim("a", ["usage"], 60) == (["usage"] if "usage" in first else [])
        store.release("a")
        assert store.holders() == dict.fromkeys(second, "b")
        assert store.claim("b", NAMES, 60) == NAMES
        store.release("missing")


def test_an_expired_lease_goes_to_the_next_worker(any_url: str) -> None:
    with closing(opened(any_url)) as core:
        store = core.models.projector.store
        assert store.claim("dead", NAMES, 0.1) == NAMES
        wait_until(lambda: not store.holders())
        assert store.claim("next", NAMES, 60) == NAMES
        assert set(store.holders().values()) == {"next"}


def test_concurrent_claims_never_share_a_lease(shared_url: str) -> None:
    opened(shared_url).close()

    def claim(number: int) -> None:
        with closing(store_at(shared_url).open_projections()) as store:
            for _ in range(10):
                mine = store.claim(f"worker-{number}", NAMES, 60)
                assert all(store.holders()[name] == f"worker-{number}" for name in mine)

    children = [start_child(lambda number=number: claim(number)) for number in range(3)]  # type: ignore[misc]
    assert [exit_code(each) for each in children] == [0, 0, 0]
    with closing(store_at(shared_url).open_projections()) as store:
        for _ in range(2):
            held = [store.claim(f"worker-{number}", NAMES, 60) for number in range(3)]
        assert sorted(map(len, held)) == [1, 2, 2]
        assert sorted(itertools.chain(*held)) == sorted(NAMES)


# Workers


@contextmanager
def following(core: Core) -> Iterator[Runner]:
    """Run a worker in a thread."""
    runner = Runner(core, [], ignore_notification)
    thread = threading.Thread(target=runner.follow)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join()


@pytest.mark.usefixtures("quick")
def test_workers_share_projections_and_release_them_when_they_end(shared_url: str) -> None:
    with closing(opened(shared_url)) as one, closing(opened(shared_url)) as other:
        store = one.models.projector.store
        with following(one) as first:
            with following(other) as second:
                wait_until(lambda: set(store.holders().values()) == {first.worker, second.worker})
                statuses = read_statuses(one.models.projector)
                assert {each.worker for each in statuses} == {first.worker, second.worker}
            assert set(store.holders().values()) <= {first.worker}
            wait_until(lambda: store.holders() == dict.fromkeys(["counting", "lame"], first.worker))
        assert store.holders() == {}


@pytest.mark.usefixtures("quick")
def test_a_worker_releases_projections_of_newer_code(shared_url: str) -> None:
    with (
        closing(opened(shared_url, Counting())) as elder,
        closing(opened(shared_url, NewerCounting())) as newer,
        following(elder),
    ):
        store = elder.models.projector.store
        wait_until(lambda: bool(store.holders()))
        rebuild(newer.models.projector, "counting")
        wait_until(lambda: not store.holders())
        with following(newer) as runner:
            wait_until(lambda: store.holders() == {"counting": runner.worker})


@pytest.mark.usefixtures("quick")
def test_a_worker_continues_after_a_failing_event(shared_url: str) -> None:
    with (
        Conversations.open(shared_url, embedded=False, projections=[Counting(), Failing()]) as conversations,
        closing(opened(shared_url)) as core,
        following(core),
    ):
        thread = conversations.start_thread(messages=[Message.user("before")])
        thread.label(topic="a")
        thread.append(Message.user("after"))
        conversations.wait(timeout=30)
        counting, lame = conversations.projections()
        assert (counting.lag, counting.parked, lame.lag, lame.parked) == (0, 0, 0, 1)
        assert lame.parked_events[0].error.startswith("ValueError in counting_projections.py")
        assert_every_event_counts_once(core)


def follow_until_terminated(url: str, seed: int) -> None:
    with batches_of([1, 3, 50][seed % 3]), closing(opened(url)) as core:
        runner = Runner(core, [], ignore_notification)
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        runner.follow()


@pytest.mark.usefixtures("quick")
def test_each_event_counts_once_although_workers_are_killed(postgres: str, scale: float) -> None:
    chance = random.Random(11)
    with Conversations.open(postgres, embedded=False, projections=[Counting(), Failing()]) as conversations:
        thread = conversations.start_thread()
        workers = [
            start_child(lambda: follow_until_terminated(postgres, 0)),
            start_child(lambda: follow_until_terminated(postgres, 1)),
        ]
        for turn in range(max(5, round(100 * scale))):
            thread.append([Message.user("every word")] * chance.randrange(1, 30))
            if turn % 4 == 0:
                thread.label(turn=turn)
            time.sleep(chance.random() ** 2 * 0.4)
            killed = workers.pop(chance.randrange(2))
            os.kill(killed, signal.SIGKILL)
            assert exit_code(killed) == -signal.SIGKILL
            workers.append(start_child(lambda turn=turn: follow_until_terminated(postgres, turn)))  # type: ignore[misc]
        conversations.wait(timeout=60)
        for each in workers:
            os.kill(each, signal.SIGTERM)
        # A worker that was still starting had no signal handler yet.
        assert {exit_code(each) for each in workers} <= {0, -signal.SIGTERM}
    with closing(opened(postgres)) as core:
        assert all(each.lag == 0 for each in read_statuses(core.models.projector))
        assert_every_event_counts_once(core)


def fill_and_die_at(url: str, point: int) -> None:
    """Fill once and die at a point, counted from 1: before the first commit, after it, before the second …"""
    points = itertools.count(1)

    def pass_point() -> None:
        if next(points) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    core = opened(url)
    store: Any = core.models.projector.store
    open_session = store.session

    @contextmanager
    def session(*options: Any, **more: Any) -> Iterator[Any]:
        with open_session(*options, **more) as opened_session:
            yield opened_session
            opened_session.flush()
            pass_point()
        pass_point()

    store.session = session
    with batches_of(4):
        Runner(core, [], ignore_notification).run()


def test_each_event_counts_once_when_killed_around_each_commit(shared_url: str) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("every word")] * 20).label(topic="a")
    with closing(opened(shared_url)) as core:
        for point in itertools.cycle([1, 2, 3, 4]):
            code = in_forked_child(lambda: fill_and_die_at(shared_url, point))  # noqa: B023  # called at once
            assert_every_event_counts_once(core)
            if code == 0:
                break
            assert code == -signal.SIGKILL
        assert {each.lag for each in read_statuses(core.models.projector)} == {0}


# Readers and workers


def test_reading_applied_events_needs_no_write_transaction(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(shared_url, projections=[Counting()]) as conversations:
        conversations.start_thread()
        conversations.wait()
        conversations._core.models.stop()  # only the reader works from now on
        store = conversations._core.models.projector.store
        monkeypatch.setattr(store, "session", lambda *_: pytest.fail("the reader opened a session"))
        assert len(conversations.rows("counting", Query("event"))) == 1


@pytest.mark.usefixtures("quick")
def test_a_service_waits_for_the_worker_and_reads_earlier_writes(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Conversations.open(shared_url, projections=[Counting()]) as conversations,
        closing(opened(shared_url, Counting())) as core,
        following(core),
    ):
        projector = conversations._core.models.projector
        wait_until(lambda: "counting" in projector.store.holders())
        monkeypatch.setattr("clew.service.projector.WORKER_SECONDS", 60)
        monkeypatch.setattr(projector, "advance", lambda *_: pytest.fail("the service filled the projection itself"))
        for count in range(1, 6):
            conversations.start_thread()
            assert len(conversations.rows("counting", Query("event"))) == count


def test_a_service_fills_projections_of_a_stalled_worker(shared_url: str) -> None:
    with Conversations.open(shared_url, projections=[Counting()]) as conversations:
        core = conversations._core
        core.models.projector.store.claim("stalled", ["counting"], 600)
        conversations.start_thread()
        assert core.models._unattended() == []
        assert len(conversations.rows("counting", Query("event"))) == 1


# Processes


def test_waits_for_processes_that_run_once(tmp_path: Path) -> None:
    lines: list[str] = []
    assert Workers(note, [(tmp_path, number, "done") for number in range(2)], lines.append, again=False).run()
    assert (len(list(tmp_path.iterdir())), lines) == (2, [])
    arguments = [(tmp_path, 2, "done"), (tmp_path, 3, "failed")]
    assert not Workers(note, arguments, lines.append, again=False).run()
    assert [each.split(" (")[0] + each.split(")")[1] for each in lines] == ["Worker 2 ended with 3."]


def test_restarts_a_killed_process_and_ends_all_on_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.service.worker_processes.AGAIN_SECONDS", 0.01)
    lines: list[str] = []
    workers = Workers(note, [(tmp_path, 0, "killed"), (tmp_path, 1, "waiting")], lines.append, again=True)

    def stop_when_started() -> None:
        if len(list(tmp_path.iterdir())) == 3:
            workers.stop()

    assert workers.run(stop_when_started)
    (only,) = lines
    assert only.startswith("Worker 1 (process ")
    assert only.endswith(") was ended by SIGKILL, and is restarted.")


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    starting = start_child(lambda: Workers(mark_until_signalled, [(tmp_path,), (tmp_path,)], print, again=True).run())
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    os.kill(starting, signal.SIGKILL)
    assert exit_code(starting) == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_an_ignored_hangup_does_not_end_workers() -> None:
    ends: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals(lambda: ends.append("ended")):
            signal.raise_signal(signal.SIGHUP)
            assert ends == []
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ends == ["ended"]


def test_stopping_twice_has_no_effect() -> None:
    workers = Workers(note, (), print, again=True)
    workers.stop()
    assert workers.run()
    workers.stop()
