from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import texts

from clew.domain.messages import FunctionCall, Message, Native, Raw, Reasoning, Text, check_message
from clew.domain.models.chat_answers import ChatAnswer, written_answer
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, CallDelta, Question, ReasoningDelta, TextDelta, TokenUsage, Update
from clew.domain.models.native import received

USAGE: Any = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1, "audio_tokens": None},
}
CALLS = st.lists(st.fixed_dictionaries({"id": texts, "name": st.just("f") | texts, "arguments": texts}), max_size=3)


def chunk(delta: Any, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c1", "model": "m-1", "object": "chat.completion.chunk", "choices": [choice]}


def streamed(*chunks: Any) -> tuple[list[Update], Answer | None]:
    reader = ChatAnswer()
    return [update for each in chunks for update in reader.take(each)], reader.answer()


def whole(message: Any, **more: Any) -> Answer | None:
    reader = ChatAnswer()
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
    for _ in reader.take_whole({"id": "c1", "model": "m-1", "choices": [choice], "usage": USAGE}):
        pass
    return reader.answer()


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@given(thought=texts, text=texts, refusal=texts, calls=CALLS, size=st.integers(1, 3))
def test_chunks_and_a_whole_body_give_the_same_answer(
    thought: str, text: str, refusal: str, calls: list[dict[str, str]], size: int
) -> None:
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": piece}) for piece in pieces(thought, size)]
    chunks += [chunk({"content": piece}) for piece in pieces(text, size)]
    chunks += [chunk({"refusal": piece}) for piece in pieces(refusal, size)]
    for number, call in enumerate(calls):
        start = {"index": number, "id": call["id"], "function": {"name": call["name"], "arguments": ""}}
        chunks.append(chunk({"tool_calls": [start]}))
    for number, call in enumerate(calls):
        for piece in pieces(call["arguments"], size):
            chunks.append(chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]}))
    chunks += [chunk({}, "stop"), {"id": "c1", "choices": [], "usage": USAGE}]
    updates, answer = streamed(*chunks)
    message = {
        "role": "assistant",
        "content": text,
        "reasoning_content": thought,
        "refusal": refusal or None,
        "tool_calls": [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ],
    }
    assert answer == whole(message)
    assert answer is not None
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.message.text
    assert "".join(each.text for each in updates if isinstance(each, ReasoningDelta)) == thought
    streamed_arguments = dict.fromkeys(range(len(calls)), "")
    for each in updates:
        if isinstance(each, CallDelta):
            streamed_arguments[each.index] += each.arguments
    assert list(streamed_arguments.values()) == [call["arguments"] for call in calls]


def test_reads_all_parts_of_an_answer() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hi", "refusal": "No.", "reasoning": "Hm.", "tool_calls": [call]}
    assert whole(message, finish_reason="tool_calls") == Answer(
        Message(
            role="assistant",
            contents=(
                Reasoning(text="Hm."),
                Text(text="Hi"),
                Raw(value={"type": "refusal", "refusal": "No."}),
                FunctionCall(call_id="a", name="f", arguments="{}"),
            ),
            native=Native(
                wire="openai-chat",
                patch=(
                    {"op": "remove", "path": "/json/message/reasoning_content"},
                    {"op": "add", "path": "/json/message/reasoning", "value": "Hm."},
                ),
            ),
        ),
        "tool_calls",
        TokenUsage(input_tokens=9, output_tokens=4, cached_tokens=2, reasoning_tokens=1),
        "m-1",
        "c1",
    )


def test_an_answer_without_a_finish_reason_is_not_complete() -> None:
    assert streamed(chunk({"content": "Hel"}), chunk({"content": "lo"}))[1] is None
    assert streamed(chunk({"content": "Hello"}, "stop"))[1] is not None


def test_other_bodies_give_no_answer() -> None:
    bodies: list[Any] = [{}, {"choices": []}, {"choices": [{"text": "Hi"}]}, {"choices": "Hi"}, {"choices": [7]}]
    for body in bodies:
        reader = ChatAnswer()
        list(reader.take_whole(body))
        assert reader.answer() is None


@pytest.mark.parametrize("indexes", [(None, None), (0, 0), (0, 1)])
def test_distinguishes_calls_without_own_indexes_by_their_ids(indexes: tuple[int | None, ...]) -> None:
    parts = [
        {"index": index, "id": id_, "function": {"name": "f", "arguments": "{}"}}
        for index, id_ in zip(indexes, "ab", strict=True)
    ]
    answer = streamed(*(chunk({"tool_calls": [part]}) for part in parts), chunk({}, "tool_calls"))[1]
    assert answer is not None
    assert [call.call_id for call in answer.message.calls] == ["a", "b"]
    assert [call.arguments for call in answer.message.calls] == ["{}", "{}"]


