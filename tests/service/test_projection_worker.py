"""Running projections until a signal stops the runner."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.infrastructure.projection_metrics import metrics_of
from tests.service.projection_contents import batches_of

from clew.conversations import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.domain.messages import Message
from clew.infrastructure.projection_metrics import ProjectionMetrics
from clew.service.projection_worker import Runner


def interrupted_at(number: int) -> bool:
    """Stop a runner with a signal at the n-th call or return of a function; False if it becomes idle before."""
    store = SimpleNamespace(generations=list, claim=lambda *_: ["p"], release=lambda _: None, purge=lambda: False)
    projector = SimpleNamespace(
        projections={"p": 1},
        store=store,
        projection=lambda _: 1,
        may_maintain=lambda _: True,
        advance=lambda _: False,
        check_sees_all=lambda: None,
        progress=lambda *_: (0, 0),
    )
    log = SimpleNamespace(last_position=lambda: 0, listen=lambda _: lambda: None, is_bound=lambda: False)
    core: Any = SimpleNamespace(models=SimpleNamespace(projector=projector), log=log)
    runner = Runner(core, [], lambda _, __: None)
    signal.signal(signal.SIGUSR1, lambda *_: runner.stop())
    calls = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGALRM, lambda *_: runner.stop())  # the runner is idle
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    sys.setprofile(count)
    try:
        runner.follow()
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return calls >= number


def test_a_signal_stops_the_runner_at_any_point() -> None:
    child = os.fork()
    if child == 0:
        try:
            number = 1
            while interrupted_at(number):
                number += 1
            os._exit(0 if number > 10 else 2)
        finally:
            os._exit(1)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(10)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("raised", "expected"), [(StoreUnavailableError, []), (ZeroDivisionError, ["worker"]), (None, ["worker"])]
)
def test_does_not_wait_for_an_unavailable_store_to_release_leases(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, raised: type[Exception] | None, expected: list[str]
) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        projector = conversations._core.models.projector
        runner = Runner(conversations._core, ["usage"], lambda *_: None, worker="worker")
        released: list[str] = []

        def advance(names: object) -> bool:
            del names
            runner.stop()
            if raised is not None:
                raise raised
            return False

        monkeypatch.setattr(projector, "advance", advance)
        monkeypatch.setattr(projector.store, "release", released.append)
        conversations.start_thread()
        with nullcontext() if raised is None else pytest.raises(raised):
            runner.follow()
        assert released == expected


def test_reports_lag_and_applied_events_to_opentelemetry(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(
        "clew.service.projection_worker.ProjectionMetrics", partial(ProjectionMetrics, provider=provider)
    )
    with Conversations.open(shared_url, embedded=False) as conversations, batches_of(4):
        conversations.start_thread(messages=[Message.user("word")] * 9)
        lags: list[int] = []

        def record_lag(*_: int) -> None:
            metrics = metrics_of(reader)
            assert metrics["clew.projection.parked"] == {"usage": 0}
            assert (metrics["clew.projection.lag.seconds"]["usage"] > 0) == (
                metrics["clew.projection.lag.events"]["usage"] > 0
            )
            lags.append(metrics["clew.projection.lag.events"]["usage"])

        Runner(conversations._core, ["usage"], record_lag).run()
        assert lags == [10, 6, 2, 0]
        assert metrics_of(reader) == {"clew.projection.events": {"usage": 10}}
