"""Which thread writes an append, and what happens when threads wait, close or are interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

import pytest
from tests.infrastructure.interruptions import Interruptions
from tests.infrastructure.postgres.append_pools import (
    DONE,
    ignore_commit,
    join,
    lines_of_the_pool,
    pool_of,
    unbatchable,
)
from tests.infrastructure.recorder_steps import PATIENCE, event, in_forked_child, interrupt_when_notified, wait_until

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Appended
from clew.infrastructure.postgres import append_pool
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.recorder_ports import Append


class Writers:
    """Records which thread writes each version. Pauses at version 9, and is interrupted at version 13."""

    def __init__(self) -> None:
        self.by: dict[int, threading.Thread] = {}
        self.paused = threading.Event()
        self.resumed = threading.Event()
        self.pool = pool_of(self.write, workers=2)

    def write(self, append: Append) -> Appended:
        version = append.events[0].originator_version
        self.by[version] = threading.current_thread()
        if version == 9:
            self.paused.set()
            assert self.resumed.wait(PATIENCE)
        if version == 13:
            raise KeyboardInterrupt
        return DONE

    def submit(self, version: int, stream: str = "a") -> Future[Appended]:
        return self.pool.submit(Append([event(stream, version)]))


@pytest.fixture
def writers() -> Iterator[Writers]:
    writers = Writers()
    yield writers
    writers.resumed.set()
    writers.pool.close()


def test_result_writes_the_append_in_the_waiting_thread(writers: Writers) -> None:
    assert writers.submit(1).result() == DONE
    assert writers.submit(2).exception() is None
    assert [writers.by[version] for version in (1, 2)] == [threading.current_thread()] * 2


def test_a_pool_thread_writes_an_append_with_a_timeout_or_a_callback(
    writers: Writers,
) -> None:
    notified = threading.Event()
    writers.submit(1).add_done_callback(lambda _: notified.set())
    assert notified.wait(PATIENCE)
    assert writers.submit(2).result(PATIENCE) == DONE
    assert wait_for([writers.submit(3)], PATIENCE).not_done == set()
    assert threading.current_thread() not in writers.by.values()
    assert sorted(writers.by) == [1, 2, 3]


def test_writes_appends_without_a_waiting_thread_even_after_a_long_pause(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_pool, "IDLE_POLLS", 1)
    for _ in range(3):
        writers.paused.clear()
        writers.submit(9)
        assert writers.paused.wait(PATIENCE)
        writers.resumed.set()
        wait_until(lambda: writers.pool._flusher_sleeps)


def test_a_waiting_thread_waits_for_an_earlier_append_of_the_same_stream(writers: Writers) -> None:
    first = writers.submit(9)
    first.add_done_callback(lambda _: None)
    assert writers.paused.wait(PATIENCE)
    second, third = writers.submit(10), writers.submit(11)
    waiting = threading.Thread(target=third.result)
    waiting.start()
    assert 10 not in writers.by
    writers.resumed.set()
    waiting.join(PATIENCE)
    assert second.result() == third.result() == DONE
    assert list(writers.by) == [9, 10, 11]


def test_close_waits_for_threads_that_write_themselves(writers: Writers) -> None:
    waiting = threading.Thread(target=writers.submit(9).result)
    waiting.start()
    assert writers.paused.wait(PATIENCE)
    queued = writers.submit(10)
    closing = threading.Thread(target=writers.pool.close)
    closing.start()
    wait_until(lambda: writers.pool._closed)
    assert closing.is_alive()
    writers.resumed.set()
    closing.join(PATIENCE)
    waiting.join(PATIENCE)
    assert queued.done()
    assert list(writers.by) == [9, 10]


def test_a_second_close_finishes_an_interrupted_close(writers: Writers) -> None:
    futures = [writers.submit(9), writers.submit(10)]
    futures[0].add_done_callback(lambda _: None)
    assert writers.paused.wait(PATIENCE)

    def close() -> None:
        with pytest.raises(KeyboardInterrupt):
            writers.pool.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers.pool, "_drain", _interrupt)
        close()
    with pytest.raises(ClosedError):
        writers.submit(11)
    second = threading.Thread(target=writers.pool.close)
    second.start()
    wait_until(lambda: bool(writers.pool._finished._waiters))  # type: ignore[attr-defined]  # there is no other way to see that it waits
    writers.resumed.set()
    join([second])
    assert [future.done() for future in futures] == [True, True]
    assert list(writers.by) == [9, 10]
    assert not writers.pool._threads


def _interrupt() -> bool:
    raise KeyboardInterrupt


def test_continues_after_a_writing_thread_was_interrupted(writers: Writers) -> None:
    broken, next_ = writers.submit(13), writers.submit(14)
    with pytest.raises(KeyboardInterrupt):
        broken.result()
    assert isinstance(broken.exception(PATIENCE), KeyboardInterrupt)
    assert next_.result() == DONE


def test_raises_an_interruption_only_in_the_interrupted_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", PATIENCE)  # only the waiting thread writes the append

    def write(appends: Sequence[Append], *, patient: bool) -> list[Appended]:
        assert not patient
        assert len(appends) == 2
        raise KeyboardInterrupt

    pool = AppendPool(write, ignore_commit, workers=2, batch_size=4)
    mine, other = (pool.submit(Append([event(name, 1)])) for name in "ab")
    errors: list[BaseException | None] = []

    def work() -> None:
        try:
            mine.result()
        except KeyboardInterrupt as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert len(errors) == 1
    error = other.exception(PATIENCE)
    assert isinstance(error, StoreUnavailableError)
    assert "Read the stream to see whether it was stored" in str(error)
    pool.close()


def test_a_forked_child_writes_no_append_of_its_parent(writers: Writers) -> None:
    writers.submit(9).add_done_callback(lambda _: None)
    assert writers.paused.wait(PATIENCE)
    future = writers.submit(10)

    def work() -> None:
        writers.pool.restart()
        with pytest.raises(TimeoutError):
            future.result(0)
        assert writers.submit(11).result() == DONE
        assert list(writers.by) == [9, 11]

    assert in_forked_child(work) == 0
    writers.resumed.set()
    assert future.result() == DONE


def test_wakes_a_writer_and_not_the_closing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closing thread also waits, until the pool's threads have written everything, and it waits first."""
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", PATIENCE)  # only the waiting thread writes the append
    gates = {name: threading.Event() for name in "ab"}

    def write(append: Append) -> Appended:
        if append.events[0].originator_version == 1:
            assert gates[str(append.events[0].originator_id)].wait(PATIENCE)
        return DONE

    pool = pool_of(write, workers=2)
    waiting = [threading.Thread(target=pool.submit(unbatchable(name)).result) for name in gates]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(pool._running) == 2)
    queued = {name: pool.submit(unbatchable(name, 2)) for name in gates}
    closing = threading.Thread(target=pool.close)
    closing.start()
    wait_until(lambda: bool(pool._finished._waiters))  # type: ignore[attr-defined]  # there is no other way to see that it waits
    gates["a"].set()
    assert wait_for([queued["a"]], PATIENCE).not_done == set()
    wait_until(lambda: pool._idle == 1 or not pool._threads)
    gates["b"].set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert queued["b"].done()


