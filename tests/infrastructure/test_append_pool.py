"""Appends that several threads write: together and beside each other, and in order where they share a stream."""

from __future__ import annotations

import linecache
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from types import FrameType
from typing import Any

import pytest
from tests.infrastructure.interruptions import Interruptions, Points
from tests.infrastructure.recording import PATIENCE, event, in_child, wait_until

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.infrastructure import append_pool
from clew.infrastructure.append_pool import AppendPool
from clew.infrastructure.recorder import Append, Appended, Claim, Draft, Fork, Key, Shred, Snapshot

DONE = Appended((), (), ())

Write = Callable[[Append], Appended | Exception]


def nothing() -> None:
    pass


def pool_of(write: Write, *, workers: int, together: int = 4) -> AppendPool:
    """A pool that has each append of a batch written by this."""

    def each(appends: Sequence[Append], *, patient: bool) -> list[Appended | Exception]:  # noqa: ARG001 - the port's
        return [write(append) for append in appends]

    return AppendPool(each, nothing, workers=workers, together=together)


def by_itself(stream: str, version: int = 1) -> Append:
    """An append that cannot be written together with others."""
    return Append([event(stream, version)], drafts=[Draft(stream, "run", b"")])


def test_writes_appends_of_different_streams_beside_each_other() -> None:
    barrier = threading.Barrier(3)

    def write(_: Append) -> Appended:
        barrier.wait(PATIENCE)
        return DONE

    pool = pool_of(write, workers=3)
    futures = [pool.submit(by_itself(name)) for name in "abc"]
    for future in futures:
        future.add_done_callback(lambda _: None)
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 3
    pool.close()


class Gate:
    """Writes batches, each when it may."""

    def __init__(self, *, workers: int = 4, together: int = 4) -> None:
        self.go = threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.pool = AppendPool(self.write, nothing, workers=workers, together=together)

    def write(self, appends: Sequence[Append], *, patient: bool) -> list[Appended]:  # noqa: ARG002 - the port's
        self.batches.append(["".join(str(event.originator_id) for event in append.events) for append in appends])
        assert self.go.acquire(timeout=PATIENCE)
        return [DONE] * len(appends)

    def submit(self, *appends: Append | str) -> list[Future[Appended]]:
        return [
            self.pool.submit(Append([event(s, 1) for s in each]) if isinstance(each, str) else each) for each in appends
        ]

    def begin(self, *appends: Append | str) -> list[Future[Appended]]:
        """Those that are written now, each as a batch of its own, while the gate is shut."""
        futures = []
        for number, each in enumerate(appends, len(self.batches) + 1):
            futures += self.submit(each)
            futures[-1].add_done_callback(lambda _: None)
            wait_until(lambda: len(self.batches) == number)  # noqa: B023 - called at once
        return futures


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(append_pool, "CROWD", 2)
    monkeypatch.setattr(append_pool, "LINGER", PATIENCE)
    gate = Gate()
    yield gate
    gate.go.release(100)
    gate.pool.close()


def test_writes_together_what_comes_while_others_are_written(gate: Gate) -> None:
    futures = gate.begin("a", "b")
    futures += gate.submit("c", "d", "dd", "e", "f")
    gate.go.release()
    wait_until(lambda: len(gate.batches) == 3)
    gate.go.release(10)
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 7
    assert gate.batches == [["a"], ["b"], ["c", "d", "dd"], ["e", "f"]]


def test_writes_beside_a_batch_what_cannot_be_written_together(gate: Gate) -> None:
    gate.begin("a", "b")
    together = gate.submit("c")
    (alone,) = gate.submit(by_itself("d"))
    many = gate.submit("eeeee")  # more than a batch holds
    threads = [threading.Thread(target=future.result) for future in (alone, *many, *together)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(gate.batches) == 4)
    assert sorted(gate.batches[2:]) == [["d"], ["eeeee"]]
    gate.go.release(10)
    _end(threads)


