"""What a caller gives to a single run: its input and its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast

from pydantic import BaseModel

from clew.agents.tools import Tool
from clew.domain.context.provider import ContextProviders
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Message, check_message
from clew.domain.models.client import ResponseFormat
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.ports import ThreadPort

Input: TypeAlias = str | Message | Sequence[Message] | None
"""The input of a run: the user's text, a message, several, or None to answer what is already on the thread."""

OnConflict: TypeAlias = Literal["raise", "wait", "fork"]
"""What a run does while another run is under way on its thread."""

ToolFunction: TypeAlias = Tool | Callable[..., Any]
"""A tool, or a plain function that becomes one."""


class ContinueOptions(TypedDict, total=False):
    """The options of ``continue_run``.

    ``actor`` is the caller. ``deps`` is what tools get in their ToolContext. ``tools`` and ``context_providers`` that
    were given to the run itself must be given again, and ``response_format`` if ``response.value`` is wanted; the model
    and its options are those in the log. ``on_conflict`` says what to do if another process continues the run: raise
    RunInProgressError, or wait.
    """

    actor: str | None
    deps: Any
    tools: Sequence[ToolFunction]
    context_providers: ContextProviders | None
    response_format: type[BaseModel] | None
    on_conflict: Literal["raise", "wait"]


class RunOptions(TypedDict, total=False):
    """The options of ``run``.

    ``thread`` is the thread to run on; without it a new one is started. ``actor`` is who wrote the input. ``fork`` runs
    on a new fork of the thread, ``at`` on one from a version, a checkpoint or a time. ``tools`` (in addition to the
    agent's), ``model``, ``options`` of the model service (in addition to the agent's) and ``response_format``, a
    pydantic model, apply to this run only. So do ``context_providers``, unless the run starts its thread: then they are
    attached to the thread. ``deps`` is what tools get in their ToolContext.

    If another run is under way on the thread, ``on_conflict`` decides: raise RunInProgressError (``raise``), ``wait``
    for it, or run on a ``fork`` from before it. Code that a run calls, such as its tools, cannot wait for that run, and
    raises. If a run waits for approvals, ApprovalPendingError is raised, unless ``abandon_run`` gives that run up.
    ``max_rounds`` (model calls) and ``max_seconds`` are the agent's unless given.
    """

    thread: ThreadPort | None
    actor: str | None
    fork: bool
    at: Any
    tools: Sequence[ToolFunction]
    context_providers: ContextProviders | None
    model: str | None
    options: Mapping[str, Any] | None
    response_format: type[BaseModel] | None
    deps: Any
    on_conflict: OnConflict
    abandon_run: bool
    max_rounds: int | None
    max_seconds: float | None


_ON_CONFLICT = {RunOptions: ("raise", "wait", "fork"), ContinueOptions: ("raise", "wait")}


def check_options(asked: str, given: Mapping[str, object], options: type[RunOptions | ContinueOptions]) -> None:
    """Raise AgentConfigurationError for an unknown option, or an unknown value of ``on_conflict``."""
    unknown = given.keys() - options.__annotations__.keys()
    if unknown:
        known = ", ".join(options.__annotations__)
        raise AgentConfigurationError(f"{asked}: there is no option {', '.join(sorted(unknown))}. There are: {known}.")
    if given.get("on_conflict", "raise") not in _ON_CONFLICT[options]:
        raise AgentConfigurationError(
            f"{asked}: on_conflict={given['on_conflict']!r} is none of {', '.join(map(repr, _ON_CONFLICT[options]))}."
        )


def input_messages(asked: str, given: Input) -> tuple[Message, ...]:
    """The input of a run as messages. Raises InvalidContentError for anything that is not an Input."""
    if given is None:
        return ()
    messages: tuple[Message, ...]
    if isinstance(given, str):
        messages = (Message.user(given),)
    elif isinstance(given, Message):
        messages = (given,)
    elif isinstance(given, list | tuple) and all(isinstance(each, Message) for each in given):
        messages = tuple(given)
    else:
        kind = type(given).__name__
        raise InvalidContentError(f"{asked}: {kind} is not an input. Give a string, a Message or a list of Messages.")
    for message in messages:
        check_message(message)
    return messages


def response_format_of(model: type[BaseModel] | None) -> ResponseFormat | None:
    """The JSON schema of a pydantic model as services take it. Raises AgentConfigurationError for anything else."""
    if model is None:
        return None
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise AgentConfigurationError(f"response_format: {model!r} is not a pydantic model. Give a class.")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", model.__name__)[:64]
    return ResponseFormat(name=name, json_schema=cast("JsonObject", _closed(model.model_json_schema())))


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
