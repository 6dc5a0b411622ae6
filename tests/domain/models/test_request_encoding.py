from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.request_checks import checked
from tests.domain.strategies import messages, objects, optional_texts, texts

from clew.domain.call_pairing import model_view
from clew.domain.formats.openai_messages import decode
from clew.domain.history import HistoryMessage
from clew.domain.messages import FunctionCall, Message, Reasoning, Text
from clew.domain.models.chat_requests import OPENAI_CHAT, chat_body, chat_stream
from clew.domain.models.client import Question, ResponseFormat, ServiceReference, ToolSchema, WireFormat
from clew.domain.models.responses_requests import OPENAI_RESPONSES, responses_stream
from clew.domain.runs.request_construction import request_bytes

WIRES = (OPENAI_CHAT, OPENAI_RESPONSES)
both_wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def viewed(turns: list[Message]) -> tuple[Message, ...]:
    placed = [HistoryMessage(number, each.role, each, f"e{number}", number) for number, each in enumerate(turns, 2)]
    return model_view(placed).messages


@both_wires
def test_a_conversation_cut_at_any_message_gives_a_valid_request(
    wire: WireFormat, corpus: list[dict[str, Any]], scale: float
) -> None:
    some = random.Random(4).sample(corpus, max(1, round(min(1, scale) * len(corpus))))
    for conversation in some:
        turns = [decode(each, number) for number, each in enumerate(conversation["messages"], 1)]
        for cut in range(1, len(turns) + 1):
            checked(wire, Question("m", viewed(turns[:cut]), "Be kind."))


@both_wires
@given(data=st.data())
def test_messages_of_all_contents_give_a_valid_request(wire: WireFormat, data: st.DataObject) -> None:
    turns = data.draw(st.lists(messages, max_size=5))
    question = Question("m", viewed(turns), data.draw(optional_texts), (), None, data.draw(st.none() | objects))
    if question.options and not {"model", "messages", "input"}.isdisjoint(question.options):
        return
    checked(wire, question)


@both_wires
@given(turns=st.lists(messages, max_size=3), instructions=optional_texts)
def test_the_same_question_gives_the_same_bytes(
    wire: WireFormat, turns: list[Message], instructions: str | None
) -> None:
    question = Question("m", viewed(turns), instructions)
    again = Question("m", tuple(Message.model_validate_json(each.model_dump_json()) for each in viewed(turns)))
    first = request_bytes(wire.make_body(question))
    assert first == request_bytes(wire.make_body(question))
    if not instructions:
        assert first == request_bytes(wire.make_body(again)), "also for stored messages"


@both_wires
@given(ids=st.lists(st.sampled_from(["", "a", "a-2", "call", "call-2"]), min_size=1, max_size=5), results=texts)
def test_empty_and_repeated_ids_become_unique_in_calls_and_results(
    wire: WireFormat, ids: list[str], results: str
) -> None:
    calls = [FunctionCall(call_id=id_, name="find", arguments="{}") for id_ in ids]
    turns = [Message.assistant(calls=calls)]
    turns += [Message.tool(id_, f"{number} {results}") for number, id_ in enumerate(ids)]
    sent = checked(wire, Question("m", tuple(turns)))
    listed: list[dict[str, Any]] = sent["messages" if wire is OPENAI_CHAT else "input"]
    outputs = [each.get("output", each.get("content")) for each in listed]
    assert [each for each in outputs if each] == [f"{number} {results}" for number in range(len(ids))]


def test_a_prefix_of_a_conversation_gives_the_same_items_later() -> None:
    turns = [
        Message.assistant(calls=[FunctionCall(call_id="", name="f", arguments="")]),
        Message.tool("", 1),
        Message.assistant(calls=[FunctionCall(call_id="", name="f", arguments="")]),
        Message.tool("", 2),
    ]
    for wire, place in zip(WIRES, ("messages", "input"), strict=True):
        short: Any = wire.make_body(Question("m", tuple(turns[:2])))[place]
        long: Any = wire.make_body(Question("m", tuple(turns)))[place]
        assert long[: len(short)] == short


@both_wires
def test_options_come_last_and_their_tools_after_the_functions(wire: WireFormat) -> None:
    tool = ToolSchema(name="find", parameters={"type": "object", "properties": {}})
    options: Any = {"temperature": 0, "tools": [{"type": "web_search"}]}
    body = checked(wire, Question("m", (Message.user("Hi"),), None, (tool,), None, options))
    assert [each["type"] for each in body["tools"]] == ["function", "web_search"]
    assert list(body)[-1] == "temperature"


@both_wires
def test_a_format_is_strict_only_with_a_strict_schema(wire: WireFormat) -> None:
    closed: Any = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N"}},
        "required": ["n"],
        "additionalProperties": False,
        "$defs": {"N": {"type": "integer"}},
    }
    schemas: list[tuple[Any, bool]] = [(closed, True), ({**closed, "required": []}, False), ({"type": "object"}, False)]
    for schema, strict in schemas:
        wanted = ResponseFormat(name="Count", json_schema=schema)
        body = checked(wire, Question("m", (Message.user("Hi"),), response_format=wanted))
        form = body["response_format"]["json_schema"] if wire is OPENAI_CHAT else body["text"]["format"]
        assert form["schema"] == schema
        assert form.get("strict", False) is strict


def test_a_format_keeps_other_text_options() -> None:
    wanted = ResponseFormat(name="Count", json_schema={})
    options: Any = {"text": {"verbosity": "low"}}
    body = checked(OPENAI_RESPONSES, Question("m", (Message.user("Hi"),), response_format=wanted, options=options))
    assert body["text"]["verbosity"] == "low"
    assert body["text"]["format"]["name"] == "Count"


def test_the_stream_option_comes_last() -> None:
    body = chat_body(Question("m", (Message.user("Hi"),)))
    streamed_body = chat_stream({**body, "stream_options": {"include_obfuscation": False}})
    assert list(streamed_body) == ["model", "messages", "stream_options", "stream"]
    assert streamed_body["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert responses_stream({"model": "m"}) == {"model": "m", "stream": True}


def test_bytes_are_compact_json_in_utf_8() -> None:
    question = Question("m", (Message.user("é"),))
    turns = '{"model":"m","messages":[{"role":"user","content":"é"}]}'
    assert request_bytes(chat_body(question)) == turns.encode()


@pytest.mark.parametrize(("kind", "place"), [("response", "previous_response_id"), ("conversation", "conversation")])
def test_a_request_continues_a_service_thread_by_its_id(kind: Any, place: str) -> None:
    question = Question("m", (Message.tool("call_1", {"n": 1}),), service=ServiceReference(kind=kind, id="x_1"))
    body = checked(OPENAI_RESPONSES, question)
    assert body[place] == "x_1"
    assert body["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": '{"n": 1}'}]


def test_reasoning_is_sent_only_to_its_own_service() -> None:
    item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "…"}
    turns = Message(role="assistant", contents=(Reasoning(text="Hm.", data=item), Text(text="Yes.")))
    thought = Message(role="assistant", contents=(Reasoning(text="Hm."), Text(text="Yes.")))
    chat: Any = checked(OPENAI_CHAT, Question("m", (turns,)))["messages"]
    assert chat == [{"role": "assistant", "content": "Yes."}]
    items: Any = checked(OPENAI_RESPONSES, Question("m", (turns, thought)))["input"]
    assert json.dumps(items[0]) == json.dumps(item), "unchanged, even the order of its keys"
    assert items[1:] == [{"role": "assistant", "content": "Yes."}] * 2
