"""The HTTP side of servers with strict rules: it records the requests, and answers 400 for those that break a rule."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class RefusedError(Exception):
    """A rule was broken."""


class RecordingServer:
    """Answers each POST with ``reply``. ``requests`` are the bodies of all requests as bytes.

    ``paths`` and ``headers`` are theirs, in lower case, and ``refused`` the rules that were broken.
    """

    base = "/v1"
    """The path of the address that clients get."""

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds
        self.requests: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.refused: list[str] = []

    def __enter__(self) -> Self:
        strict = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                strict.requests.append(content)
                strict.paths.append(self.path)
                strict.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, kind, body = strict.reply(self.path, content)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.base}"

    def reply(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        """The status, the content type and the body for a request."""
        raise NotImplementedError


class StrictServer(RecordingServer):
    """Streams are server-sent events, which end with ``[DONE]``."""

    path: str

    def reply(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        body = json.loads(content)
        assert path == f"/v1{self.path}"
        try:
            self.check(body)
        except RefusedError as refused:
            self.refused.append(str(refused))
            error = {"error": {"message": str(refused), "type": "invalid_request_error"}}
            return 400, "application/json", json.dumps(error).encode()
        answer = self.answer(body)
        if body.get("stream"):
            events = [f"data: {json.dumps(event)}\n\n".encode() for event in self.events(answer)]
            return 200, "text/event-stream", b"".join([*events, b"data: [DONE]\n\n"])
        return 200, "application/json", json.dumps(answer).encode()

    def check(self, body: Any) -> None:
        """Raise RefusedError for a request that breaks a rule."""
        raise NotImplementedError

    def answer(self, body: Any) -> Any:
        """The whole answer to a request."""
        raise NotImplementedError

    def events(self, answer: Any) -> Iterator[Any]:
        """The events that stream an answer."""
        raise NotImplementedError


def halves(text: str) -> list[str]:
    """A text in two pieces."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def check_fields(value: Any, allowed: set[str], where: str) -> None:
    """Refuse a field that the service does not know."""
    if unknown := set(value) - allowed:
        raise RefusedError(f"{where}: Unknown parameter: {sorted(unknown)}")
