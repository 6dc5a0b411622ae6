"""Workers that share the projections of a store, and are killed in between: every event counts once in the views."""

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
from tests.infrastructure.recording import in_child, wait_until
from tests.service.counting import Counting, Lame, Newer, assert_every_event_counts_once, nothing, opened
from tests.service.noted import note, note_until_told
from tests.service.projected import batches_of, rebuild

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.infrastructure.stores import store_at
from clew.projections import Query
from clew.service import projection_runner
from clew.service.core import Core
from clew.service.projection_runner import Runner
from clew.service.projection_status import read_statuses
from clew.service.worker_processes import Workers, ended_by_signals

NAMES = ["directory", "search", "audit", "usage", "memory"]


def child(work: Callable[[], object]) -> int:
    """The process that does the work."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # nothing of the parent's is to go on in here
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end soon."""
    monkeypatch.setattr(projection_runner, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(projection_runner, "RENEW_SECONDS", 0.05)


# Leases


def test_a_lease_is_shared_out_given_back_and_taken_over(any_url: str) -> None:
    with closing(opened(any_url)) as core:
        store = core.models.projector.store
        assert store.holders() == {}
        assert store.claim("a", NAMES, 60) == NAMES
        assert store.claim("b", NAMES, 60) == []
        kept = store.claim("a", NAMES, 60)
        assert len(kept) == 3
        given = store.claim("b", NAMES, 60)
        assert sorted(kept + given) == sorted(NAMES)
        assert store.holders() == dict.fromkeys(kept, "a") | dict.fromkeys(given, "b")
        assert store.claim("a", ["usage"], 60) == (["usage"] if "usage" in kept else [])
        store.release("a")
        assert store.holders() == dict.fromkeys(given, "b")
        assert store.claim("b", NAMES, 60) == NAMES
        store.release("nobody")


def test_a_lease_that_is_not_renewed_goes_to_the_next(any_url: str) -> None:
    with closing(opened(any_url)) as core:
        store = core.models.projector.store
        assert store.claim("dead", NAMES, 0.1) == NAMES
        wait_until(lambda: not store.holders())
        assert store.claim("next", NAMES, 60) == NAMES
        assert set(store.holders().values()) == {"next"}


def test_several_that_claim_at_once_never_hold_the_same(shared_url: str) -> None:
    opened(shared_url).close()

    def claim(number: int) -> None:
        with closing(store_at(shared_url).open_projections()) as store:
            for _ in range(10):
                mine = store.claim(f"worker-{number}", NAMES, 60)
                assert all(store.holders()[name] == f"worker-{number}" for name in mine)

    children = [child(lambda number=number: claim(number)) for number in range(3)]  # type: ignore[misc]
    assert [ended(each) for each in children] == [0, 0, 0]
    with closing(store_at(shared_url).open_projections()) as store:
        for _ in range(2):
            held = [store.claim(f"worker-{number}", NAMES, 60) for number in range(3)]
        assert sorted(map(len, held)) == [1, 2, 2]
        assert sorted(itertools.chain(*held)) == sorted(NAMES)


# Workers


@contextmanager
def following(core: Core) -> Iterator[Runner]:
    """A worker in a thread."""
    runner = Runner(core, [], nothing)
    thread = threading.Thread(target=runner.follow)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join()


@pytest.mark.usefixtures("quick")
def test_workers_share_what_is_to_be_filled_and_one_that_ends_lets_go_at_once(shared_url: str) -> None:
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
def test_a_worker_lets_go_of_what_newer_code_has_taken_over(shared_url: str) -> None:
    with (
        closing(opened(shared_url, Counting())) as elder,
        closing(opened(shared_url, Newer())) as newer,
        following(elder),
    ):
        store = elder.models.projector.store
        wait_until(lambda: bool(store.holders()))
        rebuild(newer.models.projector, "counting")
        wait_until(lambda: not store.holders())
        with following(newer) as runner:
            wait_until(lambda: store.holders() == {"counting": runner.worker})


@pytest.mark.usefixtures("quick")
def test_a_worker_goes_on_without_what_it_cannot_take_in(shared_url: str) -> None:
    with (
        Conversations.open(shared_url, embedded=False, projections=[Counting(), Lame()]) as conversations,
        closing(opened(shared_url)) as core,
        following(core),
    ):
        thread = conversations.start_thread(messages=[Message.user("before")])
        thread.label(topic="a")
        thread.append(Message.user("after"))
        conversations.wait(timeout=30)
        counting, lame = conversations.projections()
        assert (counting.lag, counting.parked, lame.lag, lame.parked) == (0, 0, 0, 1)
        assert lame.parked_events[0].error.startswith("ValueError in counting.py")
        assert_every_event_counts_once(core)


def follow_for_ever(url: str, seed: int) -> None:
    with batches_of([1, 3, 50][seed % 3]), closing(opened(url)) as core:
        runner = Runner(core, [], nothing)
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        runner.follow()


@pytest.mark.usefixtures("quick")
def test_every_event_counts_once_however_often_workers_are_killed(postgres: str, scale: float) -> None:
    chance = random.Random(11)
    with Conversations.open(postgres, embedded=False, projections=[Counting(), Lame()]) as conversations:
        thread = conversations.start_thread()
        workers = [child(lambda: follow_for_ever(postgres, 0)), child(lambda: follow_for_ever(postgres, 1))]
        for turn in range(max(5, round(100 * scale))):
            thread.append([Message.user("every word")] * chance.randrange(1, 30))
            if turn % 4 == 0:
                thread.label(turn=turn)
            time.sleep(chance.random() ** 2 * 0.4)
            killed = workers.pop(chance.randrange(2))
            os.kill(killed, signal.SIGKILL)
            assert ended(killed) == -signal.SIGKILL
            workers.append(child(lambda turn=turn: follow_for_ever(postgres, turn)))  # type: ignore[misc]
        conversations.wait(timeout=60)
        for each in workers:
            os.kill(each, signal.SIGTERM)
        # One that was still being started when it was told to end had no handler yet.
        assert {ended(each) for each in workers} <= {0, -signal.SIGTERM}
    with closing(opened(postgres)) as core:
        assert all(each.lag == 0 for each in read_statuses(core.models.projector))
        assert_every_event_counts_once(core)


def fill_until(url: str, point: int) -> None:
    """Fill once, and be killed at a point, counted from 1: before the first commit, after it, before the second …"""
    points = itertools.count(1)

    def passing() -> None:
        if next(points) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    core = opened(url)
    store: Any = core.models.projector.store
    really = store.session

    @contextmanager
    def session(*asked: Any) -> Iterator[Any]:
        with really(*asked) as given:
            yield given
            given.flush()
            passing()
        passing()

    store.session = session
    with batches_of(4):
        Runner(core, [], nothing).run()


def test_every_event_counts_once_when_it_is_killed_before_and_after_each_commit(shared_url: str) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("every word")] * 20).label(topic="a")
    with closing(opened(shared_url)) as core:
        for point in itertools.cycle([1, 2, 3, 4]):
            code = in_child(lambda: fill_until(shared_url, point))  # noqa: B023 - called at once
            assert_every_event_counts_once(core)
            if code == 0:
                break
            assert code == -signal.SIGKILL
        assert {each.lag for each in read_statuses(core.models.projector)} == {0}


