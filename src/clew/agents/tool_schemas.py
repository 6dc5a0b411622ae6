"""The schema of a tool, from the signature and the docstring of its function, and the parsing of its arguments."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, to_json

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import JsonObject, check_json
from clew.domain.runs.errors import InvalidToolError

_QUOTED = 80
"""Characters of a wrong argument that are quoted to the model that wrote it."""

_NOT_FOR_MODELS = frozenset({"todo", "see-also", "references"})
"""Sections of a docstring that are left out of a tool's description, as are results and errors."""

_ANY_OBJECT = TypeAdapter(dict[str, Any])


class InvalidArgumentsError(Exception):
    """Arguments that do not fit a tool. The text is for the model that wrote them."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A function as a model may call it.

    ``parameters`` is the JSON schema of the arguments; ``context`` the name of the parameter that takes the context,
    if there is one; ``positional`` are the names of positional-only parameters; ``unbound`` says that the function is a
    method without its object.
    """

    description: str
    parameters: JsonObject
    context: str | None
    positional: tuple[str, ...]
    unbound: bool
    read: Callable[[str], dict[str, Any]]
    """Parses the JSON that a model wrote into arguments by parameter. Raises InvalidArgumentsError."""


def read_signature(
    function: Callable[..., Any], name: str, context_type: type, schema: JsonObject | None = None
) -> Signature:
    """Read how a model calls ``function``. Raises InvalidToolError for a function that a model cannot call.

    Parameters annotated with ``context_type`` and keywords of a partial are not the model's. With a ``schema``, that
    defines the parameters, and arguments are passed on as the model wrote them.
    """
    description, documented = read_docstring(_docstring(function))
    takes, unbound = _parameters(function, name)
    hints = _hints(function, name, takes, context_type)
    contexts = [each for each, hint in hints.items() if hint is context_type or context_type in typing.get_args(hint)]
    if len(contexts) > 1:
        raise InvalidToolError(f"Tool {name!r}: {' and '.join(contexts)} both take the context. Keep one of them.")
    read: Callable[[str], dict[str, Any]]
    if schema is None:
        own = [each for each in takes if each.name not in contexts]
        model = _model(name, own, hints, documented)
        read, parameters = functools.partial(_validated, name, own, model), _schema(name, model)
    else:
        read = functools.partial(_passed_on, name, [*takes], contexts)
        parameters = plain_schema(name, schema)
    positional = tuple(each.name for each in takes if each.kind is each.POSITIONAL_ONLY)
    return Signature(description, parameters, contexts[0] if contexts else None, positional, unbound, read)


def _model(
    name: str, takes: list[inspect.Parameter], hints: dict[str, Any], documented: dict[str, str]
) -> type[BaseModel]:
    for parameter in takes:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise InvalidToolError(
                f"Tool {name!r}: a model cannot be told what {stars}{parameter.name} takes. Name the parameters one by "
                "one, or give schema=… to a function that takes keywords."
            )
        if parameter.name not in hints:
            raise InvalidToolError(
                f"Tool {name!r}: the parameter {parameter.name!r} has no type. Annotate it: {parameter.name}: str."
            )
    try:
        # Fields have numbers as names: a parameter may have the name of a pydantic method. Its alias is its name.
        fields: dict[str, Any] = {f"p{at}": _field(each, hints[each.name], documented) for at, each in enumerate(takes)}
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise _no_schema(name, error) from error


def _schema(name: str, model: type[BaseModel]) -> JsonObject:
    try:
        schema = model.model_json_schema(schema_generator=_Generator)
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise _no_schema(name, error) from error
    parameters = plain_schema(name, schema)
    parameters.pop("title", None)
    return parameters


def _no_schema(name: str, error: Exception) -> InvalidToolError:
    reason = error.message if isinstance(error, PydanticUserError) else str(error)
    reason = reason.partition("\n")[0].partition(" Set `")[0]  # the rest is advice for those who write pydantic models
    return InvalidToolError(f"Tool {name!r}: pydantic cannot make a schema of its parameters. {reason}")


