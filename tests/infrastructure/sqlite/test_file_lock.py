"""The lock between processes: an abandoned wait does not keep the lock, and no descriptor is closed twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.infrastructure.interruptions import Interruptions, signal_points
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    in_forked_child,
    in_thread,
    interrupt_when,
    is_waiting_for_a_lock,
    take,
    wait_until,
)

from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.sqlite import file_lock
from clew.infrastructure.sqlite.file_lock import FileLock, LockHeldError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.lock")


@pytest.fixture
def holder(path: str) -> Iterator[Holder]:
    holder = Holder(path)
    yield holder
    holder.release()
    holder.lock.close()


class Holder(ExitStack):
    """Another process that has the lock until it is told to release it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.lock = FileLock(path, PATIENCE)
        self.acquire()

    def acquire(self) -> None:
        self.enter_context(self.lock.held())

    def release(self) -> None:
        self.close()


def descriptors_of(path: str) -> list[int]:
    """The process's descriptors that are open on the file."""
    return [fd for fd in range(256) if same_file(fd, path)]


def same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116 - like os.fstat
    except OSError:
        return False


def test_an_interrupted_wait_does_not_keep_the_lock(path: str, holder: Holder) -> None:
    lock = FileLock(path, PATIENCE)
    with interrupt_when():
        take(lock)
    before = descriptors_of(path)
    holder.release()
    wait_until(lambda: len(descriptors_of(path)) < len(before))
    other = FileLock(path, PATIENCE)
    take(other)
    other.close()
    take(lock)
    lock.close()


def test_a_wait_that_timed_out_does_not_keep_the_lock(path: str, holder: Holder) -> None:
    lock = FileLock(path, 0.01)
    with pytest.raises(StoreUnavailableError):
        take(lock)
    before = descriptors_of(path)
    holder.release()
    wait_until(lambda: len(descriptors_of(path)) < len(before))
    holder.acquire()
    lock.close()


def test_a_wait_that_is_not_needed_any_more_does_not_keep_the_lock(path: str, holder: Holder) -> None:
    lock = FileLock(path, PATIENCE)
    asked: list[bool] = []

    def is_done() -> bool:
        asked.append(is_waiting_for_a_lock())
        return len(asked) == 3

    with pytest.raises(LockHeldError), lock.held(is_done):
        pytest.fail("two processes had the lock")
    assert asked == [False, True, True]  # it kept its place in line between the last two
    holder.release()
    wait_until(lambda: not is_waiting_for_a_lock())
    with lock.held(lambda: True):
        pass
    lock.close()


def test_releases_the_lock_if_it_is_interrupted_on_arrival(
    path: str, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = FileLock(path, PATIENCE)
    close = lock.close

    def interrupt() -> None:
        monkeypatch.undo()
        close()
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "close", interrupt)

    def release() -> None:
        wait_until(is_waiting_for_a_lock)
        assert holder.lock._fd is not None
        fcntl.flock(holder.lock._fd, fcntl.LOCK_UN)  # as another process would release it

    releasing = threading.Thread(target=release)
    releasing.start()
    with pytest.raises(KeyboardInterrupt):
        take(lock)
    releasing.join()
    other = FileLock(path, PATIENCE)
    take(other)
    other.close()


def test_a_forked_child_closes_no_reused_descriptor(path: str, holder: Holder) -> None:
    lock = FileLock(path, 0.01)
    before = descriptors_of(path)
    with pytest.raises(StoreUnavailableError):
        take(lock)
    during = descriptors_of(path)
    holder.release()
    wait_until(lambda: len(descriptors_of(path)) < len(during))
    (closed,) = set(during) - set(descriptors_of(path))
    # Another file gets the same number, like the next file that the process opens.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, closed)

    def forget() -> None:
        lock.forget()
        assert same_file(closed, os.devnull)
        assert descriptors_of(path) == before

    assert in_forked_child(forget) == 0
    for number in {null, closed}:
        os.close(number)
    lock.close()


def test_a_forked_child_closes_the_descriptor_of_the_parents_wait(path: str, holder: Holder) -> None:
    lock = FileLock(path, 0.01)
    with pytest.raises(StoreUnavailableError):
        take(lock)

    def forget() -> None:
        mine = descriptors_of(path)
        lock.forget()
        assert len(descriptors_of(path)) == len(mine) - 2

    assert in_forked_child(forget) == 0
    holder.release()
    wait_until(lambda: not is_waiting_for_a_lock())
    take(lock)
    lock.close()


def test_does_not_keep_the_number_of_a_closed_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(path, 5.0)
    take(lock)
    close = os.close

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.close()
    read, write = os.pipe()  # one of them gets the number
    lock.close()
    os.write(write, b"x")
    assert os.read(read, 1) == b"x"
    close(read)
    close(write)


# Interruptions


def test_is_free_wherever_its_holder_is_interrupted(path: str) -> None:
    lock, other, points = (
        FileLock(path, PATIENCE),
        FileLock(path, 0.0),
        Interruptions(signal_points(file_lock.__file__)),
    )
    while points.more:
        interruption = points.interrupt_next(lambda: take(lock))
        take(other)
        in_thread(lambda: take(lock)).join(PATIENCE)
        assert not lock._held
        del interruption  # until here, its traceback keeps what the interrupted calls had
    assert points.count > 2
    for each in (lock, other):
        each.close()


def test_is_free_wherever_a_wait_for_it_is_interrupted(path: str, holder: Holder) -> None:
    other = FileLock(path, PATIENCE)
    points = Interruptions(signal_points(file_lock.__file__))

    def wait() -> None:
        with suppress(LockHeldError):
            take(FileLock(path, 0.0))

    while points.more:
        points.interrupt_next(wait)
        holder.release()
        take(other)
        wait_until(lambda: not is_waiting_for_a_lock())
        take(other)
        holder.acquire()
    assert points.count > 15
    other.close()


def test_is_free_wherever_its_block_is_interrupted(path: str) -> None:
    lock, other = FileLock(path, PATIENCE), FileLock(path, 0.0)
    points = Interruptions(signal_points(file_lock.__file__, contextlib.__file__))

    def block() -> None:
        with lock.held(lambda: False):
            pass

    while points.more:
        points.interrupt_next(block)
        take(other)
        in_thread(lambda: take(lock)).join(PATIENCE)
        assert not lock._held
    assert points.count > 8
    for each in (lock, other):
        each.close()
