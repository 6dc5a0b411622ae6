"""The differences between two contents of a message, or any two JSON values, field by field."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clew.domain.differences.alignment import longest_common_subsequence
from clew.domain.differences.word_diff import DiffPart, Kind, word_diff
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import canonical, check_json
from clew.domain.messages import ApprovalRequest, Content, FunctionCall, FunctionResult, Media

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
            fields: JsonObject = {} if name is None else {"name": name}
            if content.contents:
                return {**fields, "result": [{"type": each.type, **plain(each)} for each in content.contents]}
            return {**fields, "result": parsed(result) if isinstance(result, str) else result}
        case ApprovalRequest(call=call, reason=reason):
            return {"call": plain(call)} if reason is None else {"call": plain(call), "reason": reason}
        case Media() if (data := content.data) is not None:
            head = content.uri[: content.uri.index(",")]
            about = {key: value for key, value in content.model_dump().items() if key != "type"}
            return {**about, "uri": head, "bytes": {"length": len(data), "sha256": sha256(data).hexdigest()}}
        case _:
            return {key: value for key, value in content.model_dump().items() if key not in {"type", "approval_id"}}


def parsed(text: str) -> Json:
    """The object or list that a text contains as unambiguous JSON, otherwise the text itself."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value: Json = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        check_json(value, "")
    except (ValueError, RecursionError, InvalidContentError):
        return text
    return value


def field_diffs(a: Json, b: Json) -> tuple[FieldDiff, ...]:
    """The fields in which two JSON values differ, in order; none if they are equal."""
    return tuple(_diff_values(a, b, ()))


def _diff_values(a: Json, b: Json, path: Path) -> Iterator[FieldDiff]:
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _diff_objects(a, b, path)
    elif isinstance(a, list) and isinstance(b, list):
        yield from _diff_lists(a, b, path)
    elif isinstance(a, str) and isinstance(b, str):
        if a != b:
            yield FieldDiff("changed", path, a, b, word_diff(a, b))
    elif canonical(a) != canonical(b):
        yield FieldDiff("changed", path, a, b)


def _diff_objects(a: JsonObject, b: JsonObject, path: Path) -> Iterator[FieldDiff]:
    """By key, in alphabetical order: the order of keys has no meaning, and differs between models."""
    for key in sorted(a.keys() | b.keys()):
        if key not in b:
            yield FieldDiff("only-a", (*path, key), a[key], None)
        elif key not in a:
            yield FieldDiff("only-b", (*path, key), None, b[key])
        else:
            yield from _diff_values(a[key], b[key], (*path, key))


def _diff_lists(a: list[Any], b: list[Any], path: Path) -> Iterator[FieldDiff]:
    """Equal items are the same at any index; other items are compared at the same index."""
    pairs = longest_common_subsequence([canonical(item) for item in a], [canonical(item) for item in b])
    start = other_start = 0
    for end, other_end in (*pairs, (len(a), len(b))):
        if (start, end) == (other_start, other_end):
            for index in range(start, end):
                yield from _diff_values(a[index], b[index], (*path, index))
        else:
            for index in range(start, end):
                yield FieldDiff("only-a", (*path, index), a[index], None)
            for index in range(other_start, other_end):
                yield FieldDiff("only-b", (*path, index), None, b[index])
        start, other_start = end + 1, other_end + 1


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("A key occurs twice.")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")