def test_writes_what_lingers_beside_as_many_batches_as_there_are_writers(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be held up: each by an append that waits for a lock."""
    monkeypatch.setattr(append_pool, "LINGER", 0.001)
    gate.begin("a", "b", "c", "d")
    gate.submit("e")
    wait_until(lambda: gate.pool._lingers(next(iter(gate.pool._ready))))
    assert gate.batches == [["a"], ["b"], ["c"], ["d"]]


def test_leaves_the_appends_of_others_alone_in_the_main_thread(gate: Gate) -> None:
    """Ctrl-C comes to the main thread."""
    others = gate.submit("a", "b")
    (mine,) = gate.submit("c")
    gate.go.release(10)
    assert mine.result() == DONE
    assert gate.batches[0] == ["c"]
    assert [future.result(PATIENCE) for future in others] == [DONE] * 2


class Hurried:
    """Leaves what it is to write without patience, and notes what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[list[str], bool]] = []
        self.pool = AppendPool(self.write, nothing, workers=4, together=4)

    def write(self, appends: Sequence[Append], *, patient: bool) -> list[Appended | None]:
        self.given.append(([f"{each.originator_id}{each.originator_version}" for (each,), *_ in appends], patient))
        return [DONE if patient else None] * len(appends)

    def submit(self, *names: str) -> list[Future[Appended]]:
        return [self.pool.submit(Append([event(name[0], int(name[1]))])) for name in names]

    def wait_for_the_second(self, *names: str) -> None:
        """Submit them, and let a thread wait for one; all come to be written."""
        futures = self.submit(*names)
        thread = threading.Thread(target=futures[1].result)
        thread.start()
        assert [future.result(PATIENCE) for future in futures] == [DONE] * len(names)
        _end([thread])


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hurried]:
    monkeypatch.setattr(append_pool, "LINGER", PATIENCE)  # who waits is to write it
    hurried = Hurried()
    yield hurried
    hurried.pool.close()


def test_writes_alone_and_in_order_what_was_left_as_it_might_have_held_up_others(hurried: Hurried) -> None:
    hurried.wait_for_the_second("a1", "a2", "b1")
    assert hurried.given[0] == (["a1", "a2", "b1"], False)
    assert sorted(hurried.given[1:]) == [(["a1"], True), (["a2"], True), (["b1"], True)]
    assert hurried.given.index((["a1"], True)) < hurried.given.index((["a2"], True))


def test_has_patience_for_what_shares_a_stream_with_what_is_waited_for(hurried: Hurried) -> None:
    hurried.wait_for_the_second("a1", "a2", "a3")
    assert hurried.given == [(["a1", "a2", "a3"], True)]


def test_has_no_patience_in_a_thread_that_waits_for_something_else(hurried: Hurried) -> None:
    futures = hurried.submit("a1", "a2", "b1")
    with hurried.pool._lock:
        first = [hurried.pool._queues["a"][0]]
        hurried.pool._begun.append(first)
        first[0].by = threading.get_ident()
        hurried.pool._ready.pop(first[0])
    thread = threading.Thread(target=futures[1].result)  # waits behind another, and writes b1 meanwhile
    thread.start()
    assert futures[2].result(PATIENCE) == DONE
    assert hurried.given == [(["b1"], False), (["b1"], True)]
    hurried.pool._answer(first, None, more=False)
    _end([thread])
    assert hurried.given[2:] == [(["a1"], True), (["a2"], True)]


def test_goes_on_wherever_who_leaves_something_is_interrupted(hurried: Hurried) -> None:
    lines = Interruptions(_lines)
    number = 0
    while lines.more:
        number += 1
        futures = [hurried.pool.submit(Append([event(name, number)])) for name in "abbc"]
        thread = threading.Thread(target=lines.next_in, args=(futures[1].result,))
        thread.start()
        _end([thread])
        for future in futures:
            assert isinstance(future.exception(PATIENCE), KeyboardInterrupt | StoreUnavailableError | None)
        wait_until(lambda: not hurried.pool._queues and _is_at_rest(hurried.pool))
    assert lines.made > 60


def _is_at_rest(pool: AppendPool) -> bool:
    """Whether all of its threads wait."""
    return len(pool._work._waiters) == len(pool._threads)  # type: ignore[attr-defined]  # there is no other way to know


@pytest.mark.parametrize("together", [True, False])
def test_looks_at_the_first_of_a_stream_only_however_many_wait(
    monkeypatch: pytest.MonkeyPatch,
    together: bool,  # noqa: FBT001 - pytest's
) -> None:
    pool = pool_of(lambda _: DONE, workers=4)
    looked = 0
    offer = pool._offer

    def count(job: Any) -> None:
        nonlocal looked
        looked += 1
        offer(job)

    monkeypatch.setattr(pool, "_offer", count)
    futures = [
        pool.submit(Append([event("a", version)]) if together else by_itself("a", version)) for version in range(1, 501)
    ]
    assert wait_for(futures, PATIENCE).not_done == set()
    assert looked < 1_001  # when it comes, and when it is the first
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

    pool = pool_of(write, workers=4)
    first = Append([event("a", 1)])
    other = by_itself("other")
    futures = [pool.submit(first), pool.submit(second), pool.submit(other)]
    for future in futures:
        future.add_done_callback(lambda _: None)
    wait_until(lambda: other in begun)
    assert second not in begun
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


