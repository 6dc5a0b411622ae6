from __future__ import annotations

import logging
import threading

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, in_forked_child, wait_until

from clew.service import read_models
from clew.service.read_models import BackgroundWorker


class Work:
    """Counts its calls. A test can block it."""

    def __init__(self, rounds: int = 1) -> None:
        self.done = 0
        self.rounds = rounds
        self.fails = False
        self.allowed = threading.Event()
        self.allowed.set()

    def __call__(self) -> bool:
        assert self.allowed.wait(PATIENCE)
        self.done += 1
        if self.fails:
            raise RuntimeError("the work failed")
        return self.done % self.rounds != 0


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 0.02)


def test_starts_no_thread_before_a_request() -> None:
    before = threading.active_count()
    work = BackgroundWorker(Work())
    assert threading.active_count() == before
    work.close()


def test_handles_many_requests_together() -> None:
    work = Work()
    worker = BackgroundWorker(work)
    for _ in range(1_000):
        worker.notify()
    wait_until(lambda: work.done > 0)
    worker.close()
    assert work.done <= 2


def test_continues_until_there_is_nothing_to_do() -> None:
    work = Work(rounds=5)
    worker = BackgroundWorker(work)
    worker.notify()
    wait_until(lambda: work.done == 5)
    worker.close()
    assert work.done == 5


def test_starts_after_a_while_even_if_requests_keep_arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 1_000.0)
    monkeypatch.setattr(read_models, "PATIENCE_SECONDS", 0.05)
    work = Work()
    worker = BackgroundWorker(work)
    worker.notify()
    wait_until(lambda: work.done == 1)
    worker.close()


def test_close_interrupts_the_wait_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_models, "QUIET_SECONDS", 1_000.0)
    monkeypatch.setattr(read_models, "PATIENCE_SECONDS", 1_000.0)
    work = Work()
    worker = BackgroundWorker(work)
    worker.notify()
    worker.close()
    worker.close()
    worker.notify()
    assert work.done == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "clew-projector"]


def test_close_waits_for_the_current_work() -> None:
    work = Work(rounds=1_000)
    work.allowed.clear()
    worker = BackgroundWorker(work)
    worker.notify()
    closing = threading.Thread(target=worker.close)
    closing.start()
    work.allowed.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert work.done < 1_000


def test_a_new_request_repeats_failed_work(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.fails = True
    worker = BackgroundWorker(work)
    with caplog.at_level(logging.ERROR):
        worker.notify()
        wait_until(lambda: "failed" in caplog.text)
    work.fails = False
    worker.notify()
    wait_until(lambda: work.done == 2)
    worker.close()


def test_a_forked_child_starts_without_a_thread() -> None:
    work = Work()
    worker = BackgroundWorker(work)
    worker.notify()
    wait_until(lambda: work.done == 1)

    def work_in_the_child() -> None:
        worker.notify()
        wait_until(lambda: work.done == 2)
        worker.close()

    assert in_forked_child(work_in_the_child) == 0
    worker.notify()
    wait_until(lambda: work.done == 2)
    worker.close()


def test_has_no_thread_without_requests() -> None:
    work = Work()
    worker = BackgroundWorker(work)
    for round_ in range(1, 4):
        worker.notify()
        wait_until(lambda: work.done == round_)  # noqa: B023 - called at once
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "clew-projector"])
    worker.close()


def test_works_after_a_request_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    worker = BackgroundWorker(work)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for target in (threading.Thread, worker._requested):
        with monkeypatch.context() as patch:
            patch.setattr(target, "start" if target is threading.Thread else "set", interrupt)
            with pytest.raises(KeyboardInterrupt):
                worker.notify()
    worker.notify()
    wait_until(lambda: work.done > 0)
    worker.close()
