"""A server of the wire format of mem0's platform: it keeps memories, and fails or says nothing when it is told to.

Source of the format: the platform's published API description, of its versions 1 (ping) and 3 (add and search).
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
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Received:
    """A request as it came; the names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Mem0Server:
    """What the server keeps, and what it is told to do; all of it may be used from several threads.

    `replies` are said in place of what it would answer, one a request: a status with a body, or None, upon which it
    says nothing until the server stops. A memory is what somebody said, word for word: a real platform has a model
    extract what matters.
    """

    key: str
    url: str = ""
    memories: list[Json] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    replies: deque[tuple[int, Any] | None] = field(default_factory=deque)
    stalled: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def asked(self, path: str) -> list[Json]:
        """The bodies of the requests to a path."""
        return [each.body for each in self.requests if each.path == path]

    @property
    def searches(self) -> list[Json]:
        """What was searched for."""
        return self.asked("/v3/memories/search/")

    @property
    def adds(self) -> list[Json]:
        """What was to be remembered."""
        return self.asked("/v3/memories/add/")

    def answer(self, received: Received) -> tuple[int, Any] | None:
        """The status and the body for a request, None for silence."""
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
                return {"results": self.found(received.body)}
            case _:
                raise RefusedError(404, "Not found.")

    def add(self, body: Json) -> Json:
        """Keep what was said, under who said it, as the platform does where a user and an agent are named."""
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

    def found(self, body: Json) -> list[Json]:
        """What a search finds: what fits the filters, best first, which is what has most of the words."""
        if set(ENTITIES) & set(body):
            raise RefusedError(400, "Entity IDs must be passed in filters.")
        if not str(body.get("query", "")).strip() or not isinstance(body.get("filters"), dict):
            raise RefusedError(400, "query and filters are required.")
        if not any(name in json.dumps(body["filters"]) for name in ENTITIES):
            raise RefusedError(400, "filters must have at least one entity ID.")
        words = _words(body["query"])
        fitting = [each for each in self.memories if fits(each, body["filters"])]
        scored = [each | {"score": len(words & _words(each["memory"])) / len(words)} for each in fitting]
        return sorted(scored, key=lambda each: -each["score"])[: body.get("top_k", 10)]


PEOPLE = {"user_id", "agent_id"}


def fits(memory: Json, filters: Json) -> bool:
    """Whether a memory is one of those that filters let through."""
    return all(_fits(memory, name, wanted) for name, wanted in filters.items())


def _fits(memory: Json, name: str, wanted: Any) -> bool:
    if name not in FILTERS:
        raise RefusedError(400, "Top-level key must be a logical operator or an allowed field.")
    match name:
        case "AND":
            return all(fits(memory, each) for each in wanted)
        case "OR":
            return any(fits(memory, each) for each in wanted)
        case "NOT":
            return not fits(memory, wanted)
        case "metadata":
            return all((memory["metadata"] or {}).get(key) == value for key, value in wanted.items())
        case _:
            return bool(memory[name] is not None if wanted == "*" else memory[name] == wanted)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


@contextmanager
def mem0_server(key: str) -> Iterator[Mem0Server]:
    """A server on a free port, in threads of its own, for as long as the block lasts."""
    kept = Mem0Server(key)

    connections: set[socket.socket] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer goes out at once, not in parts that wait for each other

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
            """Say nothing: what came is in `requests`."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = kept.answer(Received(self.command, self.path, headers, json.loads(body) if body else None))
            if answer is None:
                kept.stalled.set()
                kept.stopped.wait()
                self.close_connection = True
                return
            status, told = answer
            said = told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    serving.start()
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield kept
    finally:
        kept.stopped.set()
        server.shutdown()
        serving.join()
        for connection in tuple(connections):  # those that clients keep for later
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