def _validated(name: str, takes: list[inspect.Parameter], model: type[BaseModel], text: str) -> dict[str, Any]:
    """The validated arguments. Those that the text does not have are left out: the function has its own defaults."""
    arguments = _parsed(name, model.model_validate_json, text)
    return {
        parameter.name: getattr(arguments, field)
        for parameter, field in zip(takes, model.model_fields, strict=True)
        if field in arguments.model_fields_set
        or parameter.default is parameter.empty
        or isinstance(parameter.default, FieldInfo)
        or parameter.kind is parameter.POSITIONAL_ONLY  # later ones are positional, too
    }


def _passed_on(name: str, takes: list[inspect.Parameter], contexts: list[str], text: str) -> dict[str, Any]:
    arguments = read_object(name, text)
    try:
        inspect.Signature(takes).bind(**arguments, **dict.fromkeys(contexts))
    except TypeError as error:
        raise InvalidArgumentsError(f"Error: the arguments for {name} do not fit: {error}.") from None
    return arguments


def read_object(name: str, text: str) -> JsonObject:
    """The JSON object that a model wrote, unchecked. Raises InvalidArgumentsError."""
    arguments: JsonObject = _parsed(name, _ANY_OBJECT.validate_json, text)
    return arguments


def _parsed(name: str, parse: Callable[[str], Any], text: str) -> Any:
    """Parse arguments; an empty text means none, as some models write it."""
    try:
        return parse(text if text.strip() else "{}")
    except ValidationError as error:
        raise InvalidArgumentsError(_explain(name, error)) from None
    except Exception as error:  # noqa: BLE001  # an application's validator may raise anything
        message = f"Error: the arguments for {name} cannot be read: {type(error).__name__}: {error}"
        raise InvalidArgumentsError(message) from None


def plain_schema(name: str, schema: Any) -> JsonObject:
    """A copy of a JSON schema, checked. Raises InvalidToolError."""
    try:
        plain: JsonObject = json.loads(json.dumps(schema))
        check_json(plain, "schema")
    except (TypeError, ValueError, RecursionError, InvalidContentError) as error:
        raise InvalidToolError(f"Tool {name!r}: its schema is not JSON. {error}") from error
    if not isinstance(plain, dict) or plain.get("type") != "object":
        raise InvalidToolError(f"Tool {name!r}: its schema is not that of an object: {{'type': 'object', …}}.")
    return plain


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without partials, decorators, bound methods and callable objects around it."""
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
    """Without titles made from names, which help no model; sets in a fixed order, so that the digest is stable."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  # so it is declared there, and only read
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's signature
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        return sorted(encoded, key=to_json) if isinstance(dft, set | frozenset) else encoded


