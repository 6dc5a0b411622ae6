"""OpenTelemetry metrics of projections; nothing is measured where ``opentelemetry`` is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from clew.domain.errors import ClewError

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

    The provider is the application's global one unless another is given. A store that cannot be read just then is not
    told of.
    """

    def __init__(self, measure: Callable[[], Sequence[Measured]], provider: MeterProvider | None = None) -> None:
        self._measure: Callable[[], Sequence[Measured]] | None = measure
        self._beside: list[ProjectionMetrics] = []
        try:
            from opentelemetry import metrics
        except ImportError:
            self._events = None
            return
        own = metrics.get_meter_provider() if provider is None else provider
        meter = own.get_meter(SCOPE)
        if own not in _telling:
            told = _telling[own] = []
            for name, unit, description, field in _GAUGES:
                meter.create_observable_gauge(
                    name, [partial(_observe, told, field)], unit=unit, description=description
                )
        self._beside = _telling[own]
        self._beside.append(self)
        self._events = meter.create_counter(
            "clew.projection.events", unit="{event}", description="Events by which it has come further"
        )

    def counted(self, projection: str, events: int) -> None:
        """A projection has come further by so many events."""
        if self._events is not None:
            self._events.add(events, {NAME: projection})

    def close(self) -> None:
        """Say nothing any more."""
        self._measure = None
        if self in self._beside:
            self._beside.remove(self)

    def measured(self) -> Sequence[Measured]:
        """How far the projections are now."""
        measure = self._measure
        try:
            return () if measure is None else measure()
        except ClewError:
            return ()


_telling: WeakKeyDictionary[MeterProvider, list[ProjectionMetrics]] = WeakKeyDictionary()
"""Who is asked by the gauges of each provider: they are made once, and never taken back."""


def _observe(told: Sequence[ProjectionMetrics], field: str, _: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    for metrics in list(told):
        for each in metrics.measured():
            yield Observation(getattr(each, field), {NAME: each.projection})
