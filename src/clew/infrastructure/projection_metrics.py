"""OpenTelemetry metrics of projections. Nothing is measured if ``opentelemetry`` is not installed."""

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
    """The lag of a projection, in events and in seconds, and the number of events that it skipped."""

    projection: str
    lag_events: int
    lag_seconds: float
    parked: int


_GAUGES = (
    ("clew.projection.lag.events", "{event}", "Events that it has not applied yet", "lag_events"),
    ("clew.projection.lag.seconds", "s", "Age of the first of them", "lag_seconds"),
    ("clew.projection.parked", "{event}", "Events that it skipped", "parked"),
)


class ProjectionMetrics:
    """The metrics of a process that maintains projections; ``measure`` is called at each collection.

    The default provider is the application's global one. A collection skips a store that cannot be read.
    """

    def __init__(self, measure: Callable[[], Sequence[Measured]], provider: MeterProvider | None = None) -> None:
        self._measure: Callable[[], Sequence[Measured]] | None = measure
        self._peers: list[ProjectionMetrics] = []
        try:
            from opentelemetry import metrics
        except ImportError:
            self._events = None
            return
        own = metrics.get_meter_provider() if provider is None else provider
        meter = own.get_meter(SCOPE)
        if own not in _by_provider:
            sources = _by_provider[own] = []
            for name, unit, description, field in _GAUGES:
                meter.create_observable_gauge(
                    name, [partial(_observe, sources, field)], unit=unit, description=description
                )
        self._peers = _by_provider[own]
        self._peers.append(self)
        self._events = meter.create_counter(
            "clew.projection.events", unit="{event}", description="Events that it has applied"
        )

    def counted(self, projection: str, events: int) -> None:
        """A projection has applied this many events."""
        if self._events is not None:
            self._events.add(events, {NAME: projection})

    def close(self) -> None:
        """Report nothing more."""
        self._measure = None
        if self in self._peers:
            self._peers.remove(self)

    def measured(self) -> Sequence[Measured]:
        """The current lag of the projections."""
        measure = self._measure
        try:
            return () if measure is None else measure()
        except ClewError:
            return ()


_by_provider: WeakKeyDictionary[MeterProvider, list[ProjectionMetrics]] = WeakKeyDictionary()
"""The metrics that the gauges of each provider read: gauges are created once, and cannot be removed."""


def _observe(sources: Sequence[ProjectionMetrics], field: str, _: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    for metrics in list(sources):
        for each in metrics.measured():
            yield Observation(getattr(each, field), {NAME: each.projection})
