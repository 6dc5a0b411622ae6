"""Clients of services that can hold threads: whether the service stores them decides on which kinds they run."""

from __future__ import annotations

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ThreadKind, WireFormat
from clew.domain.runs.errors import AgentConfigurationError

_KINDS: tuple[ThreadKind, ...] = ("local", "remote")


def options_and_kinds(
    wire: WireFormat, options: JsonObject, *, store: bool | None
) -> tuple[JsonObject, tuple[ThreadKind, ...]]:
    """The options of a client, and the kinds of threads that it runs on: both, or that which ``store`` names.

    ``store`` may also be one of the options. Raises AgentConfigurationError if the two contradict each other.
    """
    if store is None and isinstance(options.get("store"), bool):
        store = options["store"] is True
    if store is None:
        return options, _KINDS
    if options.get("store", store) is not store:
        raise AgentConfigurationError(f"options contradicts store={store}. Remove store from options.")
    kind = _KINDS[store]
    others = {name: value for name, value in options.items() if name != "store"}
    return others if wire.options_on is None else wire.options_on(kind, others), (kind,)