def test_goes_on_after_one_was_cancelled_or_failed() -> None:
    go = threading.Event()

    def write(append: Append) -> Appended | Exception:
        assert go.wait(PATIENCE)
        version = append.events[0].originator_version
        if version == 3:
            message = "a defect"
            raise RuntimeError(message)
        return ValueError("refused") if version == 4 else DONE

    pool = pool_of(write, workers=2, together=1)
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
        self.pool = pool_of(self.write, workers=2)

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
        wait_until(lambda: writers.pool._asleep)


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


def test_ends_in_a_second_close_what_the_first_was_interrupted_in(writers: Writers) -> None:
    futures = [writers.submit(9), writers.submit(10)]
    futures[0].add_done_callback(lambda _: None)
    assert writers.inside.wait(PATIENCE)

    def close() -> None:
        with pytest.raises(KeyboardInterrupt):
            writers.pool.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers.pool, "_is_left", _interrupt)
        close()
    with pytest.raises(ClosedError):
        writers.submit(11)
    second = threading.Thread(target=writers.pool.close)
    second.start()
    wait_until(lambda: bool(writers.pool._ended._waiters))  # type: ignore[attr-defined]  # as below
    writers.go.set()
    _end([second])
    assert [future.done() for future in futures] == [True, True]
    assert list(writers.by) == [9, 10]
    assert not writers.pool._threads


def _interrupt() -> bool:
    raise KeyboardInterrupt


def test_goes_on_after_who_wrote_himself_was_interrupted(writers: Writers) -> None:
    broken, next_ = writers.submit(13), writers.submit(14)
    with pytest.raises(KeyboardInterrupt):
        broken.result()
    assert isinstance(broken.exception(PATIENCE), KeyboardInterrupt)
    assert next_.result() == DONE


def test_raises_an_interruption_in_nobody_s_thread_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pool, "LINGER", PATIENCE)  # who waits is to write it

    def write(appends: Sequence[Append], *, patient: bool) -> list[Appended]:
        assert not patient
        assert len(appends) == 2
        raise KeyboardInterrupt

    pool = AppendPool(write, nothing, workers=2, together=4)
    mine, other = (pool.submit(Append([event(name, 1)])) for name in "ab")
    found: list[BaseException | None] = []

    def work() -> None:
        try:
            mine.result()
        except KeyboardInterrupt as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert len(found) == 1
    error = other.exception(PATIENCE)
    assert isinstance(error, StoreUnavailableError)
    assert "whether it was stored is not known" in str(error)
    pool.close()


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


