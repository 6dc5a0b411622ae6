"""A server with the strict rules of Bedrock's Converse: signed reasoning, paired tool results, tools that are declared.

It answers each turn with ``rounds`` tool calls, each with thinking before it, and then with a text. A signature is
bound to the request before it, as the service documents it for its newest models.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from tests.servers.strict_server import RecordingServer


class RefusedError(Exception):
    """A rule was broken."""


class StrictBedrock(RecordingServer):
    """Answers with that many ``rounds`` of calls before each text."""

    base = ""

    def reply(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        body = json.loads(content)
        try:
            check(body)
        except RefusedError as refused:
            self.refused.append(str(refused))
            return 400, "application/json", json.dumps({"message": str(refused)}).encode()
        message = self._message(body)
        if path.endswith("/converse-stream"):
            return 200, "application/vnd.amazon.eventstream", b"".join(frames(message))
        return 200, "application/json", json.dumps(message).encode()

    def _message(self, body: Any) -> Any:
        done = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                if not any("toolResult" in block for block in message["content"]):
                    break
                done += 1
        number = len(self.requests)
        signed = {"text": f"Thought {number}.", "signature": signature(body, body["messages"])}
        blocks: list[Any] = [{"reasoningContent": {"reasoningText": signed}}]
        tools = body.get("toolConfig", {}).get("tools", [])
        if done < self.rounds and tools:
            name = tools[0]["toolSpec"]["name"]
            use = {"toolUseId": f"tooluse_{number}", "name": name, "input": {"order": done}}
            blocks += [{"reasoningContent": {"redactedContent": "eHl6"}}, {"text": f"Step {done}."}, {"toolUse": use}]
        else:
            blocks.append({"text": f"Done {number}."})
        reason = "tool_use" if "toolUse" in blocks[-1] else "end_turn"
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        return {"output": {"message": {"role": "assistant", "content": blocks}}, "stopReason": reason, "usage": usage}


def signature(body: Any, before: Any) -> str:
    """The signature of reasoning after these messages. The choice among the tools does not count."""
    tools = body.get("toolConfig", {}).get("tools")
    bound = json.dumps([body.get("system"), tools, before], sort_keys=True)
    return sha256(bound.encode()).hexdigest()


def check(body: Any) -> None:
    """Raise RefusedError for a request that breaks a rule."""
    messages = body["messages"]
    if messages[0]["role"] != "user":
        raise RefusedError("A conversation must start with a user message")
    for number, message in enumerate(messages):
        if number and message["role"] == messages[number - 1]["role"]:
            raise RefusedError(f"messages.{number}: roles must alternate")
        if not message["content"]:
            raise RefusedError(f"messages.{number}: empty content")
        for block in message["content"]:
            if "text" in block and not block["text"].strip():
                raise RefusedError(f"messages.{number}: blank text")
            if {"toolUse", "toolResult"} & set(block) and "toolConfig" not in body:
                raise RefusedError("toolConfig must be defined")
            told = block.get("reasoningContent", {}).get("reasoningText")
            if told is not None and told.get("signature") != signature(body, messages[:number]):
                raise RefusedError(f"messages.{number}: the reasoning is bound to another prefix")
        calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        following = messages[number + 1]["content"] if number + 1 < len(messages) else []
        results = [block["toolResult"]["toolUseId"] for block in following[: len(calls)] if "toolResult" in block]
        if results != calls:
            raise RefusedError(f"messages.{number}: toolUse without toolResult")


def frames(message: Any) -> Iterator[bytes]:
    """The frames of a streamed answer, each text in two pieces."""
    yield frame("messageStart", {"role": "assistant"})
    for index, block in enumerate(message["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        if "toolUse" in block:
            use = {name: value for name, value in block["toolUse"].items() if name != "input"}
            yield frame("contentBlockStart", {**at, "start": {"toolUse": use}})
        for delta in _deltas(block):
            yield frame("contentBlockDelta", {**at, "delta": delta})
        yield frame("contentBlockStop", at)
    yield frame("messageStop", {"stopReason": message["stopReason"]})
    yield frame("metadata", {"usage": message["usage"]})


def _deltas(block: Any) -> list[Any]:
    if "text" in block:
        return [{"text": piece} for piece in _halves(block["text"])]
    if "toolUse" in block:
        return [{"toolUse": {"input": piece}} for piece in _halves(json.dumps(block["toolUse"]["input"]))]
    reasoning = block["reasoningContent"]
    if "reasoningText" not in reasoning:
        return [{"reasoningContent": reasoning}]
    pieces: list[Any] = [{"reasoningContent": {"text": piece}} for piece in _halves(reasoning["reasoningText"]["text"])]
    return [*pieces, {"reasoningContent": {"signature": reasoning["reasoningText"]["signature"]}}]


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def frame(kind: str, payload: object, how: str = "event") -> bytes:
    """A frame of a stream of events."""
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((f":{how}-type", kind), (":message-type", how))
    )
    data = json.dumps(payload).encode()
    head = struct.pack(">II", len(headers) + len(data) + 16, len(headers))
    begin = head + struct.pack(">I", crc32(head)) + headers + data
    return begin + struct.pack(">I", crc32(begin))
