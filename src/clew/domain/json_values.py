"""What user data may be: plain JSON that goes in and comes out equal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from clew.domain.errors import InvalidContentError

if TYPE_CHECKING:
    from pydantic import JsonValue

    Json: TypeAlias = JsonValue
else:
    Json = Any  # checked once, on the way in, by check_json: not again on every read

MAX_DEPTH = 100
"""Levels of lists and objects in one value; parsers give up at about 200."""

MAX_BITS = 14_000
"""Bits of an integer: about 4,200 digits. Python reads and writes no more than 4,300."""

_SHOWN = 80

JsonObject: TypeAlias = dict[str, Json]


def check_json(value: object, where: str) -> None:
    """Raise InvalidContentError, naming the place, unless ``value`` is plain JSON that will come back equal.

    Plain means: None, bool, int, float, str, list, dict with string keys, and no subclass of them; finite numbers;
    text without lone surrogates; at most 100 levels deep.
    """
    _check(value, where, 1)


def check_text(value: str, where: str) -> None:
    """Raise InvalidContentError unless ``value`` can be written as UTF-8."""
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{where}: a lone surrogate at character {error.start} is not valid Unicode."
        raise InvalidContentError(message) from None


def _check(value: object, where: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        check_text(value, where)  # type: ignore[arg-type]  # the exact type was just compared
    elif kind is dict or kind is list:
        if depth > MAX_DEPTH:
            raise InvalidContentError(f"{_short(where)}: nested deeper than {MAX_DEPTH} levels.")
        _check_container(value, where, depth)  # type: ignore[arg-type]
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise InvalidContentError(f"{where}: {value} is not a JSON number. Use null or a string.")
    elif kind is int:
        if value.bit_length() > MAX_BITS:  # type: ignore[attr-defined]
            raise InvalidContentError(f"{where}: an integer of more than 4,200 digits. Use a string.")
    elif value is not None and kind is not bool:
        raise InvalidContentError(
            f"{where}: {kind.__name__} is not JSON. Use str, int, float, bool, None, list or dict."
        )


def _check_container(value: dict[object, object] | list[object], where: str, depth: int) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]", depth + 1)
        return
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidContentError(f"{where}: the key {key!r} is not a string.")
        check_text(key, f"{where}: a key")
        _check(item, f"{where}.{key}", depth + 1)


def _short(where: str) -> str:
    return where if len(where) <= _SHOWN else where[: _SHOWN - 1] + "…"
