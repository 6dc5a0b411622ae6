"""A proxy in front of a PostgreSQL server that can drop the reply to one request and close the connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

SIZE = 65_536

SYNC = b"S\x00\x00\x00\x04"
"""The end of a request in the extended protocol. The request may arrive in several parts."""

TERMINATE = b"X\x00\x00\x00\x04"
"""The last message of a client. The server does not answer it."""


class CuttingProxy:
    """Listens until the block ends. Closes the connection that sends given bytes, or that sends the nth request.

    The server gets the request, but the client does not get the reply. ``requests`` is the number of requests so far.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._wanted: bytes | None = None
        self._left = 0
        self._counting = threading.Lock()
        self.requests = 0
        self.lost = threading.Event()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._sockets:
            _close(each)
        self._thread.join()

    def lose_reply(self, to: bytes) -> None:
        """Close the next connection that sends these bytes."""
        self.lost.clear()
        self._wanted = to

    def lose_reply_number(self, number: int) -> None:
        """Close the connection that sends the nth request from now on, counted from 1; 0 closes none."""
        self.lost.clear()
        with self._counting:
            self._left = number

    def _is_next(self, sent: bytes, *, begins: bool) -> bool:
        """Whether these bytes belong to the request whose reply is to be dropped; ``begins``: they are its start."""
        if sent == TERMINATE:  # may arrive late, from a connection that was closed earlier
            return False
        if begins:
            with self._counting:
                self.requests += 1
                self._left -= 1
                if self._left == 0:
                    return True
        if self._wanted is not None and self._wanted in sent:
            self._wanted = None
            return True
        return False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # the server is down, and the client sees that its connection is closed
                _close(client)
                continue
            self._sockets += [client, server]
            cut = threading.Event()
            for work in (self._to_server, self._to_client):
                threading.Thread(target=work, args=(client, server, cut), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        begins = True
        with suppress(OSError):
            while sent := client.recv(SIZE):
                if self._is_next(sent, begins=begins):
                    cut.set()
                begins = sent.endswith(SYNC) or (begins and sent[:1] not in {b"P", b"B", b"D", b"E"})
                server.sendall(sent)
        _close(server)

    def _to_client(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while answered := server.recv(SIZE):
                if cut.is_set():
                    self.lost.set()
                    break
                client.sendall(answered)
        _close(client)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
