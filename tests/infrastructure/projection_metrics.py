"""Metrics that were sent to OpenTelemetry, in a form that a test can compare."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader


def metrics_of(reader: InMemoryMetricReader) -> dict[str, dict[str, Any]]:
    """The values of each metric, by projection."""
    data = reader.get_metrics_data()
    values: dict[str, dict[str, Any]] = {}
    for resource in () if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "clew"
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                values[metric.name] = {point.attributes["clew.projection.name"]: point.value for point in points}
    return values
