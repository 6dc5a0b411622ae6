"""The table of the model clients in the documentation: each cell is what the client does, found by trying it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.agents.run_checks import check_body
from tests.agents.scripted_wires import WIRES
from tests.servers.raw_server import RawServer, whole

from clew import Agent, Engine
from clew.domain.messages import FunctionCall, Media, Message, Text
from clew.domain.models.chat_requests import media_words
from clew.domain.models.client import Question, ResponseFormat, ToolSchema

pytestmark = pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")

PAGE = Path(__file__).parent.parent / "docs/how-to/model-services.md"
SIGNED = "c2lnbmVkIHRob3VnaHQ="
"""What a service needs again of the model's reasoning, in base64."""
BUILT_IN = "built-in 7"
"""A text in a part of an answer that Clew has no type for."""

Body = Any


@dataclass(frozen=True)
class Thinking:
    """How a service sends reasoning. ``called`` is an answer with reasoning and a call, ``done`` one with a text.

    ``other`` is an answer with a part of the service's own kind, of which the text is ``BUILT_IN``.
    """

    called: Body
    done: Body
    other: Body


def _chat(message: Body, reason: str) -> Body:
    told = {"role": "assistant", "content": None, **message}
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "message": told, "finish_reason": reason}]}


def _responses(*items: Body) -> Body:
    return {"id": "resp_1", "object": "response", "model": "m-1", "status": "completed", "output": list(items)}


def _anthropic(reason: str, *blocks: Body) -> Body:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "stop_reason": reason}
    return {**about, "content": list(blocks), "usage": {"input_tokens": 1, "output_tokens": 1}}


def _gemini(*parts: Body) -> Body:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}]}


def _interaction(*steps: Body) -> Body:
    return {"id": "v1_1", "model": "m-1", "status": "completed", "steps": list(steps)}


def _converse(reason: str, *blocks: Body) -> Body:
    return {"output": {"message": {"role": "assistant", "content": list(blocks)}}, "stopReason": reason}


_CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
_ITEM: Body = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
_OUTPUT = {**_ITEM, "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}
_REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SIGNED}
_THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": SIGNED}
_REASONED = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": SIGNED}}}
_STEP = {"type": "thought", "signature": SIGNED}
_SAID = {"type": "model_output", "content": [{"type": "text", "text": "Done."}]}

