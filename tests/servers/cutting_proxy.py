"""A proxy before a PostgreSQL server that can lose the reply to one message, and the connection with it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

SIZE = 65_536


class CuttingProxy:
    """Listens until the block ends. ``lose_reply(to)`` cuts the connection on which these bytes are sent next.

    The server gets them; what it answers does not come back.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._wanted: bytes | None = None
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

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            self._sockets += [client, server]
            cut = threading.Event()
            for work in (self._to_server, self._to_client):
                threading.Thread(target=work, args=(client, server, cut), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while sent := client.recv(SIZE):
                if self._wanted is not None and self._wanted in sent:
                    self._wanted = None
                    cut.set()
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
