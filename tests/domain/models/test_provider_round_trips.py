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
    AnthropicBetaFormat,
    AnthropicFormat,
    BedrockFormat,
    ChatFormat,
    GeminiFormat,
    InteractionsFormat,
    ProviderFormat,
    ResponsesFormat,
)
from tests.domain.models.provider_types import schemas
from tests.domain.models.provider_values import AtRandom, EveryField, Types

from clew.domain.models.client import Answer

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


class Marker:
    """Adds a field that no type has to each object of a value, and notes its text."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    def mark(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.mark(each) for each in value]
        if not isinstance(value, dict) or not value:  # an empty object is filled by later events
            return value
        return {name: self.mark(each) for name, each in value.items()} | self.field()

    def field(self) -> Any:
        self.marks.append(f"mark {len(self.marks)}.")
        return {f"x_new_{len(self.marks)}": self.marks[-1]}

    def lost(self, answer: Answer) -> list[str]:
        """The marks that are not on the log. The items of an answer are there in full."""
        logged = answer.message.model_dump_json()
        return [mark for mark in self.marks if mark not in logged]


def marked_events(provider: ProviderFormat, reply: Any, marker: Marker) -> Any:
    """The events of a stream with marks, and events that no type has. What a last event repeats has them there."""
    for event in provider.events(reply) or ():
        snapshot = provider.name == "openai-responses" and event["type"] != "response.completed"
        yield {**event, **marker.field()} if snapshot else marker.mark(event)
        if provider.name != "openai-chat":  # which has no types of events
            yield {"type": "x_new_event", "index": 0}
            yield {"type": "x_new_event", "deep": marker.mark({"list": [{"a": 1}]})}


@pytest.mark.parametrize(
    "kind", [AnthropicFormat, AnthropicBetaFormat, ChatFormat, ResponsesFormat], ids=lambda kind: kind.name
)
def test_what_no_type_has_is_on_the_log(kind: type[ProviderFormat]) -> None:
    provider = made(kind)
    for item in provider.kinds:
        choices = EveryField(0)
        reply = provider.reply([provider.items.value(choices, item)], provider.types.value(choices))
        whole, streamed = Marker(), Marker()
        assert whole.lost(provider.logged(provider.whole(whole.mark(reply)))) == []
        events = [*marked_events(provider, reply, streamed)]
        answer = provider.logged(provider.streamed(events))
        assert streamed.lost(answer) == []
        if provider.name != "openai-chat":
            assert answer.message.model_dump_json().count('{"type":"x_new_event","index":0}') == len(events) // 3


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


def test_events_that_the_completed_response_repeats_are_not_kept() -> None:
    provider, types = made(ResponsesFormat), Types(schemas("openai-responses")["ResponseStreamEvent"])
    reply = provider.at_random(0)
    for kind in types.members():
        event = types.value(EveryField(0), kind)
        if event["type"] in _ENDS:
            continue
        if isinstance(event.get("delta"), str):
            event["delta"] = ""
        streamed = provider.streamed([event, {"type": "response.completed", "response": reply}])
        is_kept = streamed.message != provider.whole(reply).message
        assert is_kept == event["type"].startswith("response.audio."), event["type"]


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


def check_anthropic_beta(body: Any) -> None:
    _adapter("anthropic.types.beta", "BetaMessageParam").validate_python(body["messages"][1])


def check_chat(body: Any) -> None:
    _adapter("openai.types.chat", "ChatCompletionMessageParam").validate_python(body["messages"][1])


def check_responses(body: Any) -> None:
    adapter = _adapter("openai.types.responses", "ResponseInputItemParam")
    for item in body["input"]:
        if item.get("type") != "additional_tools":  # an answer may have roles that the type of requests does not list
            adapter.validate_python(item)


def check_gemini(body: Any) -> None:
    _adapter("google.genai.types", "Content").validate_python(body["contents"][1])


def check_interactions(body: Any) -> None:
    adapter = _adapter("google.genai.interactions", "Step")
    for step in body["input"]:  # the package makes an UnknownStep of one that it cannot read
        assert not getattr(adapter.validate_python(step), "is_unknown", False)


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
        (AnthropicBetaFormat, check_anthropic_beta),
        (BedrockFormat, check_bedrock),
        (ChatFormat, check_chat),
        (GeminiFormat, check_gemini),
        (InteractionsFormat, check_interactions),
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
