"""Watches what a caller's HTTP client sends for one model call: the recorded bytes, and once.

A package may send a request again by itself, for example with a new token after a 401. Then each attempt must be on the
log, so the repetition is not sent: the run retries instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from clew.domain.runs.errors import RequestAlteredError

if TYPE_CHECKING:
    import httpx2

_watching: ContextVar[SentRequests | None] = ContextVar("clew_sent_requests", default=None)
_lock = threading.Lock()


class RepetitionPreventedError(Exception):
    """The client wanted to send a request again."""


class SentRequests:
    """What is sent for one model call, whose bytes are ``content``.

    Attributes: ``prevented``, whether the client wanted to send the request again, and ``status``, that of the response
    after which it did; None without one.
    """

    def __init__(self, content: bytes) -> None:
        self.prevented = False
        self.status: int | None = None
        self._content = content
        self._sent: list[tuple[httpx2.URL, bytes | None]] = []

    @contextmanager
    def watch(self, http_client: httpx2.AsyncClient) -> Iterator[None]:
        """Watch all that this task sends with the client.

        The hooks of the client see each request, whether a redirect, an authentication or a package sends it.
        """
        hooks = http_client.event_hooks
        with _lock:
            for name, hook in (("request", _before), ("response", _after)):
                if hook not in hooks[name]:
                    hooks[name].append(hook)
        token = _watching.set(self)
        try:
            yield
        finally:
            _watching.reset(token)

    def check(self, response: httpx2.Response) -> None:
        """Raise RequestAlteredError unless the bytes of the request were sent where it was answered, and once."""
        sent = [content for url, content in self._sent if url == response.request.url]
        if sent != [self._content] or _content(response.request) != self._content:
            what = "sent no request" if not sent else "sent other bytes than those on the log, or sent several requests"
            raise RequestAlteredError(
                f"The HTTP client {what}. Does it have a hook, a middleware or an authentication that does? Change "
                "requests with Middleware.model_request, which is recorded."
            )

    def reached(self, raised: BaseException | None = None) -> bool | None:
        """Whether the service has received a request; None if that is not known, because nothing came back.

        ``raised`` is the error without a response: if there was no connection, nothing was sent.
        """
        if self.status is not None:
            return True
        return None if self._sent and not _is_unconnected(raised) else False

    def before(self, request: httpx2.Request) -> None:
        """Note a request that is about to be sent.

        Raises RepetitionPreventedError for a second one to the same address, or with the recorded bytes.
        """
        url, content = request.url, _content(request)
        if any(url == sent_to or content == sent == self._content for sent_to, sent in self._sent):
            self.prevented = True
            raise RepetitionPreventedError
        self._sent.append((url, content))

    def after(self, response: httpx2.Response) -> None:
        """Note a response."""
        self.status = response.status_code


def _is_unconnected(raised: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that no connection was made."""
    import httpx2

    unconnected = httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol
    while raised is not None and not isinstance(raised, unconnected):
        raised = raised.__cause__ or raised.__context__
    return raised is not None


def _content(request: httpx2.Request) -> bytes | None:
    """The bytes that a request sends; None if they are not known before they are sent."""
    import httpx2

    stream: Any = request.stream
    return b"".join(stream) if isinstance(stream, httpx2.ByteStream) else None


async def _before(request: httpx2.Request) -> None:
    if (watching := _watching.get()) is not None:
        watching.before(request)


async def _after(response: httpx2.Response) -> None:
    if (watching := _watching.get()) is not None:
        watching.after(response)