def test_arguments_that_are_not_text_become_json() -> None:
    answer = whole({"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"n": 1}}}]})
    assert answer is not None
    assert answer.message.calls[0].arguments == '{"n": 1}'


def test_content_in_parts_is_text() -> None:
    answer = whole({"content": [{"type": "text", "text": "Hel"}, {"type": "thinking"}, {"type": "text", "text": "lo"}]})
    assert answer is not None
    assert answer.message.text == "Hello"


def test_joins_a_character_split_between_chunks() -> None:
    answer = streamed(chunk({"content": "\ud83e"}), chunk({"content": "\uddf6"}, "stop"))[1]
    assert answer is not None
    assert answer.message.text == "🧶"


def test_uses_only_the_first_of_several_answers() -> None:
    other = {"index": 1, "delta": {"content": "B"}, "finish_reason": None}
    first = chunk({"content": "A"}, "stop")
    answer = streamed({**first, "choices": [*first["choices"], other]})[1]
    assert answer is not None
    assert answer.message.text == "A"


def test_an_error_in_the_chunks_is_the_failure() -> None:
    reader = ChatAnswer()
    list(reader.take(chunk({"content": "A"})))
    assert (reader.begun, reader.failure) == (True, None)
    list(reader.take({"error": {"message": "Broken."}}))
    assert reader.failure == {"message": "Broken."}


@pytest.mark.parametrize("place", [{}, {"index": 0}, {"index": 0, "id": ""}])
def test_distinguishes_calls_without_ids_by_their_names(place: dict[str, Any]) -> None:
    chunks = [
        chunk({"tool_calls": [{**place, "function": {"name": "f", "arguments": text}}]})
        for text in ('{"a": 1}', '{"a": 2}', "{}")
    ]
    _, answer = streamed(*chunks, chunk({}, "tool_calls"))
    assert answer is not None
    assert [call.arguments for call in answer.message.calls] == ['{"a": 1}', '{"a": 2}', "{}"]


def test_a_repeated_name_does_not_start_another_call() -> None:
    message = ["", '{"a"', ": 1}"]
    chunks = [chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": each}}]}) for each in message]
    _, answer = streamed(*chunks, chunk({}, "tool_calls"))
    assert answer is not None
    assert [call.arguments for call in answer.message.calls] == ['{"a": 1}']


FIELDS = st.dictionaries(
    st.sampled_from(["audio", "annotations", "reasoning_details", "extra_content", "function_call", "new_field"]),
    st.text("abc", min_size=1)
    | st.integers()
    | st.booleans()
    | st.dictionaries(st.sampled_from("xy"), st.text("ab", min_size=1), min_size=1),
)


@given(
    message=FIELDS,
    call=FIELDS,
    choice=FIELDS,
    reply=FIELDS,
    thought=st.sampled_from(["reasoning_content", "reasoning"]),
)
def test_no_field_of_an_answer_is_lost(message: Any, call: Any, choice: Any, reply: Any, thought: str) -> None:
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, **call}
    told = {"role": "assistant", "content": "Hi", thought: "Hm.", "tool_calls": [made], **message}
    ended = {"index": 0, "finish_reason": "tool_calls", **choice}
    whole_reader, reader = ChatAnswer(), ChatAnswer()
    list(whole_reader.take_whole({"id": "c1", "choices": [{**ended, "message": told}], **reply}))
    streamed_call = {**told, "tool_calls": [{"index": 0, **made}]}
    list(reader.take({"id": "c1", "choices": [{"index": 0, "delta": streamed_call}], **reply}))
    list(reader.take({"id": "c1", "choices": [{**ended, "delta": {}}], **reply}))  # what it says of itself is repeated
    answer = reader.answer()
    assert answer is not None
    assert answer == whole_reader.answer()
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    assert kept["message"] == told
    assert kept.get("choice", {}) == choice
    assert kept.get("reply", {}) == reply


def answered_by(provider: str, model: str, **fields: Any) -> Message:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call, "extra_content": {"signature": "s"}}],
        **fields,
    }
    answer = whole(told)
    assert answer is not None
    assert answer.message.native is not None
    native = answer.message.native.model_copy(update={"provider": provider, "model": model})
    return answer.message.model_copy(update={"native": native})


def sent_back(model: str, *messages: Message) -> list[Any]:
    turns = [each for message in messages for each in (message, Message.tool("a", "1"))]
    body: Any = OPENAI_CHAT.make_body(Question(model, tuple(turns), provider="here"))
    return [each for each in body["messages"] if each["role"] == "assistant"]


def test_reasoning_and_signatures_go_back_to_the_service_that_made_them_and_to_no_other() -> None:
    own = answered_by("here", "m-1", reasoning_content="Hm.", audio={"id": "audio_1", "data": "UklGRg"})
    (back,) = sent_back("m-1", own)
    assert back["reasoning_content"] == "Hm."
    assert back["tool_calls"][0]["extra_content"] == {"signature": "s"}
    assert back["audio"] == {"id": "audio_1"}
    for model, message in (("m-2", own), ("m-1", answered_by("there", "m-1", reasoning_content="Hm."))):
        (plain,) = sent_back(model, message)
        assert set(plain) == {"role", "content", "tool_calls"}
        assert set(plain["tool_calls"][0]) == {"id", "type", "function"}


