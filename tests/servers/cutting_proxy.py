"""A proxy before a PostgreSQL server that can lose the reply to one request, and the connection with it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

SIZE = 65_536

SYNC = b"S\x00\x00\x00\x04"
"""Ends a request of the extended protocol, which may arrive in several parts."""

GOODBYE = b"X\x00\x00\x00\x04"
"""What a client says last, and no server answers."""


class CuttingProxy:
    """Listens until the block ends, and cuts connections on which certain bytes are sent, or the nth request is.

    The server gets them; what it answers does not come back. ``requests`` is how many were sent so far.
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
            _end(each)
        self._thread.join()

    def lose_reply(self, to: bytes) -> None:
        """Cut the next connection that sends this."""
        self.lost.clear()
        self._wanted = to

    def lose_reply_number(self, number: int) -> None:
        """Cut the connection that sends the so manieth request from now on, from 1; with 0 none."""
        self.lost.clear()
        with self._counting:
            self._left = number

    def _is_next(self, sent: bytes, *, begins: bool) -> bool:
        """Whether this is, or ``begins``, the request whose reply is to be lost."""
        if sent == GOODBYE:  # of a connection that was closed before, and may come here late
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
            except OSError:  # it is down, as whoever asks is to find
                _end(client)
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
        _end(server)

    def _to_client(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while answered := server.recv(SIZE):
                if cut.is_set():
                    self.lost.set()
                    break
                client.sendall(answered)
        _end(client)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
