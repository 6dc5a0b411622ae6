"""The format that answers are asked for in, from a pydantic model."""

from __future__ import annotations

import re
from typing import cast

from pydantic import BaseModel

from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import ResponseFormat
from clew.domain.runs.errors import AgentConfigurationError


def response_format_of(model: type[BaseModel] | None) -> ResponseFormat | None:
    """The JSON schema of a pydantic model as services take it. Raises AgentConfigurationError for what is none."""
    if model is None:
        return None
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise AgentConfigurationError(f"response_format: {model!r} is no pydantic model. Give a class of yours.")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", model.__name__)[:64]
    return ResponseFormat(name=name, json_schema=cast("JsonObject", _closed(model.model_json_schema())))


def _closed(schema: Json) -> Json:
    """The schema with every object saying that it has its properties, all of them, and no others.

    Services answer strictly only to such schemas (OpenAI's structured outputs).
    """
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    properties = closed.get("properties")
    if closed.get("type") == "object" and isinstance(properties, dict):
        closed["additionalProperties"] = False
        closed["required"] = list(properties)
    return closed
