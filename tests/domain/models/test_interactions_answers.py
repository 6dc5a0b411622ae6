"""Answers of Gemini's Interactions: streamed and whole ones are equal, and no field is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.messages import FunctionCall, Message, Raw, Reasoning, Text
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
from clew.domain.models.interactions_answers import InteractionsAnswer, written_steps
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.native import native_json

USAGE: Any = {
    "total_input_tokens": 10,
    "total_tool_use_tokens": 2,
    "total_output_tokens": 5,
    "total_thought_tokens": 3,
    "total_cached_tokens": 4,
}
IMAGE: Any = {"type": "image", "mime_type": "image/png", "data": "iVBORw0KGgo="}
CITED = {"type": "url_citation", "url": "https://x", "end_index": 2}
SEARCH: Any = {"type": "google_search_call", "id": "s1", "arguments": {"queries": ["a"]}, "signature": "c2ln"}
FOUND = {"type": "google_search_result", "call_id": "s1", "result": [{"search_suggestions": "<b>"}], "signature": "x"}

TEXTS = st.builds(
    lambda text, more: {"type": "text", "text": text, **more},
    st.text("abc 🧶", min_size=1),
    st.sampled_from([{}, {"annotations": [CITED]}]),
)
STEPS = st.one_of(
    st.builds(lambda parts: {"type": "model_output", "content": parts}, st.lists(TEXTS | st.just(IMAGE), min_size=1)),
    st.builds(lambda text: {"type": "thought", "summary": [{"type": "text", "text": text}]}, st.text("ab", min_size=1)),
    st.just({"type": "thought", "signature": "c2ln+/8=", "summary": [{"type": "text", "text": "Hm."}]}),
    st.just({"type": "thought", "signature": "c2ln"}),
    st.builds(
        lambda args: {"type": "function_call", "id": "c1", "name": "f", "arguments": args},
        st.dictionaries(st.text("ab", min_size=1), st.integers() | st.text("ab")),
    ),
    st.sampled_from([SEARCH, FOUND, {"type": "future_step", "deep": [1, {"a": "b"}]}]),
)


def interaction(*steps: Any, status: str = "completed", **more: Any) -> Any:
    about = {"id": "v1_1", "object": "interaction", "model": "m-1", "status": status, "usage": USAGE}
    return {**about, "created": "2026-11-27T12:00:00Z", "steps": [*steps], **more}


def deltas_of(step: Any) -> tuple[Any, list[Any]]:
    """A step as a stream begins it, and its pieces."""
    match step:
        case {"type": "function_call", "arguments": {}}:
            return step, []
        case {"type": "thought"}:
            pieces: list[Any] = []
            for part in step.get("summary", ()):
                halves = [part["text"][:1], part["text"][1:]]
                pieces += [{"type": "thought_summary", "content": {**part, "text": each}} for each in halves]
            if "signature" in step:
                pieces.append({"type": "thought_signature", "signature": step["signature"]})
            return {"type": "thought"}, pieces
        case {"type": "google_search_result"}:
            return {"type": step["type"], "call_id": "s1", "result": []}, [{**step, "call_id": None}]
        case _:
            return step, []


def events(*steps: Any, **more: Any) -> list[Any]:
    """An interaction as the service streams it."""
    told = interaction(*steps, **more)
    made: list[Any] = [
        {"event_type": "interaction.created", "interaction": {"id": "v1_1", "status": "in_progress"}, "event_id": "e"},
        {"event_type": "interaction.status_update", "interaction_id": "v1_1", "status": "in_progress"},
    ]
    for index, step in enumerate(steps):
        begun, deltas = deltas_of(step)
        made.append({"event_type": "step.start", "index": index, "step": begun})
        made += [{"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas]
        made.append({"event_type": "step.stop", "index": index})
    del told["steps"]
    return [*made, {"event_type": "interaction.completed", "interaction": told}]


def streamed(*given_events: Any, **body: Any) -> tuple[list[Update], InteractionsAnswer]:
    reader = InteractionsAnswer(body)
    return [update for each in given_events for update in reader.take(each)], reader


def whole(told: Any, **body: Any) -> tuple[list[Update], InteractionsAnswer]:
    reader = InteractionsAnswer(body)
    return list(reader.take_whole(told)), reader


def kept(answer: Answer | None) -> Any:
    """What is kept of an answer. The order of fields in its patch says nothing."""
    assert answer is not None
    message = answer.message
    return replace(answer, message=message.model_copy(update={"native": None})), native_json(
        message, {"steps": written_steps(message)}
    )


@given(st.lists(STEPS, max_size=5))
def test_no_step_is_lost_streamed_or_whole(steps: list[Any]) -> None:
    updates, reader = streamed(*events(*steps, environment_id="e1"))
    answer = reader.answer()
    assert answer is not None
    assert kept(answer) == kept(whole(interaction(*steps, environment_id="e1"))[1].answer())
    about = {"environment_id": "e1", "created": "2026-11-27T12:00:00Z", "usage": {"total_tool_use_tokens": 2}}
    assert kept(answer)[1] == {"json": {"steps": steps, "reply": about}}
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.message.text


def test_what_repeats_the_request_is_not_kept_again() -> None:
    body: Any = {"input": [{"type": "user_input", "content": [{"type": "text", "text": "Hi"}]}], "labels": {"a": "b"}}
    said: Any = {"type": "model_output", "content": [{"type": "text", "text": "Ho"}]}
    other: Any = {"type": "user_input", "content": [{"type": "text", "text": "Who?"}]}
    echo: Any = {**body, "tools": [{"type": "function", "name": "f"}], "usage": {}}
    whole_answer = whole(interaction(*body["input"], other, said, **echo), **body)[1].answer()
    streamed_answer = streamed(*events(*body["input"], other, said, **echo), **body)[1].answer()
    assert kept(whole_answer) == kept(streamed_answer)
    rest = {"created": "2026-11-27T12:00:00Z", "steps": [other], "tools": echo["tools"]}
    assert kept(whole_answer)[1] == {"json": {"steps": [said], "reply": rest}}


def test_what_events_say_besides_is_kept_with_their_step() -> None:
    step: Any = {"type": "model_output", "content": [{"type": "text", "text": "Hi"}]}
    created, _, start, stop, completed = events(step)
    used: Any = {"total_input_tokens": 1}
    answer = streamed(
        {**created, "interaction": {**created["interaction"], "updated": "12:00"}},
        {"event_type": "interaction.status_update", "interaction_id": "v1_1", "status": "queued", "usage": used},
        {**start, "future": 1, "metadata": {"total_usage": used, "future": 2}},
        {"event_type": "step.future", "index": 0, "future": 3},
        {**stop, "step_usage": used},
        {**completed, "interaction": {**completed["interaction"], "updated": "12:01"}},
    )[1].answer()
    said = kept(answer)[1]["json"]
    assert said["events"] == [
        {"event_type": "step.start", "index": 0, "future": 1, "metadata": {"future": 2}},
        {"event_type": "step.future", "index": 0, "future": 3},
        {"event_type": "step.stop", "index": 0, "step_usage": used},
    ]
    assert said["earlier"] == [{"path": "/json/reply/updated", "value": "12:00"}]
    assert said["reply"]["updated"] == "12:01"


def test_a_field_that_the_beginning_of_a_step_repeats_is_not_joined() -> None:
    begun: Any = {"type": "mcp_server_tool_result", "call_id": "c", "server_name": "files", "result": []}
    delta: Any = {"type": begun["type"], "server_name": "files", "result": [{"type": "text", "text": "a"}]}
    answer = streamed(
        {"event_type": "step.start", "index": 0, "step": begun},
        {"event_type": "step.delta", "index": 0, "delta": delta},
        {"event_type": "interaction.completed", "interaction": {"id": "v1_1", "status": "completed"}},
    )[1].answer()
    assert answer is not None
    assert answer.message.contents == (Raw(value={**begun, "result": delta["result"]}),)


@given(st.lists(STEPS, max_size=5))
def test_own_steps_go_back_as_they_came(steps: list[Any]) -> None:
    answer = whole(interaction(*steps))[1].answer()
    assert answer is not None
    message = answer.message
    if message.native is not None:
        own = message.native.model_copy(update={"provider": "gemini", "model": "m-1"})
        message = message.model_copy(update={"native": own})
    sent: Any = INTERACTIONS.make_body(Question("m-1", (message,), provider="gemini"))["input"]
    ids = iter(["c1", *(f"c1-{number}" for number in range(2, 9))])  # repeated ids are made unique
    assert sent == [{**each, "id": next(ids)} if each["type"] == "function_call" else each for each in steps]


def test_reads_all_steps_of_an_answer() -> None:
    thought = {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": t} for t in ("A", "B")]}
    call = {"type": "function_call", "id": "c1", "name": "f", "arguments": {"a": 1}}
    output = {"type": "model_output", "content": [{"type": "text", "text": "Hi"}, IMAGE]}
    updates, reader = whole(interaction(thought, output, SEARCH, call, call, status="requires_action"))
    assert updates == [
        ServiceBound(ServiceReference(kind="response", id="v1_1")),
        ReasoningDelta("A"),
        ReasoningDelta("B"),
        TextDelta("Hi"),
        CallDelta(0, "c1", "f", '{"a": 1}'),
        CallDelta(1, "c1", "f", '{"a": 1}'),
    ]
    answer = reader.answer()
    assert isinstance(answer, Answer)
    made = FunctionCall(call_id="c1", name="f", arguments='{"a": 1}')
    contents = (Reasoning(text="A\n\nB"), Text(text="Hi"), Raw(value=IMAGE), Raw(value=SEARCH), made, made)
    assert answer.message.model_copy(update={"native": None}) == Message(role="assistant", contents=contents)
    assert (answer.finish_reason, answer.model, answer.response_id) == ("tool_calls", "m-1", "v1_1")
    assert answer.usage == TokenUsage(input_tokens=12, output_tokens=8, cached_tokens=4, reasoning_tokens=3)


def test_texts_and_arguments_arrive_in_pieces() -> None:
    begun = {"type": "function_call", "id": "c1", "name": "f", "arguments": {}}
    given_events: list[Any] = [
        {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "Hel"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "lo"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text_annotation_delta", "annotations": [CITED]}},
        {"event_type": "step.delta", "index": 0, "delta": IMAGE},
        {"event_type": "step.start", "index": 1, "step": begun},
        {"event_type": "step.delta", "index": 1, "delta": {"type": "arguments_delta", "arguments": '{"a":'}},
        {"event_type": "step.delta", "index": 1, "delta": {"type": "arguments_delta", "arguments": "1.50}"}},
        {"event_type": "interaction.completed", "interaction": {"id": "v1_1", "status": "requires_action"}},
    ]
    updates, reader = streamed(*given_events, store=False)
    assert updates == [
        TextDelta("Hel"),
        TextDelta("lo"),
        CallDelta(0, "c1", "f", ""),
        CallDelta(0, "c1", "f", '{"a":'),
        CallDelta(0, "c1", "f", "1.50}"),
    ]
    answer = reader.answer()
    assert answer is not None
    assert answer.message.calls == (FunctionCall(call_id="c1", name="f", arguments='{"a": 1.5}'),)
    text = {"type": "text", "text": "Hello", "annotations": [CITED]}
    assert kept(answer)[1]["json"]["steps"][0] == {"type": "model_output", "content": [text, IMAGE]}


def test_arguments_that_are_not_an_object_are_kept_and_sent_as_one() -> None:
    begun = {"type": "function_call", "id": "c1", "name": "f", "arguments": {}}
    given_events: list[Any] = [
        {"event_type": "step.start", "index": 0, "step": begun},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "arguments_delta", "arguments": '{"a": '}},
        {"event_type": "interaction.completed", "interaction": {"id": "v1_1", "status": "requires_action"}},
    ]
    answer = streamed(*given_events)[1].answer()
    assert answer is not None
    assert answer.message.calls[0].arguments == '{"a": '
    body: Any = INTERACTIONS.make_body(Question("m-1", (answer.message,)))
    assert body["input"][0]["arguments"] == {"arguments": '{"a": '}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("completed", "stop"), ("incomplete", "length"), ("requires_continuation", "requires_continuation")],
)
def test_each_end_is_an_outcome_of_its_own(status: str, outcome: str) -> None:
    answer = whole(interaction({"type": "model_output", "content": []}, status=status))[1].answer()
    assert answer is not None
    assert answer.finish_reason == outcome


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_interaction_is_no_answer(status: str) -> None:
    errors = [{"code": "internal", "message": "Busy."}]
    for reader in (
        whole(interaction(status=status, errors=errors))[1],
        streamed(*events(status=status, errors=errors))[1],
    ):
        assert (reader.answer(), reader.failure) == (None, errors[0])
    assert whole(interaction(status=status))[1].failure == {"message": f"The interaction has the status {status}."}


def test_an_answer_is_complete_only_when_the_service_says_so() -> None:
    begun = events({"type": "model_output", "content": [{"type": "text", "text": "Hi"}]})[:-1]
    assert streamed(*begun)[1].answer() is None
    assert whole(interaction(status="in_progress"))[1].answer() is None
    broken = {"event_type": "error", "error": {"code": "internal", "message": "Busy."}}
    assert streamed(*begun, broken)[1].failure == broken["error"]


def test_the_id_is_told_once_and_only_of_a_stored_interaction() -> None:
    told = [update for update in streamed(*events())[0] if isinstance(update, ServiceBound)]
    assert told == [ServiceBound(ServiceReference(kind="response", id="v1_1"))]
    assert streamed(*events(), store=False)[0] == whole(interaction(), store=False)[0] == []
