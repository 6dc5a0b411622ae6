from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import texts

from clew.domain.messages import FunctionCall, Media, Message, Raw, Reasoning, Text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    Question,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    TokenUsage,
    Update,
)
from clew.domain.models.native import received
from clew.domain.models.responses_answers import ResponsesAnswer, item_messages, written_items
from clew.domain.models.responses_requests import left_out, responses_body

SEARCH: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
USAGE: Any = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 13,
}


def reasoning_item(text: str) -> Any:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "e-1"}


def text_item(text: str) -> Any:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def call(id_: str, arguments: str) -> Any:
    return {"type": "function_call", "id": "fc_1", "call_id": id_, "name": "f", "arguments": arguments}


ITEMS = st.lists(
    st.builds(reasoning_item, texts) | st.builds(text_item, texts) | st.builds(call, texts, texts) | st.just(SEARCH),
    max_size=4,
)


def response(*items: Any, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "m-1", "status": "completed", "output": list(items), "usage": USAGE, **more}


def events(items: list[Any], final: dict[str, Any]) -> list[dict[str, Any]]:
    received_events: list[dict[str, Any]] = [{"type": "response.created", "response": {**final, "output": []}}]
    for index, item in enumerate(items):
        at = {"output_index": index}
        received_events.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
        kind, text = delta_of(item)
        received_events += [{"type": f"response.{kind}.delta", **at, "delta": letter} for letter in text]
        received_events.append({"type": "response.output_item.done", **at, "item": item})
    return [*received_events, {"type": f"response.{final['status']}", "response": final}]


