"""Tools: functions that a model may call, and their calls."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, Unpack, overload
from weakref import WeakKeyDictionary

from pydantic_core import to_jsonable_python

from clew.agents.response import AgentResponse
from clew.agents.tool_schemas import (
    InvalidArgumentsError,
    Signature,
    innermost,
    read_signature,
)
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import MAX_BYTES, Json, JsonObject, check_json, check_text
from clew.domain.messages import Media, Message, Text, check_message
from clew.domain.models.chat_requests import result_text
from clew.domain.models.client import TokenUsage, ToolSchema
from clew.domain.runs.errors import InvalidToolError

Approval: TypeAlias = Literal["never", "always"] | Callable[[dict[str, Any], "ToolContext"], bool | Awaitable[bool]]
"""Whether each call of a tool needs approval before it runs, or a function of its arguments that says so."""

IsEnabled: TypeAlias = bool | Callable[["ToolContext"], bool | Awaitable[bool]]
"""Whether a model is offered a tool, or a function that says so before each request."""

ToolErrors: TypeAlias = Literal["tell", "raise"] | Callable[["ToolContext", Exception], str | Awaitable[str]]
"""What happens to an error of a tool: it is sent to the model and the run continues, or it ends the run.

A function returns what the model gets in its place.
"""

ToolFailure: TypeAlias = Literal["raised", "timeout", "invalid-arguments", "unknown-tool", "stopped"]
"""Why a call has no result."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_MESSAGE = 2_000
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 8.0
_NO_LIMIT = nullcontext()
_MAX_RESULT_BYTES = MAX_BYTES - 1024**2


class Reported:
    """What a report of progress returns: ``await`` lets other tasks run. A function that is not async leaves it."""

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.sleep(0).__await__()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The run that a tool is called in. A tool gets it through a parameter of this type.

    ``deps`` is the application's object for the run, ``thread`` the thread of the run, ``actor`` the caller of the run.
    ``idempotency_key`` stays the same if the run continues after a crash, and differs in a fork. Pass it on to the
    services that the tool calls, so that a repeated call has no second effect. ``child_thread_id`` is set for a tool
    that runs an agent. Where a tool is not called yet, as for ``is_enabled``, the ids of the call are empty.
    """

    deps: Any = field(repr=False)
    thread: Any
    actor: str | None
    run_id: str
    call_id: str = ""
    idempotency_key: str = ""
    child_thread_id: str | None = None
    _report: Callable[[str, float | None, Json], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )

    def progress(self, text: str = "", *, fraction: float | None = None, data: Json = None) -> Awaitable[None]:
        """Report how far the call has come: ``await context.progress("half", fraction=0.5)``.

        Each report is a ``progress`` update of the stream. The newest one is on the log at most a second later (in
        a long call, a tenth of its time later), so the log shows after a crash how far the call came. Of the text, the
        first 1,000 characters are kept; ``data`` is JSON of at most 10,000 bytes. A function that is not async calls
        it without ``await``. Raises InvalidContentError.
        """
        if self._report is None:
            return Reported()
        return self._report(text, fraction, data)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call. ``result`` is what the model receives; after an error, the text of the error.

    ``error`` is the class of the error, None without one, and ``reason`` says how the call failed (``raised`` if it did
    not fail). ``raised`` is the exception if the tool caused it, and not the model. ``usage`` are the tokens of the
    agent that the tool runs, ``cost`` what they cost in US dollars, if that is known, and ``waits`` says that this
    agent waits for an approval: then the call has no result yet. ``attempts`` counts the calls of the function.
    ``contents`` are the texts and media of a result that is more than JSON; ``result`` is then None.
    """

    result: Json
    error: str | None = None
    raised: Exception | None = None
    reason: ToolFailure = "raised"
    usage: TokenUsage | None = None
    waits: bool = False
    attempts: int = 1
    contents: tuple[Text | Media, ...] = ()
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A function that a model may call; made by :func:`tool`. You can still call it like the function.

    ToolOptions describes the options.
    """

    function: Callable[..., Any]
    schema: ToolSchema
    signature: Signature = field(repr=False)
    approval: Approval = "never"
    is_enabled: IsEnabled = True
    idempotent: bool = False
    timeout: float | None = None
    errors: ToolErrors = "tell"
    retries: int = 0
    concurrency: int | None = None
    max_invocations: int | None = None
    max_invocation_exceptions: int | None = None
    runs_agent: bool = False
    """Whether each call runs an agent on a thread of its own."""
    hands_to: Any = field(default=None, repr=False)
    """The agent to which a call hands the conversation."""

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.schema.name

    @property
    def description(self) -> str:
        """The description that the model receives."""
        return self.schema.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without its schema, timeout and approval."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        if instance is None or not self.signature.unbound:
            return self
        bound = dataclasses.replace(self.signature, unbound=False)
        return dataclasses.replace(self, function=self.function.__get__(instance, owner), signature=bound)

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments by parameter, parsed from the JSON that a model wrote.

        Raises InvalidArgumentsError, whose text is for the model.
        """
        return self.signature.read(text)


