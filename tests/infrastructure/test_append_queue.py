"""The queue of appends: which thread writes, what it writes together, and what happens when it is interrupted."""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import FrameType

import pytest
from tests.infrastructure.interruptions import Interruptions, Points
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    event,
    in_thread,
    interrupt_when_notified,
    run_threads,
    wait_until,
)

from clew.domain.errors import ClosedError, StoreUnavailableError
from clew.domain.ports import Appended
from clew.infrastructure import append_queue
from clew.infrastructure.append_queue import AppendQueue
from clew.infrastructure.recorder_ports import Append

DONE = Appended((), (), ())


class Written:
    """A queue, the batches that were written, each with the names of its appends, and the threads that wrote them."""

    def __init__(self, *, interruptible: bool = True) -> None:
        self.batches: list[list[str]] = []
        self.by: list[str] = []
        self.go = threading.Semaphore(0)
        self.paused = threading.Semaphore(0)
        self.pauses = False
        self.after = 0
        self.pause: float | None = None
        self.queue = AppendQueue(self.write, self.after_batch, interruptible=interruptible)

    def write(self, appends: Sequence[Append]) -> list[Appended]:
        self.batches.append([str(each.originator_id) for (each,), *_ in appends])
        self.by.append(threading.current_thread().name)
        if self.pauses:
            self.paused.release()
            assert self.go.acquire(timeout=PATIENCE)
        return [DONE] * len(appends)

    def after_batch(self) -> float | None:
        self.after += 1
        pause, self.pause = self.pause, None
        return pause

    def enqueue(self, *names: str) -> list[Future[Appended]]:
        return [self.queue.enqueue(append(name)) for name in names]


def append(name: str) -> Append:
    return Append([event(name, 1)])


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written()
    yield written
    written.pauses = False
    written.go.release(99)
    written.queue.close()


def test_a_thread_that_waits_writes_its_append_itself_and_starts_no_other(written: Written) -> None:
    in_thread(written.enqueue("a")[0].result).join(PATIENCE)
    assert (written.batches, written.by) == ([["a"]], ["worker"])
    assert written.queue._thread is None
    assert written.after == 1


def test_the_main_thread_also_writes_its_own_append(written: Written) -> None:
    (mine,) = written.enqueue("a")
    assert mine.exception() is None
    assert mine.result() == DONE
    assert written.by == [threading.main_thread().name]


def test_a_thread_that_waits_writes_all_that_wait(written: Written) -> None:
    futures = written.enqueue("a", "b", "c")
    in_thread(futures[1].result).join(PATIENCE)
    assert written.batches == [["a", "b", "c"]]
    assert all(future.done() for future in futures)


def test_the_main_thread_writes_only_its_own_append(written: Written) -> None:
    """It receives Ctrl-C, which must not interrupt the appends of others."""
    futures = written.enqueue("a", "b", "c")
    assert futures[1].result() == DONE
    assert written.by == ["clew-writer"]
    first, second = written.enqueue("d", "e")
    assert first.result() == DONE
    assert second.result(PATIENCE) == DONE
    assert written.batches == [["a", "b", "c"], ["d"], ["e"]]


def test_the_main_thread_does_not_write_what_must_not_be_interrupted() -> None:
    written = Written(interruptible=False)
    assert written.enqueue("a")[0].result() == DONE
    in_thread(written.enqueue("b")[0].result).join(PATIENCE)
    assert written.by == ["clew-writer", "worker"]
    written.queue.close()


@pytest.mark.parametrize("wait", ["callback", "timeout", "exception", "nothing"])
def test_the_writer_thread_writes_for_those_who_do_not_wait_here(written: Written, wait: str) -> None:
    done = threading.Event()
    if wait == "nothing":
        written.queue.submit(append("a"))
    else:
        (future,) = written.enqueue("a")
        assert not written.batches
        if wait == "callback":
            future.add_done_callback(lambda _: done.set())
            assert done.wait(PATIENCE)
        elif wait == "timeout":
            assert future.result(PATIENCE) == DONE
        else:
            assert future.exception(PATIENCE) is None
    wait_until(lambda: written.by == ["clew-writer"])


