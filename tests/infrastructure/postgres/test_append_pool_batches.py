"""Batches of appends, and appends that delay others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from tests.infrastructure.interruptions import Interruptions
from tests.infrastructure.postgres.append_pools import DONE, ignore_commit, join, lines_of_the_pool, unbatchable
from tests.infrastructure.recorder_steps import PATIENCE, event, wait_until

from clew.domain.errors import StoreUnavailableError
from clew.domain.ports import Appended
from clew.infrastructure.postgres import append_pool
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.recorder_ports import Append


class Gate:
    """Writes batches, each when the test lets it."""

    def __init__(self, *, workers: int = 4, batch_size: int = 4) -> None:
        self.go = threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.pool = AppendPool(self.write, ignore_commit, workers=workers, batch_size=batch_size)

    def write(self, appends: Sequence[Append], *, patient: bool) -> list[Appended]:  # noqa: ARG002 - the port's
        self.batches.append(["".join(str(event.originator_id) for event in append.events) for append in appends])
        assert self.go.acquire(timeout=PATIENCE)
        return [DONE] * len(appends)

    def submit(self, *appends: Append | str) -> list[Future[Appended]]:
        return [
            self.pool.submit(Append([event(s, 1) for s in each]) if isinstance(each, str) else each) for each in appends
        ]

    def submit_each(self, *appends: Append | str) -> list[Future[Appended]]:
        """Submit appends and wait until the pool writes each as a separate batch, while the gate is closed."""
        futures = []
        for number, each in enumerate(appends, len(self.batches) + 1):
            futures += self.submit(each)
            futures[-1].add_done_callback(lambda _: None)
            wait_until(lambda: len(self.batches) == number)  # noqa: B023 - called at once
        return futures


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(append_pool, "BATCH_THRESHOLD", 2)
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", PATIENCE)
    gate = Gate()
    yield gate
    gate.go.release(100)
    gate.pool.close()


def test_appends_that_arrive_while_others_are_written_form_the_next_batch(gate: Gate) -> None:
    futures = gate.submit_each("a", "b")
    futures += gate.submit("c", "d", "dd", "e", "f")
    gate.go.release()
    wait_until(lambda: len(gate.batches) == 3)
    gate.go.release(10)
    assert [future.result(PATIENCE) for future in futures] == [DONE] * 7
    assert gate.batches == [["a"], ["b"], ["c", "d", "dd"], ["e", "f"]]


def test_writes_appends_that_are_not_batchable_concurrently_with_batches(gate: Gate) -> None:
    gate.submit_each("a", "b")
    batched = gate.submit("c")
    (alone,) = gate.submit(unbatchable("d"))
    many = gate.submit("eeeee")  # more than fits into a batch
    threads = [threading.Thread(target=future.result) for future in (alone, *many, *batched)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(gate.batches) == 4)
    assert sorted(gate.batches[2:]) == [["d"], ["eeeee"]]
    gate.go.release(10)
    join(threads)


def test_writes_overdue_appends_concurrently_up_to_the_number_of_writers(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each earlier batch may be delayed by an append that waits for a lock."""
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", 0.001)
    gate.submit_each("a", "b", "c", "d")
    gate.submit("e")
    wait_until(lambda: gate.pool._is_overdue(next(iter(gate.pool._ready))))
    assert gate.batches == [["a"], ["b"], ["c"], ["d"]]


def test_the_main_thread_writes_only_its_own_appends(gate: Gate) -> None:
    """The main thread receives Ctrl-C."""
    others = gate.submit("a", "b")
    (mine,) = gate.submit("c")
    gate.go.release(10)
    assert mine.result() == DONE
    assert gate.batches[0] == ["c"]
    assert [future.result(PATIENCE) for future in others] == [DONE] * 2


class DeferringWrites:
    """Defers all appends that are written without patience, and records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], bool]] = []
        self.pool = AppendPool(self.write, ignore_commit, workers=4, batch_size=4)

    def write(self, appends: Sequence[Append], *, patient: bool) -> list[Appended | None]:
        self.calls.append(([f"{each.originator_id}{each.originator_version}" for (each,), *_ in appends], patient))
        return [DONE if patient else None] * len(appends)

    def submit(self, *names: str) -> list[Future[Appended]]:
        return [self.pool.submit(Append([event(name[0], int(name[1]))])) for name in names]

    def wait_for_the_second(self, *names: str) -> None:
        """Submit appends, let a thread wait for the second one, and check that all are written."""
        futures = self.submit(*names)
        thread = threading.Thread(target=futures[1].result)
        thread.start()
        assert [future.result(PATIENCE) for future in futures] == [DONE] * len(names)
        join([thread])


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeferringWrites]:
    monkeypatch.setattr(append_pool, "FLUSH_DELAY", PATIENCE)  # only the waiting thread writes the append
    writes = DeferringWrites()
    yield writes
    writes.pool.close()


def test_writes_deferred_appends_alone_and_in_order(writes: DeferringWrites) -> None:
    writes.wait_for_the_second("a1", "a2", "b1")
    assert writes.calls[0] == (["a1", "a2", "b1"], False)
    assert sorted(writes.calls[1:]) == [(["a1"], True), (["a2"], True), (["b1"], True)]
    assert writes.calls.index((["a1"], True)) < writes.calls.index((["a2"], True))


def test_is_patient_with_appends_of_the_stream_that_the_thread_waits_for(writes: DeferringWrites) -> None:
    writes.wait_for_the_second("a1", "a2", "a3")
    assert writes.calls == [(["a1", "a2", "a3"], True)]


def test_is_not_patient_in_a_thread_that_waits_for_another_append(writes: DeferringWrites) -> None:
    futures = writes.submit("a1", "a2", "b1")
    with writes.pool._lock:
        first = [writes.pool._queues["a"][0]]
        writes.pool._running.append(first)
        first[0].thread = threading.get_ident()
        writes.pool._ready.pop(first[0])
    thread = threading.Thread(target=futures[1].result)  # waits for another append, and writes b1 meanwhile
    thread.start()
    wait_until(lambda: writes.calls != [])  # otherwise this thread may be the first to write b1
    assert futures[2].result(PATIENCE) == DONE
    assert writes.calls == [(["b1"], False), (["b1"], True)]
    writes.pool._execute(first, None, more=False)
    join([thread])
    assert writes.calls[2:] == [(["a1"], True), (["a2"], True)]


def test_continues_wherever_a_thread_that_defers_appends_is_interrupted(writes: DeferringWrites) -> None:
    lines = Interruptions(lines_of_the_pool)
    number = 0
    while lines.more:
        number += 1
        futures = [writes.pool.submit(Append([event(name, number)])) for name in "abbc"]
        thread = threading.Thread(target=lines.interrupt_next, args=(futures[1].result,))
        thread.start()
        join([thread])
        for future in futures:
            assert isinstance(future.exception(PATIENCE), KeyboardInterrupt | StoreUnavailableError | None)
        wait_until(lambda: not writes.pool._queues and _is_at_rest(writes.pool))
    assert lines.count > 60


def _is_at_rest(pool: AppendPool) -> bool:
    """Whether all threads of the pool wait."""
    return len(pool._work._waiters) == len(pool._threads)  # type: ignore[attr-defined]  # there is no other way to find out