class ToolOptions(TypedDict, total=False):
    """The options of ``tool``.

    ``name``, ``description`` and ``schema`` (a JSON schema of an object) replace what comes from the function.
    ``approval`` is also a function, sync or async, that gets the arguments as a dict and the ToolContext, and returns
    whether this call needs an approval. ``is_enabled`` says whether the model is offered the tool: True, False, or a
    function, sync or async, that is asked before each request. Its ToolContext has no call.

    ``timeout`` is in seconds; after it, a function that is not async keeps running in its thread, but the run does not
    wait for it. A call that raises, or gives no result in time, is repeated up to ``retries`` times, after waits of
    0.5, 1, 2… s. At most ``concurrency`` calls run at once in an event loop. An ``idempotent`` tool has no second
    effect if it is called again with the same idempotency key. It is called again when a crash left its outcome
    unknown.

    A model can call the tool ``max_invocations`` times in a run, and until ``max_invocation_exceptions`` of its calls
    in the run have raised or given no result in time: it receives an error for further calls. ``errors`` says what
    happens to an error of the function: the model gets it (``tell``), it ends the run (``raise``), or a function, sync
    or async, gets the ToolContext and the exception, and returns the text for the model.
    """

    name: str | None
    description: str | None
    schema: JsonObject | None
    approval: Approval
    is_enabled: IsEnabled
    idempotent: bool
    timeout: float | None
    retries: int
    concurrency: int | None
    max_invocations: int | None
    max_invocation_exceptions: int | None
    errors: ToolErrors