def test_appends_that_arrive_while_a_thread_writes_are_written_together_by_the_writer_thread(written: Written) -> None:
    written.pauses = True
    first = in_thread(written.enqueue("a")[0].result)
    assert written.paused.acquire(timeout=PATIENCE)
    others = [in_thread(future.result, "other") for future in written.enqueue("b", "c")]
    assert written.queue.waiting == 2
    written.pauses = False
    written.go.release()
    for thread in (first, *others):
        thread.join(PATIENCE)
    assert written.batches == [["a"], ["b", "c"]]
    assert written.by == ["worker", "clew-writer"]


def test_an_append_that_nobody_waits_for_is_written_with_the_next(written: Written) -> None:
    (left,) = written.enqueue("a")
    in_thread(written.enqueue("b")[0].result).join(PATIENCE)
    assert written.batches == [["a", "b"]]
    assert left.done()


def test_close_writes_what_nobody_waits_for(written: Written) -> None:
    futures = written.enqueue("a", "b")
    written.queue.close()
    written.queue.close()
    assert [future.result() for future in futures] == [DONE, DONE]
    with pytest.raises(ClosedError):
        written.enqueue("c")


def test_close_waits_for_a_thread_that_writes_itself(written: Written) -> None:
    written.pauses = True
    writing = in_thread(written.enqueue("a")[0].result)
    assert written.paused.acquire(timeout=PATIENCE)
    (queued,) = written.enqueue("b")
    closing = in_thread(written.queue.close)
    wait_until(lambda: bool(written.queue._finished._waiters))  # type: ignore[attr-defined]  # there is no other way to see that it waits
    assert closing.is_alive()
    written.pauses = False
    written.go.release()
    closing.join(PATIENCE)
    writing.join(PATIENCE)
    assert queued.done()


def test_the_writer_thread_repeats_the_work_after_a_batch(written: Written) -> None:
    written.pause = 0.001
    in_thread(written.enqueue("a")[0].result).join(PATIENCE)
    wait_until(lambda: written.after == 2)
    assert written.batches == [["a"]]


def test_a_cancelled_append_is_not_written(written: Written) -> None:
    first, second = written.enqueue("a", "b")
    assert first.cancel()
    in_thread(second.result).join(PATIENCE)
    assert written.batches == [["b"]]


