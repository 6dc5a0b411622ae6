"""A stateful server of the Responses and Conversations APIs, for machines where ogx cannot run.

Run it as a script: ``python stateful_responses.py URL`` serves on a free port, and forwards requests to the server at
the URL. Its state is in memory. It uses only the standard library, so any Python can run it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class RefusedError(Exception):
    """The server answers a request with this error, in OpenAI's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Conversation:
    """A conversation: its items are in order."""

    created_at: int
    metadata: Json
    items: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class StoredResponse:
    """A response, and its complete input."""

    response: Json
    input: list[Json]


@dataclass(frozen=True)
class Turn:
    """A request: its new items, the items before them, and the conversation that stores the answer."""

    body: Json
    new: list[Json]
    before: list[Json]
    conversation: str | None

    def stateless_request(self) -> Json:
        """The request to the upstream server, which is stateless."""
        stateful = ("previous_response_id", "conversation", "store")
        return {name: value for name, value in self.body.items() if name not in stateful} | {
            "input": self.before + self.new
        }

    def client_response(self, response: Json) -> Json:
        """The response as the client receives it."""
        conversation = {"id": self.conversation} if self.conversation else None
        previous = self.body.get("previous_response_id")
        stored = self.body.get("store", True)
        return response | {"previous_response_id": previous, "conversation": conversation, "store": stored}


class State:
    """All responses and conversations. Its methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: dict[str, StoredResponse] = {}
        self._conversations: dict[str, Conversation] = {}

    def turn(self, body: Json) -> Turn:
        """Read a request. Refuses ids that do not exist."""
        previous, conversation = body.get("previous_response_id"), body.get("conversation")
        if previous and conversation:
            raise RefusedError(400, "previous_response_id and conversation exclude each other.")
        key = conversation["id"] if isinstance(conversation, dict) else conversation
        with self._lock:
            before: list[Json] = []
            if previous:
                stored = self._response(previous)
                before = [*stored.input, *stored.response["output"]]
            elif key:
                before = list(self._conversation(key).items)
        new = body.get("input", [])
        items = [{"role": "user", "content": new}] if isinstance(new, str) else new
        return Turn(body, [_item(item) for item in items], before, key)

    def store(self, turn: Turn, response: Json) -> None:
        """Store the finished response, if the request asks for it."""
        with self._lock:
            if turn.body.get("store", True):
                self._responses[response["id"]] = StoredResponse(response, [*turn.before, *turn.new])
            if turn.conversation:
                self._conversation(turn.conversation).items.extend([*turn.new, *response["output"]])

    def response(self, key: str) -> Json:
        """A stored response."""
        with self._lock:
            return self._response(key).response

    def input_items(self, key: str, query: Json) -> Json:
        """A page of the input of a response."""
        with self._lock:
            return _page(self._response(key).input, query)

    def delete_response(self, key: str) -> Json:
        """Delete a response. Later responses keep their input."""
        with self._lock:
            self._response(key)
            del self._responses[key]
        return {"id": key, "object": "response", "deleted": True}

    def start_conversation(self, body: Json) -> Json:
        """Create a conversation from the given items."""
        key = f"conv_{uuid.uuid4().hex}"
        items = [_item(item) for item in body.get("items") or []]
        with self._lock:
            self._conversations[key] = Conversation(int(time.time()), body.get("metadata") or {}, items)
        return self.conversation(key)

    def conversation(self, key: str) -> Json:
        """A conversation without its items."""
        with self._lock:
            stored = self._conversation(key)
        return {"id": key, "object": "conversation", "created_at": stored.created_at, "metadata": stored.metadata}

    def delete_conversation(self, key: str) -> Json:
        """Delete a conversation."""
        with self._lock:
            self._conversation(key)
            del self._conversations[key]
        return {"id": key, "object": "conversation.deleted", "deleted": True}

    def items(self, key: str, query: Json) -> Json:
        """A page of a conversation's items."""
        with self._lock:
            return _page(self._conversation(key).items, query)

    def add_items(self, key: str, body: Json) -> Json:
        """Append items to a conversation."""
        added = [_item(item) for item in body["items"]]
        with self._lock:
            self._conversation(key).items.extend(added)
        return _page(added, {"order": "asc", "limit": str(len(added))})

    def item(self, key: str, item: str) -> Json:
        """One item of a conversation."""
        with self._lock:
            items = self._conversation(key).items
            return items[_index(items, item)]

    def delete_item(self, key: str, item: str) -> Json:
        """Delete one item of a conversation."""
        with self._lock:
            items = self._conversation(key).items
            del items[_index(items, item)]
        return self.conversation(key)

    def _response(self, key: str) -> StoredResponse:
        if key not in self._responses:
            raise RefusedError(404, f"Response with id '{key}' not found.")
        return self._responses[key]

    def _conversation(self, key: str) -> Conversation:
        if key not in self._conversations:
            raise RefusedError(404, f"Conversation with id '{key}' not found.")
        return self._conversations[key]


