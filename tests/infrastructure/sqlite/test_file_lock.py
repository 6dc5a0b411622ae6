"""The lock between processes: who gives up waiting leaves it to the others, and closes no descriptor twice."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    in_forked_child,
    interrupt_when,
    is_waiting_for_a_lock,
    wait_until,
)

from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.sqlite.file_lock import FileLock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.lock")


@pytest.fixture
def holder(path: str) -> Iterator[FileLock]:
    holder = FileLock(path, PATIENCE)
    holder.acquire()
    yield holder
    holder.close()


def open_on(path: str) -> list[int]:
    """The descriptors of the process that are open on the file."""
    return [fd for fd in range(256) if same_file(fd, path)]


def same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116 - beside its twin for descriptors
    except OSError:
        return False


def test_leaves_the_lock_to_the_others_when_its_wait_was_interrupted(path: str, holder: FileLock) -> None:
    lock = FileLock(path, PATIENCE)
    with interrupt_when():
        lock.acquire()
    before = open_on(path)
    holder.release()
    wait_until(lambda: len(open_on(path)) < len(before))
    other = FileLock(path, PATIENCE)
    other.acquire()
    other.close()
    lock.acquire()
    lock.close()


def test_leaves_the_lock_to_the_others_when_it_came_too_late(path: str, holder: FileLock) -> None:
    lock = FileLock(path, 0.01)
    with pytest.raises(StoreUnavailableError):
        lock.acquire()
    before = open_on(path)
    holder.release()
    wait_until(lambda: len(open_on(path)) < len(before))
    holder.acquire()
    lock.close()


def test_gives_the_lock_back_when_it_is_interrupted_just_as_it_comes(
    path: str, holder: FileLock, monkeypatch: pytest.MonkeyPatch
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
        assert holder._fd is not None
        fcntl.flock(holder._fd, fcntl.LOCK_UN)  # as another process would release it

    releasing = threading.Thread(target=release)
    releasing.start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    releasing.join()
    other = FileLock(path, PATIENCE)
    other.acquire()
    other.close()


def test_closes_no_descriptor_of_somebody_else_s_in_a_forked_child(path: str, holder: FileLock) -> None:
    lock = FileLock(path, 0.01)
    before = open_on(path)
    with pytest.raises(StoreUnavailableError):
        lock.acquire()
    during = open_on(path)
    holder.release()
    wait_until(lambda: len(open_on(path)) < len(during))
    (gone,) = set(during) - set(open_on(path))
    # The same number for another file, as the next open of the process would have it.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, gone)

    def forget() -> None:
        lock.forget()
        assert same_file(gone, os.devnull)
        assert open_on(path) == before

    assert in_forked_child(forget) == 0
    for number in {null, gone}:
        os.close(number)
    lock.close()


def test_closes_the_descriptor_of_a_wait_that_goes_on_in_the_parent_only(path: str, holder: FileLock) -> None:
    lock = FileLock(path, 0.01)
    with pytest.raises(StoreUnavailableError):
        lock.acquire()

    def forget() -> None:
        mine = open_on(path)
        lock.forget()
        assert len(open_on(path)) == len(mine) - 2

    assert in_forked_child(forget) == 0
    holder.release()
    wait_until(lambda: not is_waiting_for_a_lock())
    lock.acquire()
    lock.close()
