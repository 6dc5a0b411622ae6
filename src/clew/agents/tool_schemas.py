"""What the signature and the docstring of a function tell a model, and how a model's arguments are read by them."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticErrorMixin
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, to_json

from clew.agents.docstrings import read_docstring
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import JsonObject, check_json
from clew.domain.run_errors import InvalidToolError

_SHOWN = 80
"""Characters of a wrong argument that are shown to the model that wrote it."""


class InvalidArgumentsError(Exception):
    """Arguments that do not fit a tool. Its text is for the model, which wrote them."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A function as a model may call it.

    ``parameters`` is the JSON schema of the arguments; ``context`` the name of the parameter that takes the context,
    if there is one; ``unbound`` says that the function is a method that has no object yet.
    """

    description: str
    parameters: JsonObject
    context: str | None
    unbound: bool
    _model: type[BaseModel]
    _takes: tuple[inspect.Parameter, ...]

    def read(self, name: str, text: str) -> dict[str, Any]:
        """The arguments by parameter, of the parameters' types. Raises InvalidArgumentsError.

        What the text leaves out is left out here as well: the function has its own defaults. No text is no arguments.
        """
        try:
            given = self._model.model_validate_json(text.strip() or "{}")
        except ValidationError as error:
            raise InvalidArgumentsError(_told(name, error)) from None
        except (ValueError, RecursionError) as error:  # a lone surrogate in the text, or a validator of the user's
            message = f"Error: the arguments for {name} cannot be read: {error}. Write one JSON object."
            raise InvalidArgumentsError(message) from None
        fields = zip(self._takes, type(given).model_fields, strict=True)
        return {
            parameter.name: getattr(given, field)
            for parameter, field in fields
            if field in given.model_fields_set or _has_no_default_of_its_own(parameter)
        }


def read_signature(function: Callable[..., Any], name: str, context_type: type) -> Signature:
    """Read what a model is to know of ``function``. Raises InvalidToolError for one that a model cannot call.

    A parameter that is annotated with ``context_type`` is not the model's. A partial's keywords are not either.
    """
    described, documented = read_docstring(_docstring(function))
    takes, unbound = _parameters(function, name)
    hints = _hints(function, name, takes, context_type)
    contexts = [each.name for each in takes if hints[each.name] is context_type]
    if len(contexts) > 1:
        raise InvalidToolError(f"Tool {name!r}: {' and '.join(contexts)} both take the context. Keep one of them.")
    takes = [each for each in takes if each.name not in contexts]
    try:
        # Named by number, for a parameter may be called as pydantic's own methods are; its alias is its name.
        fields = {f"p{at}": _field(each, hints[each.name], documented) for at, each in enumerate(takes)}
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload]
        parameters = plain_schema(name, model.model_json_schema(schema_generator=_Generator))
    except (PydanticErrorMixin, TypeError, ValueError) as error:
        said = error.message if isinstance(error, PydanticErrorMixin) else str(error)
        message = f"Tool {name!r}: pydantic cannot make a schema of its parameters. {said}"
        raise InvalidToolError(message) from error
    parameters.pop("title", None)
    parameters.pop("description", None)
    return Signature(described, parameters, contexts[0] if contexts else None, unbound, model, tuple(takes))


def plain_schema(name: str, schema: Any) -> JsonObject:
    """A JSON schema as plain JSON, and a copy of it. Raises InvalidToolError."""
    try:
        plain: JsonObject = json.loads(json.dumps(schema))
        check_json(plain, "schema")
    except (TypeError, ValueError, RecursionError, InvalidContentError) as error:
        raise InvalidToolError(f"Tool {name!r}: its schema is not JSON. {error}") from error
    if not isinstance(plain, dict) or plain.get("type") != "object":
        raise InvalidToolError(f"Tool {name!r}: its schema is not that of an object: {{'type': 'object', …}}.")
    return plain


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that holds the code: beneath partials, decorators, methods and objects that are called."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif (inside := inspect.unwrap(function)) is not function:
            function = inside
        elif inspect.isroutine(function) or isinstance(function, type):
            return function
        else:
            function = type(function).__call__


class _Generator(GenerateJsonSchema):
    """Without titles made from names, which tell a model nothing; sets in one order, so that a digest is stable."""

    ignored_warning_kinds: typing.ClassVar[set[JsonSchemaWarningKind]] = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002, PLR6301  # pydantic asks so
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        return sorted(encoded, key=to_json) if isinstance(dft, set | frozenset) else encoded


def _docstring(function: Callable[..., Any]) -> str | None:
    inside = innermost(function)
    if inside.__name__ == "__call__" and not inside.__doc__:
        return type(function).__doc__
    return inside.__doc__


def _parameters(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], bool]:
    """Those that somebody must give, and whether the function still lacks its object."""
    try:
        takes = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidToolError(f"Tool {name!r}: its signature cannot be read. Wrap it in a function.") from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    takes = [each for each in takes if each.name not in bound]
    unbound = bool(takes) and takes[0].name == "self" and takes[0].annotation is inspect.Parameter.empty
    for parameter in takes[unbound:]:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise InvalidToolError(
                f"Tool {name!r}: a model cannot be told what {parameter} takes. Name the parameters one by one, or "
                "give schema=… to a function that takes keywords."
            )
        if parameter.annotation is parameter.empty:
            raise InvalidToolError(
                f"Tool {name!r}: the parameter {parameter.name!r} has no type. Annotate it: {parameter.name}: str."
            )
    return takes[unbound:], unbound


def _hints(
    function: Callable[..., Any], name: str, takes: list[inspect.Parameter], context_type: type
) -> dict[str, Any]:
    """The parameters' types, also of annotations that are text. What the function returns is not looked at."""
    inside = innermost(function)
    globals_ = {context_type.__name__: context_type, **getattr(inside, "__globals__", {})}
    annotated = types.SimpleNamespace(__annotations__={each.name: each.annotation for each in takes})
    try:
        return typing.get_type_hints(annotated, globals_, _names_around(inside), include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidToolError(
            f"Tool {name!r}: the types of its parameters cannot be resolved: {error}. Import or define them where the "
            "function is defined, above it and not only for type checkers."
        ) from error


def _names_around(inside: Callable[..., Any]) -> dict[str, Any]:
    """The names of the functions that ``inside`` was defined in: of those that run still, and what it closes over."""
    parts = inside.__qualname__.split(".<locals>.")[:-1]
    around = {".<locals>.".join(parts[:many]) for many in range(1, len(parts) + 1)}
    found: list[dict[str, Any]] = []
    frame = sys._getframe() if around else None  # noqa: SLF001  # there is no other way to names of functions that run
    while frame is not None:
        if frame.f_code.co_qualname in around and frame.f_globals is getattr(inside, "__globals__", None):
            found.append(frame.f_locals)
        frame = frame.f_back
    closed = inspect.getclosurevars(inside).nonlocals if inspect.isfunction(inside) else {}
    return {name: value for names in reversed(found) for name, value in names.items()} | dict(closed)


def _field(parameter: inspect.Parameter, hint: Any, documented: dict[str, str]) -> tuple[Any, FieldInfo]:
    name, default = parameter.name, parameter.default
    if isinstance(default, FieldInfo):  # pydantic's own style: order: int = Field(ge=1)
        own, hint = default, typing.Annotated[hint, default]
        default = own.default if own.default_factory is None else parameter.empty
    else:
        own = FieldInfo.from_annotation(hint)
    description = own.description or documented.get(name)
    given: dict[str, Any] = {"alias": name, "validation_alias": name, "description": description}
    if isinstance(parameter.default, FieldInfo) and own.default_factory is not None:
        given["default_factory"] = own.default_factory
    elif default is not parameter.empty:
        given["default"] = default
    return hint, Field(**given)


def _has_no_default_of_its_own(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty or isinstance(parameter.default, FieldInfo)


def _told(name: str, error: ValidationError) -> str:
    """What is wrong with the arguments, a line each."""
    found = error.errors(include_url=False, include_context=False)
    lines = [f"Error: the arguments for {name} do not fit.", *map(_told_one, found)]
    return "\n".join([*lines, "Call it again with arguments that fit its schema."])


def _told_one(error: ErrorDetails) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "arguments"
    if error["type"] == "missing":
        return f"- {where}: it is missing."
    if error["type"] == "extra_forbidden":
        return f"- {where}: there is no such parameter."
    if error["type"] == "model_type":
        return "- arguments: they must be one JSON object."
    given = to_json(error["input"], fallback=str, inf_nan_mode="constants").decode("utf-8", "replace")
    shown = given if len(given) <= _SHOWN else given[: _SHOWN - 1] + "…"
    return f"- {where}: {error['msg']} (given: {shown})."
