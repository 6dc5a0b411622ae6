"""The scripted services that the contract of model clients talks to."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from clew.domain.json_values import Json
from clew.domain.models.client import ModelClient
from clew.testing.scripted_server import CUT, STALL, RawServer, Reply, stream, whole

ReplyKind: TypeAlias = Literal["answer", "early-end", "cut", "garbage", "stall", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """What a service does with the next request.

    ``answer`` is the complete answer. With the other kinds, a stream sends the first ``after`` pieces of it, and then
    ends as if it were complete (``early-end``), loses the connection (``cut``), sends what cannot be read
    (``garbage``), or sends nothing until the client leaves (``stall``); an answer that is not streamed is likewise not
    complete. ``status`` is an error of HTTP, which asks the client to wait for ``retry_after`` seconds.
    """

    kind: ReplyKind
    streams: bool
    after: int = 0
    status: int = 200
    retry_after: int | None = None


class ModelService(ABC):
    """A scripted service for :func:`check_model_client`, and the client under test.

    ``pieces`` is the number of pieces of the streamed answer, without those at its end that the client may do without.
    ``statuses`` are the errors of HTTP that the service can send.
    """

    pieces: int
    statuses: Sequence[int] = (400, 401, 403, 404, 429, 500, 503)

    @abstractmethod
    def client(self) -> ModelClient:
        """A new client of this service."""

    @abstractmethod
    def add_reply(self, reply: ScriptedReply) -> None:
        """Script the reply to the next request."""

    @abstractmethod
    def received(self) -> Sequence[bytes]:
        """The bodies of all requests that have arrived, oldest first."""

    @abstractmethod
    def disconnected(self) -> bool:
        """Whether the client has left the reply that stalls."""


class HttpModelService(ModelService):
    """An HTTP server that sends an answer, and every fault, in the bytes of your service. Use it in a ``with`` block.

    ``make`` makes the client under test from the address of the server, such as ``http://127.0.0.1:8000``. ``whole`` is
    the complete answer, and ``pieces`` are the pieces of the same answer as a stream. JSON values become server-sent
    events; bytes are sent as they are. An answer is also complete without the last ``optional`` pieces. ``garbage`` is
    a piece that cannot be read, and ``error`` the body of an error. ``media_type`` is that of streams.
    """

    def __init__(
        self,
        make: Callable[[str], ModelClient],
        *,
        whole: Json,
        pieces: Sequence[Json | bytes],
        optional: int = 0,
        garbage: bytes = b"data: {broken\n\n",
        error: Json = None,
        media_type: str = "text/event-stream",
    ) -> None:
        self.pieces = len(pieces) - optional
        self._make = make
        self._whole = json.dumps(whole).encode()
        self._sent = tuple(pieces)
        self._garbage = garbage
        self._error = {"error": {"message": "No."}} if error is None else error
        self._media_type = media_type
        self._server = RawServer()

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def client(self) -> ModelClient:
        """A new client of this server."""
        return self._make(f"http://127.0.0.1:{self._server.port}")

    def add_reply(self, reply: ScriptedReply) -> None:
        """Script the reply to the next request."""
        self._server.disconnected.clear()
        self._server.add_replies(self._reply(reply))

    def received(self) -> Sequence[bytes]:
        """The bodies of all requests that have arrived, oldest first."""
        return [request.body for request in self._server.requests]

    def disconnected(self) -> bool:
        """Whether the client has left the reply that stalls."""
        return self._server.disconnected.is_set()

    def _reply(self, reply: ScriptedReply) -> Reply:
        if reply.kind == "status":
            headers = {} if reply.retry_after is None else {"retry-after": str(reply.retry_after)}
            return whole(self._error, status=reply.status, headers=headers)
        return self._streamed(reply) if reply.streams else self._whole_reply(reply.kind)

    def _streamed(self, reply: ScriptedReply) -> Reply:
        sent = self._sent if reply.kind == "answer" else self._sent[: reply.after]
        if reply.kind == "garbage":
            sent += (self._garbage,)
        end = {"cut": CUT, "stall": STALL}.get(reply.kind)
        return stream(*sent, end=end, done=False, kind=self._media_type)

    def _whole_reply(self, kind: ReplyKind) -> Reply:
        half = self._whole[: len(self._whole) // 2]
        match kind:
            case "stall":
                return Reply((STALL,))
            case "cut":
                return Reply((*whole(half, headers={"content-length": str(len(self._whole))}).steps, CUT))
            case "early-end":
                return whole(half)
            case "garbage":
                return whole(self._garbage)
            case _:
                return whole(self._whole)
