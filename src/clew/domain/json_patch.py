"""Differences between JSON values, as the patches of RFC 6902."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject, canonical


def difference(before: Json, after: Json, path: str = "") -> Iterator[JsonObject]:
    """The operations that make ``after`` out of ``before``. ``path`` is the place of both, as an RFC 6901 pointer.

    The order of an object's fields does not matter: those of ``before`` stay in place, new ones come last.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before:
            if name not in after:
                yield {"op": "remove", "path": f"{path}/{escaped(name)}"}
        for name, value in after.items():
            if name in before:
                yield from difference(before[name], value, f"{path}/{escaped(name)}")
            else:
                yield {"op": "add", "path": f"{path}/{escaped(name)}", "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_difference(before, after, path)
    elif not _same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _list_difference(before: Sequence[Json], after: Sequence[Json], path: str) -> Iterator[JsonObject]:
    """Equal items at both ends stay. Those between them change one by one; then items are added or removed."""
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and _same(before[start], after[start]):
        start += 1
    end = 0
    while end < shorter - start and _same(before[-1 - end], after[-1 - end]):
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    for number, (one, other) in enumerate(zip(old, new, strict=False), start=start):
        yield from difference(one, other, f"{path}/{number}")
    for number in range(len(new), len(old)):
        del number
        yield {"op": "remove", "path": f"{path}/{start + len(new)}"}
    for number in range(len(old), len(new)):
        yield {"op": "add", "path": f"{path}/{start + number}", "value": new[number]}


def patched(value: JsonObject, patch: Sequence[JsonObject]) -> JsonObject:
    """The object after the operations ``add``, ``remove`` and ``replace``; what they do not touch is shared.

    Raises InvalidContentError for another operation, and for a path that does not exist.
    """
    result: Any = value
    for operation in patch:
        try:
            result = _changed(result, _place(str(operation["path"])), operation)
        except (LookupError, TypeError, ValueError, AttributeError):
            message = f"patch: {str(operation)[:200]} does not fit the value. Was the patch made for another one?"
            raise InvalidContentError(message) from None
    if not isinstance(result, dict):
        raise InvalidContentError("patch: the result is not a JSON object.")
    return result


def _place(pointer: str) -> list[str]:
    root, *path = pointer.split("/")
    if root:
        raise ValueError(pointer)
    return path


def _changed(value: Any, path: Sequence[str], operation: JsonObject) -> Any:
    """A copy of ``value``, changed at ``path``."""
    if not path:
        if operation["op"] != "replace":
            raise ValueError(operation["op"])
        return operation["value"]
    copied = value.copy()
    is_list = isinstance(copied, list)
    key: Any = int(path[0]) if is_list else path[0].replace("~1", "/").replace("~0", "~")
    if len(path) > 1:
        copied[key] = _changed(copied[key], path[1:], operation)
        return copied
    match operation["op"]:
        case "add" if is_list:
            if not 0 <= key <= len(copied):
                raise IndexError(key)
            copied.insert(key, operation["value"])
        case "add":
            copied[key] = operation["value"]
        case "remove":
            del copied[key]
        case "replace":
            copied[key]  # it must exist
            copied[key] = operation["value"]
        case other:
            raise ValueError(other)
    return copied


def _same(one: Json, other: Json) -> bool:
    """Whether two values have the same JSON: 1, 1.0 and true all differ."""
    return one == other and canonical(one) == canonical(other)


def escaped(name: str) -> str:
    """The name of a field as a part of an RFC 6901 pointer."""
    return name.replace("~", "~0").replace("/", "~1")