@overload
def tool(function: Callable[..., Any], **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(function: None = None, **options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: ``@tool``, ``@tool(approval="always")`` or ``tool(function, …)``.

    Its name, its description and the schema of its parameters come from the function, its docstring (in Google's,
    NumPy's or Sphinx' style) and its annotations, unless they are given. The model does not see a parameter annotated
    with :class:`ToolContext`. With a ``schema``, the function is called with the keywords that the model gives,
    without validation. ToolOptions describes the options. Raises InvalidToolError.
    """
    if function is None:
        return lambda decorated: tool(decorated, **options)
    name = _name(function, options.get("name"))
    _check_options(name, options)
    schema, description = options.get("schema"), options.get("description")
    signature = read_signature(function, name, ToolContext, schema)
    shown = signature.description if description is None else description
    kept: Any = {option: value for option, value in options.items() if option not in _OF_SCHEMA}
    return Tool(function, ToolSchema(name=name, description=shown, parameters=signature.parameters), signature, **kept)


_OF_SCHEMA = frozenset({"name", "description", "schema"})


class AgentResult(NamedTuple):
    """What a tool that runs an agent returns to its caller: a value in place of the answer."""

    response: AgentResponse[Any]
    value: Any


def tool_after(
    function: Callable[..., Any], then: Callable[[ToolContext, Any], Awaitable[Any]], options: ToolOptions
) -> Tool:
    """A tool with the parameters of a function. ``then`` gets the context and what the function returned.

    A function that is not async runs in a thread. Raises InvalidToolError.
    """
    made = tool(function, **options)
    own, positional = made.signature.context, made.signature.positional

    async def call(**given: Any) -> Any:
        context = given.pop(_CONTEXT)
        if own is not None:
            given[own] = context
        args = [given.pop(name) for name in positional]
        if inspect.iscoroutinefunction(innermost(function)):
            returned = function(*args, **given)
        else:
            returned = await asyncio.to_thread(function, *args, **given)
        return await then(context, await returned if inspect.isawaitable(returned) else returned)

    return replace(made, function=call, signature=replace(made.signature, context=_CONTEXT, positional=()))


_CONTEXT = " context"
"""A parameter that no function can have."""


class BecomesTool(Protocol):
    """What becomes a tool by itself: an agent that other agents ask."""

    def as_tool(self) -> Tool:
        """The tool."""
        ...


def as_tools(functions: Sequence[Tool | Callable[..., Any] | BecomesTool]) -> tuple[Tool, ...]:
    """The given tools; plain functions and agents become tools.

    Raises InvalidToolError for anything else, or a repeated name.
    """
    if isinstance(functions, str | Tool) or not isinstance(functions, Iterable):
        raise InvalidToolError(f"tools: {type(functions).__name__} is not a list of tools. Give [function, …].")
    tools = tuple(map(_as_tool, functions))
    names: set[str] = set()
    for each in tools:
        if each.signature.unbound:
            raise InvalidToolError(
                f"Tool {each.name!r} is a method without its object. Give a bound method: object.method."
            )
        if each.name in names:
            raise InvalidToolError(f"Two tools have the name {each.name!r}. Rename one: tool(function, name='…').")
        names.add(each.name)
    return tools


def _as_tool(given: Any) -> Tool:
    if isinstance(given, Tool):
        return given
    as_tool = getattr(given, "as_tool", None)
    made: Tool = tool(given) if as_tool is None else as_tool()
    return made


def unknown_tool(name: str, tools: Sequence[Tool]) -> ToolOutcome:
    """The outcome of a call of an unknown tool."""
    names = f"There are: {', '.join(each.name for each in tools)}." if tools else "There are none."
    return ToolOutcome(f"Error: there is no tool {_unicode(name)!r}. {names}", "UnknownToolError", None, "unknown-tool")


async def call_tool(called: Tool, arguments_text: str, context: ToolContext) -> ToolOutcome:
    """Call a tool with the JSON that a model wrote; returns the outcome.

    Functions that are not async run in a thread, with the caller's context variables. Cancellation and the tool's
    timeout stop an async function. They cannot stop a thread: its function keeps running. A tool cannot end the
    program: SystemExit is an outcome, too. Raises CancelledError and KeyboardInterrupt.
    """
    async with _NO_LIMIT if called.concurrency is None else _slot(called, called.concurrency):
        for attempt in range(1, called.retries + 2):
            outcome = await _attempt(called, arguments_text, context)
            if outcome.error is None or outcome.reason not in {"raised", "timeout"} or attempt > called.retries:
                break
            await asyncio.sleep(min(_RETRY_SECONDS * 2.0 ** (attempt - 1), _MAX_RETRY_SECONDS))
    if outcome.raised is not None and callable(called.errors):
        outcome = await _in_own_words(called.errors, context, outcome, outcome.raised)
    return outcome if attempt == 1 else replace(outcome, attempts=attempt)


async def needs_approval(called: Tool, arguments_text: str, context: ToolContext) -> bool:
    """Whether a call of a tool needs an approval. Invalid arguments need none: the call fails.

    Raises what the tool's own function raises.
    """
    if not callable(called.approval):
        return called.approval == "always"
    try:
        arguments = called.arguments(arguments_text)
    except InvalidArgumentsError:
        return False
    needed = called.approval(arguments, context)
    return bool(await needed if inspect.isawaitable(needed) else needed)


async def enabled(offered: Tool, context: ToolContext) -> bool:
    """Whether a model is offered a tool. Raises what the tool's own function raises."""
    if not callable(offered.is_enabled):
        return offered.is_enabled
    says = offered.is_enabled(context)
    return bool(await says if inspect.isawaitable(says) else says)


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Callable[..., Any], asyncio.Semaphore]] = WeakKeyDictionary()
"""The calls that tools may still make at once, by event loop and function."""


def _slot(called: Tool, limit: int) -> asyncio.Semaphore:
    """A place among the calls of a tool that run at once."""
    slots = _slots.setdefault(asyncio.get_running_loop(), {})
    return slots.setdefault(called.function, asyncio.Semaphore(limit))


