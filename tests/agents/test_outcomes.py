"""An answer that ends for another reason than usual ends with that reason: it is never an empty text with ``stop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.agents.run_checks import check_requests, events_of
from tests.agents.scripted_wires import WIRES
from tests.servers.raw_server import RawServer, stream, whole
from tests.servers.strict_bedrock import frame

from clew.agents.response import AgentResponse
from clew.domain.models.chat_answers import refusal_of
from clew.domain.runs.events import ModelAnswered, RunCompleted
from clew.engine import Agent, Engine

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Outcome:
    """A reply of a service, whole and in pieces, and how the answer ends."""

    kind: str
    name: str
    reply: Any
    pieces: list[Any]
    reason: str
    text: str = ""
    refusal: str = ""


def chat(name: str, reason: str, expected: str, **message: Any) -> Outcome:
    said = {"role": "assistant", "content": None, **message}
    about = {"id": "c1", "model": "m-1"}
    reply = {**about, "choices": [{"index": 0, "message": said, "finish_reason": reason}]}
    deltas = [{"role": "assistant"}, *({key: each} for key, value in message.items() for each in value.split("|"))]
    pieces = [{**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    ended = {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    said.update({key: value.replace("|", "") for key, value in message.items()})
    return Outcome("chat", name, reply, [*pieces, ended], expected, *_words(said.get("content"), said.get("refusal")))


def responses(name: str, expected: str, *content: Any, **about: Any) -> Outcome:
    item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [*content]}
    reply = {"id": "r1", "model": "m-1", "status": "completed", "output": [item] if content else [], **about}
    created = {"type": "response.created", "response": {**reply, "status": "in_progress", "output": []}}
    texts = [each.get("text") for each in content] + [None]
    refusals = [each.get("refusal") for each in content] + [None]
    pieces = [created, {"type": f"response.{reply['status']}", "response": reply}]
    return Outcome("responses", name, reply, pieces, expected, *_words(texts[0], refusals[0]))


def anthropic(reason: str, expected: str, text: str = "") -> Outcome:
    begin: Any = {"id": "m1", "type": "message", "role": "assistant", "model": "m-1", "content": []}
    blocks = [{"type": "text", "text": text}] if text else []
    usage = {"input_tokens": 9, "output_tokens": 4}
    pieces: list[Any] = [{"type": "message_start", "message": {**begin, "stop_reason": None, "usage": usage}}]
    pieces += [{"type": "content_block_start", "index": 0, "content_block": block} for block in blocks]
    pieces += [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]
    reply = {**begin, "content": blocks, "stop_reason": reason, "usage": usage}
    return Outcome("anthropic", reason, reply, pieces, expected, text)


def gemini(name: str, expected: str, text: str = "", **reply: Any) -> Outcome:
    parts = [{"text": text}] if text else []
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": name, "index": 0}
    told = reply or {"candidates": [candidate]}
    return Outcome("gemini", name, told, [told], expected, text)


def bedrock(reason: str, expected: str, text: str = "") -> Outcome:
    usage = {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13}
    blocks = [{"text": text}] if text else []
    message = {"role": "assistant", "content": blocks}
    deltas = [frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": block}) for block in blocks]
    ended = [frame("messageStop", {"stopReason": reason}), frame("metadata", {"usage": usage})]
    pieces = [frame("messageStart", {"role": "assistant"}), *deltas, *ended]
    return Outcome(
        "bedrock",
        reason,
        {"output": {"message": message}, "stopReason": reason, "usage": usage},
        pieces,
        expected,
        text,
    )


def _words(text: str | None, refusal: str | None) -> tuple[str, str]:
    return text or "", refusal or ""


OUTCOMES = (
    chat("refusal", "stop", "refusal", refusal="I can|not."),
    chat("filter", "content_filter", "content_filter"),
    chat("filter in the middle", "content_filter", "content_filter", content="Well,| then"),
    chat("limit", "length", "length", content="Once| upon"),
    responses("refusal", "refusal", {"type": "refusal", "refusal": "I cannot."}),
    responses("filter", "content_filter", status="incomplete", incomplete_details={"reason": "content_filter"}),
    responses(
        "limit",
        "length",
        {"type": "output_text", "text": "Once", "annotations": []},
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    responses("steered", "steered", status="incomplete", incomplete_details={"reason": "steered"}),
    responses("no reason", "incomplete", status="incomplete"),
    anthropic("refusal", "refusal"),
    anthropic("refusal", "refusal", "Well,"),
    anthropic("pause_turn", "pause_turn", "Let me search."),
    anthropic("max_tokens", "length", "Once"),
    anthropic("model_context_window_exceeded", "model_context_window_exceeded", "Once"),
    gemini("blocked", "content_filter", promptFeedback={"blockReason": "PROHIBITED_CONTENT"}),
    gemini("blocked for another reason", "content_filter", promptFeedback={"blockReason": "OTHER"}),
    gemini("SAFETY", "content_filter"),
    gemini("RECITATION", "content_filter", "Once upon"),
    gemini("MODEL_ARMOR", "content_filter"),
    gemini("MAX_TOKENS", "length", "Once"),
    gemini("MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"),
    gemini("CONTINUATION", "CONTINUATION", "Once"),
    bedrock("guardrail_intervened", "content_filter", "Sorry."),
    bedrock("content_filtered", "content_filter"),
    bedrock("max_tokens", "length", "Once"),
    bedrock("model_context_window_exceeded", "model_context_window_exceeded"),
    bedrock("malformed_tool_use", "malformed_tool_use"),
    bedrock("malformed_model_output", "malformed_model_output"),
)


async def run(agent: Agent, thread: Any, message: str | None, *, streams: bool) -> AgentResponse[Any]:
    if streams:
        return await agent.run(message, thread=thread, stream=True).get_final_response()
    return await agent.run(message, thread=thread)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "outcome", OUTCOMES, ids=lambda each: f"{each.kind}, {each.name}{', with words' * bool(each.text)}"
)
async def test_the_caller_and_the_log_have_the_reason(outcome: Outcome, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    wire = WIRES[outcome.kind]
    reply = stream(*outcome.pieces, done=wire.done, kind=wire.media_type) if streams else whole(outcome.reply)
    with RawServer() as server:
        server.add_replies(reply)
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            agent = Agent(wire.client(server.url, 60), engine=engine, name="Clerk")
            response = await run(agent, thread, "Hello", streams=streams)
            assert (response.finish_reason, response.text) == (outcome.reason, outcome.text)
            refusals = [refusal_of(each) for each in response.messages[-1].message.contents]  # type: ignore[union-attr]  # not redacted
            assert [each for each in refusals if each] == [outcome.refusal] * bool(outcome.refusal)
            events = await events_of(thread)
            reasons = [
                each.data.finish_reason for each in events if isinstance(each.data, ModelAnswered | RunCompleted)
            ]
            assert reasons == [outcome.reason] * 2


async def test_a_paused_turn_goes_on_as_a_recorded_call() -> None:
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "lamps"}}
    paused = {**anthropic("pause_turn", "").reply, "content": [search]}
    with RawServer() as server:
        server.add_replies(whole(paused), whole(anthropic("end_turn", "", "Found.").reply))
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            agent = Agent(WIRES["anthropic"].client(server.url, 60), engine=engine, name="Clerk")
            assert (await agent.run("Search", thread=thread)).finish_reason == "pause_turn"
            assert len(server.requests) == 1, "no request is sent that is not on the log"
            assert (await agent.run(thread=thread)).text == "Found."
            requests = await check_requests(thread, await events_of(thread))
        sent = [request.json()["messages"] for request in server.requests]
    assert sent[1] == [*sent[0], {"role": "assistant", "content": [search]}], "the answer goes back as it came"
    assert [request.content for request in requests] == [request.body for request in server.requests]
