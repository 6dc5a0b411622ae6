"""Requests of Bedrock: signed blocks go back only while what came before them is unchanged."""

from __future__ import annotations

from typing import Any

from clew.domain.messages import Message
from clew.domain.models.bedrock_answers import BedrockAnswer
from clew.domain.models.bedrock_requests import BEDROCK, bedrock_body, bedrock_left_out, bedrock_prefix
from clew.domain.models.client import Question, ToolSchema

BLOCKS: list[Any] = [
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
    {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}},
]


def question(*messages: Message, instructions: str | None = None, model: str = "m") -> Question:
    tools = (ToolSchema(name="look", parameters={"type": "object"}),)
    return Question(model, messages, instructions=instructions, tools=tools, provider="bedrock")


def answer_to(asked: Question) -> Message:
    reader = BedrockAnswer()
    list(reader.take_whole({"output": {"message": {"content": BLOCKS}}, "stopReason": "tool_use"}))
    answer = reader.answer()
    assert answer is not None
    assert answer.message.native is not None
    made_by = {"provider": "bedrock", "model": "m", "prefix": bedrock_prefix(bedrock_body(asked))}
    return answer.message.model_copy(update={"native": answer.message.native.model_copy(update=made_by)})


def test_signed_blocks_are_bound_to_what_came_before() -> None:
    first = Message.user("Hi"), answer_to(question(Message.user("Hi"))), Message.tool("t1", "found")
    same = question(*first)
    body: Any = bedrock_body(same)
    assert body["messages"][1]["content"] == BLOCKS
    assert bedrock_left_out(same) == ()
    for other in (question(Message.user("Ho"), *first[1:]), question(*first, instructions="New.")):
        changed: Any = bedrock_body(other)
        assert changed["messages"][1]["content"] == BLOCKS[1:]
        assert bedrock_left_out(other) == (1,)
    another: Any = bedrock_body(question(*first, model="m-2"))
    assert another["messages"][1]["content"] == BLOCKS[1:]


def test_cache_points_do_not_count() -> None:
    body: Any = bedrock_body(question(Message.user("Hi"), instructions="Be kind."))
    before = BEDROCK.prefix_of(body) if BEDROCK.prefix_of else None
    body["system"].append({"cachePoint": {"type": "default"}})
    body["messages"][0]["content"].append({"cachePoint": {"type": "default"}})
    assert bedrock_prefix(body) == before