async def _attempt(called: Tool, arguments_text: str, context: ToolContext) -> ToolOutcome:
    try:
        arguments = called.arguments(arguments_text)
    except InvalidArgumentsError as error:
        return ToolOutcome(_unicode(str(error)), "InvalidArgumentsError", None, "invalid-arguments")
    if called.signature.context is not None:
        arguments[called.signature.context] = context
    try:
        async with asyncio.timeout(called.timeout):
            result, raised = await _call(called, arguments)
    except TimeoutError as error:
        message = f"Error: {called.name} gave no result in {called.timeout:g} s."
        return ToolOutcome(message, "TimeoutError", error, "timeout")
    return _result_outcome(called.name, result) if raised is None else raised_outcome(raised)


async def _in_own_words(words: Any, context: ToolContext, outcome: ToolOutcome, raised: Exception) -> ToolOutcome:
    """The outcome of a call that raised, with the text that a function of the tool gives the model."""
    try:
        text = words(context, raised)
        text = await text if inspect.isawaitable(text) else text
        check_text(text, "errors")
    except Exception as error:  # noqa: BLE001  # as that of the tool
        return raised_outcome(error)
    return replace(outcome, result=text)


async def _call(called: Tool, arguments: dict[str, Any]) -> tuple[Any, Exception | None]:
    """The function's result, or its error. The error is not raised here: a TimeoutError would look like our own."""
    args = [arguments.pop(name) for name in called.signature.positional]

    def call() -> tuple[Any, Exception | None]:
        try:
            return called.function(*args, **arguments), None
        except Exception as error:  # noqa: BLE001  # whatever a tool raises is its outcome
            return None, error
        except SystemExit as error:  # it would end the event loop
            return None, _exited(called.name, error)

    if inspect.iscoroutinefunction(innermost(called.function)):
        result, raised = call()
    else:
        result, raised = await asyncio.to_thread(call)
    if not inspect.isawaitable(result):
        return result, raised
    try:
        return await result, None
    except Exception as error:  # noqa: BLE001  # as above: it is the outcome
        return None, error
    except SystemExit as error:
        return None, _exited(called.name, error)


def _exited(name: str, error: SystemExit) -> Exception:
    return RuntimeError(f"{name} would have ended the program: sys.exit({error.code!r})")


def raised_outcome(error: Exception) -> ToolOutcome:
    """The outcome of a call that raised: the model receives the class and the message, without a traceback."""
    kind = type(error).__name__
    try:
        message = _unicode(str(error))
    except Exception:  # noqa: BLE001  # str() of an exception may fail
        message = ""
    message = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
    return ToolOutcome(f"Error: {kind}: {message}" if message else f"Error: {kind}", kind, error)


def _result_outcome(name: str, result: Any) -> ToolOutcome:
    if isinstance(result, AgentResponse):
        if result.approvals:
            return ToolOutcome(None, waits=True)
        value = result.text if result.response_format is None else result.value
        return replace(_result_outcome(name, value), usage=result.usage, cost=result.cost)
    if isinstance(result, AgentResult):
        response = result.response
        return replace(_result_outcome(name, result.value), usage=response.usage, cost=response.cost)
    if isinstance(result, Text | Media):
        return _contents_outcome(name, (result,))
    if isinstance(result, list | tuple) and any(isinstance(each, Text | Media) for each in result):
        return _contents_outcome(name, result)
    try:
        plain = _plain(result)
    except _NOT_JSON as error:
        return _not_json(name, result, error)
    if not _has_room(plain):
        return _too_large(name)
    return ToolOutcome(plain)


def _contents_outcome(name: str, given: Sequence[Any]) -> ToolOutcome:
    """The outcome of a call that returned texts and media. Anything else among them becomes text."""
    contents: list[Text | Media] = []
    for each in given:
        try:
            content = each if isinstance(each, Text | Media) else Text(text=result_text(_plain(each)))
            check_message(Message(role="tool", contents=(content,)))
        except _NOT_JSON as error:
            return _not_json(name, each, error)
        contents.append(content)
    texts = [each.text if isinstance(each, Text) else each.uri if each.data is None else "" for each in contents]
    if not _has_room("".join(texts)) or any(
        len(each.data or b"") > MAX_BYTES for each in contents if isinstance(each, Media)
    ):
        return _too_large(name)
    return ToolOutcome(None, contents=tuple(contents))


