"""A service with OpenAI's interfaces whose answers depend on the request only, and which keeps what it received."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class CountingService:
    """``received`` are the bodies of requests for answers, by the key of their sender, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: dict[str, list[bytes]] = {}
        self.conversations = 0

    def answer(self, path: str, key: str, body: bytes) -> Any:
        """Return the JSON of an answer: equal requests have equal answers."""
        if path.endswith("/conversations"):
            self.conversations += 1
            return {"id": f"conv_{self.conversations}", "object": "conversation"}
        self.received.setdefault(key, []).append(body)
        id_ = hashlib.sha256(body).hexdigest()[:12]
        text = f"I read {len(body)} bytes."
        if path.endswith("/chat/completions"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return {"id": id_, "object": "chat.completion", "model": "m-1", "choices": [choice]}
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{id_}", "role": "assistant", "status": "completed", "content": content}
        return {"id": f"resp_{id_}", "object": "response", "status": "completed", "model": "m-1", "output": [item]}


@contextmanager
def counting_service() -> Iterator[CountingService]:
    """Run the service."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:  # the name of the base class
            body = self.rfile.read(int(self.headers["content-length"]))
            key = self.headers["authorization"].removeprefix("Bearer ")
            sent = json.dumps(service.answer(self.path, key, body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = CountingService(f"http://127.0.0.1:{server.server_port}/v1")
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
