"""A server with the strict rules of Gemini's generateContent: signatures of calls, and results that match their calls.

It answers each turn with ``rounds`` rounds of two calls, of which the first is signed, and then with a text.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SKIPPED = "skip_thought_signature_validator"


class BrokenRuleError(Exception):
    """A rule was broken."""


class StrictGemini:
    """``requests`` are the bodies of all requests as bytes, ``paths`` their paths, ``refused`` the broken rules."""

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds
        self.requests: list[bytes] = []
        self.paths: list[str] = []
        self.refused: list[str] = []
        self.signed: dict[str, str] = {}

    def __enter__(self) -> Self:
        strict = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                strict.requests.append(content)
                strict.paths.append(self.path)
                status, kind, body = strict.reply(self.path, content)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1beta"

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
