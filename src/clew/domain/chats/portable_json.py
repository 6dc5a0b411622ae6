"""JSON that programs in other languages can read and write again without changing it.

Many languages have only one kind of number, the 64-bit float. Any other number is an object, ``{"$number": "…"}``, and
keys that look like that one have one more ``$``. Programs also change the order of properties, and write their names
as their language does: ``ChannelKey`` or ``channelKey`` for ``channelkey``. The schema of a document says which names
are its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from clew.domain.json_values import JsonObject

NUMBER = "$number"

_LARGEST = 2**53 - 1
_FIRST_WITH_EXPONENT, _SMALLEST_WITHOUT = 1e21, 1e-6
"""ECMAScript writes floats from the first with an exponent, and smaller ones than the second."""

_KEYS = re.compile(r"\$+number")
_ESCAPED_KEYS = re.compile(r"\$\$+number")
_INTEGER = re.compile(r"-?\d+")
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def portable(value: Any) -> Any:
    """The same JSON with numbers that every language keeps."""
    match value:
        case dict():
            return {_escaped(name): portable(each) for name, each in value.items()}
        case list() | tuple():
            return [portable(each) for each in value]
        case bool():
            return value
        case int() if abs(value) > _LARGEST:
            return {NUMBER: str(value)}
        case float() if value.is_integer() and abs(value) < _FIRST_WITH_EXPONENT:  # 1.0, which others write as 1
            return {NUMBER: repr(value)}
        case _:
            return value


def original(value: Any) -> Any:
    """The JSON that was made portable. Raises ValueError for a number that is none."""
    match value:
        case {"$number": str(text)} if len(value) == 1:
            return int(text) if _INTEGER.fullmatch(text) else _finite(float(text))
        case dict():
            return {name[1:] if _ESCAPED_KEYS.fullmatch(name) else name: original(each) for name, each in value.items()}
        case list():
            return [original(each) for each in value]
        case _:
            return value


def canonical_form(value: Any) -> str:
    """The text of RFC 8785: equal for equal JSON in every language. Integers beyond 2^53 are written exactly."""
    match value:
        case dict():
            names = sorted(value, key=lambda name: name.encode("utf-16-be"))
            return "{" + ",".join([f"{_text(name)}:{canonical_form(value[name])}" for name in names]) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical_form, value)) + "]"
        case float():
            return _float(value)
        case _:
            return _text(value)


def with_names_of(schema: JsonObject, value: Any) -> Any:
    """The JSON with the names that a schema of pydantic has, whatever their case, and with or without underscores."""
    return _renamed(schema, value, schema)


class Member(NamedTuple):
    """A member of an object or an array in a JSON text: its name, "" in an array, and where its value is."""

    name: str
    start: int
    end: int


def members(text: str, start: int = 0) -> Iterator[Member]:
    """The members of the object or array that begins at ``start`` in valid JSON; none of any other value."""
    start = _after_space(text, start)
    if text[start] not in "{[":
        return
    at = _after_space(text, start + 1)
    while text[at] not in "}]":
        name = ""
        if text[start] == "{":
            name, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield Member(name, at, end)
        at = _after_space(text, end)
        at = _after_space(text, at + 1) if text[at] == "," else at


def folded(name: str) -> str:
    """A name as it is compared."""
    return name.replace("_", "").casefold()


def _escaped(name: str) -> str:
    return f"${name}" if _KEYS.fullmatch(name) else name


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _float(value: float) -> str:
    """A number as ECMAScript writes it."""
    if value.is_integer() and abs(value) < _FIRST_WITH_EXPONENT:
        return str(int(value))
    if _SMALLEST_WITHOUT <= abs(value) < _FIRST_WITH_EXPONENT:
        return format(Decimal(repr(value)), "f")
    return re.sub(r"e([+-])0*", r"e\1", repr(value))


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _renamed(schema: Any, value: Any, root: JsonObject) -> Any:
    schema = _resolved(schema, root)
    if isinstance(value, list):
        return [_renamed(schema.get("items", {}), each, root) for each in value]
    if not isinstance(value, dict):
        return value
    options = schema.get("oneOf") or schema.get("anyOf") or [schema]
    own: JsonObject = next((each for each in (_resolved(one, root) for one in options) if _may_be(each, value)), {})
    properties: Any = own.get("properties")
    if properties is None:
        return value
    names = {folded(name): name for name in properties}
    renamed = {names.get(folded(name), name): each for name, each in value.items()}
    return {name: _renamed(properties.get(name, {}), each, root) for name, each in renamed.items()}


def _resolved(schema: Any, root: Any) -> Any:
    return root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _may_be(schema: Any, value: JsonObject) -> bool:
    """Whether an object has all properties that the schema declares constant, such as its ``type``."""
    given = {folded(name): each for name, each in value.items()}
    constants = {name: each["const"] for name, each in schema.get("properties", {}).items() if "const" in each}
    return "properties" in schema and all(given.get(folded(name)) == each for name, each in constants.items())
