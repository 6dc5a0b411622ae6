"""A server of the Responses and Conversations APIs that keeps state, for machines where ogx cannot run.

A script: ``python stateful_responses.py URL`` serves on a free port, and has the server at the URL answer. What it
keeps is in its memory. Standard library only, so that any Python runs it.
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
    """A request that is answered with an error in OpenAI's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Conversation:
    """Items that come and stay, in sequence."""

    created_at: int
    metadata: Json
    items: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Kept:
    """A response, and everything that the model saw for it."""

    response: Json
    seen: list[Json]


@dataclass(frozen=True)
class Turn:
    """What one request asks: the new items, what comes before them, and where the answer goes."""

    body: Json
    new: list[Json]
    before: list[Json]
    conversation: str | None

    def asked(self) -> Json:
        """The request to the server that answers, which keeps no state."""
        ours = ("previous_response_id", "conversation", "store")
        return {name: value for name, value in self.body.items() if name not in ours} | {
            "input": self.before + self.new
        }

    def told(self, response: Json) -> Json:
        """The answer as the client gets it."""
        conversation = {"id": self.conversation} if self.conversation else None
        previous = self.body.get("previous_response_id")
        stored = self.body.get("store", True)
        return response | {"previous_response_id": previous, "conversation": conversation, "store": stored}


class State:
    """All responses and conversations; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: dict[str, Kept] = {}
        self._conversations: dict[str, Conversation] = {}

    def turn(self, body: Json) -> Turn:
        """What the request asks; refuses ids that are not there."""
        previous, conversation = body.get("previous_response_id"), body.get("conversation")
        if previous and conversation:
            raise RefusedError(400, "previous_response_id and conversation exclude each other.")
        key = conversation["id"] if isinstance(conversation, dict) else conversation
        with self._lock:
            before: list[Json] = []
            if previous:
                kept = self._response(previous)
                before = [*kept.seen, *kept.response["output"]]
            elif key:
                before = list(self._conversation(key).items)
        given = body.get("input", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        return Turn(body, [_item(item) for item in items], before, key)

    def keep(self, turn: Turn, response: Json) -> None:
        """Keep the finished response, as the request wants it."""
        with self._lock:
            if turn.body.get("store", True):
                self._responses[response["id"]] = Kept(response, [*turn.before, *turn.new])
            if turn.conversation:
                self._conversation(turn.conversation).items.extend([*turn.new, *response["output"]])

    def response(self, key: str) -> Json:
        """A kept response."""
        with self._lock:
            return self._response(key).response

    def input_items(self, key: str, query: Json) -> Json:
        """A page of what the model saw for a response."""
        with self._lock:
            return _page(self._response(key).seen, query)

    def delete_response(self, key: str) -> Json:
        """Forget a response; those that follow it keep what they saw."""
        with self._lock:
            self._response(key)
            del self._responses[key]
        return {"id": key, "object": "response", "deleted": True}

    def start_conversation(self, body: Json) -> Json:
        """Make a conversation, of the items that are given."""
        key = f"conv_{uuid.uuid4().hex}"
        items = [_item(item) for item in body.get("items") or []]
        with self._lock:
            self._conversations[key] = Conversation(int(time.time()), body.get("metadata") or {}, items)
        return self.conversation(key)

    def conversation(self, key: str) -> Json:
        """What a conversation is, without its items."""
        with self._lock:
            found = self._conversation(key)
        return {"id": key, "object": "conversation", "created_at": found.created_at, "metadata": found.metadata}

    def delete_conversation(self, key: str) -> Json:
        """Forget a conversation."""
        with self._lock:
            self._conversation(key)
            del self._conversations[key]
        return {"id": key, "object": "conversation.deleted", "deleted": True}

    def items(self, key: str, query: Json) -> Json:
        """A page of a conversation."""
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
        """Take one item out of a conversation."""
        with self._lock:
            items = self._conversation(key).items
            del items[_index(items, item)]
        return self.conversation(key)

    def _response(self, key: str) -> Kept:
        if key not in self._responses:
            raise RefusedError(404, f"Response with id '{key}' not found.")
        return self._responses[key]

    def _conversation(self, key: str) -> Conversation:
        if key not in self._conversations:
            raise RefusedError(404, f"Conversation with id '{key}' not found.")
        return self._conversations[key]


class Handler(BaseHTTPRequestHandler):
    """The routes, over one state and one server that answers."""

    protocol_version = "HTTP/1.1"
    state = State()
    answering = ""

    def do_GET(self) -> None:
        """Serve what is kept."""
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
        """Forget what is kept."""
        self._serve(
            {
                r"/v1/responses/([^/]+)": self.state.delete_response,
                r"/v1/conversations/([^/]+)": self.state.delete_conversation,
                r"/v1/conversations/([^/]+)/items/([^/]+)": self.state.delete_item,
            }
        )

    def do_POST(self) -> None:
        """Make a response, a conversation or items."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self._serve(
            {
                r"/v1/responses": lambda: self._respond(body),
                r"/v1/conversations": lambda: self.state.start_conversation(body),
                r"/v1/conversations/([^/]+)/items": lambda key: self.state.add_items(key, body),
            }
        )

    def log_message(self, *_: object) -> None:
        """Keep silent: what a server prints is for its start and its faults."""

    @property
    def _query(self) -> Json:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))

    def _serve(self, routes: dict[str, Any]) -> None:
        try:
            result = self._answer(routes, urllib.parse.urlsplit(self.path).path)
            if result is not None:  # else it has been sent
                self._send(200, json.dumps(result).encode())
        except RefusedError as error:
            told = {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}
            self._send(error.status, json.dumps(told).encode())

    def _answer(self, routes: dict[str, Any], path: str) -> Any:
        for pattern, answer in routes.items():
            if found := re.fullmatch(pattern, path):
                return answer(*found.groups())
        raise RefusedError(404, f"There is no {self.command} {path}.")

    def _send(self, status: int, body: bytes, headers: Json | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def _respond(self, body: Json) -> Json | None:
        turn = self.state.turn(body)
        with contextlib.closing(http.client.HTTPConnection(self.answering, timeout=120)) as connection:
            connection.request("POST", "/v1/responses", json.dumps(turn.asked()), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                wait = {name: value for name, value in answer.getheaders() if name.lower() == "retry-after"}
                self._send(answer.status, answer.read(), wait)
                return None
            if body.get("stream"):
                self._stream(turn, answer)
                return None
            response = turn.told(json.loads(answer.read()))
            self.state.keep(turn, response)
            return response

    def _stream(self, turn: Turn, answer: http.client.HTTPResponse) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in _events(answer):
                if "response" in event:
                    event["response"] = turn.told(event["response"])
                if event["type"] == "response.completed":
                    self.state.keep(turn, event["response"])
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except (http.client.HTTPException, OSError):
            self.close_connection = True  # cut there or left here, the stream has no end


def _events(answer: http.client.HTTPResponse) -> Iterator[Json]:
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def _item(given: Json) -> Json:
    """An item as it is kept: with an id, and its content as a list of parts."""
    item = {"type": "message", **given}
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
    """Newest first unless the query says otherwise, as at OpenAI."""
    ordered = items if query.get("order") == "asc" else items[::-1]
    start = _index(ordered, query["after"]) + 1 if "after" in query else 0
    end = start + int(query.get("limit", 20))
    page = ordered[start:end]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": end < len(ordered)}


if __name__ == "__main__":
    Handler.answering = urllib.parse.urlsplit(sys.argv[1]).netloc
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"Serving on http://127.0.0.1:{server.server_address[1]}", flush=True)  # noqa: T201 - who started it waits
    server.serve_forever()
