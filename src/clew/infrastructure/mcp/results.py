"""What MCP servers answer, as results of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Media

_ONLY_RESULT = frozenset({"result"})
"""The field into which servers put a result that is not an object."""

_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}", re.ASCII)
_NOT_FOR_MODELS = {"meta", "annotations", "icons"}


def result_of(answer: Any) -> Any:
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


def _says(contents: Sequence[Any], value: Json) -> bool:
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


def contents_of(contents: Sequence[Any]) -> list[Any]:
    """Texts as strings, images, audio and files as media, and links as objects."""
    return [_content_of(each) for each in contents]


def _content_of(content: Any) -> str | Media | JsonObject:
    if content.type == "text":
        text: str = content.text
        return text
    if content.type in {"image", "audio"}:
        return _media(content.mime_type, content.data)
    return resource_of(content.resource) if content.type == "resource" else plain(content)


def resource_of(resource: Any) -> str | Media | JsonObject:
    """The contents of a resource."""
    text, data = getattr(resource, "text", None), getattr(resource, "blob", None)
    if isinstance(text, str):
        return text
    return _media(resource.mime_type, data) if isinstance(data, str) else plain(resource)


def _media(media_type: str | None, data: str) -> Media:
    """Media from the base64 of its bytes."""
    kind = media_type if media_type is not None and _MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
    return Media(uri=f"data:{kind};base64,{data}", media_type=kind)


def plain(value: Any) -> JsonObject:
    """A value of the protocol as JSON, without empty fields and without fields for its clients."""
    dumped: JsonObject = value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_NOT_FOR_MODELS)
    return dumped


def text_of(contents: Sequence[Any]) -> str:
    """The text of an error."""
    return "\n".join(each.text for each in contents if each.type == "text")