def test_writes_everything_if_no_thread_can_be_started(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        futures = written.enqueue("a", "b", "c")
        assert futures[1].result() == DONE
        assert all(future.done() for future in futures)
        assert written.queue.submit(append("d")).done()
        (last,) = written.enqueue("e")
    assert last.result(PATIENCE) == DONE
    assert written.by[-1] == "clew-writer"


def test_many_threads_lose_nothing_and_write_in_order(written: Written) -> None:
    def work(number: int) -> None:
        for turn in range(50):
            assert written.enqueue(f"{number} {turn}")[0].result() == DONE

    run_threads([lambda number=number: work(number) for number in range(8)])  # type: ignore[misc]  # a bound loop variable
    names = [name for batch in written.batches for name in batch]
    assert len(names) == 400
    for number in range(8):
        own = [name for name in names if name.startswith(f"{number} ")]
        assert own == [f"{number} {turn}" for turn in range(50)]


def lines_of_the_queue() -> Points:
    """Each line of the queue's code that the interrupted thread executes, and of notifications."""

    def is_point(frame: FrameType, kind: str) -> bool | None:
        if frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "notify":
            return kind == "line" and linecache.getline(threading.__file__, frame.f_lineno).strip() != "try:"
        if frame.f_code.co_filename != append_queue.__file__:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # The interpreter handles no signal between taking a lock and entering its block.
        return kind == "line" and not line.startswith(("with ", "try:", "finally:"))

    return is_point


@pytest.mark.parametrize("place", [0, 1])
def test_continues_wherever_the_main_thread_is_interrupted(written: Written, place: int) -> None:
    lines = Interruptions(lines_of_the_queue)
    while lines.more:
        futures = written.enqueue("a", "b", "c")
        lines.interrupt_next(futures[place].result)
        for number, future in enumerate(futures):
            error = future.exception(PATIENCE)
            assert error is None or (number == place and isinstance(error, KeyboardInterrupt))
        wait_until(lambda: not written.queue.waiting and not written.queue._writing)
    assert lines.count > (20 if place == 0 else 5)


def test_closes_wherever_the_thread_that_notifies_the_writer_thread_is_interrupted() -> None:
    lines = Interruptions(lines_of_the_queue)
    while lines.more:
        queue = Written().queue
        assert queue.submit(append("a")).result(PATIENCE) == DONE
        wait_until(lambda: bool(queue._work._waiters))  # type: ignore[attr-defined]  # noqa: B023  # called at once
        lines.interrupt_next(lambda: queue.submit(append("b")))  # noqa: B023  # the same
        closing = in_thread(queue.close)
        closing.join(PATIENCE)
        assert not closing.is_alive()
    assert lines.count > 10


def test_another_thread_closes_wherever_the_main_thread_is_interrupted() -> None:
    lines = Interruptions(lines_of_the_queue)
    while lines.more:
        written = Written()
        written.pauses = True
        (future,) = written.enqueue("a")
        closing = threading.Thread(target=written.queue.close)

        def close_meanwhile(written: Written = written, closing: threading.Thread = closing) -> None:
            assert written.paused.acquire(timeout=PATIENCE)
            closing.start()
            time.sleep(0.02)  # so that it waits, if the append is being written
            written.go.release()

        meanwhile = in_thread(close_meanwhile)
        lines.interrupt_next(future.result)
        written.paused.release()  # if the interruption came before the write
        written.go.release()
        meanwhile.join(PATIENCE)
        closing.join(PATIENCE)
        assert not closing.is_alive()
    assert lines.count > 20


def test_continues_wherever_another_thread_is_interrupted(written: Written) -> None:
    lines = Interruptions(lines_of_the_queue)
    while lines.more:
        futures = written.enqueue("a", "b", "c")
        in_thread(lambda: lines.interrupt_next(futures[1].result)).join(PATIENCE)  # noqa: B023  # called at once
        errors = [future.exception(PATIENCE) for future in futures]
        assert isinstance(errors[1], KeyboardInterrupt | None)
        assert all(isinstance(error, StoreUnavailableError | None) for error in (errors[0], errors[2]))
        wait_until(lambda: not written.queue.waiting and not written.queue._writing)
    assert lines.count > 15


def test_another_thread_takes_over_if_a_callback_ends_the_writer_thread(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    ended: list[threading.Thread] = []

    def end(_: object) -> None:
        ended.append(threading.current_thread())
        raise SystemExit

    (future,) = written.enqueue("a")
    future.add_done_callback(end)
    assert future.result(PATIENCE) == DONE
    wait_until(lambda: bool(ended))
    ended[0].join(PATIENCE)
    assert written.queue.submit(append("b")).result(PATIENCE) == DONE
    assert not written.queue._thread or written.queue._thread is not ended[0]


def test_a_thread_that_closes_has_its_lock_again_before_it_is_interrupted(written: Written) -> None:
    written.pauses = True
    writing = in_thread(written.enqueue("a")[0].result)
    assert written.paused.acquire(timeout=PATIENCE)
    with interrupt_when_notified(lambda: written.queue._finished):
        written.queue.close()
    written.go.release()
    writing.join(PATIENCE)
    written.queue.close()
