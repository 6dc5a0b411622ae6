"""What MCP servers answer, as results of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from clew.domain.json_values import Json, JsonObject

_ONLY_RESULT = frozenset({"result"})
"""The field into which servers put a result that is not an object."""


_NOT_FOR_MODELS = {"meta", "annotations", "icons"}


def result_of(answer: Any) -> Json:
    """The result of a call: its structured content, or else its contents.

    A server that sends structured content sends it as text, too, for old clients.
    """
    contents = contents_of(answer.content)
    structured: Json = answer.structured_content
    if structured is None or not all(isinstance(each, str) for each in contents):
        return contents[0] if len(contents) == 1 else contents
    if isinstance(structured, dict) and structured.keys() == _ONLY_RESULT:
        value: Json = structured["result"]
        if _says(contents, value):
            return value
    if _says(contents, structured):
        return structured
    return {"structured": structured, "text": "\n".join(map(str, contents))}


def _says(contents: Sequence[Json], value: Json) -> bool:
    """Whether texts say nothing beyond a value."""
    texts = [each for each in contents if isinstance(each, str)]
    values = [_parsed(each) for each in texts]
    return not texts or value in ("\n".join(texts), texts, values) or values == [value]


def _parsed(text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed


def contents_of(contents: Sequence[Any]) -> list[Json]:
    """Texts as strings, and other contents as objects."""
    return [each.text if each.type == "text" else plain(each) for each in contents]


def plain(value: Any) -> JsonObject:
    """A value of the protocol as JSON, without empty fields and without fields for its clients."""
    dumped: JsonObject = value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_NOT_FOR_MODELS)
    return dumped


def text_of(contents: Sequence[Any]) -> str:
    """The text of an error."""
    return "\n".join(each.text for each in contents if each.type == "text")
