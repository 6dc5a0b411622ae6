from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.strict_gemini import split

from clew.domain.messages import FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.client import Answer, CallDelta, Question, ReasoningDelta, TextDelta, TokenUsage, Update
from clew.domain.models.gemini_answers import GeminiAnswer, written_parts
from clew.domain.models.gemini_requests import gemini_body
from clew.domain.models.native import has_signed_parts, native_json, received

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


def kept(answer: Answer | None) -> Any:
    assert answer is not None
    return native_json(answer.message, {"parts": [*written_parts(answer.message)]})


def sent_back(answer: Answer) -> Any:
    """The content in which the answer goes back to the model that made it."""
    native = answer.message.native
    own = None if native is None else native.model_copy(update={"provider": "gemini", "model": "m-1"})
    message = answer.message.model_copy(update={"native": own})
    return gemini_body(Question("m-1", (message,), provider="gemini"))["contents"]


def test_texts_of_a_whole_answer_stay_apart_and_those_of_pieces_are_joined() -> None:
    texts = [{"text": "Hel"}, {"text": "lo"}, {"text": ""}, {"text": "!"}]
    answer = whole(reply(*texts))[1].answer()
    assert answer is not None
    assert answer.message.contents == tuple(Text(text=each["text"]) for each in texts)
    assert sent_back(answer) == [{"role": "model", "parts": [texts[0], texts[1], texts[3]]}]
    pieces = [reply(texts[0], reason=None), reply(texts[1], {"text": "Yes"}, reason=None), reply({"text": ""})]
    answer = streamed(*pieces)[1].answer()
    assert answer is not None
    assert answer.message.contents == (Text(text="Hello"), Text(text="Yes"))


def test_other_candidates_are_kept_and_not_sent() -> None:
    signed = {"text": "Ho", "thoughtSignature": "c2ln"}
    other = {"index": 1, "content": {"role": "model", "parts": [signed]}, "finishReason": "SAFETY", "avgLogprobs": 1}
    told = reply({"text": "Hi"})
    told["candidates"].append(other)
    answer = whole(told)[1].answer()
    assert answer is not None
    assert answer.message.contents == (Text(text="Hi"),)
    assert kept(answer)["json"]["reply"] == {"candidates": [other]}
    assert not has_signed_parts(answer.message)
    assert sent_back(answer) == [{"role": "model", "parts": [{"text": "Hi"}]}]
    unnumbered = [{name: value for name, value in each.items() if name != "index"} for each in told["candidates"]]
    assert kept(whole({**told, "candidates": unnumbered})[1].answer()) == kept(answer)
    pieces = [{**told, "candidates": [each]} for each in reversed(told["candidates"])]
    assert kept(streamed(*pieces)[1].answer()) == kept(answer)


def test_what_each_piece_says_of_its_own_text_is_kept() -> None:
    one, two = {"uri": "https://one"}, {"uri": "https://two"}
    chosen = {"token": "a", "logProbability": -0.5}
    pieces = [reply({"text": each}, reason=None) for each in "ab"] + [reply({"text": ""})]
    said: list[Any] = [
        {"citationMetadata": {"citations": [one]}, "logprobsResult": {"chosenCandidates": [chosen]}, "avgLogprobs": -1},
        {"citationMetadata": {"citations": [two]}, "logprobsResult": {"chosenCandidates": [chosen]}, "avgLogprobs": -2},
        {"groundingMetadata": {"webSearchQueries": ["a"]}, "safetyRatings": [{"category": "X"}]},
    ]
    said[0] |= {"safetyRatings": [{"category": "X"}], "groundingMetadata": {"webSearchQueries": ["a"]}}
    for piece, more in zip(pieces, said, strict=True):
        piece["candidates"][0] |= more
    own = kept(streamed(*pieces)[1].answer())
    assert own["json"]["candidate"] == {
        "citationMetadata": {"citations": [one, two]},
        "logprobsResult": {"chosenCandidates": [chosen, chosen]},
        "avgLogprobs": -2,
        "safetyRatings": [{"category": "X"}],
        "groundingMetadata": {"webSearchQueries": ["a"]},
    }
    assert own["json"]["earlier"] == [{"path": "/json/candidate/avgLogprobs", "value": -1}]


def test_fields_of_the_content_go_back() -> None:
    told = reply({"text": "Hi"})
    told["candidates"][0]["content"]["future"] = {"a": [1]}
    answer = whole(told)[1].answer()
    assert answer is not None
    assert sent_back(answer) == [{"role": "model", "future": {"a": [1]}, "parts": [{"text": "Hi"}]}]


def test_a_call_goes_back_without_the_signature_that_it_did_not_have() -> None:
    call: Any = {"functionCall": {"name": "f", "args": {}}}
    answer = whole(reply(call))[1].answer()
    assert answer is not None
    assert sent_back(answer)[0]["parts"] == [call]


def test_half_characters_are_kept_as_what_can_be_stored() -> None:
    answer = whole(reply({"executableCode": {"code": "a\ud83d"}}, future="\ud83d"))[1].answer()
    assert kept(answer)["json"] == {"parts": [{"executableCode": {"code": "a\ufffd"}}], "reply": {"future": "\ufffd"}}


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
