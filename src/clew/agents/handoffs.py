"""Handoffs: an agent gives the conversation to another agent, which continues it on the same thread."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clew.agents.tool_progress import MAX_TEXT
from clew.agents.tools import Approval, IsEnabled, Tool, ToolContext, ToolOptions, tool_after
from clew.domain.models.client import joined
from clew.domain.reducers.reducer import Reducer, checked_reducer
from clew.domain.runs.errors import AgentConfigurationError

if TYPE_CHECKING:
    from clew.agents.run_setup import RunSetup

ONE_HANDOFF = "Error: the conversation was already handed to another agent."
"""The result of a second handoff in one answer."""

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, eq=False)
class Handoff:
    """An agent to which another one can give the conversation: ``Agent(…, handoffs=[Handoff(refunds)])``.

    The model sees it as a tool. ``name`` and ``description`` are those of the tool, by default ``transfer_to_…`` with
    the agent's name, and the agent's description. ``reducer`` chooses what the other agent sees of the history; None
    for its own reducer. ``approval`` is as in ``tool``: the conversation is then handed over when that is approved. So
    is ``is_enabled``: whether the model is offered the handoff.

    ``on_handoff`` is a function, sync or async, that is called before the conversation is handed over. Its parameters
    are those of the tool, in place of ``reason``, and it may have a ToolContext. If it raises, nothing is handed over
    and the model gets the error. It may be called again after a crash, with the same idempotency key.
    """

    agent: Any
    name: str | None = None
    description: str | None = None
    reducer: Reducer | None = None
    approval: Approval = "never"
    is_enabled: IsEnabled = True
    on_handoff: Callable[..., Any] | None = None

    def as_tool(self) -> Tool:
        """The tool that the model calls. Raises InvalidToolError."""
        agent, reducer = self.agent, self.reducer
        called = agent.name or agent.id

        async def hand_over(context: ToolContext, _: Any = None) -> str:
            if reducer is not None and context.thread.kind == "remote":
                raise AgentConfigurationError(
                    f"handoff to {called}: the service that holds the thread limits its history. Leave out reducer=."
                )
            agent._check_kind(context.thread.kind)  # noqa: SLF001  # private to Clew
            return f"The conversation was handed to {called}."

        name = self.name or f"transfer_to_{_NOT_IN_NAMES.sub('_', called.lower()).strip('_')}"[:_LONGEST_NAME]
        options: ToolOptions = {
            "name": name,
            "description": self.description or f"Hand the conversation to {called}. {agent.description or ''}".rstrip(),
            "approval": self.approval,
            "is_enabled": self.is_enabled,
            "idempotent": True,
        }
        made = tool_after(self.on_handoff or _give_reason, hand_over, options)
        return replace(made, hands_to=agent)


async def _give_reason(reason: str = "") -> None:
    """Has the parameters of a handoff without a function of its own. The log has the reason."""


def as_handoffs(given: object) -> tuple[Handoff, ...]:
    """The given handoffs; agents become handoffs. Raises AgentConfigurationError for anything else."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise AgentConfigurationError(f"handoffs: {type(given).__name__} is not a list. Give [agent, …].")
    made = tuple(each if isinstance(each, Handoff) else Handoff(each) for each in given)
    for each in made:
        if not hasattr(each.agent, "continue_run") or not hasattr(each.agent, "identity"):
            raise AgentConfigurationError(f"handoffs: {type(each.agent).__name__} is not an agent. Give an Agent.")
        if each.on_handoff is not None and not callable(each.on_handoff):
            raise AgentConfigurationError(f"Handoff: on_handoff={each.on_handoff!r} is not a function.")
        if each.reducer is not None:
            checked_reducer(each.reducer)
    return made


def setup_after(handoff: Handoff, before: RunSetup) -> RunSetup:
    """The setup of the other agent's run, after that of the agent which hands over."""
    made: RunSetup = handoff.agent._run_setup(before.kept_options)  # noqa: SLF001  # private to Clew
    return made if handoff.reducer is None else replace(made, reducer=handoff.reducer)


def find_handoff(handoffs: Sequence[Handoff], agent_id: str) -> Handoff | None:
    """The handoff to the agent with that id: one of these, or the nearest one of their agents."""
    waiting, seen = [*handoffs], set[str]()
    for each in waiting:  # grows
        if each.agent.id == agent_id:
            return each
        if each.agent.id not in seen:
            seen.add(each.agent.id)
            waiting += as_handoffs(each.agent.handoffs)
    return None


def called_reason(arguments: str) -> str:
    """The reason that a model gave for a handoff, in the arguments of its call."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return ""
    reason = given.get("reason") if isinstance(given, dict) else None
    return joined([reason])[:MAX_TEXT] if isinstance(reason, str) else ""
