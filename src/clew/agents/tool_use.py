"""Runs that end with the result of a tool: which results are the answer. A pure function of the log says so."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from clew.domain.messages import FunctionResult
from clew.domain.models.chat_requests import result_words
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.state import RunState


class ToolResult(NamedTuple):
    """A call of a tool that has succeeded: the arguments that the model wrote, and the result as the model reads it."""

    name: str
    arguments: str
    text: str


ToolUseBehavior: TypeAlias = (
    Literal["run_llm_again", "stop_on_first_tool"]
    | Collection[str]
    | Callable[[Sequence[ToolResult]], str | Awaitable[str | None] | None]
)
"""What follows the results of an answer's calls: the model is asked again, or the run ends with a result as its answer.

A list has the names of the tools that end a run. A function gets the results, and returns the answer or None. It must
give the same answer for the same results: a run that continues after a crash asks it again.
"""


def checked_behavior(given: Any) -> ToolUseBehavior | None:
    """The behaviour, None if the model is always asked again. Raises AgentConfigurationError."""
    if given == "run_llm_again":
        return None
    if given == "stop_on_first_tool" or callable(given):
        return given  # type: ignore[no-any-return]  # checked
    if isinstance(given, list | tuple | set | frozenset) and all(isinstance(each, str) for each in given):
        return frozenset(given)
    raise AgentConfigurationError(
        f"tool_use_behavior={given!r} is neither 'run_llm_again', 'stop_on_first_tool', a list of names nor a function."
    )


async def answer_of(behavior: ToolUseBehavior, state: RunState) -> str | None:
    """The answer with which the run ends, None if the model is asked again. Calls that failed end no run."""
    results = _results(state)
    if callable(behavior):
        answer = behavior(results) if results else None
        return await answer if inspect.isawaitable(answer) else answer
    ends = (each.text for each in results if behavior == "stop_on_first_tool" or each.name in behavior)
    return next(ends, None)


def _results(state: RunState) -> list[ToolResult]:
    """The results of the newest answer, in the order of its calls. Ids of calls can recur: they are paired by order."""
    if not state.calls:
        return []
    given: dict[str, list[FunctionResult]] = {}
    for each in state.added:
        if each.version > state.calls[0].place.message and each.message is not None:
            for result in each.message.results:
                given.setdefault(result.call_id, []).append(result)
    found = []
    for call in state.calls:
        waiting = given.get(call.call.call_id)
        if call.status == "done" and waiting:
            result = waiting.pop(0)
            if not call.failed:
                found.append(ToolResult(call.call.name, call.call.arguments, result_words(result)))
    return found
