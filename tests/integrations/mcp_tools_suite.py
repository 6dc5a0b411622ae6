"""MCP with Clew: an agent of Clew calls the tools of a server, and an assistant reads a store through another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from examples.integrations.mcp_tools import history_server, mcp_tools
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.testing import call


def depot() -> MCPServer:
    server = MCPServer("depot")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def track(parcel: int) -> str:
        """Say where a parcel is."""
        if parcel > 9:
            raise ToolError("no such parcel")
        return f"Parcel {parcel} is in Cork."

    @server.tool()
    def send(parcel: int) -> dict[str, Any]:
        """Send a parcel."""
        return {"parcel": parcel, "sent": True}

    return server


def test_an_agent_calls_the_tools_of_a_server(tmp_path: Path) -> None:
    async def run() -> Any:
        script = ScriptedChatClient(
            [call("track", parcel=7), call("send", parcel=7), call("track", parcel=70), "Sent."]
        )
        async with Client(depot()) as client, Engine.open(tmp_path / "clew.db") as engine:
            tools = await mcp_tools(client)
            response = await Agent(script, engine=engine, tools=tools).run("Send 7.")
            history = await response.thread.history()
            request: Any = script.requests[0]
            offered = [each["function"] for each in request["tools"]]
            results = [result.result for message in history for result in message.results]
            return offered, results, [each.idempotent for each in tools]

    offered, results, idempotent = asyncio.run(run())
    assert [(each["name"], each["description"]) for each in offered] == [
        ("track", "Say where a parcel is."),
        ("send", "Send a parcel."),
    ]
    assert offered[0]["parameters"]["properties"]["parcel"]["type"] == "integer"
    assert "Parcel 7 is in Cork." in str(results[0])
    assert results[1] == {"parcel": 7, "sent": True}
    assert "no such parcel" in str(results[2])
    assert idempotent == [True, False]


def test_a_tool_waits_for_an_approval(tmp_path: Path) -> None:
    async def run() -> Any:
        script = ScriptedChatClient([call("send", parcel=7)])
        async with Client(depot()) as client, Engine.open(tmp_path / "clew.db") as engine:
            agent = Agent(script, engine=engine, tools=await mcp_tools(client, approval="always"))
            response = await agent.run("Send 7.")
            return [request.call.name for request in response.approvals]

    assert asyncio.run(run()) == ["send"]


def test_an_assistant_reads_only_what_its_actor_may(tmp_path: Path) -> None:
    def authorize(actor: str | None, action: str, thread_id: str | None) -> bool:
        del action
        return actor is None or thread_id != "secret"

    async def ask(conversations: Conversations) -> Any:
        async with Client(history_server(conversations, actor="assistant")) as client:
            names = [each.name for each in (await client.list_tools()).tools]
            calls: list[tuple[str, dict[str, Any]]] = [
                ("search", {"words": "parcel"}),
                ("threads", {}),
                ("show", {"thread": "refund"}),
                ("show", {"thread": "refund", "at": 2}),
                ("verify", {"thread": "refund"}),
                ("show", {"thread": "secret"}),
            ]
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
            return names, [(each.is_error, str(each.structured_content or each.content)) for each in results]

    with Conversations.open(tmp_path / "clew.db", authorize=authorize) as conversations:
        for id in ("refund", "secret"):
            messages = [Message.user("Where is my parcel?"), Message.assistant(f"In {id}.")]
            conversations.start_thread("Parcels", thread_id=id, messages=messages)
        names, results = asyncio.run(ask(conversations))
    assert names == ["search", "threads", "show", "verify"]
    assert [failed for failed, _ in results] == [False] * 5 + [True]
    assert "secret" not in "".join(text for _, text in results[:5])
    assert "In refund." in results[2][1]
    assert "In refund." not in results[3][1]
