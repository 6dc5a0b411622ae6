"""Middleware: application code around runs, model calls and tool calls."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from clew.agents.tools import ToolOutcome
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import Answer
from clew.domain.runs.errors import AgentConfigurationError

Outcome = TypeVar("Outcome")

Proceed: TypeAlias = Callable[[], Awaitable[Outcome]]
"""Calls the next middleware, or the wrapped run or call, and returns its outcome. It can be called once."""

Around: TypeAlias = Literal["run", "model_call", "tool_call"]
"""What middleware surrounds: the name of the method of :class:`Middleware`."""

_Inner: TypeAlias = Callable[[], Coroutine[Any, Any, Outcome]]

_OUTCOMES: dict[str, type] = {"model_call": Answer, "tool_call": ToolOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run that is about to begin or to continue. ``messages`` are its input."""

    agent_id: str
    agent_name: str | None
    thread_id: str
    run_id: str
    actor: str | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallContext(RunContext):
    """A model call that is about to be made. ``round`` is its number within the run, from 1.

    ``request`` is a copy of the request's body, without the fields that request a stream.
    """

    round: int
    request: JsonObject = field(repr=False)

    @property
    def body(self) -> JsonObject:
        """A copy of the request's body. Changes to it have no effect, unless ``model_request`` returns it."""
        return copy.deepcopy(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallContext(RunContext):
    """A tool call that is about to be made. ``arguments`` is the text that the model wrote."""

    name: str
    call_id: str
    arguments: str


class Middleware:
    """Code around runs, model calls or tool calls. Override the methods that you need; the others only proceed.

    ``model_request`` may change a request before it is recorded and sent. In the other methods, call ``await
    proceed()`` at most once. What they return is recorded and used: the outcome of ``proceed()``, or another of its
    kind. To refuse, raise: the run, the model call or the tool call fails with that error. The updates of a stream do
    not pass through middleware; the whole answer does. The log names who answered instead of the model, and says that
    no request was sent if ``model_call`` did not proceed.
    """

    async def run(self, context: RunContext, proceed: Proceed[Any]) -> Any:
        """Around a run; returns its AgentResponse."""
        del context
        return await proceed()

    async def model_request(self, context: ModelCallContext) -> JsonObject | None:
        """Return a changed body of the request, or None to leave it as it is.

        The change is recorded with the name of this class before the request is sent. The first middleware is first.
        """
        del context
        return None

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        """Around one request to the model; returns the whole answer."""
        del context
        return await proceed()

    async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
        """Around one call of a tool; returns what the model receives."""
        del context
        return await proceed()


@dataclass(slots=True)
class Intervention:
    """What middleware did to a run or call, by the names of their classes; None if it only proceeded.

    ``withheld_by`` did not proceed, and ``answered_by`` returned another outcome than it got.
    """

    withheld_by: str | None = None
    answered_by: str | None = None


def compose(
    middlewares: Sequence[Middleware],
    around: Around,
    context: RunContext,
    innermost: _Inner[Outcome],
    intervention: Intervention | None = None,
) -> Coroutine[Any, Any, Outcome]:
    """Call ``innermost`` within all of ``middlewares``: the first is outermost. ``intervention`` gets what they do.

    Raises what they raise, and AgentConfigurationError for one that proceeds twice or does not return an outcome.
    """
    proceed = innermost
    for middleware in reversed(middlewares):
        proceed = _within(middleware, around, context, proceed, intervention or Intervention())
    return proceed()


def _within(
    middleware: Middleware,
    around: Around,
    context: RunContext,
    inner: _Inner[Outcome],
    intervention: Intervention,
) -> _Inner[Outcome]:
    name = type(middleware).__name__
    where = f"{name}.{around}"

    async def outcome() -> Outcome:
        proceeded, ended, given = False, False, None

        async def once() -> Outcome:
            nonlocal proceeded, given
            if ended:
                raise AgentConfigurationError(
                    f"{where} called proceed() after it had returned. The log says by now what it did. Await proceed() "
                    "before you return."
                )
            if proceeded:
                raise AgentConfigurationError(
                    f"{where} called proceed() twice. The run or call would be executed twice."
                )
            proceeded = True
            given = await inner()
            return given

        try:
            result: Outcome = await getattr(middleware, around)(context, once)
        finally:
            ended = True
            if not proceeded:
                intervention.withheld_by = name
        expected = _OUTCOMES.get(around)
        if result is None or (expected is not None and not isinstance(result, expected)):
            what = "AgentResponse" if expected is None else expected.__name__
            raise AgentConfigurationError(
                f"{where} returned {type(result).__name__}. Return the result of proceed(), or another {what}."
            )
        if result is not given:
            intervention.answered_by = name
        return result

    return outcome