def test_wakes_a_writer_and_not_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes waits as well, for what its threads still write, and was there first."""
    monkeypatch.setattr(append_pool, "LINGER", PATIENCE)  # who waits is to write it
    gates = {name: threading.Event() for name in "ab"}

    def write(append: Append) -> Appended:
        if append.events[0].originator_version == 1:
            assert gates[str(append.events[0].originator_id)].wait(PATIENCE)
        return DONE

    pool = pool_of(write, workers=2)
    waiting = [threading.Thread(target=pool.submit(by_itself(name)).result) for name in gates]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(pool._begun) == 2)
    behind = {name: pool.submit(by_itself(name, 2)) for name in gates}
    closing = threading.Thread(target=pool.close)
    closing.start()
    wait_until(lambda: bool(pool._ended._waiters))  # type: ignore[attr-defined]  # whether it waits is what matters
    gates["a"].set()
    assert wait_for([behind["a"]], PATIENCE).not_done == set()
    wait_until(lambda: pool._idle == 1 or not pool._threads)
    gates["b"].set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert behind["b"].done()


def test_has_no_more_written_at_a_time_than_there_are_writers_however_many_threads_wait() -> None:
    go, at_a_time, most = threading.Event(), threading.Semaphore(2), []

    def write(_: Append) -> Appended:
        most.append(at_a_time.acquire(blocking=False))
        assert go.wait(PATIENCE)
        at_a_time.release()
        return DONE

    pool = pool_of(write, workers=2)
    waiting = [threading.Thread(target=pool.submit(by_itself(f"s{n}")).result) for n in range(12)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(most) == 2)
    go.set()
    for thread in waiting:
        thread.join(PATIENCE)
    assert most == [True] * 12
    pool.close()


def test_goes_on_wherever_who_waits_is_interrupted(writers: Writers) -> None:
    lines = Interruptions(_lines)
    version = 100
    while lines.more:
        version += 10
        lines.next_in(lambda: writers.submit(version).result())  # noqa: B023 - called at once
        assert writers.submit(version + 1).result(PATIENCE) == DONE
        assert writers.submit(version + 2, "another").result() == DONE
        wait_until(lambda: not writers.pool._queues and not writers.pool._begun)
    assert lines.made > 30


def _lines() -> Points:
    """Each line of the pool that a thread comes to."""

    def is_point(frame: FrameType, kind: str) -> bool | None:
        if frame.f_code.co_filename != append_pool.__file__:
            return None
        said = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # A signal is not looked at between a lock and its block.
        return kind == "line" and not said.startswith(("with ", "try:", "finally:"))

    return is_point


def test_goes_on_after_a_thread_of_its_own_has_ended(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: Sequence[Append], **__: object) -> list[Appended]:
        raise SystemExit

    ended: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(writers.pool, "_write", end)
        patch.setattr(threading, "excepthook", ended.append)
        for version in range(1, 7):
            assert isinstance(writers.submit(version).exception(PATIENCE), StoreUnavailableError)
            wait_until(lambda: len(ended) == version)  # noqa: B023 - called at once
    assert writers.submit(7).result(PATIENCE) == DONE


def test_has_an_append_written_by_who_comes_by_where_no_thread_can_be_started(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert writers.submit(1).done()
        told: list[Future[Appended]] = []
        second = writers.submit(2)
        second.add_done_callback(told.append)
        assert told == [second]
        assert writers.submit(3).result(PATIENCE) == DONE
    assert writers.submit(4).result(PATIENCE) == DONE
    assert list(writers.by) == [1, 2, 3, 4]


def test_lets_a_callback_append_to_the_same_stream_and_close(writers: Writers) -> None:
    came: list[object] = []

    def go_on(_: Future[Appended]) -> None:
        came.append(writers.submit(2).result())
        came.append(writers.submit(3).result(PATIENCE))
        writers.pool.close()
        came.append("closed")

    writers.submit(1).add_done_callback(go_on)
    wait_until(lambda: len(came) == 3)
    assert came == [DONE, DONE, "closed"]


def test_answers_every_append_whoever_waits_how_and_closes_when(scale: float) -> None:
    for seed in range(max(int(100 * scale), 10)):
        _campaign(random.Random(seed))


def _campaign(chance: random.Random) -> None:
    written: dict[str, list[int]] = defaultdict(list)
    pause = threading.Event()

    def write(appends: Sequence[Append], *, patient: bool) -> list[Appended | None]:
        left: set[str] = set()
        outcomes: list[Appended | None] = []
        for append in appends:
            version = append.events[0].originator_version
            if version % 5 == 0:
                pause.wait(0.001)
            for name in {str(each.originator_id) for each in append.events}:
                if not patient and (version % 3 == 0 or name in left):
                    left.add(name)
                else:
                    written[name].append(version)
            outcomes.append(None if left.issuperset(str(each.originator_id) for each in append.events) else DONE)
        return outcomes

    pool = AppendPool(write, nothing, workers=chance.choice([1, 2, 4]), together=4)
    kept: list[Future[Appended]] = []
    numbers, order = iter(range(10_000)), threading.Lock()

    def work(chance: random.Random) -> None:
        for _ in range(chance.randint(1, 40)):
            with order:
                number, names = next(numbers), chance.sample("abcd", chance.randint(1, 2))
                try:
                    kept.append(pool.submit(Append([event(name, number) for name in names])))
                except ClosedError:
                    return
                future = kept[-1]
            _wait(future, chance.randrange(5))

    threads = [threading.Thread(target=work, args=(random.Random(chance.random()),)) for _ in range(8)]
    closing = threading.Thread(target=pool.close)
    for thread in threads:
        thread.start()
    _end(threads[: chance.choice([0, 8])])
    closing.start()
    _end([closing, *threads])
    assert all(future.done() for future in kept)
    assert all(versions == sorted(versions) for versions in written.values())


def _wait(future: Future[Appended], how: int) -> None:
    match how:
        case 0:
            future.result()
        case 1:
            told = threading.Event()
            future.add_done_callback(lambda _: told.set())
            assert told.wait(PATIENCE)
        case 2:
            future.cancel()
        case 3:
            assert future.exception(PATIENCE) is None


def _end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
