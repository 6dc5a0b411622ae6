"""Parts of an answer that Clew has no type for go back to the model that made them, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from clew.domain.models.anthropic_answers import AnthropicAnswer
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.gemini_answers import GeminiAnswer
from clew.domain.models.gemini_requests import GEMINI
from clew.infrastructure.model_streams import AnswerReader

RUN: Any = {"executableCode": {"language": "PYTHON", "code": "print(7)"}}
SEARCH: Any = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
ANSWERS: dict[str, tuple[WireFormat, AnswerReader, Any]] = {
    "gemini": (
        GEMINI,
        GeminiAnswer(),
        {"candidates": [{"content": {"parts": [RUN]}, "finishReason": "STOP"}]},
    ),
    "anthropic": (ANTHROPIC, AnthropicAnswer(), {"content": [SEARCH], "stop_reason": "end_turn"}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_such_parts_alone_goes_back(name: str) -> None:
    wire, reader, told = ANSWERS[name]
    list(reader.take_whole(told))
    answer = reader.answer()
    assert answer is not None
    assert answer.message.native is not None
    own = answer.message.native.model_copy(update={"provider": name, "model": "m-1"})
    message = answer.message.model_copy(update={"native": own})
    part = SEARCH if name == "anthropic" else RUN
    assert str(part) in str(wire.make_body(Question("m-1", (message,), provider=name)))
    assert str(part) not in str(wire.make_body(Question("m-2", (message,), provider=name)))
