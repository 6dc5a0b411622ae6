"""Appends that several threads write: beside each other, and in order where they share a stream."""

from __future__ import annotations

import random
import threading
from concurrent.futures import CancelledError

import pytest
from tests.infrastructure.recording import PATIENCE, event

from clew.domain.errors import ClosedError
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