class Handler(BaseHTTPRequestHandler):
    """The routes. The state is shared, and another server answers."""

    protocol_version = "HTTP/1.1"
    state = State()
    upstream = ""

    def do_GET(self) -> None:
        """Return stored objects."""
        self._serve(
            {
                r"/v1/responses/([^/]+)": self.state.response,
                r"/v1/responses/([^/]+)/input_items": lambda key: self.state.input_items(key, self._query),
                r"/v1/conversations/([^/]+)": self.state.conversation,
                r"/v1/conversations/([^/]+)/items": lambda key: self.state.items(key, self._query),
                r"/v1/conversations/([^/]+)/items/([^/]+)": self.state.item,
            }
        )

    def do_DELETE(self) -> None:
        """Delete stored objects."""
        self._serve(
            {
                r"/v1/responses/([^/]+)": self.state.delete_response,
                r"/v1/conversations/([^/]+)": self.state.delete_conversation,
                r"/v1/conversations/([^/]+)/items/([^/]+)": self.state.delete_item,
            }
        )

    def do_POST(self) -> None:
        """Create a response, a conversation or items."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self._serve(
            {
                r"/v1/responses": lambda: self._respond(body),
                r"/v1/conversations": lambda: self.state.start_conversation(body),
                r"/v1/conversations/([^/]+)/items": lambda key: self.state.add_items(key, body),
            }
        )

    def log_message(self, *_: object) -> None:
        """Print nothing: the output is only for the start and for faults."""

    @property
    def _query(self) -> Json:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))

    def _serve(self, routes: dict[str, Any]) -> None:
        try:
            result = self._answer(routes, urllib.parse.urlsplit(self.path).path)
            if result is not None:  # otherwise the response was already sent
                self._send(200, json.dumps(result).encode())
        except RefusedError as error:
            content = {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}
            self._send(error.status, json.dumps(content).encode())

    def _answer(self, routes: dict[str, Any], path: str) -> Any:
        for pattern, answer in routes.items():
            if match := re.fullmatch(pattern, path):
                return answer(*match.groups())
        raise RefusedError(404, f"There is no {self.command} {path}.")

    def _send(self, status: int, body: bytes, headers: Json | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def _respond(self, body: Json) -> Json | None:
        turn = self.state.turn(body)
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=120)) as connection:
            connection.request(
                "POST", "/v1/responses", json.dumps(turn.stateless_request()), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                wait = {name: value for name, value in answer.getheaders() if name.lower() == "retry-after"}
                self._send(answer.status, answer.read(), wait)
                return None
            if body.get("stream"):
                self._stream(turn, answer)
                return None
            response = turn.client_response(json.loads(answer.read()))
            self.state.store(turn, response)
            return response

    def _stream(self, turn: Turn, answer: http.client.HTTPResponse) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in _events(answer):
                if "response" in event:
                    event["response"] = turn.client_response(event["response"])
                if event["type"] == "response.completed":
                    self.state.store(turn, event["response"])
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except (http.client.HTTPException, OSError):
            self.close_connection = True  # the server or the client closed its connection, so the stream has no end


def _events(answer: http.client.HTTPResponse) -> Iterator[Json]:
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def _item(received: Json) -> Json:
    """An item in stored form: with an id, and with its content as a list of parts."""
    item = {"type": "message", **received}
    if isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        item["content"] = [{"type": kind, "text": item["content"]}]
    return {"id": f"{'msg' if item['type'] == 'message' else 'item'}_{uuid.uuid4().hex}"} | item


def _index(items: list[Json], key: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == key:
            return index
    raise RefusedError(404, f"Item with id '{key}' not found.")


def _page(items: list[Json], query: Json) -> Json:
    """A page of items. As at OpenAI, the newest items come first by default."""
    ordered = items if query.get("order") == "asc" else items[::-1]
    start = _index(ordered, query["after"]) + 1 if "after" in query else 0
    end = start + int(query.get("limit", 20))
    page = ordered[start:end]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": end < len(ordered)}


if __name__ == "__main__":
    Handler.upstream = urllib.parse.urlsplit(sys.argv[1]).netloc
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"Serving on http://127.0.0.1:{server.server_address[1]}", flush=True)  # noqa: T201 - the starting process waits for this line
    server.serve_forever()
