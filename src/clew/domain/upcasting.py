"""Schema versions of events, and how an older one is read: small functions from dict to dict, kept for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Mapping[str, tuple[Upcaster, ...]] = MappingProxyType({})
"""By event type: the n-th function (from 1) turns data of schema version n into version n + 1."""


def schema_version(type_: str, upcasters: Mapping[str, tuple[Upcaster, ...]] = UPCASTERS) -> int:
    """The schema version that is written today."""
    return len(upcasters.get(type_, ())) + 1


def upcast(
    type_: str, version: int, data: dict[str, Any], upcasters: Mapping[str, tuple[Upcaster, ...]] = UPCASTERS
) -> dict[str, Any]:
    """The data as it would be written today."""
    for step in upcasters.get(type_, ())[version - 1 :]:
        data = step(data)
    return data
