from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.infrastructure.projection_metrics import metrics_of

from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.projection_metrics import Measured, ProjectionMetrics


def test_reports_the_lag_and_the_applied_events_of_each_projection() -> None:
    reader = InMemoryMetricReader()
    lags = {"usage": 7}
    metrics = ProjectionMetrics(
        lambda: [Measured(name, lag, 0.5, 2) for name, lag in lags.items()], MeterProvider(metric_readers=[reader])
    )
    metrics.counted("usage", 3)
    metrics.counted("usage", 4)
    metrics.counted("audit", 1)
    assert metrics_of(reader) == {
        "clew.projection.lag.events": {"usage": 7},
        "clew.projection.lag.seconds": {"usage": 0.5},
        "clew.projection.parked": {"usage": 2},
        "clew.projection.events": {"usage": 7, "audit": 1},
    }
    lags.clear()
    lags["audit"] = 0
    assert metrics_of(reader)["clew.projection.lag.events"] == {"audit": 0}


def test_reports_nothing_after_close() -> None:
    reader = InMemoryMetricReader()
    metrics = ProjectionMetrics(lambda: [Measured("usage", 1, 1.0, 1)], MeterProvider(metric_readers=[reader]))
    metrics.close()
    assert metrics_of(reader) == {}


def test_works_without_opentelemetry() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from clew.infrastructure.projection_metrics import ProjectionMetrics\n"
        "metrics = ProjectionMetrics(lambda: 1 / 0)\n"
        "metrics.counted('usage', 3); metrics.close(); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_second_instance_reports_after_the_first_is_closed() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    for _ in range(2):
        metrics = ProjectionMetrics(lambda: [Measured("usage", 3, 1.5, 0)], provider)
        assert metrics_of(reader)["clew.projection.lag.events"] == {"usage": 3}
        metrics.close()
        assert metrics_of(reader) == {}


def test_omits_metrics_of_a_store_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    def measure() -> list[Measured]:
        raise StoreUnavailableError("gone")

    reader = InMemoryMetricReader()
    ProjectionMetrics(measure, MeterProvider(metric_readers=[reader]))
    assert (metrics_of(reader), caplog.text) == ({}, "")