def delta_of(item: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of delta event for an item, and the streamed text."""
    match item["type"]:
        case "message":
            return "output_text", item["content"][0]["text"]
        case "reasoning":
            return "reasoning_summary_text", item["summary"][0]["text"]
        case "function_call":
            return "function_call_arguments", item["arguments"]
        case _:
            return "web_search_call.searching", ""


def streamed(received_events: list[dict[str, Any]], **body: Any) -> tuple[list[Update], ResponsesAnswer]:
    reader = ResponsesAnswer({"store": False, **body})
    return [update for each in received_events for update in reader.take(each)], reader


def whole(received_events: dict[str, Any], **body: Any) -> tuple[list[Update], ResponsesAnswer]:
    reader = ResponsesAnswer({"store": False, **body})
    return list(reader.take_whole(received_events)), reader


@given(items=ITEMS, left_out=st.booleans())
def test_events_and_a_whole_body_give_the_same_answer(items: list[Any], *, left_out: bool) -> None:
    final = response(*items)
    received_events = events(
        items, {**final, "output": []} if left_out else final
    )  # some services do not repeat the output
    updates, reader = streamed(received_events)
    answer = reader.answer()
    assert answer == whole(final)[1].answer()
    assert answer is not None
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.message.text
    arguments = ["" for _ in answer.message.calls]
    for each in updates:
        if isinstance(each, CallDelta):
            arguments[each.index] += each.arguments
    assert arguments == [each.arguments for each in answer.message.calls]


@given(items=ITEMS)
def test_items_are_sent_back_unchanged(items: list[Any]) -> None:
    answer = whole(response(*items, text_item("End.")))[1].answer()
    assert answer is not None
    message = answer.message
    if message.native is not None:
        message = message.model_copy(update={"native": message.native.model_copy(update={"model": "m"})})
    body: Any = responses_body(Question("m", (message,)))
    received = [each for each in items if each["type"] in {"reasoning", "web_search_call"}]
    back = [each for each in body["input"] if each.get("type") in {"reasoning", "web_search_call"}]
    assert back == received


def test_reads_all_parts_of_an_answer() -> None:
    updates, reader = whole(response(reasoning_item("Hm."), text_item("Hi"), SEARCH, call("a", "{}")))
    assert updates == [ReasoningDelta("Hm."), TextDelta("Hi"), CallDelta(0, "a", "f", "{}")]
    answer = reader.answer()
    assert answer is not None
    assert replace(answer, message=answer.message.model_copy(update={"native": None})) == Answer(
        Message(
            role="assistant",
            contents=(
                Reasoning(text="Hm.", data=reasoning_item("Hm.")),
                Text(text="Hi"),
                Raw(value=SEARCH),
                FunctionCall(call_id="a", name="f", arguments="{}"),
            ),
        ),
        "tool_calls",
        TokenUsage(input_tokens=9, output_tokens=4, cached_tokens=2, reasoning_tokens=1),
        "m-1",
        "resp_1",
    )


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "incomplete")],
)
def test_an_incomplete_answer_has_a_reason(reason: str | None, finish_reason: str) -> None:
    final = response(text_item("Hi"), status="incomplete", incomplete_details={"reason": reason})
    for reader in (whole(final)[1], streamed(events([text_item("Hi")], final))[1]):
        answer = reader.answer()
        assert answer is not None
        assert answer.finish_reason == finish_reason


def test_a_streamed_text_that_the_final_response_leaves_out_is_kept() -> None:
    final = response(status="incomplete", incomplete_details={"reason": "content_filter"})
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in ("Hel", "lo")]
    updates, reader = streamed([*deltas, {"type": "response.incomplete", "response": final}])
    answer = reader.answer()
    assert answer is not None
    assert answer.message.text == "".join(each.text for each in updates if isinstance(each, TextDelta)) == "Hello"
    assert answer.finish_reason == "content_filter"


def test_an_answer_is_complete_only_with_the_final_event() -> None:
    received_events = events([text_item("Hi")], response(text_item("Hi")))
    assert streamed(received_events[:-1])[1].answer() is None
    assert whole(response(text_item("Hi"), status="in_progress"))[1].answer() is None
    assert whole({"id": "resp_1"})[1].answer() is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "Broken.", "param": None},
        {"type": "error", "error": {"code": "server_error", "message": "Broken."}},
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Broken."}}},
        {"error": {"code": "server_error", "message": "Broken."}},
    ],
)
def test_an_error_in_the_events_is_the_failure(event: dict[str, Any]) -> None:
    assert streamed([event])[1].failure == {"code": "server_error", "message": "Broken."}


def test_a_failed_response_is_not_an_answer() -> None:
    reader = whole(response(status="failed", error={"code": "server_error", "message": "Broken."}))[1]
    assert reader.failure == {"code": "server_error", "message": "Broken."}
    assert reader.answer() is None


def test_the_service_id_comes_first_and_once() -> None:
    bound = ServiceBound(ServiceReference(kind="response", id="resp_1"))
    final = response(text_item("Hi"))
    for updates, _ in (streamed(events([text_item("Hi")], final), store=True), whole(final, store=True)):
        assert updates[0] == bound
        assert updates.count(bound) == 1


def test_no_service_id_for_known_or_unstored_responses() -> None:
    final = response(text_item("Hi"))
    assert whole(final, store=True, conversation="conv_1")[0] == [TextDelta("Hi")]
    assert whole(final, store=False)[0] == [TextDelta("Hi")]
    assert whole({**final, "store": False}, store=True)[0] == [TextDelta("Hi")]
    named = whole({**final, "conversation": {"id": "conv_1"}}, store=True)[0][0]
    assert named == ServiceBound(ServiceReference(kind="conversation", id="conv_1"))


def test_an_answer_starts_with_its_first_delta_or_at_once_in_a_conversation() -> None:
    created, *rest = events([text_item("Hi")], response(text_item("Hi")))
    assert not streamed([created], store=True)[1].begun
    assert streamed([created], store=True, conversation="conv_1")[1].begun
    assert streamed([created, rest[1]])[1].begun


def test_the_items_of_a_history_are_messages() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "id": "msg_0",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": "https://x/y"}],
        },
        reasoning_item("Hm."),
        text_item("Let me see."),
        call("a", "{}"),
        {"type": "function_call_output", "id": "fo_1", "call_id": "a", "output": "found"},
        text_item("There."),
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
        {"type": "local_shell_call_output", "id": "ls_1", "output": "x"},
    ]
    assert item_messages(items) == [
        Message(role="developer", contents=(Text(text="Be kind."),)),
        Message(role="user", contents=(Text(text="Hi"), Media(uri="https://x/y"))),
        Message(
            role="assistant",
            contents=(
                Reasoning(text="Hm.", data=reasoning_item("Hm.")),
                Text(text="Let me see."),
                FunctionCall(call_id="a", name="f", arguments="{}"),
            ),
        ),
        Message.tool("a", "found"),
        Message.assistant("There."),
        Message(role="user", contents=(Raw(value={"type": "input_file", "file_id": "file_1"}),)),
        Message(role="tool", contents=(Raw(value=items[-1]),)),
    ]


ANNOTATION = {"type": "url_citation", "url": "https://example.org", "title": "T", "start_index": 0, "end_index": 1}
RICH: Any = [
    {**text_item("Before."), "id": "msg_0", "phase": "commentary"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "xyz"},
    {**call("a", "{}"), "status": "completed", "namespace": "n", "caller": {"type": "direct"}},
    {"type": "some_new_item", "id": "new_1", "deep": {"list": [1, {"x": None}]}},
    {
        **text_item("Hi"),
        "content": [{"type": "output_text", "text": "Hi", "annotations": [ANNOTATION], "logprobs": []}],
    },
    {**text_item(""), "content": [{"type": "refusal", "refusal": "No."}, {"type": "new_part", "x": 1}]},
]


@given(items=ITEMS.map(lambda items: [*items, *RICH]))
def test_no_field_of_an_item_is_lost(items: list[Any]) -> None:
    final = response(*items, service_tier="default", new_field={"a": [1]})
    answer = whole(final)[1].answer()
    assert answer is not None
    done = [{"type": "response.output_item.done", "item": item} for item in items]
    assert answer == streamed([*done, {"type": "response.completed", "response": final}])[1].answer()
    kept: Any = received(answer.message, {"output": written_items(answer.message)})
    assert kept == {"output": items, "reply": {"service_tier": "default", "new_field": {"a": [1]}}}


def test_what_the_request_does_not_say_is_kept() -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    asked: Any = {"model": "m-1", "tools": [tool], "temperature": 0.5, "text": {"format": {"type": "json_object"}}}
    asked |= {"conversation": "conv_1", "instructions": "Be brief."}
    said = {
        **asked,
        "conversation": {"id": "conv_1"},
        "tools": [{**tool, "description": None}],
        "text": {**asked["text"], "verbosity": "medium"},
        "top_p": 1.0,
        "truncation": "disabled",
        "error": None,
        "reasoning": {"effort": None, "summary": None},
        "metadata": {},
    }
    answer = whole(response(text_item("Hi"), **said), **asked)[1].answer()
    assert answer is not None
    kept: Any = received(answer.message, {"output": written_items(answer.message)})
    assert kept == {"output": [text_item("Hi")]}, "the rest repeats the request, or what the service documents"
    told = {
        **said,
        "metadata": {"case": "7"},
        "instructions": "Be kind.",
        "temperature": 1.0,
        "prompt": {"id": "p_1"},
        "tools": [{**tool, "strict": True}],
        "reasoning": {"effort": "low", "summary": None},
        "future": False,
    }
    answer = whole(response(text_item("Hi"), **told), **asked)[1].answer()
    assert answer is not None
    kept = received(answer.message, {"output": written_items(answer.message)})
    assert kept["reply"] == {
        "metadata": {"case": "7"},
        "instructions": "Be kind.",
        "prompt": {"id": "p_1"},
        "tools": [{"strict": True}],
        "reasoning": {"effort": "low"},
        "future": False,
        "temperature": 1.0,
    }


def test_items_go_back_as_they_came_to_the_model_that_made_them() -> None:
    answer = whole(response(reasoning_item("Hm."), *RICH))[1].answer()
    assert answer is not None
    assert answer.message.native is not None
    native = answer.message.native.model_copy(update={"provider": "here", "model": "m-1"})
    turns = (answer.message.model_copy(update={"native": native}), Message.tool("a", "1"))
    own: Any = responses_body(Question("m-1", turns, provider="here"))["input"]
    assert own[:-1] == [reasoning_item("Hm."), *RICH]
    for question in (Question("m-2", turns, provider="here"), Question("m-1", turns, provider="there")):
        other: Any = responses_body(question)["input"]
        assert not any("phase" in each or "namespace" in each for each in other)
        assert not any(each.get("type") == "reasoning" for each in other), "only its own model can read it"
        assert left_out(question, {}) == (0,)
        before: Any = responses_body(replace(question, edition=1))["input"]
        assert before[0] == reasoning_item("Hm."), "an older request is written as it was"
        assert [each["call_id"] for each in other if "call_id" in each] == ["a", "a"]
