"""Agents that other agents use as tools: each call runs an agent on a thread of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from clew.agents.response import AgentResponse
from clew.agents.tools import Tool, ToolContext, ToolOptions, tool
from clew.domain.runs.errors import InvalidToolError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def agent_tool(agent: Any, options: ToolOptions) -> Tool:
    """A tool that runs an agent. Raises InvalidToolError."""

    async def ask(input: str, context: ToolContext) -> AgentResponse[Any]:
        if context.child_thread_id is None:
            raise InvalidToolError(f"{agent!r} is called outside of a run. Use agent.run(…).")
        thread = context.thread.unstarted(agent.client.thread_kinds[0], context.child_thread_id)
        response: AgentResponse[Any] = await agent.run(
            input, thread=thread, actor=context.actor, deps=context.deps, idempotency_key=context.idempotency_key
        )
        return response

    named: ToolOptions = {
        **options,
        "name": options.get("name") or _NOT_IN_NAMES.sub("_", agent.name or agent.id).strip("_"),
        "description": options.get("description") or agent.description or f"Ask {agent.name or agent.id}.",
        "idempotent": True,
    }
    return replace(tool(ask, **named), runs_agent=True)
