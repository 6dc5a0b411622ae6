"""The Bedrock client against a raw server: the bytes, both forms of an answer, and faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.eventstream import EventStreamBuffer
from tests.domain.wire_requests import to_send
from tests.servers.raw_server import RawServer, Reply, whole
from tests.servers.strict_bedrock import frame

from clew.domain.messages import Message
from clew.domain.models.client import Question
from clew.domain.runs.errors import AgentConfigurationError, ModelError, ModelOverloadedError, ModelStreamError
from clew.infrastructure.bedrock.client import BedrockClient

BLOCKS: list[Any] = [
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
    {"text": "Hello"},
    {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}},
]
USAGE = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5, "cacheReadInputTokens": 4, "cacheWriteInputTokens": 1}
DELTAS: list[tuple[str, Any]] = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm."}}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "c2ln"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hel"}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "lo"}}),
    ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "look"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"a":'}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": "1}"}}}),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": USAGE}),
]
WHOLE = {"output": {"message": {"role": "assistant", "content": BLOCKS}}, "stopReason": "tool_use", "usage": USAGE}


def events(data: bytes) -> Reply:
    return whole(data, headers={"content-type": "application/vnd.amazon.eventstream"})


def ask(reply: Reply, *, streams: bool) -> Any:
    async def asked(server: RawServer) -> Any:
        client = BedrockClient("m:0", api_key="canary-key", region="us-east-1", base_url=server.url[:-3], timeout=5)
        request = to_send(client, client.wire.make_body(Question("m:0", (Message.user("Hi"),))), streams=streams)
        try:
            last = [update async for update in client.ask(request)][-1]
        except ModelError as error:
            last = error  # type: ignore[assignment]
        assert server.requests[0].body == request.content
        assert server.requests[0].path == client.wire.make_path("m:0", streams)
        return last

    with RawServer() as server:
        server.add_replies(reply)
        return asyncio.run(asked(server))


def test_a_streamed_answer_equals_a_whole_answer() -> None:
    streamed = ask(events(b"".join(frame(*each) for each in DELTAS)), streams=True)
    assert streamed == ask(whole(WHOLE), streams=False)
    assert streamed.finish_reason == "tool_calls"
    assert streamed.usage.input_tokens == 8
    assert streamed.message.native.prefix == ""


def test_the_frames_of_the_servers_are_those_that_botocore_reads() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(frame(kind, payload) for kind, payload in DELTAS))
    assert [(event.headers[":event-type"], json.loads(event.payload)) for event in buffer] == DELTAS


def test_a_damaged_frame_is_an_error() -> None:
    data = b"".join(frame(*each) for each in DELTAS[:5])
    assert type(ask(events(data[:-1] + b"x"), streams=True)) is ModelStreamError


def test_throttling_is_retryable_and_shows_no_key() -> None:
    refused = whole({"message": "Slow, canary-key."}, status=429, headers={"retry-after": "7"})
    exception = events(frame("throttlingException", {"message": "Slow, canary-key."}, "exception"))
    for reply, streams in ((refused, False), (exception, True)):
        error = ask(reply, streams=streams)
        assert type(error) is ModelOverloadedError
        assert error.retryable
        assert "canary" not in str(error)


def test_a_request_is_signed_as_botocore_signs_it() -> None:
    async def asked(server: RawServer) -> None:
        session = botocore.session.Session()
        session.set_credentials("AKIDCANARY", "secret-canary", "token-canary")
        client = BedrockClient("m:0", session=session, region="us-east-1", base_url=server.url[:-3])
        request = to_send(client, client.wire.make_body(Question("m:0", (Message.user("Hi"),))), streams=False)
        assert [update async for update in client.ask(request)]
        sent = server.requests[0]
        assert sent.body == request.content
        again = AWSRequest(
            "POST",
            server.url[:-3] + sent.path,
            headers={"content-type": "application/json"},
            data=request.content,
        )
        again.context["timestamp"] = sent.headers["x-amz-date"]
        signer = SigV4Auth(session.get_credentials().get_frozen_credentials(), "bedrock", "us-east-1")
        again.headers["X-Amz-Date"] = sent.headers["x-amz-date"]
        again.headers["X-Amz-Security-Token"] = "token-canary"
        signed = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
        assert sent.headers["authorization"].endswith(f"Signature={signed}")
        server.add_replies(whole({"message": "No secret-canary, AKIDCANARY."}, status=403))
        with pytest.raises(ModelError) as refused:
            assert [update async for update in client.ask(request)]
        assert "anary" not in str(refused.value).replace("CANARY", "anary")

    with RawServer() as server:
        server.add_replies(whole(WHOLE))
        asyncio.run(asked(server))


def test_the_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"api_key": "k"}, "AWS_REGION"),
        ({"api_key": "a b", "region": "us-east-1"}, "Remove the character"),
        ({"api_key": "k", "region": "us-east-1", "base_url": "nowhere"}, "base_url"),
        ({"api_key": "k", "region": "us-east-1", "options": {"system": []}}, "system"),
        ({"api_key": "k", "session": object()}, "cannot be combined"),
    )
    for arguments, words in wrong:
        with pytest.raises(AgentConfigurationError, match=words):
            BedrockClient("m:0", **arguments)
