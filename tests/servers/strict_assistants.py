"""A server with the wire of OpenAI's Assistants: threads, messages, runs and steps, with the rules of the service.

A thread takes no message while a run of it is active, and results only for the calls that its run waits for. A run ends
also if its caller has left. The assistant repeats the last message of the user; it calls ``look_up`` if the message
says so, and fails if the message begins with "fail".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

ACTIVE = {"queued", "in_progress", "requires_action", "cancelling"}


class RefusedError(Exception):
    """A request breaks a rule."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    strict: StrictAssistants

    def do_POST(self) -> None:
        self._reply("POST")

    def do_GET(self) -> None:
        self._reply("GET")

    def do_DELETE(self) -> None:
        self._reply("DELETE")

    def _reply(self, method: str) -> None:
        length = int(self.headers.get("content-length") or 0)
        content = json.loads(self.rfile.read(length) or b"{}")
        parts = urlsplit(self.path)
        self.strict.headers.append(self.headers)
        self.strict.requests.append((method, parts.path, content))
        try:
            reply = self.strict.answer(method, parts.path.strip("/").split("/")[1:], parse_qs(parts.query), content)
        except RefusedError as refused:
            self._whole(refused.status, {"error": {"message": str(refused), "type": "invalid_request_error"}})
            return
        if isinstance(reply, dict):
            self._whole(200, reply)
        else:
            self._streamed([*reply])

    def _whole(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _streamed(self, events: list[tuple[str, Any]]) -> None:
        cut, self.strict.cut = self.strict.cut, None
        self.close_connection = cut is not None
        if cut == 0:
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in events[:cut]:
            text = data if isinstance(data, str) else json.dumps(data)
            piece = f"event: {name}\ndata: {text}\n\n".encode()
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if cut is None:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


class StrictAssistants:
    """``cut`` is the number of events after which the connection of the next stream is cut; None to send all.

    With 0 it is cut before the status. While ``works`` is set, runs do not end.
    ``busy`` is the number of runs that it refuses for now.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[Any] = []
        self.threads: dict[str, list[Any]] = {}
        self.runs: dict[str, list[Any]] = {}
        self.steps: dict[str, list[Any]] = {}
        self.cut: int | None = None
        self.works = False
        self.busy = 0
        self._made = 0

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"strict": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def texts(self, thread_id: str) -> list[str]:
        """The messages of a thread, with their roles."""
        return [f"{each['role']}: {each['content'][0]['text']['value']}" for each in self.threads[thread_id]]

    def posted(self, ending: str) -> list[Any]:
        """The bodies of the posts to paths with an ending."""
        return [body for method, path, body in self.requests if method == "POST" and path.endswith(ending)]

    def answer(self, method: str, path: list[str], query: dict[str, list[str]], body: Any) -> Any:
        """The reply: JSON, or the events of a stream."""
        match method, path:
            case "POST", ["threads"]:
                self.threads[thread_id := self._id("thread")] = []
                self.runs[thread_id] = []
                return {"id": thread_id, "object": "thread"}
            case "DELETE", ["threads", thread_id]:
                self._known(thread_id)
                del self.threads[thread_id]
                return {"id": thread_id, "object": "thread.deleted", "deleted": True}
            case "GET", ["threads", thread_id, "messages"]:
                self._known(thread_id)
                wanted = query.get("run_id", [None])[0]
                return _page([each for each in self.threads[thread_id] if wanted in {None, each["run_id"]}], query)
            case "GET", ["threads", thread_id, "runs"]:
                self._known(thread_id)
                return _page(self.runs[thread_id], query)
            case "GET", ["threads", thread_id, "runs", run_id]:
                return dict(self._run(thread_id, run_id))
            case "GET", ["threads", thread_id, "runs", run_id, "steps"]:
                self._run(thread_id, run_id)
                return _page(self.steps[run_id], query)
            case _:
                return self._change(method, path, body)

    def _change(self, method: str, path: list[str], body: Any) -> Any:
        match method, path:
            case "POST", ["threads", thread_id, "runs"]:
                return self._begin(thread_id, body)
            case "POST", ["threads", thread_id, "runs", run_id, "cancel"]:
                run = self._run(thread_id, run_id)
                if run["status"] not in ACTIVE:
                    raise RefusedError(400, f"Cannot cancel run with status '{run['status']}'.")
                run["status"] = "cancelled"
                return dict(run)
            case "POST", ["threads", thread_id, "runs", run_id, "submit_tool_outputs"]:
                return self._continue(self._run(thread_id, run_id), body)
            case _:
                raise RefusedError(404, f"There is no {method} /{'/'.join(path)}.")

    def release(self) -> None:
        """Let the runs that work end."""
        self.works = False
        for runs in self.runs.values():
            for run in runs:
                if run["status"] == "in_progress":
                    [*self._events(run)]

    def _begin(self, thread_id: str, body: Any) -> Iterator[tuple[str, Any]]:
        self._known(thread_id)
        if self.busy:
            self.busy -= 1
            raise RefusedError(503, "Busy.")
        if body.keys() - {"assistant_id", "stream", "metadata", "additional_instructions", "additional_messages"}:
            raise RefusedError(400, f"Unknown parameters: {sorted(body)}.")
        if any(run["status"] in ACTIVE for run in self.runs[thread_id]):
            raise RefusedError(400, f"Thread {thread_id} already has an active run.")
        run = {
            "id": self._id("run"),
            "object": "thread.run",
            "thread_id": thread_id,
            "assistant_id": body["assistant_id"],
            "status": "queued",
            "model": "m-1",
            "metadata": body.get("metadata", {}),
            "instructions": body.get("additional_instructions", ""),
            "required_action": None,
            "last_error": None,
            "usage": None,
        }
        self.runs[thread_id].append(run)
        self.steps[run["id"]] = []
        for message in body.get("additional_messages", []):
            self._say(run, message["role"], message["content"][0]["text"], None)
        return iter([*self._events(run)])

    def _continue(self, run: Any, body: Any) -> Iterator[tuple[str, Any]]:
        if run["status"] != "requires_action":
            raise RefusedError(400, f'Runs in status "{run["status"]}" do not accept tool outputs.')
        calls = run["required_action"]["submit_tool_outputs"]["tool_calls"]
        outputs = {each["tool_call_id"]: each["output"] for each in body["tool_outputs"]}
        if outputs.keys() != {each["id"] for each in calls}:
            raise RefusedError(400, "Expected tool outputs for all calls.")
        run |= {"required_action": None, "status": "queued", "outputs": outputs}
        return iter([*self._events(run)])

    def _events(self, run: Any) -> Iterator[tuple[str, Any]]:
        """What a run does, until it ends or waits."""
        yield "thread.run.created", dict(run)
        run["status"] = "in_progress"
        yield "thread.run.in_progress", dict(run)
        if self.works:
            return
        said = [each for each in self.threads[run["thread_id"]] if each["role"] == "user"]
        heard = said[-1]["content"][0]["text"]["value"] if said else ""
        if heard.startswith("fail"):
            run |= {"status": "failed", "last_error": {"code": "server_error", "message": "The kitchen burns."}}
            yield "thread.run.failed", dict(run)
            return
        if "look up" in heard and "outputs" not in run:
            yield from self._call(run)
            return
        text = f"Found {next(iter(run['outputs'].values()))}" if "outputs" in run else f"You said: {heard}"
        yield from self._write(run, text)
        run |= {"status": "completed", "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}}
        yield "thread.run.completed", dict(run)
        yield "done", "[DONE]"

    def _call(self, run: Any) -> Iterator[tuple[str, Any]]:
        yield from self._write(run, "Let me look.")
        function = {"name": "look_up", "arguments": '{"order": 7}'}
        call = {"id": self._id("call"), "type": "function", "function": function}
        details = {"type": "tool_calls", "tool_calls": [call]}
        step: dict[str, Any] = {"id": self._id("step"), "object": "thread.run.step"}
        self.steps[run["id"]].append(step)
        step |= {"type": "tool_calls", "run_id": run["id"], "step_details": details}
        yield "thread.run.step.created", dict(step)
        waits = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": [call]}}
        run |= {"status": "requires_action", "required_action": waits}
        yield "thread.run.requires_action", dict(run)
        yield "done", "[DONE]"

    def _write(self, run: Any, text: str) -> Iterator[tuple[str, Any]]:
        message = self._say(run, "assistant", text, run["id"])
        details = {"type": "message_creation", "message_creation": {"message_id": message["id"]}}
        step: dict[str, Any] = {"id": self._id("step"), "object": "thread.run.step"}
        self.steps[run["id"]].append(step)
        step |= {"type": "message_creation", "run_id": run["id"], "step_details": details}
        yield "thread.message.created", {**message, "status": "in_progress", "content": []}
        for word in text.split(" "):
            piece = word if text.startswith(word) else f" {word}"
            part = {"index": 0, "type": "text", "text": {"value": piece}}
            yield "thread.message.delta", {**_delta(message), "delta": {"content": [part]}}
        yield "thread.message.completed", dict(message)

    def _say(self, run: Any, role: str, content: Any, run_id: str | None) -> Any:
        text = content if isinstance(content, str) else content["text"]
        part = {"type": "text", "text": {"value": text, "annotations": []}}
        message: dict[str, Any] = {
            "id": self._id("msg"),
            "object": "thread.message",
            "role": role,
            "status": "completed",
        }
        message |= {
            "status": "completed",
            "content": [part],
            "run_id": run_id,
            "thread_id": run["thread_id"],
            "created_at": 1_700_000_000,
        }
        self.threads[run["thread_id"]].append(message)
        return message

    def _known(self, thread_id: str) -> None:
        if thread_id not in self.threads:
            raise RefusedError(404, f"No thread found with id '{thread_id}'.")

    def _run(self, thread_id: str, run_id: str) -> Any:
        self._known(thread_id)
        for run in self.runs[thread_id]:
            if run["id"] == run_id:
                return run
        raise RefusedError(404, f"No run found with id '{run_id}'.")

    def _id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._made}"


def _delta(message: Any) -> Any:
    return {"id": message["id"], "object": "thread.message.delta"}


def _page(items: list[Any], query: dict[str, list[str]]) -> Any:
    """A page of at most two items: real services have small pages, too."""
    listed = items if query["order"] == ["asc"] else items[::-1]
    start = next((n for n, each in enumerate(listed, start=1) if [each["id"]] == query.get("after")), 0)
    page = listed[start : start + 2]
    return {
        "object": "list",
        "data": page,
        "has_more": start + 2 < len(listed),
        "last_id": page[-1]["id"] if page else None,
    }
