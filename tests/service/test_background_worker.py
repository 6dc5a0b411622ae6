from __future__ import annotations

import logging
import threading

import pytest
from tests.infrastructure.recording import PATIENCE, in_child, wait_until

from clew.service import read_models
from clew.service.read_models import BackgroundWorker


class Work:
    """Counts how often it is done, and can be held."""

    def __init__(self, rounds: int = 1) -> None:
        self.done = 0
        self.rounds = rounds
        self.fails = False
        self.go = threading.Event()
        self.go.set()

    def __call__(self) -> bool:
        assert self.go.wait(PATIENCE)
        self.done += 1
        if self.fails:
            raise RuntimeError("failed, says the test")
        return self.done % self.rounds != 0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 0.02)


def test_starts_no_thread_before_a_request() -> None:
    before = threading.active_count()
    work = BackgroundWorker(Work())
    assert threading.active_count() == before
    work.close()


def test_handles_many_requests_together() -> None:
    work = Work()
    asked = BackgroundWorker(work)
    for _ in range(1_000):
        asked.notify()
    wait_until(lambda: work.done > 0)
    asked.close()
    assert work.done <= 2


def test_continues_until_there_is_nothing_to_do() -> None:
    work = Work(rounds=5)
    asked = BackgroundWorker(work)
    asked.notify()
    wait_until(lambda: work.done == 5)
    asked.close()
    assert work.done == 5


def test_starts_after_a_while_even_if_requests_keep_arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 1_000.0)
    monkeypatch.setattr(read_models, "PATIENCE_SECONDS", 0.05)
    work = Work()
    asked = BackgroundWorker(work)
    asked.notify()
    wait_until(lambda: work.done == 1)
    asked.close()


def test_close_interrupts_the_wait_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 1_000.0)
    monkeypatch.setattr(read_models, "PATIENCE_SECONDS", 1_000.0)
    work = Work()
    asked = BackgroundWorker(work)
    asked.notify()
    asked.close()
    asked.close()
    asked.notify()
    assert work.done == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "clew-projector"]


def test_close_waits_for_the_current_work() -> None:
    work = Work(rounds=1_000)
    work.go.clear()
    asked = BackgroundWorker(work)
    asked.notify()
    closing = threading.Thread(target=asked.close)
    closing.start()
    work.go.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert work.done < 1_000


def test_a_new_request_repeats_failed_work(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.fails = True
    asked = BackgroundWorker(work)
    with caplog.at_level(logging.ERROR):
        asked.notify()
        wait_until(lambda: bool(caplog.records))
    assert "failed" in caplog.text
    work.fails = False
    asked.notify()
    wait_until(lambda: work.done == 2)
    asked.close()


def test_a_forked_child_starts_without_a_thread() -> None:
    work = Work()
    asked = BackgroundWorker(work)
    asked.notify()
    wait_until(lambda: work.done == 1)

    def in_the_child() -> None:
        asked.notify()
        wait_until(lambda: work.done == 2)
        asked.close()

    assert in_child(in_the_child) == 0
    asked.notify()
    wait_until(lambda: work.done == 2)
    asked.close()


def test_has_no_thread_without_requests() -> None:
    work = Work()
    asked = BackgroundWorker(work)
    for round_ in range(1, 4):
        asked.notify()
        wait_until(lambda: work.done == round_)  # noqa: B023 - waited for here
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "clew-projector"])
    asked.close()
