"""Several threads write appends: concurrently, but in order if they share a stream."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from typing import Any

import pytest
from tests.infrastructure.postgres.append_pools import DONE, ignore_commit, join, pool_of, unbatchable
from tests.infrastructure.recorder_steps import PATIENCE, event, wait_until

from clew.domain.errors import ClosedError
from clew.domain.ports import Appended, Claim, Draft, Fork, Key, Shred
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.recorder_ports import Append, Snapshot


def test_writes_appends_of_different_streams_concurrently() -> None:
    barrier = threading.Barrier(3)

    def write(_: Append) -> Appended:
        barrier.wait(PATIENCE)
        return DONE

    pool = pool_of(write, workers=3)
    futures = [pool.submit(unbatchable(name)) for name in "abc"]
    for future in futures:
        future.add_done_callback(lambda _: None)
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 3
    pool.close()


@pytest.mark.parametrize("batchable", [True, False])
def test_examines_only_the_first_waiting_append_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
    batchable: bool,  # noqa: FBT001 - pytest's
) -> None:
    pool = pool_of(lambda _: DONE, workers=4)
    examined = 0
    set_ready = pool._set_ready

    def count(job: Any) -> None:
        nonlocal examined
        examined += 1
        set_ready(job)

    monkeypatch.setattr(pool, "_set_ready", count)
    futures = [
        pool.submit(Append([event("a", version)]) if batchable else unbatchable("a", version))
        for version in range(1, 501)
    ]
    assert wait_for(futures, PATIENCE).not_done == set()
    assert examined < 1_001  # when it arrives, and when it becomes the first one
    pool.close()


@pytest.mark.parametrize(
    "second",
    [
        Append([event("a", 2)]),
        Append([event("b", 1)], forks={"b": Fork("a", 1)}),
        Append((), shreds=[Shred("a", 1, b"", b"")]),
        Append((), snapshots=[Snapshot("a", 1, b"")]),
        Append([event("b", 1)], key=Key("a", "k", b"")),
        Append((), claims=[Claim("a", "me", 1, 2)]),
        Append((), drafts=[Draft("a", "run", b"")]),
    ],
)
def test_keeps_an_append_waiting_for_one_before_it_that_shares_a_stream(second: Append) -> None:
    go = threading.Event()
    started: list[Append] = []

    def write(append: Append) -> Appended:
        started.append(append)
        assert go.wait(PATIENCE)
        return DONE

    pool = pool_of(write, workers=4)
    first = Append([event("a", 1)])
    other = unbatchable("other")
    futures = [pool.submit(first), pool.submit(second), pool.submit(other)]
    for future in futures:
        future.add_done_callback(lambda _: None)
    wait_until(lambda: other in started)
    assert second not in started
    go.set()
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 3
    assert started.index(first) < started.index(second)
    pool.close()


def test_keeps_the_order_of_every_stream_with_overlapping_appends() -> None:
    chance = random.Random(5)
    written: list[Append] = []

    def write(append: Append) -> Appended:
        written.append(append)
        return DONE

    pool = pool_of(write, workers=4)
    appends = [
        Append([event(name, number) for name in chance.sample("abcdef", chance.randint(1, 3))]) for number in range(400)
    ]
    for append in appends:
        pool.submit(append)
    pool.close()
    assert len(written) == 400
    for name in "abcdef":
        events = [each for append in written for each in append.events if each.originator_id == name]
        versions = [each.originator_version for each in events]
        assert versions == sorted(versions)


def test_continues_after_an_append_was_cancelled_or_failed() -> None:
    go = threading.Event()

    def write(append: Append) -> Appended | Exception:
        assert go.wait(PATIENCE)
        version = append.events[0].originator_version
        if version == 3:
            message = "a defect"
            raise RuntimeError(message)
        return ValueError("refused") if version == 4 else DONE

    pool = pool_of(write, workers=2, batch_size=1)
    futures = [pool.submit(Append([event("a", version)])) for version in range(1, 6)]
    assert futures[1].cancel()
    go.set()
    with pytest.raises(CancelledError):
        futures[1].result(PATIENCE)
    kinds = [type(futures[number].exception(PATIENCE)) for number in (0, 2, 3, 4)]
    assert kinds == [type(None), RuntimeError, ValueError, type(None)]
    pool.close()
    pool.close()
    with pytest.raises(ClosedError):
        pool.submit(Append([event("a", 6)]))


def test_every_append_gets_an_outcome_with_waiting_and_closing_threads(scale: float) -> None:
    for seed in range(max(int(100 * scale), 10)):
        _campaign(random.Random(seed))


def _campaign(chance: random.Random) -> None:
    written: dict[str, list[int]] = defaultdict(list)
    pause = threading.Event()

    def write(appends: Sequence[Append], *, patient: bool) -> list[Appended | None]:
        deferred: set[str] = set()
        outcomes: list[Appended | None] = []
        for append in appends:
            version = append.events[0].originator_version
            if version % 5 == 0:
                pause.wait(0.001)
            for name in {str(each.originator_id) for each in append.events}:
                if not patient and (version % 3 == 0 or name in deferred):
                    deferred.add(name)
                else:
                    written[name].append(version)
            outcomes.append(None if deferred.issuperset(str(each.originator_id) for each in append.events) else DONE)
        return outcomes

    pool = AppendPool(write, ignore_commit, workers=chance.choice([1, 2, 4]), batch_size=4)
    futures: list[Future[Appended]] = []
    numbers, order = iter(range(10_000)), threading.Lock()

    def work(chance: random.Random) -> None:
        for _ in range(chance.randint(1, 40)):
            with order:
                number, names = next(numbers), chance.sample("abcd", chance.randint(1, 2))
                try:
                    futures.append(pool.submit(Append([event(name, number) for name in names])))
                except ClosedError:
                    return
                future = futures[-1]
            _wait(future, chance.randrange(5))

    threads = [threading.Thread(target=work, args=(random.Random(chance.random()),)) for _ in range(8)]
    closing = threading.Thread(target=pool.close)
    for thread in threads:
        thread.start()
    join(threads[: chance.choice([0, 8])])
    closing.start()
    join([closing, *threads])
    assert all(future.done() for future in futures)
    assert all(versions == sorted(versions) for versions in written.values())


def _wait(future: Future[Appended], how: int) -> None:
    match how:
        case 0:
            future.result()
        case 1:
            notified = threading.Event()
            future.add_done_callback(lambda _: notified.set())
            assert notified.wait(PATIENCE)
        case 2:
            future.cancel()
        case 3:
            assert future.exception(PATIENCE) is None
