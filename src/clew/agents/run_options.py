"""What a single run may be given beside its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from pydantic import BaseModel

from clew.agents.run_admission import OnConflict
from clew.agents.tools import Tool
from clew.domain.context.provider import ContextProviders
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.ports import ThreadPort

ToolFunction: TypeAlias = Tool | Callable[..., Any]
"""A tool, or a plain function that becomes one."""


class ContinueOptions(TypedDict, total=False):
    """What going on with a run may be given.

    ``actor`` is who has it gone on with. ``deps`` is what tools get in their ToolContext. ``tools`` that were given to
    the run beside the agent's are to be given again, as are its ``context_providers``, and ``response_format`` if
    ``response.value`` is wanted; the model and its options are those on the log. ``on_conflict`` says what to do when
    somebody else goes on with the run: raise RunInProgressError, or wait.
    """

    actor: str | None
    deps: Any
    tools: Sequence[ToolFunction]
    context_providers: ContextProviders | None
    response_format: type[BaseModel] | None
    on_conflict: Literal["raise", "wait"]


class RunOptions(TypedDict, total=False):
    """What a run may be given beside its input.

    ``thread`` is the one to run on; without it one is started. ``actor`` is who says what is said. ``fork`` runs on a
    new fork of the thread, ``at`` on one from a version, a checkpoint or a time. ``tools`` (beside the agent's),
    ``model``, ``options`` of the model service's own (beside the agent's) and ``response_format``, a pydantic model,
    hold for this run only. So do ``context_providers``, unless the run starts its thread: then they are attached to
    it. ``deps`` is what tools get in their ToolContext.

    When another run is under way on the thread, ``on_conflict`` says whether to raise RunInProgressError (``raise``),
    to ``wait`` for it, or to run on a ``fork`` from before it; what a run does itself, such as its tools, cannot wait
    for it, and raises. One that waits for approvals raises
    ApprovalPendingError, unless ``abandon_run`` gives it up. ``max_rounds`` (model calls) and ``max_seconds`` are the
    agent's unless given.
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


_WAYS = {RunOptions: ("raise", "wait", "fork"), ContinueOptions: ("raise", "wait")}


def check_names(asked: str, given: Mapping[str, object], options: type[RunOptions | ContinueOptions]) -> None:
    """Raise AgentConfigurationError for what is no option, or no way to meet another run: it must not go unheard."""
    unknown = sorted(given.keys() - options.__annotations__.keys())
    if unknown:
        known = ", ".join(options.__annotations__)
        raise AgentConfigurationError(f"{asked}: there is no option {', '.join(unknown)}. There are: {known}.")
    if given.get("on_conflict", "raise") not in _WAYS[options]:
        raise AgentConfigurationError(
            f"{asked}: on_conflict={given['on_conflict']!r} is none of {', '.join(map(repr, _WAYS[options]))}."
        )
