"""Answers of Responses that wait for the client: approvals of the service's MCP servers, custom and computer calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.raw_server import RawServer, Reply, stream, whole

from clew import Agent, Engine, Image, OpenAIResponsesClient, tool
from clew.errors import AgentConfigurationError, ApprovalPendingError, ModelRequestError, UnansweredCallError

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret thoughts"}
REQUEST = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "git",
    "name": "push",
    "arguments": '{"branch":"main"}',
}
CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "shout", "input": "hello, world"}
CHECKS = [{"id": "cu_sc_1", "code": "malicious_instructions", "message": "Careful."}]
COMPUTER = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "click", "x": 1, "y": 2, "button": "left"},
    "pending_safety_checks": [],
}
MCP_TOOL = {"type": "mcp", "server_label": "git", "server_url": "https://git.example/mcp", "require_approval": "always"}


def response(number: int, *items: Any, streams: bool = False) -> Reply:
    body = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "m", "output": [*items]}
    return stream({"type": "response.completed", "response": body}) if streams else whole(body)


def said(text: str) -> Any:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


_clients: list[OpenAIResponsesClient] = []


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    while _clients:
        await _clients.pop().aclose()


def client_of(server: RawServer, **options: Any) -> OpenAIResponsesClient:
    client = OpenAIResponsesClient("m", base_url=server.url, api_key="k", **options)
    _clients.append(client)
    return client


def agent_of(engine: Engine, server: RawServer, *tools: Any, hosted: Any = MCP_TOOL, store: bool = False) -> Agent:
    options: Any = {"store": store, "options": {"tools": [hosted]}}
    return Agent(client_of(server, **options), engine=engine, tools=tools, retries=0)


def sent(server: RawServer, number: int) -> Any:
    return server.requests[number].json()


def waiting_items(server: RawServer, number: int) -> list[Any]:
    items = sent(server, number)["input"]
    return [each for each in items if each.get("type", "message") not in {"message", "reasoning"}]


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_an_approval_of_a_hosted_mcp_server_is_decided_as_others_are(
    url: str,
    server: RawServer,
    store: bool,  # noqa: FBT001  # pytest passes them by name
    approved: bool,  # noqa: FBT001  # the same
    streams: bool,  # noqa: FBT001  # the same
) -> None:
    server.add_replies(response(1, REASONING, REQUEST, streams=streams), response(2, said("Done."), streams=streams))
    async with Engine.open(url) as engine:
        agent = agent_of(engine, server, store=store)
        waiting = await agent.run("Push.", stream=True).get_final_response() if streams else await agent.run("Push.")
        (approval,) = waiting.approvals
        assert (approval.call.name, approval.call.arguments) == ("git.push", '{"branch":"main"}')
        with pytest.raises(ApprovalPendingError):
            await agent.continue_run(waiting.thread)
    async with Engine.open(url) as engine:
        agent = agent_of(engine, server, store=store)
        thread = await agent.thread(waiting.thread.id)
        (approval,) = await thread.approvals()
        await (approval.approve(actor="user:ann") if approved else approval.reject("not today", actor="user:ann"))
        again: Any = agent.continue_run(thread, stream=True) if streams else agent.continue_run(thread)
        done = await (again.get_final_response() if streams else again)
        assert (done.text, done.approvals) == ("Done.", [])
        decision: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approved}
        decision |= {} if approved else {"reason": "not today"}
        assert waiting_items(server, 1) == ([] if store else [REQUEST]) + [decision]
        assert sent(server, 1).get("previous_response_id") == ("resp_1" if store else None)
        types = [event.type async for event in thread.events()]
        assert types.count("run-started") == types.count("run-completed") == 1
        assert ("tool-finished" if approved else "tool-failed") in types
        calls = [event.version async for event in thread.events() if event.type == "model-called"]
        assert all([(await thread.request(version)).verified for version in calls])
        assert (await engine.verify()).first_bad is None


async def test_credentials_of_mcp_servers_are_sent_and_are_in_no_event(server: RawServer, tmp_path: Path) -> None:
    private = "t0ken-of-the-git-server"
    server.add_replies(response(1, said("Hello.")), whole({"error": {"message": f"wrong: {private}"}}, status=400))
    for given, sent_as in ((private, private), ({"X-Key": private}, {"X-Key": private})):
        with pytest.raises(AgentConfigurationError, match="mcp_credentials"):
            client_of(server, options={"tools": [{**MCP_TOOL, "authorization": private}]})
        tools = {"tools": [MCP_TOOL]}
        client = client_of(server, options=tools, mcp_credentials={"git": given})
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = Agent(client, engine=engine, retries=0)
            thread = await engine.start_thread()
            if isinstance(given, str):
                await agent.run("Hello?", thread=thread)
                calls = [event.version async for event in thread.events() if event.type == "model-called"]
                assert (await thread.request(calls[0])).verified
            else:
                with pytest.raises(ModelRequestError) as raised:
                    await agent.run("Hello?", thread=thread)
                assert private not in str(raised.value)
        field = "authorization" if isinstance(given, str) else "headers"
        assert sent(server, -1)["tools"] == [{**MCP_TOOL, field: sent_as}]
    assert private.encode() not in b"".join(map(Path.read_bytes, files_of(tmp_path)))


def files_of(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_run_that_is_given_up_leaves_no_request_without_an_answer(server: RawServer) -> None:
    server.add_replies(response(1, said("Wait."), REASONING, REQUEST), response(2, said("Good.")))
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, server)
        waiting = await agent.run("Push.")
        with pytest.raises(ApprovalPendingError):
            await agent.run("Forget it.", thread=waiting.thread)
        done = await agent.run("Forget it.", thread=waiting.thread, abandon_run=True)
        assert done.text == "Good."
        kinds = [each.get("type") or each.get("role") for each in sent(server, 1)["input"]]
        assert kinds == ["user", "message", "user"]


async def test_a_custom_call_is_carried_out_by_the_function_of_its_name(server: RawServer) -> None:
    def shout(text: str) -> str:
        return text.upper()

    unknown = {**CUSTOM, "id": "ctc_2", "call_id": "call_2", "name": "sing"}
    server.add_replies(response(1, CUSTOM, unknown), response(2, said("Done.")))
    hosted = {"type": "custom", "name": "shout", "description": "Shout a text."}
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, server, shout, hosted=hosted)
        done = await agent.run("Shout.")
        assert done.text == "Done."
        assert sent(server, 0)["tools"] == [hosted], "the function is not offered twice"
        outputs = {each["call_id"]: each["output"] for each in waiting_items(server, 1) if "output" in each}
        assert outputs["call_1"] == "HELLO, WORLD"
        assert "there is no tool 'sing'" in outputs["call_2"]
        assert {each["type"] for each in waiting_items(server, 1)} == {"custom_tool_call", "custom_tool_call_output"}


async def test_a_custom_call_waits_for_the_approval_of_its_function(server: RawServer) -> None:
    heard: list[str] = []

    @tool(approval="always")
    def shout(text: str) -> None:
        heard.append(text)

    server.add_replies(response(1, CUSTOM), response(2, said("Done.")))
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, server, shout, hosted={"type": "custom", "name": "shout"})
        waiting = await agent.run("Shout.")
        assert heard == []
        await waiting.approvals[0].approve()
        await agent.continue_run(waiting.thread)
        assert heard == ["hello, world"]


async def test_a_computer_call_is_carried_out_by_a_function_and_its_checks_need_an_approval(server: RawServer) -> None:
    done: list[Any] = []

    def computer(action: dict[str, Any]) -> Any:
        done.append(action["type"])
        return Image(PNG)

    checked = {**COMPUTER, "pending_safety_checks": CHECKS, "call_id": "call_2", "id": "cu_2"}
    server.add_replies(response(1, COMPUTER), response(2, checked), response(3, said("Clicked.")))
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, server, computer, hosted={"type": "computer_use_preview"})
        waiting = await agent.run("Click.")
        assert done == ["click"]
        (_, first) = waiting_items(server, 1)
        assert first["output"] == {"type": "computer_screenshot", "image_url": Image(PNG).uri}
        assert "acknowledged_safety_checks" not in first
        assert "malicious_instructions" in waiting.approvals[0].call.arguments
        await waiting.approvals[0].approve()
        assert (await agent.continue_run(waiting.thread)).text == "Clicked."
        assert done == ["click", "click"]
        assert waiting_items(server, 2)[-1]["acknowledged_safety_checks"] == CHECKS


async def test_a_call_that_nobody_can_carry_out_is_an_error_and_is_not_sent_again(server: RawServer) -> None:
    shell = {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "call_1",
        "action": {"commands": ["ls"]},
        "status": "completed",
    }
    for item, words in ((COMPUTER, r"Give tool\(function, name='computer'\)"), (shell, "no result for it")):
        server.add_replies(response(1, REASONING, item), response(2, said("Hello.")))
        async with Engine.open("memory:") as engine:
            agent, thread = agent_of(engine, server), await engine.start_thread()
            with pytest.raises(UnansweredCallError, match=words):
                await agent.run("Click.", thread=thread)
            assert [event.type async for event in thread.events()][-1] == "run-failed"
            assert (await agent.run("Hello?", thread=thread)).text == "Hello."
            assert [each.get("role") for each in sent(server, -1)["input"]] == ["user", "user"]


async def test_a_computer_call_without_a_picture_ends_the_run(server: RawServer) -> None:
    def computer(action: dict[str, Any]) -> str:
        return f"clicked {action}"

    server.add_replies(response(1, COMPUTER), response(2, said("Hello.")))
    async with Engine.open("memory:") as engine:
        agent = agent_of(engine, server, computer)
        thread = await engine.start_thread()
        with pytest.raises(UnansweredCallError, match="must be an image"):
            await agent.run("Click.", thread=thread)
        assert (await agent.run("Hello?", thread=thread)).text == "Hello."
        assert [each.get("role") for each in sent(server, -1)["input"]] == ["user", "user"]


async def test_a_tool_that_the_service_runs_itself_is_offered_and_its_calls_are_on_the_log_and_sent_back(
    url: str, server: RawServer
) -> None:
    action = {"type": "search", "query": "lamps"}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    server.add_replies(response(1, search, said("Lamps are bright.")), response(2, said("Very.")))
    async with Engine.open(url) as engine:
        agent = agent_of(engine, server, hosted={"type": "web_search"})
        answered = await agent.run("What about lamps?")
        assert (answered.text, answered.approvals) == ("Lamps are bright.", [])
        await agent.run("How bright?", thread=answered.thread)
    assert sent(server, 0)["tools"] == [{"type": "web_search"}]
    assert waiting_items(server, 1) == [search]
