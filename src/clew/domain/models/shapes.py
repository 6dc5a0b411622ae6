"""The types that a reader of answers reads, and what of an answer is of another type."""

from __future__ import annotations

from typing import Any, TypeAlias

from clew.domain.json_patch import escaped
from clew.domain.json_values import Json, JsonObject

Shape: TypeAlias = type | tuple[type, ...] | frozenset[str] | list["Shape"] | dict[str, "Shape"]
"""What a reader expects of a value: a JSON type, one of several types, one of some texts, a list, or an object.

A list has the shape of its members. An object has those of the fields
that are read; its other fields may be anything. A null is of every shape, for it says nothing.
"""


class OddValues:
    """Values of an answer that are not of the shape that its reader reads. They are kept verbatim, each with its path.

    Attribute ``found``: these values, in the order of their arrival.
    """

    def __init__(self) -> None:
        self.found: list[Json] = []
        self._last: dict[str, Json] = {}

    def without(self, value: JsonObject, shape: Shape | None, path: str = "") -> JsonObject:
        """``value`` without what is not of its shape, which is kept. Without a shape, it is ``value`` itself."""
        if shape is None or fits(value, shape):
            return value
        fitting = self._fitting(value, shape, path)
        return fitting if isinstance(fitting, dict) else {}

    def _fitting(self, value: Json, shape: Shape, path: str) -> Json:
        """What fits of a value; None if nothing does."""
        if isinstance(value, dict) and isinstance(shape, dict):
            found: JsonObject = {}
            for name, each in value.items():
                within = shape.get(name)
                if within is None or fits(each, within):
                    found[name] = each
                elif (fitting := self._fitting(each, within, f"{path}/{escaped(name)}")) is not None:
                    found[name] = fitting
            return found
        if isinstance(value, list) and isinstance(shape, list):
            (within,) = shape
            members = (
                each if fits(each, within) else self._fitting(each, within, f"{path}/{number}")
                for number, each in enumerate(value)
            )
            return [each for each in members if each is not None]
        self._keep(path, value)
        return None

    def _keep(self, path: str, value: Json) -> None:
        """Keep a value, unless it repeats the last one at its path, as pieces of a stream do."""
        before = self._last.get(path)
        if type(before) is not type(value) or before != value:
            self._last[path] = value
            self.found.append({"path": path, "value": value})


def fits(value: Any, shape: Any) -> bool:
    """Whether a value is of a shape. It is called for each piece of a stream: see benchmarks/runs.py."""
    if value is None:
        return True
    kind, expected = type(value), type(shape)
    if expected is dict:
        return kind is dict and _fields_fit(value, shape)
    if expected is list:
        return kind is list and all([fits(each, shape[0]) for each in value])  # noqa: C419  # faster than a generator
    if expected is frozenset:
        return kind is str and value in shape
    return kind is shape or (expected is tuple and kind in shape)


def _fields_fit(value: JsonObject, shape: dict[str, Shape]) -> bool:
    for name, each in value.items():
        within = shape.get(name)
        if within is not None and within is not type(each) and not fits(each, within):
            return False
    return True
