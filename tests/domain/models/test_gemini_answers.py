from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.strict_gemini import split

from clew.domain.messages import FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.client import Answer, CallDelta, ReasoningDelta, TextDelta, TokenUsage, Update
from clew.domain.models.gemini_answers import GeminiAnswer, written_parts
from clew.domain.models.native import received

PARTS = st.one_of(
    st.builds(lambda text: {"text": text}, st.text("abc 🧶", min_size=1)),
    st.builds(lambda text: {"text": text, "thought": True}, st.text("abc", min_size=1)),
    st.just({"text": "", "thoughtSignature": "c2ln+/8="}),
    st.just({"text": "signed", "thoughtSignature": "c2ln"}),
    st.builds(
        lambda args, more: {"functionCall": {"id": "c1", "name": "f", "args": args}, **more},
        st.dictionaries(st.text("ab", min_size=1), st.integers() | st.text("ab")),
        st.sampled_from([{}, {"thoughtSignature": "c2ln"}]),
    ),
    st.just({"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}),
    st.just({"futurePart": {"deep": [1, {"a": "b"}]}, "partMetadata": {"x": 1}}),
)
USAGE: Any = {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 5, "thoughtsTokenCount": 3}


def reply(*parts: Any, reason: str | None = "STOP", **more: Any) -> Any:
    candidate: Any = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "m-1", "responseId": "r1", **more}


def streamed(*replies: Any) -> tuple[list[Update], GeminiAnswer]:
    reader = GeminiAnswer()
    return [update for each in replies for update in reader.take(each)], reader


def whole(told: Any) -> tuple[list[Update], GeminiAnswer]:
    reader = GeminiAnswer()
    return list(reader.take_whole(told)), reader


def joined(parts: list[Any]) -> list[Any]:
    """The parts with adjacent texts as one, as a whole answer has them."""
    result: list[Any] = []
    for part in parts:
        last = result[-1] if result else {}
        if set(part) <= {"text", "thought"} and set(last) == set(part) and "text" in part:
            result[-1] = {**last, "text": last["text"] + part["text"]}
        else:
            result.append(part)
    return result


@given(st.lists(PARTS, max_size=6).map(joined))
def test_no_part_is_lost_streamed_or_whole(parts: list[Any]) -> None:
    pieces = [reply(piece, reason=None, newField={"a": 1}) for piece in split(parts)]  # each says it again
    updates, reader = streamed(*pieces, reply(newField={"a": 1}))
    answer = reader.answer()
    assert answer is not None
    assert answer == whole(reply(*parts, newField={"a": 1}))[1].answer()
    kept: Any = received(answer.message, {"parts": [*written_parts(answer.message)]})
    assert kept == {"parts": parts, "reply": {"newField": {"a": 1}}}
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.message.text


def test_reads_all_parts_of_an_answer() -> None:
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    other: Any = {"futurePart": 1}
    updates, reader = whole(reply({"text": "Hm.", "thought": True}, {"text": "Hi"}, call, call, other))
    arguments = '{"a": 1}'
    assert updates[:3] == [ReasoningDelta("Hm."), TextDelta("Hi"), CallDelta(0, "call_1", "f", arguments)]
    answer = reader.answer()
    assert isinstance(answer, Answer)
    assert answer.message.model_copy(update={"native": None}) == Message(
        role="assistant",
        contents=(
            Reasoning(text="Hm."),
            Text(text="Hi"),
            FunctionCall(call_id="call_1", name="f", arguments=arguments),
            FunctionCall(call_id="call_2", name="f", arguments=arguments),
            Raw(value=other),
        ),
    )
    assert (answer.finish_reason, answer.model, answer.response_id) == ("tool_calls", "m-1", "r1")
    assert answer.usage == TokenUsage(input_tokens=10, output_tokens=8, cached_tokens=4, reasoning_tokens=3)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("CONTINUATION", "CONTINUATION")],
)
def test_each_end_is_an_outcome_of_its_own(reason: str, outcome: str) -> None:
    answer = whole(reply({"text": "Hi"}, reason=reason))[1].answer()
    assert answer is not None
    assert answer.finish_reason == outcome


def test_a_blocked_request_is_an_outcome_without_candidates() -> None:
    answer = whole({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE})[1].answer()
    assert answer is not None
    assert (answer.finish_reason, answer.message.contents) == ("content_filter", ())


def test_an_answer_is_complete_only_with_a_reason() -> None:
    assert streamed(reply({"text": "Hel"}, reason=None))[1].answer() is None
    assert streamed({"error": {"code": 503, "message": "Busy."}})[1].failure == {"code": 503, "message": "Busy."}
