"""The formats that an answer can be asked for: types as pydantic reads them, and JSON Schemas."""

from __future__ import annotations

import json
import re
import sys
from functools import lru_cache
from typing import Any, NamedTuple, NotRequired, Required, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import explain
from clew.domain.models.client import ResponseFormat
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError

_WRAPPED = "value"
"""The field that holds an answer that is not an object: services answer only with objects."""

_WANTED = "Give a pydantic model, a dataclass, a TypedDict, a type such as list[Model], or a JSON Schema as a dict."


_TOO_GENERAL = frozenset({bool, bytes, dict, float, int, list, object, set, str, tuple})


class _AnswerType(NamedTuple):
    """How to ask for an answer, and how to read it. Without an adapter it is JSON as it came."""

    format: ResponseFormat
    adapter: TypeAdapter[Any] | None
    is_wrapped: bool


def response_format_of(wanted: Any) -> ResponseFormat | None:
    """The JSON Schema of a type as services take it, None for None. Raises AgentConfigurationError for anything else.

    A dict is a JSON Schema, and is sent as it is.
    """
    return None if wanted is None else _answer_type(wanted).format


def answer_value(wanted: Any, text: str) -> Any:
    """The answer as an object of the type; of a JSON Schema, the JSON. Raises AnswerFormatError if it is not one."""
    format_, adapter, is_wrapped = _answer_type(wanted)
    try:
        if adapter is not None and not is_wrapped:
            return adapter.validate_json(text)
        value = json.loads(text)
        if is_wrapped:
            value = value[_WRAPPED]
        # Read as JSON again: a strict type accepts a date as text in JSON, but not in Python.
        return value if adapter is None else adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        problem = explain(format_.name, error)
    except (ValueError, LookupError, TypeError, RecursionError):
        problem = f"{format_.name}: it is not JSON of this format."
    message = f"The answer is not what was asked for: {problem} The text of the answer is on the error."
    raise AnswerFormatError(message, text)


def _answer_type(wanted: Any) -> _AnswerType:
    if isinstance(wanted, dict):
        return _of_schema(wanted)
    try:
        return _of_type(wanted)
    except TypeError:  # a type that has no hash
        return _of_type.__wrapped__(wanted)


def _of_schema(schema: JsonObject) -> _AnswerType:
    try:
        check_json(schema, "response_format")
    except InvalidContentError as error:
        raise AgentConfigurationError(str(error)) from None
    is_wrapped = schema.get("type") != "object"
    return _AnswerType(ResponseFormat(name=_name(schema.get("title")), json_schema=_object(schema)), None, is_wrapped)


@lru_cache(maxsize=128)
def _of_type(wanted: Any) -> _AnswerType:
    is_type = isinstance(wanted, type) or hasattr(wanted, "__origin__") or hasattr(wanted, "__args__")
    if not is_type or wanted in _TOO_GENERAL:
        raise AgentConfigurationError(f"response_format: {wanted!r} is not a format. {_WANTED}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_readable(wanted))
        schema = adapter.json_schema()
    except PydanticUserError as error:
        raise AgentConfigurationError(f"response_format: {wanted!r} has no JSON Schema. {_WANTED}") from error
    closed = cast("JsonObject", _closed(schema))
    is_model = isinstance(wanted, type) and issubclass(wanted, BaseModel)
    is_wrapped = not is_model and closed.get("type") != "object"
    sent = cast("JsonObject", _closed(_object(closed))) if is_wrapped else closed
    return _AnswerType(
        ResponseFormat(name=_name(getattr(wanted, "__name__", None)), json_schema=sent), adapter, is_wrapped
    )


def _readable(wanted: Any) -> Any:
    """The type, with each TypedDict of ``typing`` as one of ``typing_extensions``: pydantic needs it on Python 3.11."""
    if is_typeddict(wanted) and sys.version_info < (3, 12):
        fields = {
            # A mark that was written as text is not counted in the optional keys.
            name: NotRequired[_readable(hint)]
            if get_origin(hint) is not Required and name in wanted.__optional_keys__
            else _readable(hint)
            for name, hint in get_type_hints(wanted, include_extras=True).items()
        }
        return TypedDict(wanted.__name__, fields)  # type: ignore[operator]  # made at run time
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in {NotRequired, Required}:
        return _readable(arguments[0])
    if origin in {dict, frozenset, list, set, tuple}:
        return origin[tuple(map(_readable, arguments))]
    return wanted


def _object(schema: JsonObject) -> JsonObject:
    """The schema of an object: itself, or that of an object whose only field it describes."""
    if schema.get("type") == "object":
        return schema
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED], **definitions}


def _name(name: object) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] if isinstance(name, str) and name else "answer"


def _closed(schema: Json) -> Json:
    """The schema with all properties of each object required, and no others allowed.

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
