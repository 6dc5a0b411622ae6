"""A server of Gemini's Interactions that stores them, with strict rules for fields, steps, calls and signatures.

It answers each turn with ``rounds`` rounds of a signed thought and two calls, and then with a thought and a text.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

FIELDS = {
    *("model", "input", "store", "stream", "system_instruction", "tools", "response_format", "generation_config"),
    *("previous_interaction_id", "labels", "safety_settings", "service_tier"),
}
STEPS: dict[str, tuple[set[str], set[str]]] = {
    "user_input": ({"type", "content"}, set()),
    "model_output": ({"type", "content"}, set()),
    "thought": ({"type"}, {"signature", "summary"}),
    "function_call": ({"type", "id", "name", "arguments"}, set()),
    "function_result": ({"type", "call_id", "result"}, {"name", "is_error"}),
}
"""The types of steps, with the fields that they must and may have."""
CONTENTS = {"text": {"text"}, **{kind: {"data", "uri"} for kind in ("image", "audio", "video", "document")}}


class BrokenRuleError(Exception):
    """A rule was broken, with the status of the refusal."""

    def __init__(self, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.status = status


class StrictInteractions:
    """``requests`` are the bodies of all requests as bytes, ``refused`` the broken rules, ``stored`` by their ids."""

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds
        self.requests: list[bytes] = []
        self.headers: list[Any] = []
        self.refused: list[str] = []
        self.stored: dict[str, Any] = {}
        self._signed: dict[str, str] = {}

    def __enter__(self) -> Self:
        strict = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                strict.requests.append(content)
                strict.headers.append(self.headers)
                self._send(*strict.create(self.path, content))

            def do_GET(self) -> None:
                self._send(*strict.resource(self.path))

            def do_DELETE(self) -> None:
                self._send(*strict.resource(self.path, delete=True))

            def _send(self, status: int, kind: str, body: bytes) -> None:
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

    def create(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        """The reply to a new interaction."""
        body = json.loads(content)
        try:
            before = self._chain(path, body.get("previous_interaction_id"))
            history = [step for interaction in before for step in (*interaction["input"], *interaction["steps"])]
            check(body, history, self._signed)
        except BrokenRuleError as broken:
            self.refused.append(str(broken))
            return self._error(broken)
        steps = self._steps(body, [*history, *body["input"]])
        interaction = self._interaction(body, steps)
        if body.get("store", True):
            told = {name: body[name] for name in ("input", "previous_interaction_id") if name in body}
            self.stored[interaction["id"]] = {**interaction, **told}
        if body.get("stream"):
            sent = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events_of(interaction))
            return 200, "text/event-stream", sent + b"data: [DONE]\n\n"
        return 200, "application/json", json.dumps(interaction).encode()

    def resource(self, path: str, *, delete: bool = False) -> tuple[int, str, bytes]:
        """The reply to a request for a stored interaction."""
        parts = urlsplit(path)
        id_ = unquote(parts.path.removeprefix("/v1beta/interactions/"))
        if id_ not in self.stored:
            return self._error(BrokenRuleError("Requested entity was not found.", 404))
        found = self.stored.pop(id_) if delete else dict(self.stored[id_])
        if parts.query != "include_input=true":
            found.pop("input", None)
        return 200, "application/json", b"{}" if delete else json.dumps(found).encode()

    def _chain(self, path: str, id_: str | None) -> list[Any]:
        if path != "/v1beta/interactions":
            raise BrokenRuleError(f"no such path: {path}", 404)
        chain: list[Any] = []
        while id_ is not None:
            if id_ not in self.stored:
                raise BrokenRuleError("Requested entity was not found.", 404)
            chain.insert(0, self.stored[id_])
            id_ = self.stored[id_].get("previous_interaction_id")
        return chain

    def _error(self, broken: BrokenRuleError) -> tuple[int, str, bytes]:
        status = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}[broken.status]
        error = {"error": {"code": broken.status, "message": str(broken), "status": status}}
        return broken.status, "application/json", json.dumps(error).encode()

    def _interaction(self, body: Any, steps: list[Any]) -> Any:
        about = {"id": f"v1_{len(self.requests)}", "object": "interaction", "model": body["model"]}
        usage = {"total_input_tokens": 10, "total_output_tokens": 5, "total_thought_tokens": 3, "total_tokens": 18}
        status = "requires_action" if steps[-1]["type"] == "function_call" else "completed"
        return {**about, "status": status, "usage": usage, "steps": steps, "created": "2026-11-27T12:00:00Z"}

    def _steps(self, body: Any, history: list[Any]) -> list[Any]:
        done, last = 0, ""
        for step in reversed(history):
            if step["type"] == "user_input":
                break
            done += step["type"] == "function_result" and last != "function_result"
            last = step["type"]
        number = len(self.requests)
        signature = f"{body['model']}-sig/+{number}=="
        thought = {"type": "thought", "signature": signature, "summary": [{"type": "text", "text": f"Hm {number}."}]}
        if done < self.rounds and body.get("tools"):
            name = body["tools"][0]["name"]
            ids = [f"{number}-{n}" for n in range(2)]
            self._signed.update(dict.fromkeys(ids, signature))
            calls = [
                {"type": "function_call", "id": id_, "name": name, "arguments": {"order": n}}
                for n, id_ in enumerate(ids)
            ]
            return [thought, *calls]
        cited = [{"type": "url_citation", "url": "https://example.org", "start_index": 0, "end_index": 4}]
        text = {"type": "text", "text": f"Done {number}.", "annotations": cited}
        return [thought, {"type": "model_output", "content": [text]}]


def check(body: Any, history: list[Any], signed: dict[str, str] | None) -> None:
    """Raise BrokenRuleError for a body that breaks a rule.

    ``signed`` are the signatures of the service by the ids of calls: a thought must have one of this model, and a call
    of this model that belongs to the last turn must come after its own.
    """
    if unknown := set(body) - FIELDS:
        raise BrokenRuleError(f"unknown fields: {', '.join(sorted(unknown))}")
    if not body["input"] or not isinstance(body["input"], list):
        raise BrokenRuleError("input: it must have a step")
    for number, step in enumerate(body["input"]):
        _check_step(f"input.{number}", step)
    steps = [*history, *body["input"]]
    _check_pairs(steps)
    if signed is not None:
        _check_signatures(body["model"], steps, signed)


def _check_pairs(steps: list[Any]) -> None:
    pending: list[str] = []
    for step in steps:
        if step["type"] == "function_result":
            if not pending or step["call_id"] != pending.pop(0):
                raise BrokenRuleError("a function_result without its function_call")
        elif step["type"] == "function_call":
            pending.append(step["id"])
        elif pending:
            raise BrokenRuleError("a function_call without its function_result")
    if pending:
        raise BrokenRuleError("a function_call without its function_result")


def _check_signatures(model: str, steps: list[Any], signed: dict[str, str]) -> None:
    thought = ""
    asked = max((number for number, step in enumerate(steps) if step["type"] == "user_input"), default=0)
    for number, step in enumerate(steps):
        if step["type"] == "thought":
            thought = step.get("signature", "")
            if not thought.startswith(f"{model}-sig/+"):
                raise BrokenRuleError("a thought has an invalid signature")
        elif step["type"] == "function_call":
            own = signed.get(step["id"], "")
            if own.startswith(model) and number > asked and thought != own:
                raise BrokenRuleError("a function_call is missing the signature of its thought")
        else:
            thought = ""


def _check_step(where: str, step: Any) -> None:
    must, may = STEPS.get(step.get("type"), (set(), set()))
    if not must <= set(step) <= must | may:
        raise BrokenRuleError(f"{where}: wrong fields for {step.get('type')}: {sorted(step)}")
    if step["type"] == "function_call" and not isinstance(step["arguments"], dict):
        raise BrokenRuleError(f"{where}: arguments must be an object")
    result = step.get("result", "")
    if not isinstance(result, str | dict | list):
        raise BrokenRuleError(f"{where}: result must be a text, an object or contents")
    for part in [*step.get("content", ()), *(result if isinstance(result, list) else ())]:
        if not CONTENTS.get(part.get("type"), set()) & set(part):
            raise BrokenRuleError(f"{where}: a content without data")
    if "content" in step and not step["content"]:
        raise BrokenRuleError(f"{where}: no content")


def events_of(interaction: Any) -> list[Any]:
    """An interaction as the service streams it: texts and arguments in two pieces, signatures after the summary."""
    created = {"id": interaction["id"], "status": "in_progress", "object": "interaction"}
    events: list[Any] = [{"event_type": "interaction.created", "interaction": created, "event_id": "e0"}]
    for index, step in enumerate(interaction["steps"]):
        begun, deltas = _pieces(step)
        events.append({"event_type": "step.start", "index": index, "step": begun})
        events += [{"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"event_type": "step.stop", "index": index})
    ended = {name: value for name, value in interaction.items() if name != "steps"}
    return [*events, {"event_type": "interaction.completed", "interaction": ended}]


def _pieces(step: Any) -> tuple[Any, list[Any]]:
    if step["type"] == "function_call":
        text = json.dumps(step["arguments"])
        pieces = [{"type": "arguments_delta", "arguments": each} for each in (text[:3], text[3:])]
        return {**step, "arguments": {}}, pieces
    if step["type"] == "thought":
        text = step["summary"][0]["text"]
        summary = [
            {"type": "thought_summary", "content": {"type": "text", "text": each}} for each in (text[:2], text[2:])
        ]
        return {"type": "thought"}, [*summary, {"type": "thought_signature", "signature": step["signature"]}]
    deltas: list[Any] = []
    for part in step["content"]:
        deltas += [{"type": "text", "text": each} for each in (part["text"][:2], part["text"][2:])]
        deltas.append({"type": "text_annotation_delta", "annotations": part["annotations"]})
    return {"type": step["type"]}, deltas
