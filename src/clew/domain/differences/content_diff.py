"""The differences between two contents of a message, or any two JSON values, field by field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clew.domain.differences.alignment import longest_common
from clew.domain.differences.word_diff import DiffPart, Kind, word_diff
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import check_json
from clew.domain.messages import ApprovalRequest, Content, FunctionCall, FunctionResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clew.domain.json_values import Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]
"""The keys of objects and the list indexes, from 0, that lead to a field."""


class FieldDiff(NamedTuple):
    """A field that differs: it is ``changed``, or exists on one side only and is None on the other.

    ``parts`` are the words of a text that changed.
    """

    kind: Kind
    path: Path
    a: Json
    b: Json
    parts: tuple[DiffPart, ...] = ()


def plain(content: Content) -> JsonObject:
    """The compared part of a content, as JSON.

    Ids that pair calls with results and requests with answers are left out: they differ in every run.
    Arguments and results that are JSON text are compared as JSON.
    """
    match content:
        case FunctionCall(name=name, arguments=arguments):
            return {"name": name, "arguments": parsed(arguments)}
        case FunctionResult(name=name, result=result):
            named: JsonObject = {} if name is None else {"name": name}
            return {**named, "result": parsed(result) if isinstance(result, str) else result}
        case ApprovalRequest(call=call, reason=reason):
            return {"call": plain(call)} if reason is None else {"call": plain(call), "reason": reason}
        case _:
            return {key: value for key, value in content.model_dump().items() if key not in {"type", "approval_id"}}


def parsed(text: str) -> Json:
    """The object or list that a text contains as unambiguous JSON, otherwise the text itself."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse)
        check_json(value, "")
    except (ValueError, RecursionError, InvalidContentError):
        return text
    return value  # type: ignore[no-any-return]  # it was just checked


def canonical(value: Any) -> str:
    """Equal text for equal JSON: the order of keys does not matter; 1, 1.0 and true all differ."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def field_diffs(a: Json, b: Json, path: Path = ()) -> tuple[FieldDiff, ...]:
    """The fields in which two JSON values differ, in order; none if they are equal."""
    return tuple(_differing(a, b, path))


def _differing(a: Json, b: Json, path: Path) -> Iterator[FieldDiff]:
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _in_objects(a, b, path)
    elif isinstance(a, list) and isinstance(b, list):
        yield from _in_lists(a, b, path)
    elif isinstance(a, str) and isinstance(b, str):
        if a != b:
            yield FieldDiff("changed", path, a, b, word_diff(a, b))
    elif canonical(a) != canonical(b):
        yield FieldDiff("changed", path, a, b)


def _in_objects(a: JsonObject, b: JsonObject, path: Path) -> Iterator[FieldDiff]:
    """By key, in alphabetical order: the order of keys has no meaning, and differs between models."""
    for key in sorted(a.keys() | b.keys()):
        if key not in b:
            yield FieldDiff("only-a", (*path, key), a[key], None)
        elif key not in a:
            yield FieldDiff("only-b", (*path, key), None, b[key])
        else:
            yield from _differing(a[key], b[key], (*path, key))


def _in_lists(a: list[Any], b: list[Any], path: Path) -> Iterator[FieldDiff]:
    """Equal items are the same at any index; other items are compared at the same index."""
    pairs = longest_common([canonical(item) for item in a], [canonical(item) for item in b])
    here = there = 0
    for upto, other_upto in (*pairs, (len(a), len(b))):
        if here == there and upto == other_upto:
            for place in range(here, upto):
                yield from _differing(a[place], b[place], (*path, place))
        else:
            for place in range(here, upto):
                yield FieldDiff("only-a", (*path, place), a[place], None)
            for place in range(there, other_upto):
                yield FieldDiff("only-b", (*path, place), None, b[place])
        here, there = upto + 1, other_upto + 1


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("A key occurs twice.")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")