# Readers beside workers


def test_what_is_reached_is_read_without_a_transaction_of_ones_own(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Conversations.open(shared_url, projections=[Counting()]) as conversations:
        conversations.start_thread()
        conversations.wait()
        conversations._core.models.stop()  # what is done in the background is not the reader's
        store = conversations._core.models.projector.store
        monkeypatch.setattr(store, "session", lambda *_: pytest.fail("it waits for whoever fills"))
        assert len(conversations.rows("counting", Query("event"))) == 1


@pytest.mark.usefixtures("quick")
def test_a_service_leaves_it_to_a_worker_to_fill_and_reads_what_was_written(
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
        monkeypatch.setattr(projector, "advance", lambda *_: pytest.fail("it does the worker's work"))
        for count in range(1, 6):
            conversations.start_thread()
            assert len(conversations.rows("counting", Query("event"))) == count


def test_a_service_fills_what_a_worker_does_not_come_to(shared_url: str) -> None:
    with Conversations.open(shared_url, projections=[Counting()]) as conversations:
        core = conversations._core
        core.models.projector.store.claim("stalled", ["counting"], 600)
        conversations.start_thread()
        assert core.models._unattended() == []
        assert len(conversations.rows("counting", Query("event"))) == 1


# Processes


def test_processes_that_are_there_once_are_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    assert Workers(note, [(tmp_path, number, "done") for number in range(2)], said.append, again=False).run()
    assert (len(list(tmp_path.iterdir())), said) == (2, [])
    arguments = [(tmp_path, 2, "done"), (tmp_path, 3, "failed")]
    assert not Workers(note, arguments, said.append, again=False).run()
    assert [each.split(" (")[0] + each.split(")")[1] for each in said] == ["Worker 2 ended with 3."]


def test_one_that_was_killed_is_started_again_and_all_end_when_they_are_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.worker_processes.AGAIN_SECONDS", 0.01)
    said: list[str] = []
    workers = Workers(note, [(tmp_path, 0, "killed"), (tmp_path, 1, "waiting")], said.append, again=True)

    def look() -> None:
        if len(list(tmp_path.iterdir())) == 3:
            workers.stop()

    assert workers.run(look)
    (only,) = said
    assert only.startswith("Worker 1 (process ")
    assert only.endswith(") was ended by SIGKILL, and is restarted.")


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    starting = child(lambda: Workers(note_until_told, [(tmp_path,), (tmp_path,)], print, again=True).run())
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    os.kill(starting, signal.SIGKILL)
    assert ended(starting) == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_nobody_is_told_to_end_who_is_to_outlive_the_terminal() -> None:
    ends: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals(lambda: ends.append("told")):
            signal.raise_signal(signal.SIGHUP)
            assert ends == []
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ends == ["told"]


def test_to_be_told_once_more_to_end_is_nothing_to_those_that_have_ended() -> None:
    workers = Workers(note, (), print, again=True)
    workers.stop()
    assert workers.run()
    workers.stop()
