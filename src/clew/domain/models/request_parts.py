"""Parts that all request formats share: unique call ids, names, results as text, descriptions of media."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import FunctionCall, Media
from clew.domain.models.client import Question

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_EXTENSIONS = {"application/pdf": "pdf", "text/plain": "txt", "text/markdown": "md", "text/csv": "csv"}


def is_name(text: str) -> bool:
    """Whether services accept ``text`` as the name of a function or an author."""
    return _NAME.fullmatch(text) is not None


def function_name(call: FunctionCall, question: Question) -> str:
    """The name of a called function. In a name that the model made up, characters that services refuse become ``_``."""
    if is_name(call.name) or any(tool.name == call.name for tool in question.tools):
        return call.name
    return _NOT_IN_NAMES.sub("_", call.name)[:64] or "unnamed"


def arguments_text(call: FunctionCall) -> str:
    """The arguments as the model wrote them, ``{}`` for empty ones: some services refuse an empty text."""
    return call.arguments or "{}"


def unique_ids(calls: Sequence[FunctionCall], used: set[str]) -> list[str]:
    """An id for each call: its own, unless that is missing or in ``used``. Adds the ids to ``used``."""
    wanted = {call.call_id for call in calls}
    ids = []
    for call in calls:
        id_, number = call.call_id, 1
        while not id_ or id_ in used or (number > 1 and id_ in wanted):
            number += 1
            id_ = f"{call.call_id or 'call'}-{number}"
        used.add(id_)
        ids.append(id_)
    return ids


def result_text(result: Json) -> str:
    """A function's result as text; any other value as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def media_type(media: Media) -> str:
    """The media type, from the media itself or from its ``data:`` URI; empty if neither has one."""
    if media.media_type:
        return media.media_type
    if media.uri.startswith("data:"):
        return media.uri[5:].partition(",")[0].partition(";")[0]
    return ""


def is_picture(media: Media) -> bool:
    """Whether media is a picture that a service can load. A URL without a media type counts as a picture."""
    if media.uri.startswith(("https://", "http://")):
        return media_type(media).startswith("image/") or not media_type(media)
    return media_type(media).startswith("image/") and inline_base64(media) is not None


def inline_base64(media: Media) -> str | None:
    """The data of a ``data:`` URI in base64, None for anything else."""
    head, comma, data = media.uri.partition(",")
    return data if comma and head.startswith("data:") and head.endswith(";base64") else None


def media_words(media: Media) -> str:
    """A description of media for a service that accepts only text: the type and the address, never the data."""
    kind = media_type(media) or "media"
    return f"[{kind}, not shown here]" if media.uri.startswith("data:") else f"[{kind}: {media.uri}]"


def file_name(media: Media) -> str:
    """A name for a file without a name."""
    return f"file.{_EXTENSIONS.get(media_type(media), 'bin')}"


def with_options(body: JsonObject, options: JsonObject | None) -> JsonObject:
    """The body with the provider's options. Tools in the options come after the functions."""
    if not options:
        return body
    merged = {**body, **options}
    ours, theirs = body.get("tools"), options.get("tools")
    if isinstance(ours, list) and isinstance(theirs, list):
        merged["tools"] = [*ours, *theirs]
    return merged


def is_strict(schema: Json) -> bool:
    """Whether services can enforce a JSON schema: objects are closed, and every property is required."""
    if isinstance(schema, list):
        return all(is_strict(each) for each in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list) or any(name not in required for name in properties):
            return False
        return all(map(is_strict, [*properties.values(), schema.get("$defs", {})]))
    return all(is_strict(value) for value in schema.values())
