"""MCP in both directions: a server's tools for agents of Clew, and a store of Clew as a server for assistants."""

from typing import Any

from mcp import Client
from mcp.server.mcpserver import MCPServer

from clew import Conversations, tool
from clew.types import Tool


async def mcp_tools(client: Client, *, approval: Any = "never") -> list[Tool]:
    """The tools that a server offers. The client must be open whenever an agent calls them."""
    return [_tool(client, offered, approval) for offered in (await client.list_tools()).tools]


def _tool(client: Client, offered: Any, approval: Any) -> Tool:
    async def call(**arguments: Any) -> Any:
        result = await client.call_tool(offered.name, arguments)
        texts = "\n".join(getattr(each, "text", "") for each in result.content)
        if result.is_error:
            raise RuntimeError(texts)
        return result.structured_content or texts

    hints = offered.annotations
    idempotent = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
    return tool(
        call,
        name=offered.name,
        description=offered.description or "",
        schema=offered.input_schema,
        approval=approval,
        idempotent=idempotent,
    )


def history_server(conversations: Conversations, *, actor: str | None = None) -> MCPServer:
    """A server that can only read, and shows what ``authorize`` lets the actor see."""
    acting, server = conversations.acting_as(actor), MCPServer("clew")

    @server.tool()
    def search(words: str, thread: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
        """Find messages by their words."""
        hits = acting.search(words, thread=thread, limit=limit)
        return [
            {"thread": hit.thread_id, "version": hit.version, "text": "".join(part.text for part in hit.snippet)}
            for hit in hits
        ]

    @server.tool()
    def threads(newest: int = 20) -> list[dict[str, Any]]:
        """List the threads that changed last."""
        found = acting.threads(order="updated", newest_first=True, limit=newest)
        return [{"thread": each.id, "title": each.title, "version": each.version} for each in found]

    @server.tool()
    def show(thread: str, at: int | None = None) -> str:
        """Show a thread as Markdown, as it is or as it was at a version."""
        return acting.thread(thread).markdown(at=at)

    @server.tool()
    def verify(thread: str) -> str:
        """Say whether a thread was changed since it was written."""
        return str(acting.thread(thread).verify())

    return server
