"""Middleware: what an application puts around runs, model calls and tool calls."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from clew.agents.tools import ToolOutcome
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import Answer
from clew.domain.runs.errors import AgentConfigurationError

Outcome = TypeVar("Outcome")

Proceed: TypeAlias = Callable[[], Awaitable[Outcome]]
"""Goes on inwards, once, and gives what came of it."""

Around: TypeAlias = Literal["run", "model_call", "tool_call"]
"""What middleware is put around: the name of the method of :class:`Middleware`."""

_OUTCOMES: dict[str, type] = {"model_call": Answer, "tool_call": ToolOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run that is about to begin, or to be gone on with. ``messages`` are its inputs."""

    agent_id: str
    agent_name: str | None
    thread_id: str
    run_id: str
    actor: str | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallContext(RunContext):
    """A model call that is about to be made. ``round`` is its number within the run, from 1."""

    round: int
    request: JsonObject = field(repr=False)

    @property
    def body(self) -> JsonObject:
        """A copy of the request's body. Changing it changes nothing: the request is what the log says."""
        return copy.deepcopy(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallContext(RunContext):
    """A tool call that is about to be made. ``arguments`` is the text that the model wrote."""

    name: str
    call_id: str
    arguments: str


class Middleware:
    """Something around runs, model calls or tool calls. Override what you need: by itself it only goes on.

    ``await proceed()`` goes on inwards, at most once. What a method returns is what is recorded and used: what
    ``proceed()`` gave, or something else of its kind. Raising refuses: the run, the model call or the tool call fails
    with what was raised. The updates of a stream pass by while they come; only the whole answer comes through here.
    """

    async def run(self, context: RunContext, proceed: Proceed[Any]) -> Any:
        """Around a run; gives its AgentResponse."""
        del context
        return await proceed()

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        """Around one request to the model; gives the whole answer."""
        del context
        return await proceed()

    async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
        """Around one call of a tool; gives what the model is told."""
        del context
        return await proceed()


async def compose(
    middlewares: Sequence[Middleware], around: Around, context: RunContext, innermost: Proceed[Outcome]
) -> Outcome:
    """Do ``innermost`` within all of ``middlewares``: the first is outermost.

    Raises what they raise, and AgentConfigurationError for one that goes on twice or returns something else than an
    outcome.
    """
    proceed = innermost
    for middleware in reversed(middlewares):
        proceed = _within(middleware, around, context, proceed)
    return await proceed()


def _within(middleware: Middleware, around: Around, context: RunContext, inner: Proceed[Outcome]) -> Proceed[Outcome]:
    where = f"{type(middleware).__name__}.{around}"

    async def outcome() -> Outcome:
        gone_on = False

        async def once() -> Outcome:
            nonlocal gone_on
            if gone_on:
                raise AgentConfigurationError(f"{where} called proceed() twice. What it does would be done twice.")
            gone_on = True
            return await inner()

        given: Outcome = await getattr(middleware, around)(context, once)
        expected = _OUTCOMES.get(around)
        if given is None or (expected is not None and not isinstance(given, expected)):
            what = "AgentResponse" if expected is None else expected.__name__
            raise AgentConfigurationError(
                f"{where} returned {type(given).__name__}. Return what proceed() gave, or another {what}."
            )
        return given

    return outcome
