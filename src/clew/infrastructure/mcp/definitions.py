"""The definitions of a server's tools: data for the model, with bounded sizes, under names that services accept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clew.domain.json_values import Json, JsonObject, canonical
from clew.domain.models.client import ToolSchema, joined
from clew.domain.streams import digest

MOST_TOOLS = 500
"""Tools of one server."""

MAX_DESCRIPTION = 4_000
"""Characters of a description that the model receives."""

MAX_SCHEMA = 100_000
"""Characters of the JSON of a schema."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_DIGITS = 8
"""Hex digits of a digest: in a name, and, twice as many, in the state."""


def tool_names(names: Sequence[str], prefix: str) -> dict[str, str]:
    """The name for the model of each of a server's tools: with the prefix, and only with allowed characters.

    A name that is too long, or equal to an earlier one, ends with a digest.
    """
    given: dict[str, str] = {}
    for name in names:
        shown = _NOT_IN_NAMES.sub("_", prefix + name)
        if len(shown) > _LONGEST_NAME or not shown or shown in given.values():
            shown = f"{shown[: _LONGEST_NAME - _DIGITS - 1]}_{digest(name.encode()).hex()[:_DIGITS]}"
        given[name] = shown
    return given


def schema_of(name: str, description: str | None, parameters: JsonObject) -> ToolSchema:
    """The definition that the model receives, the same for the same tool in each version of the protocol."""
    text = joined([description or ""])
    if len(text) > MAX_DESCRIPTION:
        text = text[: MAX_DESCRIPTION - 1] + "…"
    ordered = {"type": "object", **_ordered(parameters)}
    return ToolSchema(name=name, description=text, parameters=ordered)


def _ordered(value: Any, *, named: bool = False) -> Any:
    """A schema with its keywords in a fixed order: it depends on the protocol. Properties keep the order they have."""
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    if not isinstance(value, dict):
        return value
    keys = list(value) if named else sorted(value)
    return {key: _ordered(value[key], named=key == "properties" and not named) for key in keys}


def is_too_large(schema: ToolSchema) -> bool:
    """Whether the JSON of a schema is longer than MAX_SCHEMA."""
    return len(canonical(schema.parameters)) > MAX_SCHEMA


def digests_of(schemas: Iterable[ToolSchema]) -> JsonObject:
    """A digest of each definition by its name: a thread remembers them, so that changes are noticed."""
    return {each.name: digest(canonical(each.model_dump()).encode()).hex()[: 2 * _DIGITS] for each in schemas}


def changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """How a list of tools differs from an earlier one, in words with the names of the tools."""
    parts = {
        "changed": [name for name in now if name in before and now[name] != before[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    return [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
