"""User data: plain JSON that is read back exactly as it was written."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from hashlib import sha256
from sys import getsizeof
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from clew.domain.errors import InvalidContentError

if TYPE_CHECKING:
    from pydantic import JsonValue

    Json: TypeAlias = JsonValue
else:
    Json = Any  # check_json checks it once, before it is stored, not on every read

MAX_DEPTH = 100
"""Levels of lists and objects in one value; parsers give up at about 200."""

MAX_BITS = 14_000
"""Bits of an integer: about 4,200 digits. Python reads and writes at most 4,300."""

MAX_DIGITS = 4_200
"""Digits of an integer that a number with an exponent, such as ``1e400``, is read as."""

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of one stored event, including all values in it."""

_LONGEST = 200
"""Longest JSON of a value that is compared as it is, in characters; a longer one is compared by its digest."""

JsonObject: TypeAlias = dict[str, Json]


def bytes_in_memory(value: object) -> int:
    """An estimate of the memory that a JSON value occupies, in bytes."""
    size = getsizeof(value)
    if isinstance(value, dict):
        size += sum([getsizeof(name) + bytes_in_memory(each) for name, each in value.items()])
    elif isinstance(value, list):
        size += sum(map(bytes_in_memory, value))
    return size


def one_line(text: str, most: int) -> str:
    """The text in at most ``most`` printable characters. Names and places may be long and contain any character."""
    line = text if len(text) <= most else text[: most - 1] + "…"
    return line if line.isprintable() else "".join(each if each.isprintable() else "?" for each in line)


def canonical(value: Any) -> str:
    """Equal text for equal JSON: the order of keys does not matter; 1, 1.0 and true all differ."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def comparable(value: Any) -> str:
    """The text that the value of a label is compared by: equal for equal JSON, whatever the order of its fields.

    For a long value it is a digest, so that it fits into an index.
    """
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else sha256(text.encode()).hexdigest()


def check_json(value: object, where: str) -> None:
    """Raise InvalidContentError, which names the place, unless ``value`` is plain JSON that is read back unchanged.

    Plain JSON is: None, bool, int, float, str, list and dict with string keys, but none of their subclasses; finite
    numbers; text without lone surrogates; at most 100 levels.
    """
    try:
        _check(value, 1)
    except _NotJsonError as error:
        place = where + "".join(reversed(error.steps))
        raise InvalidContentError(f"{one_line(place, 80)}: {error}") from None


def storable(value: Json, depth: int = 0) -> Json:
    """A value that a service sent, as it can be stored at ``depth`` levels within an event.

    Infinity, NaN and integers of more than 4,200 digits become null, half a character becomes ``�``, and what is nested
    too deep becomes a text: its JSON.
    """
    try:
        _check(value, depth + 1)
    except _NotJsonError:
        return _repaired(value, depth + 1)
    return value


def _repaired(value: Json, depth: int) -> Json:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else None
        case int():
            return value if value.bit_length() <= MAX_BITS else None
        case dict() | list() if depth > MAX_DEPTH:
            return _repaired(json.dumps(value), depth)
        case dict():
            return {str(_repaired(name, depth)): _repaired(each, depth + 1) for name, each in value.items()}
        case list():
            return [_repaired(each, depth + 1) for each in value]
        case _:
            return value


def parse_json(text: str | bytes) -> Json:
    """JSON of a service. Numbers that are too large for a float become integers, or null like NaN and Infinity.

    Raises ValueError, and RecursionError for JSON that is nested too deep.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return cast("Json", _DECODER.decode(text))


def _number(text: str) -> float | int | None:
    value = float(text)
    if math.isfinite(value):
        return value
    exact = Decimal(text)
    return int(exact) if exact.adjusted() < MAX_DIGITS else None


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=lambda _: None)


def check_count(value: object, name: str) -> None:
    """Raise InvalidContentError unless the argument is None or a whole number, 0 or more."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InvalidContentError(f"{name}={one_line(repr(value), 40)}: give a whole number, 0 or more.")


def check_flags(**flags: object) -> None:
    """Raise InvalidContentError unless each argument is True or False: ``"no"`` would count as true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidContentError(f"{name}={one_line(repr(value), 40)} is not a bool. Give True or False.")


def check_text(value: str, where: str) -> None:
    """Raise InvalidContentError unless ``value`` is a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InvalidContentError(f"{where}: {type(value).__name__} is not a string.")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{where}: a lone surrogate at character {error.start} is not valid Unicode."
        raise InvalidContentError(message) from None


def is_text(value: object) -> bool:
    """Whether ``value`` is a string, but of no subclass, that can be written as UTF-8."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class _NotJsonError(Exception):
    """Why a value is not JSON. The path to it is added while the error rises, innermost step first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.steps: list[str] = []


def _check(value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_unicode(value)
    elif kind is dict or kind is list:
        if depth > MAX_DEPTH:
            raise _NotJsonError(f"nested deeper than {MAX_DEPTH} levels.")
        if kind is dict:
            _check_dict(value, depth)  # keys are checked first
        else:
            _check_list(value, depth)
    elif kind is float or kind is int:
        _check_number(value)
    elif value is not None and kind is not bool:
        raise _NotJsonError(f"{kind.__name__} is not JSON. Use str, int, float, bool, None, list or dict.")


def _check_number(value: float) -> None:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise _NotJsonError("an integer of more than 4,200 digits. Use a string.")
    elif not math.isfinite(value):
        raise _NotJsonError(f"{value} is not a JSON number. Use null or a string.")


def _check_list(value: list[object], depth: int) -> None:
    index = 0
    try:
        for index, item in enumerate(value):  # noqa: B007  # used when the item is refused
            _check(item, depth + 1)
    except _NotJsonError as error:
        error.steps.append(f"[{index}]")
        raise


def _check_dict(value: dict[str, object], depth: int) -> None:
    for key in value:
        if type(key) is not str:
            raise _NotJsonError(f"a key is {type(key).__name__}, not a string.")
    key = ""
    try:
        for key, item in value.items():
            if not key.isascii():
                _check_unicode(key, "the key has ")
            _check(item, depth + 1)
    except _NotJsonError as error:
        error.steps.append(f".{key}")
        raise


def _check_unicode(text: str, what: str = "") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _NotJsonError(f"{what}a lone surrogate at character {error.start} is not valid Unicode.") from None
