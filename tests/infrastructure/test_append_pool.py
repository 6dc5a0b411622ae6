"""Appends that several threads write: beside each other, and in order where they share a stream."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for

import pytest
from tests.infrastructure.recording import PATIENCE, event, in_child, wait_until

from clew.domain.errors import ClosedError
from clew.infrastructure import append_pool
from clew.infrastructure.append_pool import AppendPool
from clew.infrastructure.recorder import Append, Appended, Claim, Draft, Fork, Key, Shred, Snapshot

DONE = Appended((), (), ())


def nothing() -> None:
    pass


def test_writes_appends_of_different_streams_beside_each_other() -> None:
    barrier = threading.Barrier(3)

    def write(_: Append) -> Appended:
        barrier.wait(PATIENCE)
        return DONE

    pool = AppendPool(write, nothing, workers=3)
    futures = [pool.submit(Append([event(name, 1)])) for name in "abc"]
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 3
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
    begun: list[Append] = []

    def write(append: Append) -> Appended:
        begun.append(append)
        assert go.wait(PATIENCE)
        return DONE

    pool = AppendPool(write, nothing, workers=4)
    first = Append([event("a", 1)])
    other = Append([event("other", 1)])
    futures = [pool.submit(first), pool.submit(second)]
    futures.append(pool.submit(other))
    go.set()
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 3
    assert begun.index(first) < begun.index(second)
    pool.close()


def test_keeps_the_order_of_every_stream_whatever_the_appends_share() -> None:
    chance = random.Random(5)
    written: list[Append] = []

    def write(append: Append) -> Appended:
        written.append(append)
        return DONE

    pool = AppendPool(write, nothing, workers=4)
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


def test_goes_on_after_one_was_cancelled_or_failed() -> None:
    go = threading.Event()

    def write(append: Append) -> Appended | Exception:
        assert go.wait(PATIENCE)
        version = append.events[0].originator_version
        if version == 3:
            message = "a defect"
            raise RuntimeError(message)
        return ValueError("refused") if version == 4 else DONE

    pool = AppendPool(write, nothing, workers=2)
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


class Writers:
    """Notes which thread writes which version; holds version 9 until it may go on, and breaks off at version 13."""

    def __init__(self) -> None:
        self.by: dict[int, threading.Thread] = {}
        self.inside = threading.Event()
        self.go = threading.Event()
        self.pool = AppendPool(self.write, nothing, workers=2)

    def write(self, append: Append) -> Appended:
        version = append.events[0].originator_version
        self.by[version] = threading.current_thread()
        if version == 9:
            self.inside.set()
            assert self.go.wait(PATIENCE)
        if version == 13:
            raise KeyboardInterrupt
        return DONE

    def submit(self, version: int, stream: str = "a") -> Future[Appended]:
        return self.pool.submit(Append([event(stream, version)]))


@pytest.fixture
def writers() -> Iterator[Writers]:
    writers = Writers()
    yield writers
    writers.go.set()
    writers.pool.close()


def test_has_an_append_written_by_the_thread_that_waits_for_it(writers: Writers) -> None:
    assert writers.submit(1).result() == DONE
    assert writers.submit(2).exception() is None
    assert [writers.by[version] for version in (1, 2)] == [threading.current_thread()] * 2


def test_has_an_append_written_by_another_thread_for_who_waits_for_a_while_only_or_wants_to_be_told(
    writers: Writers,
) -> None:
    told = threading.Event()
    writers.submit(1).add_done_callback(lambda _: told.set())
    assert told.wait(PATIENCE)
    assert writers.submit(2).result(PATIENCE) == DONE
    assert wait_for([writers.submit(3)], PATIENCE).not_done == set()
    assert threading.current_thread() not in writers.by.values()
    assert sorted(writers.by) == [1, 2, 3]


def test_writes_what_nobody_waits_for_also_after_a_long_silence(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_pool, "LOOKS", 1)
    for _ in range(3):
        writers.inside.clear()
        writers.submit(9)
        assert writers.inside.wait(PATIENCE)
        writers.go.set()
        wait_until(lambda: not writers.pool._watching)


def test_keeps_who_waits_behind_an_append_of_the_same_stream(writers: Writers) -> None:
    first = writers.submit(9)
    first.add_done_callback(lambda _: None)
    assert writers.inside.wait(PATIENCE)
    second, third = writers.submit(10), writers.submit(11)
    waiting = threading.Thread(target=third.result)
    waiting.start()
    assert 10 not in writers.by
    writers.go.set()
    waiting.join(PATIENCE)
    assert second.result() == third.result() == DONE
    assert list(writers.by) == [9, 10, 11]


def test_waits_at_its_end_for_those_who_write_themselves(writers: Writers) -> None:
    waiting = threading.Thread(target=writers.submit(9).result)
    waiting.start()
    assert writers.inside.wait(PATIENCE)
    behind = writers.submit(10)
    closing = threading.Thread(target=writers.pool.close)
    closing.start()
    wait_until(lambda: writers.pool._closed)
    assert closing.is_alive()
    writers.go.set()
    closing.join(PATIENCE)
    waiting.join(PATIENCE)
    assert behind.done()
    assert list(writers.by) == [9, 10]


def test_goes_on_after_who_wrote_himself_was_interrupted(writers: Writers) -> None:
    broken, next_ = writers.submit(13), writers.submit(14)
    with pytest.raises(KeyboardInterrupt):
        broken.result()
    assert isinstance(broken.exception(PATIENCE), KeyboardInterrupt)
    assert next_.result() == DONE


def test_writes_nothing_of_the_parent_s_in_a_child(writers: Writers) -> None:
    writers.submit(9).add_done_callback(lambda _: None)
    assert writers.inside.wait(PATIENCE)
    future = writers.submit(10)

    def work() -> None:
        writers.pool.restart()
        with pytest.raises(TimeoutError):
            future.result(0)
        assert writers.submit(11).result() == DONE
        assert list(writers.by) == [9, 11]

    assert in_child(work) == 0
    writers.go.set()
    assert future.result() == DONE