_NOT_JSON = (ValueError, TypeError, RecursionError, InvalidContentError)


def _plain(value: Any) -> Json:
    """A value as JSON. Raises one of ``_NOT_JSON``."""
    plain: Json = value if type(value) in {str, int, bool, type(None)} else to_jsonable_python(value)
    check_json(plain, "result")
    return plain


def _not_json(name: str, value: object, error: Exception) -> ToolOutcome:
    raised = TypeError(f"{name} returned {type(value).__name__}, which is not JSON: {error}")
    return ToolOutcome(f"Error: the result of {name} is not JSON and cannot be sent.", "TypeError", raised)


def _too_large(name: str) -> ToolOutcome:
    problem = f"the result of {name} is too large to record: the limit is {_MAX_RESULT_BYTES // 1024**2} MiB."
    return ToolOutcome(f"Error: {problem}", "ValueError", ValueError(problem))


def _has_room(result: Json) -> bool:
    """Whether a result fits into an event with its other fields."""
    if isinstance(result, str) and len(result) < _MAX_RESULT_BYTES // 6:  # a character takes at most 6 bytes
        return True
    return len(json.dumps(result, ensure_ascii=False).encode()) <= _MAX_RESULT_BYTES


def _name(function: Callable[..., Any], name: str | None) -> str:
    if isinstance(function, Tool):
        raise InvalidToolError(f"{function.name!r} is a tool already. Give its function: tool(….function, …).")
    if not callable(function) or isinstance(function, type):
        raise InvalidToolError(f"{function!r} cannot be a tool: it is not a function. Give a function, sync or async.")
    inside = innermost(function)
    if inspect.isgeneratorfunction(inside) or inspect.isasyncgenfunction(inside):
        raise InvalidToolError(
            f"{inside.__qualname__} cannot be a tool: it is a generator. Return the whole result as a list."
        )
    return checked_name(name or (type(function).__name__ if inside.__name__ == "__call__" else inside.__name__))


def checked_name(name: str) -> str:
    """The name of a tool. Raises InvalidToolError for one that services do not accept."""
    if not _NAME.fullmatch(name):
        raise InvalidToolError(
            f"{name!r} cannot be the name of a tool. Use at most 64 letters, digits, _ and -: tool(function, name='…')."
        )
    return name


def _check_options(name: str, options: ToolOptions) -> None:
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        known = ", ".join(ToolOptions.__annotations__)
        raise InvalidToolError(f"Tool {name!r}: there is no option {', '.join(sorted(unknown))}. There are: {known}.")
    approval, errors, timeout = options.get("approval", "never"), options.get("errors", "tell"), options.get("timeout")
    if not callable(approval) and approval not in {"never", "always"}:
        raise InvalidToolError(f"Tool {name!r}: approval={approval!r} is neither 'never', 'always' nor a function.")
    if not callable(errors) and errors not in {"tell", "raise"}:
        raise InvalidToolError(f"Tool {name!r}: errors={errors!r} is neither 'tell', 'raise' nor a function.")
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidToolError(f"Tool {name!r}: timeout={timeout!r} is not a number of seconds above 0.")
    is_enabled = options.get("is_enabled", True)
    if not callable(is_enabled) and not isinstance(is_enabled, bool):
        raise InvalidToolError(f"Tool {name!r}: is_enabled={is_enabled!r} is neither True, False nor a function.")
    counts: Any = options
    for option, least in _LEAST.items():
        number = counts.get(option)
        if number is not None and (type(number) is not int or number < least):
            raise InvalidToolError(
                f"Tool {name!r}: {option}={number!r} is not a number of calls. Give {least} or more."
            )


_LEAST = {"retries": 0, "concurrency": 1, "max_invocations": 1, "max_invocation_exceptions": 1}
"""The options that count calls, and the least value of each."""


def _unicode(text: str) -> str:
    """The text without lone surrogates, which nothing can store or send."""
    return text.encode("utf-8", "backslashreplace").decode()