def test_writes_at_most_one_batch_per_writer_with_many_waiting_threads() -> None:
    resumed, slots, within_limit = threading.Event(), threading.Semaphore(2), []

    def write(_: Append) -> Appended:
        within_limit.append(slots.acquire(blocking=False))
        assert resumed.wait(PATIENCE)
        slots.release()
        return DONE

    pool = pool_of(write, workers=2)
    waiting = [threading.Thread(target=pool.submit(unbatchable(f"s{n}")).result) for n in range(12)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(within_limit) == 2)
    resumed.set()
    for thread in waiting:
        thread.join(PATIENCE)
    assert within_limit == [True] * 12
    pool.close()


def test_continues_wherever_a_waiting_thread_is_interrupted(writers: Writers) -> None:
    lines = Interruptions(lines_of_the_pool)
    version = 100
    while lines.more:
        version += 10
        lines.interrupt_next(lambda: writers.submit(version).result())  # noqa: B023 - called at once
        assert writers.submit(version + 1).result(PATIENCE) == DONE
        assert writers.submit(version + 2, "another").result() == DONE
        wait_until(lambda: not writers.pool._queues and not writers.pool._running)
    assert lines.count > 30


def test_continues_after_a_pool_thread_has_ended(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_thread(_: Sequence[Append], **__: object) -> list[Appended]:
        raise SystemExit

    ended: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(writers.pool, "_write", end_thread)
        patch.setattr(threading, "excepthook", ended.append)
        for version in range(1, 7):
            assert isinstance(writers.submit(version).exception(PATIENCE), StoreUnavailableError)
            wait_until(lambda: len(ended) == version)  # noqa: B023 - called at once
    assert writers.submit(7).result(PATIENCE) == DONE


def test_writes_appends_in_calling_threads_if_no_thread_can_be_started(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert writers.submit(1).done()
        notified: list[Future[Appended]] = []
        second = writers.submit(2)
        second.add_done_callback(notified.append)
        assert notified == [second]
        assert writers.submit(3).result(PATIENCE) == DONE
    assert writers.submit(4).result(PATIENCE) == DONE
    assert list(writers.by) == [1, 2, 3, 4]


def test_lets_a_callback_append_to_the_same_stream_and_close(writers: Writers) -> None:
    outcomes: list[object] = []

    def append_more(_: Future[Appended]) -> None:
        outcomes.append(writers.submit(2).result())
        outcomes.append(writers.submit(3).result(PATIENCE))
        writers.pool.close()
        outcomes.append("closed")

    writers.submit(1).add_done_callback(append_more)
    wait_until(lambda: len(outcomes) == 3)
    assert outcomes == [DONE, DONE, "closed"]


def test_a_thread_that_closes_has_its_lock_again_before_it_is_interrupted(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", PATIENCE)
    writers.submit(9).add_done_callback(lambda _: None)
    assert writers.paused.wait(PATIENCE)
    with interrupt_when_notified(lambda: writers.pool._finished):
        writers.pool.close()
    writers.resumed.set()
    writers.pool.close()
