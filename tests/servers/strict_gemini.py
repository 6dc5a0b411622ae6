"""A server with the strict rules of Gemini's generateContent: signatures of calls, and results that match their calls.

It answers each turn with ``rounds`` rounds of two calls, of which the first is signed, and then with a text.
"""

from __future__ import annotations

import json
from typing import Any

from tests.servers.strict_server import RecordingServer

SKIPPED = "skip_thought_signature_validator"


class BrokenRuleError(Exception):
    """A rule was broken."""


class StrictGemini(RecordingServer):
    """Answers with that many ``rounds`` of calls before each text."""

    base = "/v1beta"

    def __init__(self, rounds: int = 3) -> None:
        super().__init__(rounds)
        self.signed: dict[str, str] = {}

    def reply(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        body = json.loads(content)
        model = path.partition("/models/")[2].partition(":")[0]
        try:
            self.check(model, body["contents"])
        except BrokenRuleError as broken:
            self.refused.append(str(broken))
            error = {"error": {"code": 400, "message": str(broken), "status": "INVALID_ARGUMENT"}}
            return 400, "application/json", json.dumps(error).encode()
        parts = self._parts(model, body)
        if ":streamGenerateContent?alt=sse" in path:
            pieces = [self._reply(model, [piece], last=False) for piece in split(parts)]
            pieces.append(self._reply(model, [], last=True))
            return (
                200,
                "text/event-stream",
                b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in pieces),
            )
        return 200, "application/json", json.dumps(self._reply(model, parts, last=True)).encode()

    def _reply(self, model: str, parts: list[Any], *, last: bool) -> Any:
        candidate: Any = {"content": {"role": "model", "parts": parts}, "index": 0}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3}
        if last:
            candidate["finishReason"] = "STOP"
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "r1"}

    def _parts(self, model: str, body: Any) -> list[Any]:
        done = 0
        for content in reversed(body["contents"]):
            if content["role"] == "user":
                if not any("functionResponse" in part for part in content["parts"]):
                    break
                done += 1
        number = len(self.requests)
        thought = {"text": f"Thought {number}.", "thought": True}
        if done < self.rounds and body.get("tools"):
            name = body["tools"][0]["functionDeclarations"][0]["name"]
            calls = [{"functionCall": {"id": f"{number}-{n}", "name": name, "args": {"order": n}}} for n in range(2)]
            signature = f"{model}-sig/+{number}=="
            self.signed[f"{number}-0"] = signature
            return [thought, {**calls[0], "thoughtSignature": signature}, calls[1]]
        return [thought, {"text": f"Done {number}."}, {"text": "", "thoughtSignature": f"{model}-end-{number}"}]

    def check(self, model: str, contents: Any, *, signed: bool = True) -> None:
        """Raise BrokenRuleError for contents that break a rule; with ``signed``, calls must have their signatures."""
        for number, content in enumerate(contents):
            if not content["parts"] or content["role"] not in {"user", "model"}:
                raise BrokenRuleError(f"contents.{number}: empty, or a wrong role")
            calls = [part for part in content["parts"] if "functionCall" in part]
            for part in content["parts"]:
                if not set(part) & {"text", "functionCall", "functionResponse", "inlineData", "fileData"}:
                    raise BrokenRuleError(f"contents.{number}: a part without data")
            if not calls:
                continue
            signature = calls[0].get("thoughtSignature")
            own = self.signed.get(calls[0]["functionCall"].get("id", ""))
            other = signature not in {own, SKIPPED} or (signature == own and not str(own).startswith(model))
            if signed and other:
                raise BrokenRuleError(f"contents.{number}: Function call is missing a thought_signature")
            following = contents[number + 1]["parts"] if number + 1 < len(contents) else []
            results = [part["functionResponse"] for part in following if "functionResponse" in part]
            asked = [(part["functionCall"]["name"], part["functionCall"].get("id")) for part in calls]
            if [(each["name"], each.get("id")) for each in results] != asked:
                raise BrokenRuleError(f"contents.{number}: function responses do not match the calls")


def split(parts: list[Any]) -> list[Any]:
    """The parts as a stream sends them: texts in two pieces."""
    pieces: list[Any] = []
    for part in parts:
        text = part.get("text", "")
        if len(text) > 1 and "thoughtSignature" not in part:
            pieces += [{**part, "text": text[:2]}, {**part, "text": text[2:]}]
        else:
            pieces.append(part)
    return pieces