THINKING: Mapping[str, Thinking] = {
    "chat": Thinking(
        _chat({"reasoning_content": SIGNED, "tool_calls": [_CHAT_CALL]}, "tool_calls"),
        _chat({"reasoning_content": SIGNED, "content": "Done."}, "stop"),
        _chat({"content": "Done.", "built_in": {"text": BUILT_IN}}, "stop"),
    ),
    "responses": Thinking(
        _responses(
            _REASONING, {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look_up", "arguments": "{}"}
        ),
        _responses(_REASONING, _OUTPUT),
        _responses({"type": "web_search_call", "id": "w1", "action": {"query": BUILT_IN}}, _OUTPUT),
    ),
    "anthropic": Thinking(
        _anthropic("tool_use", _THOUGHT, {"type": "tool_use", "id": "c1", "name": "look_up", "input": {}}),
        _anthropic("end_turn", _THOUGHT, {"type": "text", "text": "Done."}),
        _anthropic("end_turn", {"type": "server_tool_use", "id": "s1", "name": "w", "input": {"q": BUILT_IN}}),
    ),
    "gemini": Thinking(
        _gemini({"functionCall": {"id": "c1", "name": "look_up", "args": {}}, "thoughtSignature": SIGNED}),
        _gemini({"text": "Done.", "thoughtSignature": SIGNED}),
        _gemini({"text": "Done."}, {"executableCode": {"language": "PYTHON", "code": BUILT_IN}}),
    ),
    "interactions": Thinking(
        _interaction(_STEP, {"type": "function_call", "id": "c1", "name": "look_up", "arguments": {}}),
        _interaction(_STEP, _SAID),
        _interaction({"type": "google_search_call", "id": "s1", "arguments": {"queries": [BUILT_IN]}}, _SAID),
    ),
    "bedrock": Thinking(
        _converse("tool_use", _REASONED, {"toolUse": {"toolUseId": "c1", "name": "look_up", "input": {}}}),
        _converse("end_turn", _REASONED, {"text": "Done."}),
        _converse("end_turn", {"text": "Done."}, {"builtInBlock": {"text": BUILT_IN}}),
    ),
}


def look_up() -> str:
    """Look up an order."""
    return "On its way."


def runs(name: str, *replies: Body, instructions: tuple[str, ...]) -> list[Body]:
    """The bodies that a service receives in runs with these instructions, which call a tool or end."""

    async def converse(server: RawServer) -> None:
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            client = WIRES[name].client(server.url, 60)
            for each in instructions:
                agent = Agent(client, engine=engine, instructions=each, tools=[look_up])
                await agent.run("Where is it?", thread=thread)

    with RawServer() as server:
        server.add_replies(*(whole(reply) for reply in replies))
        asyncio.run(converse(server))
        assert not server.replies, "every reply was asked for"
        return [json.loads(request.body) for request in server.requests]


def body_of(name: str, *messages: Message, **more: Any) -> str:
    """A request with these messages, which the service accepts, as JSON."""
    client = WIRES[name].client("http://127.0.0.1:9/v1", 60)
    body = client.wire.make_body(Question("m-1", messages, provider=getattr(client, "provider", None), **more))
    check_body(body, client.wire.name)
    return json.dumps(body, ensure_ascii=False)


def yes(holds: bool) -> str:  # noqa: FBT001  # it is the only parameter
    return "yes" if holds else "no"


def streaming(name: str) -> str:
    """Whether the answer comes in pieces, and is the same as a whole one."""

    async def ask(server: RawServer) -> list[str]:
        async with Engine.open("memory:") as engine:
            agent = Agent(WIRES[name].client(server.url, 60), engine=engine)
            stream = agent.run("Hi.", stream=True)
            pieces = [update.text async for update in stream if update.type == "text"]
            streamed, complete = await stream.get_final_response(), await agent.run("Hi.")
            assert streamed.text == complete.text == "Hello"
            return pieces

    with RawServer() as server:
        server.add_replies(*(WIRES[name].reply("Hello", streams=each) for each in (True, False)))
        return yes(asyncio.run(ask(server)) == ["He", "llo"])


CALLS = tuple(FunctionCall(call_id=f"c{n}", name="look_up", arguments=f'{{"order": {n}}}') for n in (1, 2))
TOOL = ToolSchema(name="look_up", description="Look up an order.", parameters={"type": "object", "title": "order"})


def tools(name: str) -> str:
    sent = body_of(name, Message.user("Hi."), tools=(TOOL,))
    return yes(all(text in sent for text in ("look_up", "Look up an order.", '"title": "order"')))


def parallel_calls(name: str) -> str:
    results = [Message.tool(each.call_id, f"Result {each.call_id}.") for each in CALLS]
    sent = body_of(name, Message.user("Hi."), Message.assistant(calls=CALLS), *results, tools=(TOOL,))
    return yes(0 < sent.find("Result c1.") < sent.find("Result c2."))


def structured_answers(name: str) -> str:
    wanted = ResponseFormat(name="order", json_schema={"type": "object", "title": "the order"})
    return yes("the order" in body_of(name, Message.user("Hi."), response_format=wanted))


def media(*given: Media) -> Callable[[str], str]:
    """How media goes: inline, by its address, both, or as words only."""

    def cell(name: str) -> str:
        ways = []
        for each in given:
            sent = body_of(name, Message(role="user", contents=(Text(text="Look."), each)))
            if media_words(each) not in sent:
                assert each.uri.rpartition(",")[2] in sent, "the data or the address"
                ways.append("data" if each.uri.startswith("data:") else "address")
        return " and ".join(ways) or "words"

    return cell


def both(kind: str, name: str) -> tuple[Media, Media]:
    return Media(uri=f"data:{kind};base64,AAAA"), Media(uri=f"https://example.org/{name}", media_type=kind)


def reasoning(name: str) -> str:
    """When the signature or the text of reasoning goes back."""
    told = THINKING[name]
    _, after_call = runs(name, told.called, told.done, instructions=("Be brief.",))
    _, later = runs(name, told.done, told.done, instructions=("Be brief.",) * 2)
    _, changed = runs(name, told.done, told.done, instructions=("Be brief.", "Be long."))
    return {
        (True, True, True): "yes",
        (True, True, False): "while all before it is unchanged",
        (True, False, False): "with calls",
        (False, False, False): "no",
    }[SIGNED in json.dumps(after_call), SIGNED in json.dumps(later), SIGNED in json.dumps(changed)]


def built_in_parts(name: str) -> str:
    _, later = runs(name, THINKING[name].other, THINKING[name].done, instructions=("Be brief.",) * 2)
    return yes(BUILT_IN in json.dumps(later))


def late_system_messages(name: str) -> str:
    sent = body_of(name, Message.user("Hi."), Message.assistant("Hello."), Message.system("Be formal."))
    if '"Be formal."' in sent:
        assert any(f'"role": "{role}"' in sent for role in ("system", "developer"))
        return "yes"
    return "as the user's text"


def authors(name: str) -> str:
    sent = body_of(name, Message.user("Hi.", author="Anna"))
    return "yes" if '"name": "Anna"' in sent else "as a prefix" if "Anna: Hi." in sent else "no"


def remote_threads(name: str) -> str:
    return yes("remote" in WIRES[name].client("http://127.0.0.1:9/v1", 60).thread_kinds)


def own_client(name: str) -> str:
    parameters = inspect.signature(type(WIRES[name].client("http://127.0.0.1:9/v1", 60))).parameters
    return next((f"`{each}=`" for each in ("client", "session") if each in parameters), "no")


ROWS: Mapping[str, Callable[[str], str]] = {
    "streaming": streaming,
    "tools": tools,
    "parallel calls": parallel_calls,
    "structured answers": structured_answers,
    "images": media(*both("image/png", "a.png")),
    "PDF documents": media(*both("application/pdf", "a.pdf")),
    "plain text files": media(*both("text/plain", "a.txt")),
    "audio": media(*both("audio/wav", "a.wav")),
    "video": media(*both("video/mp4", "a.mp4")),
    "reasoning goes back to the model": reasoning,
    "parts of built-in tools go back": built_in_parts,
    "late system messages": late_system_messages,
    "authors of users' messages": authors,
    "remote threads": remote_threads,
    "your own client object": own_client,
}


@cache
def table() -> str:
    """The table, as it must be in the documentation."""
    names = [type(wire.client("http://127.0.0.1:9/v1", 60)).__name__ for wire in WIRES.values()]
    lines = [f"| | {' | '.join(f'`{name}`' for name in names)} |", f"|---{'|---' * len(names)}|"]
    lines += [f"| {row} | {' | '.join(cell(name) for name in WIRES)} |" for row, cell in ROWS.items()]
    return "\n".join(lines)


def test_the_table_of_model_services_says_what_the_clients_do() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin = page.index("| |")
    told = page[begin : page.index("\n\n", begin)]
    assert told == table(), f"the table in {PAGE.name} must be:\n{table()}"


@pytest.mark.parametrize("name", WIRES)
def test_each_client_has_a_page_that_the_table_links(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    client = type(WIRES[name].client("http://127.0.0.1:9/v1", 60)).__name__
    pages = [path for path in PAGE.parent.glob("*.md") if f"]({path.name}" in page]
    assert any(f"{client}(" in path.read_text(encoding="utf-8") for path in pages)
