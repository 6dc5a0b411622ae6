"""Reads values from a service's JSON, in which any field may be missing or have another type."""

from __future__ import annotations

from collections.abc import Sequence

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Raw


def as_object(value: Json) -> JsonObject:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Json) -> list[JsonObject]:
    """The objects in ``value``, if it is a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def as_text(value: Json) -> str:
    """``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Json) -> int:
    """``value`` if it counts something, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def joined(pieces: Sequence[str]) -> str:
    """The text of some pieces. A character may be split between two pieces."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def refused(text: str) -> Raw:
    """A model's refusal as a content."""
    return Raw(value={"type": "refusal", "refusal": text})
