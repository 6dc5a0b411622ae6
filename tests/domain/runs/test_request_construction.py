"""Requests built from a model call, the definitions and the history."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import objects, texts

from clew.domain.call_pairing import NO_RESULT, model_view
from clew.domain.history import HistoryMessage
from clew.domain.messages import FunctionCall, Message
from clew.domain.models.chat_requests import OPENAI_CHAT, chat_body
from clew.domain.models.client import ResponseFormat, ServiceReference, ToolSchema
from clew.domain.runs.events import ModelCalled, ServiceCall
from clew.domain.runs.request_construction import (
    Definitions,
    changed,
    question_of,
    read_definitions,
    rebuilt,
    request_bytes,
    unsent,
)
from clew.domain.streams import digest

LOOKUP = ToolSchema(name="lookup", description="Look up.", parameters={"type": "object", "properties": {}})
FORMAT = ResponseFormat(name="Weather", json_schema={"type": "object"})


def path(*messages: Message | None) -> list[HistoryMessage]:
    """Return a history with messages at versions 10, 20, 30 and so on; None is a redacted message."""
    return [
        HistoryMessage(number * 10, "user" if message is None else message.role, message, str(number), 0)
        for number, message in enumerate(messages, start=1)
    ]


def called(digest_: str = "", **more: Any) -> ModelCalled:
    """Return a model call."""
    return ModelCalled(definitions=1, client="c", wire="openai-chat", model="m", digest=digest_, **more)


definitions = st.builds(
    Definitions,
    st.none() | texts,
    st.lists(st.builds(ToolSchema, name=texts, description=texts, parameters=objects), max_size=3).map(tuple),
    st.none() | st.builds(ResponseFormat, name=texts, json_schema=objects),
    st.none(),
)


@given(definitions, st.integers(min_value=0, max_value=3))
def test_definitions_round_trip_through_their_blobs(made: Definitions, own: int) -> None:
    made = replace(made, own_tools=min(own, len(made.tools)))
    stored = {blob.digest.hex(): blob.data for blob in made.blobs}
    named = made.fingerprint("c")
    assert set(named.digests) == set(stored)
    assert read_definitions(named, stored) == made
    assert len(named.tools) == made.own_tools
    for blob in made.blobs:
        assert (blob.digest, blob.kind) == (digest(blob.data), "definition")


def test_a_fingerprint_shows_changes_of_the_agents_own_definitions() -> None:
    before = Definitions("Be brief.", (LOOKUP,)).fingerprint("c")
    assert changed(before, before) == []
    assert changed(before, Definitions("Be long.", (LOOKUP,)).fingerprint("c")) == ["the instructions"]
    assert changed(before, Definitions("Be brief.", ()).fingerprint("d")) == ["the kind of client", "the tools"]
    other = LOOKUP.model_copy(update={"name": "other"})
    assert changed(before, Definitions("Be brief.", (LOOKUP, other), None, 1).fingerprint("c")) == []


def test_a_request_is_rebuilt_byte_for_byte_and_its_digest_checked() -> None:
    made = Definitions("Be brief.", (LOOKUP,), FORMAT)
    history = path(Message.user("Where is 7?"))
    body = chat_body(question_of(called(), made, history))
    request = rebuilt(11, OPENAI_CHAT, called(digest(request_bytes(body)).hex(), options={}), made, history)
    assert request.verified
    assert (request.body, request.content) == (body, request_bytes(body))
    assert digest(request.content).hex() == request.digest
    assert not rebuilt(
        11, OPENAI_CHAT, called(digest(request_bytes(body)).hex()), made, path(Message.user("Where is 8?"))
    ).verified


def test_a_streamed_request_has_the_digest_without_streaming() -> None:
    history = path(Message.user("Hi"))
    body = chat_body(question_of(called(), Definitions(), history))
    request = rebuilt(11, OPENAI_CHAT, called(digest(request_bytes(body)).hex(), streamed=True), Definitions(), history)
    assert request.verified
    assert request.body["stream"] is True
    assert b'"stream":true' in request.content


def test_a_redacted_message_is_named() -> None:
    history = path(Message.user("Hi"), None)
    request = rebuilt(21, OPENAI_CHAT, called("0"), Definitions(), history)
    assert (request.verified, request.redacted) == (False, (20,))


def sent(*messages: Message | None, upto: int, answer: int) -> list[str]:
    """Return the texts sent to a service that has everything up to a version and gave an answer at another."""
    service = ServiceCall(reference=ServiceReference(kind="response", id="r"), sent=upto, answer=answer)
    return [
        str(message.results[0].result) if message.results else message.text
        for _, message in unsent(model_view(path(*messages)), service)
    ]


CALL = Message.assistant(calls=[FunctionCall(call_id="a", name="lookup", arguments="{}")])


@pytest.mark.parametrize(
    ("messages", "upto", "answer", "expected"),
    [
        ([Message.user("1"), Message.assistant("One."), Message.user("2")], 11, 20, ["2"]),
        ([Message.user("1"), CALL, Message.tool("a", "found")], 11, 20, ["found"]),
        ([Message.user("1"), CALL, Message.user("2")], 11, 20, [NO_RESULT, "2"]),
        ([Message.user("1"), Message.user("meanwhile"), Message.assistant("One.")], 11, 30, ["meanwhile"]),
        ([Message.user("1"), Message.assistant("Half"), Message.user("2")], 0, 0, ["1", "Half", "2"]),
    ],
    ids=["next-turn", "result", "no-result", "appended-meanwhile", "never-answered"],
)
def test_a_service_is_sent_only_new_messages(
    messages: list[Message], upto: int, answer: int, expected: list[str]
) -> None:
    assert sent(*messages, upto=upto, answer=answer) == expected


def test_a_long_body_is_written_in_parts_with_the_same_bytes() -> None:
    longest: list[int] = []

    def noted(value: Any, **options: Any) -> str:
        longest.append(len(value) if isinstance(value, list) else 0)
        return json.dumps(value, **options)

    options: Any = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    for length in (0, 1, 500, 501, 1_000, 1_203):
        messages: Any = [{"role": "user", "content": f"ä{number}"} for number in range(length)]
        body: Any = {"model": "m", "messages": messages, "tools": [], "seed": 2**70}
        with patch("clew.domain.runs.request_construction._as_json", partial(noted, **options)):
            assert request_bytes(body) == json.dumps(body, **options).encode()
    assert max(longest) == 500
