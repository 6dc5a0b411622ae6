"""What the forms of answers have in common: reading a service's JSON, which may lack or add anything."""

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
    """A text that came in pieces, between which a character may have been cut in two."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def refused(text: str) -> Raw:
    """The words with which a model refuses."""
    return Raw(value={"type": "refusal", "refusal": text})
