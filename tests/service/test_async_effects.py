"""Waits of an event loop for the writer."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import closing

from tests.infrastructure.interruptions import Interruptions, signal_points
from tests.infrastructure.recorder_steps import PATIENCE

from clew.service import async_effects
from clew.service.async_effects import outcome_of


def test_every_task_continues_wherever_a_wake_up_is_interrupted() -> None:
    points = Interruptions(signal_points(async_effects.__file__, without={"__init__", "begin", "outcome_of", "_wake"}))
    with closing(asyncio.new_event_loop()) as loop:
        while points.more:
            outcomes: list[Future[int]] = [Future() for _ in range(3)]
            for number, outcome in enumerate(outcomes):
                outcome.set_result(number)
            tasks = [loop.create_task(outcome_of(outcome)) for outcome in outcomes]
            points.interrupt_next(lambda: loop.run_until_complete(asyncio.wait(tasks)))  # noqa: B023 # called at once
            loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
            assert [task.result() for task in tasks] == [0, 1, 2]
    assert points.count > 3
