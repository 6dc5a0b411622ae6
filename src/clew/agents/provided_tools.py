"""Tools of context providers whose schemas come from elsewhere, such as those of MCP servers."""

from __future__ import annotations

from typing import Any

from clew.agents.tool_schemas import Signature, plain_schema, read_object
from clew.agents.tools import Approval, Tool, ToolContext, checked_name
from clew.domain.context.provider import ProvidedTool
from clew.domain.json_values import JsonObject


def as_tool(given: ProvidedTool) -> Tool:
    """The tool that calls what a provider gave. Raises InvalidToolError for a wrong name or schema."""
    schema = given.schema
    checked_name(schema.name)
    plain_schema(schema.name, schema.parameters)

    async def call(arguments: JsonObject, context: ToolContext) -> Any:
        return await given.call(arguments, context)

    signature = Signature(
        description=schema.description,
        parameters=schema.parameters,
        context="context",
        positional=(),
        unbound=False,
        read=lambda text: {"arguments": read_object(schema.name, text)},
    )
    return Tool(
        function=call,
        schema=schema,
        signature=signature,
        approval=_approval(given),
        idempotent=given.idempotent,
        timeout=given.timeout,
        retries=given.retries,
    )


def _approval(given: ProvidedTool) -> Approval:
    asked = given.approval
    if not callable(asked):
        return asked
    return lambda read, context: asked(read["arguments"], context)
