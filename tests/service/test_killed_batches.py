"""A process that is killed while it writes a batch: all of it is stored, or nothing."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from tests.infrastructure.system_calls import SOCKETS, killed_before

from clew import Conversations, Message, Record

KILLS = 300
"""At full scale."""


def step(scale: float) -> int:
    """How many system calls are between two kills."""
    return 1 if scale >= 1 else 4


NAMES = ("one", "two", "three")


def opened(url: str, number: int) -> Conversations:
    """The service of a tenant of the number's own."""
    return Conversations.open(url, tenant=f"tenant-{number}")


def prepare(url: str, number: int) -> None:
    with opened(url, number) as service:
        for name in NAMES:
            service.start_thread(thread_id=name)
        service.memory("settings").put("last", None)


def write(url: str, number: int) -> None:
    """Write a batch over old and new scopes and threads; its shape depends on the number."""
    with opened(url, number) as service:
        threads = [service.thread(name) for name in NAMES[: 2 + number % 2]]
        with service.batch(idempotency_key=f"batch {number}") as batch:
            for thread in threads:
                batch.append(thread, [Message.user("x" * 10 ** (number % 5)), Record("batch", number)])
            batch.put(service.memory("settings"), "last", number)
            batch.put(service.memory(f"new {number}"), "number", number)
            batch.delete(service.memory("settings"), "never")


def check(url: str, number: int) -> bool:
    """Whether the batch was stored. AssertionError if only a part of it was."""
    names = NAMES[: 2 + number % 2]
    with opened(url, number) as service:
        assert service.verify().first_bad is None
        stored = service.memory(f"new {number}").get("number") is not None
        for name in NAMES:
            thread = service.thread(name)
            expected = int(stored and name in names)
            assert (len(thread.history().messages), len(thread.records("batch"))) == (expected, expected)
        last = service.memory("settings").get("last")
        assert last is not None
        assert last.value == (number if stored else None)
        assert [scope.name for scope in service.scopes(prefix="new")] == ([f"new {number}"] if stored else [])
    write(url, number)  # again: it completes the batch, or finds it
    with opened(url, number) as service:
        assert [len(service.thread(name).history().messages) for name in names] == [1] * len(names)
    return stored


def test_a_batch_in_a_file_is_stored_as_a_whole_or_not_at_all(tmp_path: Path, scale: float) -> None:
    outcomes: list[bool] = []
    for number in count():
        before = tmp_path / f"before {number}"
        before.mkdir()
        prepare(f"sqlite:///{before}/clew.db", number)
        for call in count(0, step(scale)):
            place = tmp_path / f"{number} {call}"
            shutil.copytree(before, place)
            url = f"sqlite:///{place}/clew.db"
            if not killed_before(lambda url=url, number=number: write(url, number), place, call):  # type: ignore[misc]  # bound
                break
            outcomes.append(check(url, number))
            shutil.rmtree(place)
        if len(outcomes) >= KILLS * scale**1.3:
            break
    assert {*outcomes} == {True, False}


def test_a_batch_in_postgres_is_stored_as_a_whole_or_not_at_all(postgres: str, scale: float) -> None:
    outcomes: list[bool] = []
    call = 0
    for number in count():
        prepare(postgres, number)
        if killed_before(lambda number=number: write(postgres, number), SOCKETS, call):  # type: ignore[misc]  # bound
            outcomes.append(check(postgres, number))
            call += step(scale)
        elif len(outcomes) >= KILLS * scale**1.3:
            break
        else:
            call = 0
    assert {*outcomes} == {True, False}