def test_calls_of_another_model_have_empty_reasoning_where_the_service_wants_it() -> None:
    own, foreign = answered_by("here", "m-1", reasoning_content="Hm."), answered_by("there", "m-9")
    assert [each["reasoning_content"] for each in sent_back("m-1", foreign, own)] == ["", "Hm."]
    assert not any("reasoning_content" in each for each in sent_back("m-1", foreign))


def test_of_json_that_cannot_be_stored_the_rest_is_kept() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    answer = whole({"content": "Hi", "odd": {"b": deep, "c": 1, "d": "\ud83e", "e": float("inf"), "f": 10**9999}})
    assert answer is not None
    check_message(answer.message)
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    odd = kept["message"]["odd"]
    assert {name: odd[name] for name in "cdef"} == {"c": 1, "d": "\ufffd", "e": None, "f": None}
    nested = odd["b"]
    while isinstance(nested, dict):
        nested = nested["a"]
    assert set(json.loads(nested)) == {"a"}, "what is too deep is there as a text"


def test_all_choices_are_kept_beside_the_first() -> None:
    second = {"role": "assistant", "content": "Ahoy", "refusal": None, "annotations": [{"type": "url_citation"}]}
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    third = {"role": "assistant", "content": None, "tool_calls": calls}
    choices: Any = [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"},
        {"index": 1, "message": second, "finish_reason": "length", "seed": 7},
        {"index": 2, "message": third, "finish_reason": "tool_calls"},
    ]
    reader = ChatAnswer()
    list(reader.take_whole({"id": "x", "model": "m-1", "choices": choices}))
    answer = reader.answer()
    assert answer is not None
    assert (answer.message.text, answer.message.calls) == ("Hello", ())
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    assert kept["choices"] == [
        {**choices[1], "message": {name: each for name, each in second.items() if each is not None}},
        choices[2],
    ]
    pieces: list[Any] = [
        *({"index": 0, "delta": {"content": "Hel"}}, {"index": 1, "delta": {"content": "Aho"}}),
        *({"index": 2, "delta": {"tool_calls": [{**calls[0], "index": 0}]}}, {"index": 0, "delta": {"content": "lo"}}),
        {"index": 1, "delta": {"content": "y", "annotations": second["annotations"]}, "finish_reason": "length"},
        {"index": 1, "delta": {}, "seed": 7},
        *({"index": 2, "delta": {}, "finish_reason": "tool_calls"}, {"index": 0, "delta": {}, "finish_reason": "stop"}),
    ]
    streamed = ChatAnswer()
    updates = [
        update
        for piece in pieces
        for update in streamed.take({"id": "x", "model": "m-1", "choices": [piece], "obfuscation": str(piece)})
    ]
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == "Hello"
    assert streamed.answer() == answer


def test_what_pieces_said_before_the_last_is_kept() -> None:
    reader = ChatAnswer()
    for number in range(3):
        piece: Any = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "filter": {"from": number}}
        list(reader.take({"choices": [piece], "region": "eu" if number else "us"}))
    answer = reader.answer()
    assert answer is not None
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    assert (kept["choice"], kept["reply"]) == ({"filter": {"from": 2}}, {"region": "eu"})
    assert kept["earlier"] == [
        *({"region": "us"}, {"choice": {"filter": {"from": 0}}}, {"choice": {"filter": {"from": 1}}}),
    ]


def test_the_type_of_a_call_that_is_not_known_is_kept() -> None:
    answer = whole({"tool_calls": [{"id": "c1", "type": "hosted", "hosted": {"server": "crm"}}]})
    assert answer is not None
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    (call,) = kept["message"]["tool_calls"]
    assert (call["type"], call["hosted"]) == ("hosted", {"server": "crm"})


def test_parts_of_a_content_are_kept() -> None:
    parts: Any = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hi"}]
    answer = whole({"content": parts})
    assert answer is not None
    assert answer.message.text == "Hi"
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    assert kept["message"]["content"] == parts


def test_what_each_chunk_repeats_is_kept_once_and_probabilities_whole() -> None:
    more: Any = {"system_fingerprint": "fp_1", "service_tier": "default"}
    first, last = chunk({"content": "Hel"}), chunk({"content": "lo"}, "stop")
    first["choices"][0]["logprobs"] = {"content": [{"token": "Hel"}]}
    last["choices"][0]["logprobs"] = {"content": [{"token": "lo"}]}
    answer = streamed({**first, **more}, {**last, **more})[1]
    assert answer is not None
    kept: Any = received(answer.message, {"message": written_answer(answer.message)})
    assert kept["reply"] == more
    assert kept["choice"] == {"logprobs": {"content": [{"token": "Hel"}, {"token": "lo"}]}}