def read_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The description of a function, and the descriptions of its parameters by name, each on one line.

    Docstrings are in Google's, NumPy's or Sphinx' style. The description is everything but parameters, results, errors
    and notes for maintainers.
    """
    text = inspect.cleandoc(docstring or "").strip()
    if "\n" not in text:
        return text, {}
    from griffe import Docstring, DocstringSectionKind, Parser, infer_docstring_style

    parsed = Docstring(f"\n{text}")  # a first line that begins a section must follow another line
    style = infer_docstring_style(parsed)[0] or Parser.google
    description: list[str] = []
    documented: dict[str, str] = {}
    for section in parsed.parse(style, warnings=False):
        match section.kind:
            case DocstringSectionKind.parameters | DocstringSectionKind.other_parameters:
                documented |= {each.name.lstrip("*"): " ".join(each.description.split()) for each in section.value}
            case DocstringSectionKind.text:
                description.append(section.value)
            case DocstringSectionKind.examples:
                lines = "\n".join(example for _, example in section.value)
                description.append(f"{section.title or 'Examples'}:\n{textwrap.indent(lines, '    ')}")
            case DocstringSectionKind.admonition if section.value.kind not in _NOT_FOR_MODELS:
                description.append(f"{section.title}:\n{textwrap.indent(section.value.contents, '    ')}")
            case _:
                pass
    return "\n\n".join(description).strip(), {name: words for name, words in documented.items() if words}


def _docstring(function: Callable[..., Any]) -> str | None:
    inside = innermost(function)
    if inside.__name__ == "__call__" and not inside.__doc__:
        return type(function).__doc__
    return inside.__doc__


def _parameters(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], bool]:
    """The parameters to give, and whether the function is a method without its object."""
    try:
        takes = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidToolError(f"Tool {name!r}: its signature cannot be read. Wrap it in a function.") from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    takes = [each for each in takes if each.name not in bound]
    unbound = bool(takes) and takes[0].name == "self" and takes[0].annotation is inspect.Parameter.empty
    return takes[unbound:], unbound


def _hints(
    function: Callable[..., Any], name: str, takes: list[inspect.Parameter], context_type: type
) -> dict[str, Any]:
    """The types of the parameters, also from annotations that are text. The return type is ignored."""
    inside = innermost(function)
    globals_ = {context_type.__name__: context_type, **getattr(inside, "__globals__", {})}
    annotated = types.SimpleNamespace(
        __annotations__={each.name: each.annotation for each in takes if each.annotation is not each.empty}
    )
    try:
        return typing.get_type_hints(annotated, globals_, _names_around(inside), include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidToolError(
            f"Tool {name!r}: the types of its parameters cannot be resolved: {error}. Import or define them where the "
            "function is defined, above it and not only for type checkers."
        ) from error


def _names_around(inside: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the functions that ``inside`` was defined in: of running ones, and those it closes over."""
    parts = inside.__qualname__.split(".<locals>.")[:-1]
    around = {".<locals>.".join(parts[:many]) for many in range(1, len(parts) + 1)}
    namespaces: list[dict[str, Any]] = []
    frame = sys._getframe() if around else None  # noqa: SLF001  # the only way to the names of running functions
    while frame is not None:
        if frame.f_code.co_qualname in around and frame.f_globals is getattr(inside, "__globals__", None):
            namespaces.append(frame.f_locals)
        frame = frame.f_back
    if inspect.isfunction(inside):
        closed = zip(inside.__code__.co_freevars, inside.__closure__ or (), strict=True)
        # The cell of a name that is defined later, such as the tool itself, is still empty.
        namespaces.insert(0, {name: cell.cell_contents for name, cell in closed if cell != types.CellType()})
    return {name: value for names in reversed(namespaces) for name, value in names.items()}


def _field(parameter: inspect.Parameter, hint: Any, documented: dict[str, str]) -> tuple[Any, FieldInfo]:
    name, default = parameter.name, parameter.default
    if isinstance(default, FieldInfo):  # pydantic's own style: order: int = Field(ge=1)
        own, hint = default, typing.Annotated[hint, default]
        default = own.default if own.default_factory is None else parameter.empty
    else:
        own = FieldInfo.from_annotation(hint)
    description = own.description or documented.get(name)
    settings: dict[str, Any] = {"alias": name, "validation_alias": name, "description": description}
    if isinstance(parameter.default, FieldInfo) and own.default_factory is not None:
        settings["default_factory"] = own.default_factory
    elif default is not parameter.empty:
        settings["default"] = default
    return hint, Field(**settings)


def _explain(name: str, error: ValidationError) -> str:
    """What is wrong with the arguments, one line each."""
    errors = error.errors(include_url=False, include_context=False)
    lines = [f"Error: the arguments for {name} do not fit.", *map(_explain_one, errors)]
    return "\n".join([*lines, "Call it again with arguments that fit its schema."])


def _explain_one(error: ErrorDetails) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "arguments"
    if error["type"] == "missing":
        return f"- {where}: it is missing."
    if error["type"] == "extra_forbidden":
        return f"- {where}: there is no such parameter."
    if error["type"] in {"model_type", "dict_type"} and not error["loc"]:
        return "- arguments: they must be one JSON object."
    value = json.dumps(error["input"], ensure_ascii=False, default=str)
    quoted = value if len(value) <= _QUOTED else value[: _QUOTED - 1] + "…"
    return f"- {where}: {error['msg']} (given: {quoted})."
