"""Agents that other agents use as tools: each call runs an agent on a thread of its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clew.agents.response import AgentResponse
from clew.agents.tools import AgentResult, Tool, ToolContext, ToolOptions, tool, tool_after
from clew.domain.runs.errors import InvalidToolError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def agent_tool(
    agent: Any, options: ToolOptions, asks: Callable[..., Any] | None, result: Callable[..., Any] | None
) -> Tool:
    """A tool that runs an agent. Raises InvalidToolError.

    ``asks`` makes the input of the agent of the arguments, and ``result`` the result of the tool of its response.
    """
    if result is not None and not callable(result):
        raise InvalidToolError(f"as_tool: result={result!r} is not a function. Give a function of the response.")

    async def run(context: ToolContext, given: Any) -> AgentResponse[Any] | AgentResult:
        if context.child_thread_id is None:
            raise InvalidToolError(f"{agent!r} is called outside of a run. Use agent.run(…).")
        thread = context.thread.unstarted(agent.client.thread_kinds[0], context.child_thread_id)
        response: AgentResponse[Any] = await agent.run(
            given, thread=thread, actor=context.actor, deps=context.deps, idempotency_key=context.idempotency_key
        )
        if result is None or response.approvals:
            return response
        value = result(response)
        return AgentResult(response, await value if inspect.isawaitable(value) else value)

    async def ask(input: str, context: ToolContext) -> AgentResponse[Any] | AgentResult:
        return await run(context, input)

    named: ToolOptions = {
        **options,
        "name": options.get("name") or _NOT_IN_NAMES.sub("_", agent.name or agent.id).strip("_"),
        "description": options.get("description") or agent.description or f"Ask {agent.name or agent.id}.",
        "idempotent": True,
    }
    return replace(tool(ask, **named) if asks is None else tool_after(asks, run, named), runs_agent=True)
