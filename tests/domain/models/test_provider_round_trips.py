"""What a provider sends is on the log, whole or streamed, and what it wants back is in the next request."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.domain.models.provider_formats import (
    FORMATS,
    AnthropicFormat,
    BedrockFormat,
    ChatFormat,
    GeminiFormat,
    ProviderFormat,
    ResponsesFormat,
)
from tests.domain.models.provider_types import schemas
from tests.domain.models.provider_values import AtRandom, Types

each_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


@cache
def made(kind: type[ProviderFormat]) -> ProviderFormat:
    return kind()


def check(provider: ProviderFormat, reply: Any) -> None:
    whole = provider.logged(provider.whole(reply))
    answers = [whole]
    if (events := provider.events(reply)) is not None:
        answers.append(provider.logged(provider.streamed(events)))
    for answer in answers:
        assert provider.rebuilt(answer) == provider.expected(reply)
        assert provider.sent(provider.next_body(answer)) == provider.wanted(reply)
        assert answer.message.contents == whole.message.contents
        assert (answer.usage, answer.finish_reason) == (whole.usage, whole.finish_reason)


@each_format
def test_every_member_and_field_of_an_answer_survives(kind: type[ProviderFormat]) -> None:
    provider = made(kind)
    for reply in provider.full():
        check(provider, reply)


@each_format
@given(seed=st.integers(0, 2**32))
def test_any_answer_survives(kind: type[ProviderFormat], seed: int) -> None:
    provider = made(kind)
    check(provider, provider.at_random(seed))


def events_of_any_kind(seed: int) -> list[Any]:
    """Events of Responses of any kind and with any fields, but for those that end an answer."""
    types = Types(schemas("openai-responses")["ResponseStreamEvent"])
    choices = AtRandom(seed)
    kinds = [types.members()[choices.number(len(types.members()))] for _ in range(6)]
    events = [types.value(choices, kind) for kind in kinds]
    return [event for event in events if event["type"] not in _ENDS]


_ENDS = {"error", "response.completed", "response.failed", "response.incomplete"}


@given(seed=st.integers(0, 2**32))
def test_no_event_of_a_stream_changes_the_completed_response(seed: int) -> None:
    provider = made(ResponsesFormat)
    reply = provider.at_random(seed)
    whole = provider.logged(provider.whole(reply))
    streamed = provider.logged(
        provider.streamed([*events_of_any_kind(seed), {"type": "response.completed", "response": reply}])
    )
    assert provider.rebuilt(streamed) == provider.rebuilt(whole)


def check_anthropic(body: Any) -> None:
    _adapter("anthropic.types", "MessageParam").validate_python(body["messages"][1])


def check_chat(body: Any) -> None:
    _adapter("openai.types.chat", "ChatCompletionMessageParam").validate_python(body["messages"][1])


def check_responses(body: Any) -> None:
    adapter = _adapter("openai.types.responses", "ResponseInputItemParam")
    for item in body["input"]:
        if item.get("type") != "additional_tools":  # an answer may have roles that the type of requests does not list
            adapter.validate_python(item)


def check_gemini(body: Any) -> None:
    _adapter("google.genai.types", "Content").validate_python(body["contents"][1])


def check_bedrock(body: Any) -> None:
    report = import_module("botocore.validate").ParamValidator().validate({"modelId": "m", **body}, _converse_request())
    assert not report.has_errors(), report.generate_report()


@cache
def _converse_request() -> Any:
    model: Any = import_module("botocore.session").get_session().get_service_model("bedrock-runtime")
    return model.shape_for("ConverseRequest")


@cache
def _adapter(module: str, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(getattr(import_module(module), name))


@pytest.mark.parametrize(
    ("kind", "check_body"),
    [
        (AnthropicFormat, check_anthropic),
        (BedrockFormat, check_bedrock),
        (ChatFormat, check_chat),
        (GeminiFormat, check_gemini),
        (ResponsesFormat, check_responses),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_what_goes_back_is_of_the_types_of_requests(
    kind: type[ProviderFormat], check_body: Callable[[Any], None]
) -> None:
    provider = made(kind)
    for reply in provider.full():
        check_body(provider.next_body(provider.logged(provider.whole(reply))))
