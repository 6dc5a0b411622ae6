"""Agents that other agents use as tools: each call runs an agent on a thread of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from clew.agents.response import AgentResponse
from clew.agents.tools import Approval, Tool, ToolContext, tool
from clew.domain.runs.errors import InvalidToolError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def agent_tool(agent: Any, name: str | None, description: str | None, approval: Approval) -> Tool:
    """A tool that runs an agent. Raises InvalidToolError."""

    async def ask(input: str, context: ToolContext) -> AgentResponse[Any]:
        if context.child_thread_id is None:
            raise InvalidToolError(f"{agent!r} is called outside of a run. Use agent.run(…).")
        thread = context.thread.unstarted(agent.client.thread_kinds[0], context.child_thread_id)
        response: AgentResponse[Any] = await agent.run(
            input, thread=thread, actor=context.actor, deps=context.deps, idempotency_key=context.idempotency_key
        )
        return response

    shown = name or _NOT_IN_NAMES.sub("_", agent.name or agent.id).strip("_")
    about = description or agent.description or f"Ask {agent.name or agent.id}."
    return replace(tool(ask, name=shown, description=about, approval=approval, idempotent=True), runs_agent=True)
