"""OpenTelemetry metrics of projections; nothing is measured where ``opentelemetry`` is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

SCOPE = "clew"
NAME = "clew.projection.name"


class Measured(NamedTuple):
    """How far a projection is behind, in events and in seconds, and how many events it went on without."""

    projection: str
    lag_events: int
    lag_seconds: float
    parked: int


_GAUGES = (
    ("clew.projection.lag.events", "{event}", "Events that it has not taken in yet", "lag_events"),
    ("clew.projection.lag.seconds", "s", "How long the first of them has been there", "lag_seconds"),
    ("clew.projection.parked", "{event}", "Events that it went on without", "parked"),
)


class ProjectionMetrics:
    """What a process that fills projections tells OpenTelemetry; ``measure`` is asked whenever somebody collects.

    The provider is the application's global one unless another is given.
    """

    def __init__(self, measure: Callable[[], Sequence[Measured]], provider: MeterProvider | None = None) -> None:
        self._measure: Callable[[], Sequence[Measured]] | None = measure
        try:
            from opentelemetry import metrics
        except ImportError:
            self._events = None
            return
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        for name, unit, description, field in _GAUGES:
            meter.create_observable_gauge(name, [partial(self._observe, field)], unit=unit, description=description)
        self._events = meter.create_counter(
            "clew.projection.events", unit="{event}", description="Events by which it has come further"
        )

    def counted(self, projection: str, events: int) -> None:
        """A projection has come further by so many events."""
        if self._events is not None:
            self._events.add(events, {NAME: projection})

    def close(self) -> None:
        """Say nothing any more: OpenTelemetry has no way to take back who is asked."""
        self._measure = None

    def _observe(self, field: str, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        measure = self._measure
        for each in () if measure is None else measure():
            yield Observation(getattr(each, field), {NAME: each.projection})
