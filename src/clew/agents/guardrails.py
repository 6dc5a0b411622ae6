"""Guardrails: checks of what a run is asked and of what it answers. What a check stops reaches no caller."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from clew.domain.json_values import check_text
from clew.domain.messages import Message
from clew.domain.runs.errors import AgentConfigurationError, GuardrailTrippedError
from clew.domain.runs.events import GuardrailStage

GuardrailCheck: TypeAlias = "Callable[[GuardrailContext], str | Awaitable[str | None] | None]"
"""Returns why the run must stop, or None. It may be async; other functions run in a thread."""


@dataclass(frozen=True, slots=True)
class GuardrailContext:
    """What a check gets. ``messages`` are the input of the run or, after the model, its answer."""

    messages: tuple[Message, ...]
    thread_id: str
    run_id: str
    actor: str | None
    deps: Any = field(repr=False)

    @property
    def text(self) -> str:
        """The texts of the messages, a line each, without the arguments of calls, which ``messages`` have."""
        return "\n".join(message.text for message in self.messages)


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A check of a run. ``check`` gets a GuardrailContext, and returns why the run must stop, or None.

    ``stage`` is ``before`` the first model call, ``beside`` it (at the same time: it costs no time, but tokens,
    and the provider may get the input before the check ends), or ``after`` each answer of the model that has a text.
    ``name`` is on the log, by default the name of the function. Raises AgentConfigurationError.
    """

    check: GuardrailCheck
    stage: GuardrailStage = "before"
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.check):
            raise AgentConfigurationError(f"Guardrail: {self.check!r} is not a function.")
        if self.stage not in get_args(GuardrailStage):
            raise AgentConfigurationError(f"Guardrail: stage={self.stage!r} is not before, beside or after.")
        name = self.name or getattr(self.check, "__name__", type(self.check).__name__)
        check_text(name, "name")
        object.__setattr__(self, "name", name)


def checked_guardrails(given: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
    """The guardrails of an agent. Raises AgentConfigurationError."""
    guardrails = tuple(given)
    for each in guardrails:
        if not isinstance(each, Guardrail):
            raise AgentConfigurationError(f"guardrails: {type(each).__name__} is not one. Write Guardrail(function).")
    return guardrails


async def check_all(guardrails: Sequence[Guardrail], stage: GuardrailStage, context: GuardrailContext) -> None:
    """Carry out the checks of a stage at the same time. Raises GuardrailTrippedError for the first that trips.

    An error of a check is raised, too: a run does not continue unchecked.
    """
    tasks = [asyncio.create_task(_check(each, context)) for each in guardrails if each.stage == stage]
    try:
        for done in asyncio.as_completed(tasks):
            await done
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _check(guardrail: Guardrail, context: GuardrailContext) -> None:
    check: Any = guardrail.check
    if inspect.iscoroutinefunction(check) or inspect.iscoroutinefunction(type(check).__call__):
        reason = await check(context)
    else:
        reason = await asyncio.to_thread(check, context)
    if reason is None:
        return
    if not isinstance(reason, str):
        raise AgentConfigurationError(
            f"Guardrail {guardrail.name!r} returned {type(reason).__name__}. Return the reason as text, or None."
        )
    check_text(reason, "reason")
    raise GuardrailTrippedError(guardrail.name, guardrail.stage, reason)
