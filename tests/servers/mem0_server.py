"""A server of mem0's platform API. It stores memories, and can fail or give no answer.

Source of the format: the platform's published API description, versions 1 (ping) and 3 (add and search).
"""

from __future__ import annotations

import json
import re
import socket
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

ENTITIES = ("user_id", "agent_id", "app_id", "run_id")
FILTERS = {"AND", "OR", "NOT", *ENTITIES, "created_at", "updated_at", "categories", "metadata", "memory_ids"}


class RefusedError(Exception):
    """The server answers a request with this error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Received:
    """A received request. The names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Mem0Server:
    """The state of the server and its scripted replies. All of it may be used from several threads.

    Each item of `replies` replaces one answer: a status with a body, or None for no answer until the server stops. The
    server stores each message word for word as a memory, while the real platform extracts facts with a model.
    """

    key: str
    url: str = ""
    memories: list[Json] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    replies: deque[tuple[int, Any] | None] = field(default_factory=deque)
    stalled: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def bodies(self, path: str) -> list[Json]:
        """The bodies of the requests to a path."""
        return [each.body for each in self.requests if each.path == path]

    @property
    def searches(self) -> list[Json]:
        """The bodies of the search requests."""
        return self.bodies("/v3/memories/search/")

    @property
    def adds(self) -> list[Json]:
        """The bodies of the requests that add memories."""
        return self.bodies("/v3/memories/add/")

    def answer(self, received: Received) -> tuple[int, Any] | None:
        """The status and the body of the answer to a request; None for no answer."""
        self.requests.append(received)
        if self.replies:
            return self.replies.popleft()
        try:
            return 200, self._answer(received)
        except RefusedError as error:
            return error.status, {"detail": str(error)}

    def _answer(self, received: Received) -> Json:
        if received.headers.get("authorization") != f"Token {self.key}":
            raise RefusedError(401, "Given token not valid.")
        match received.method, received.path:
            case "GET", "/v1/ping/":
                return {"status": "ok", "org_id": "org", "project_id": "project", "user_email": "a@b.example"}
            case "POST", "/v3/memories/add/":
                return self.add(received.body)
            case "POST", "/v3/memories/search/":
                return {"results": self.search(received.body)}
            case _:
                raise RefusedError(404, "Not found.")

    def add(self, body: Json) -> Json:
        """Store messages as memories. If the scope has a user and an agent, store each message only for its author."""
        scope = {name: body[name] for name in ENTITIES if name in body}
        if not scope:
            raise RefusedError(400, "At least one entity ID is required.")
        for message in body["messages"]:
            if message["role"] not in {"user", "assistant", "system"} or not isinstance(message["content"], str):
                raise RefusedError(400, "messages: not of the form.")
            other = "agent_id" if message["role"] == "user" else "user_id"
            entities = {name: value for name, value in scope.items() if name != other or len(scope.keys() & PEOPLE) < 2}
            self.memories.append(
                dict.fromkeys(ENTITIES)
                | entities
                | {
                    "id": str(uuid.uuid4()),
                    "memory": message["content"],
                    "metadata": body.get("metadata"),
                    "categories": [],
                    "created_at": datetime.now(UTC).isoformat(),
                }
            )
        return {"status": "PENDING", "event_id": str(uuid.uuid4())}

    def search(self, body: Json) -> list[Json]:
        """The memories that match the filters. Those with the most words of the query come first."""
        if set(ENTITIES) & set(body):
            raise RefusedError(400, "Entity IDs must be passed in filters.")
        if not str(body.get("query", "")).strip() or not isinstance(body.get("filters"), dict):
            raise RefusedError(400, "query and filters are required.")
        if not any(name in json.dumps(body["filters"]) for name in ENTITIES):
            raise RefusedError(400, "filters must have at least one entity ID.")
        words = _words(body["query"])
        matching = [each for each in self.memories if fits(each, body["filters"])]
        scored = [each | {"score": len(words & _words(each["memory"])) / len(words)} for each in matching]
        return sorted(scored, key=lambda each: -each["score"])[: body.get("top_k", 10)]


PEOPLE = {"user_id", "agent_id"}


def fits(memory: Json, filters: Json) -> bool:
    """Whether a memory matches the filters."""
    return all(_fits(memory, name, expected) for name, expected in filters.items())


def _fits(memory: Json, name: str, expected: Any) -> bool:
    if name not in FILTERS:
        raise RefusedError(400, "Top-level key must be a logical operator or an allowed field.")
    match name:
        case "AND":
            return all(fits(memory, each) for each in expected)
        case "OR":
            return any(fits(memory, each) for each in expected)
        case "NOT":
            return not fits(memory, expected)
        case "metadata":
            return all((memory["metadata"] or {}).get(key) == value for key, value in expected.items())
        case _:
            return bool(memory[name] is not None if expected == "*" else memory[name] == expected)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


@contextmanager
def mem0_server(key: str) -> Iterator[Mem0Server]:
    """Run the server on a free port, in its own threads, until the block ends."""
    state = Mem0Server(key)

    connections: set[socket.socket] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # sends the whole answer at once, not in parts that wait for each other

        def setup(self) -> None:
            super().setup()
            connections.add(self.connection)

        def finish(self) -> None:
            connections.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            """Print nothing: `requests` has all requests."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = state.answer(Received(self.command, self.path, headers, json.loads(body) if body else None))
            if answer is None:
                state.stalled.set()
                state.stopped.wait()
                self.close_connection = True
                return
            status, content = answer
            payload = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server_thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    server_thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        state.stopped.set()
        server.shutdown()
        server_thread.join()
        for connection in tuple(connections):  # clients keep connections open
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
