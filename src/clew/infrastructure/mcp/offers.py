"""What an MCP server offers to a model: its tools, and tools that list and read its resources and prompts."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from clew.domain.json_values import JsonObject
from clew.domain.models.client import joined
from clew.domain.runs.errors import MCPToolError
from clew.infrastructure.mcp.definitions import MOST_TOOLS
from clew.infrastructure.mcp.results import contents_of, plain, resource_of, result_of, text_of

if TYPE_CHECKING:
    from mcp import Client

Call: TypeAlias = Callable[["Client", JsonObject, Any], Awaitable[Any]]
"""Asks a server, with the arguments and the ToolContext of the call."""

_KEY = "clew/idempotency-key"
"""The field of a call's ``_meta`` with its idempotency key."""


@dataclass(frozen=True)
class Offer:
    """Something that a model may ask of a server; ``is_idempotent`` is what the server says about it."""

    name: str
    description: str | None
    parameters: JsonObject
    call: Call
    is_idempotent: bool = True
    part: Literal["resources", "prompts"] | None = None
    """What it lists or reads; None for a tool of the server."""


async def listed_offers(client: Client) -> dict[str, Offer]:
    """What a server offers now, by name."""
    offers: dict[str, Offer] = {}
    capabilities, cursor = client.server_capabilities, None
    while capabilities.tools is not None:
        page = await client.list_tools(cursor=cursor)
        offers |= {each.name: _tool(each) for each in page.tools}
        cursor = page.next_cursor
        if cursor is None or not page.tools or len(offers) > MOST_TOOLS:
            break
    for offer in _PARTS:
        if offer.part is not None and getattr(capabilities, offer.part) is not None:
            offers.setdefault(offer.name, offer)
    return offers


async def parts_of(client: Client) -> frozenset[str]:
    """Which of resources and prompts a server has. Many servers say that they have both, and have none."""
    capabilities, parts = client.server_capabilities, set[str]()
    with suppress(Exception):
        if capabilities.resources is not None and (
            (await client.list_resources()).resources or (await client.list_resource_templates()).resource_templates
        ):
            parts.add("resources")
    with suppress(Exception):
        if capabilities.prompts is not None and (await client.list_prompts()).prompts:
            parts.add("prompts")
    return frozenset(parts)


def _tool(listed: Any) -> Offer:
    hints, name = listed.annotations, listed.name

    async def call(client: Client, arguments: JsonObject, context: Any) -> Any:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            fraction = progress / total if total and math.isfinite(progress) and 0 <= progress <= total else None
            await context.progress(joined([message or ""]), fraction=fraction)

        meta: Any = {_KEY: context.idempotency_key}
        answer = await client.call_tool(name, arguments, meta=meta, progress_callback=report)
        if answer.is_error:
            raise MCPToolError(text_of(answer.content))
        return result_of(answer)

    is_idempotent = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Offer(name, listed.description, listed.input_schema, call, is_idempotent)


async def _list_resources(client: Client, arguments: JsonObject, context: Any) -> Any:
    del context
    cursor = _text(arguments, "cursor") or None
    resources = await client.list_resources(cursor=cursor)
    listed: JsonObject = {"resources": [plain(each) for each in resources.resources]}
    if cursor is None:
        templates = await client.list_resource_templates()
        listed["templates"] = [plain(each) for each in templates.resource_templates]
    if resources.next_cursor is not None:
        listed["cursor"] = resources.next_cursor
    return listed


async def _read_resource(client: Client, arguments: JsonObject, context: Any) -> Any:
    del context
    read = await client.read_resource(_text(arguments, "uri"))
    contents = [resource_of(each) for each in read.contents]
    return contents[0] if len(contents) == 1 else contents


async def _list_prompts(client: Client, arguments: JsonObject, context: Any) -> Any:
    del context
    listed = await client.list_prompts(cursor=_text(arguments, "cursor") or None)
    more: JsonObject = {} if listed.next_cursor is None else {"cursor": listed.next_cursor}
    return {"prompts": [plain(each) for each in listed.prompts], **more}


async def _get_prompt(client: Client, arguments: JsonObject, context: Any) -> Any:
    del context
    values = arguments.get("arguments")
    given = {name: str(value) for name, value in values.items()} if isinstance(values, dict) else {}
    prompt = await client.get_prompt(_text(arguments, "name"), given)
    return [{"role": each.role, "content": contents_of([each.content])[0]} for each in prompt.messages]


def _text(arguments: JsonObject, name: str) -> str:
    value = arguments.get(name)
    return value if isinstance(value, str) else ""


_CURSOR: JsonObject = {
    "type": "object",
    "properties": {"cursor": {"type": "string", "description": "The cursor of an earlier result, for its next page."}},
}
_URI: JsonObject = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
_PROMPT: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name"],
}

_PARTS = (
    Offer("list_resources", "List the resources of a server.", _CURSOR, _list_resources, part="resources"),
    Offer("read_resource", "Read a resource of a server.", _URI, _read_resource, part="resources"),
    Offer("list_prompts", "List the prompts of a server.", _CURSOR, _list_prompts, part="prompts"),
    Offer("get_prompt", "Get a prompt of a server, filled with arguments.", _PROMPT, _get_prompt, part="prompts"),
)
