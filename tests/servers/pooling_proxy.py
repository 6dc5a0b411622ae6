"""A connection pooler in front of a PostgreSQL server: each transaction of a client gets another server session.

PgBouncer does the same in transaction mode. A client's settings and prepared statements stay in the session, so its
next transaction does not see them, and may see those of another client.
"""

from __future__ import annotations

import queue
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
OPEN_TRANSACTION = (b"T", b"E")


class PoolingProxy:
    """Listens until the block ends. All clients share ``sessions`` sessions. The server must trust all users."""

    def __init__(self, port: int, user: str, database: str, sessions: int = 2) -> None:
        self._server = port
        self._startup = struct.pack(">i", 196608) + b"\0".join(
            [b"user", user.encode(), b"database", database.encode(), b"", b""]
        )
        self._sessions: queue.SimpleQueue[_Peer] = queue.SimpleQueue()
        self._count = sessions
        self._sockets: list[socket.socket] = []
        self.transactions = 0

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._sessions.put(self._open_session())
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _open_session(self) -> _Peer:
        """Open a session, and record the greeting, which is the same for every client."""
        server = _Peer(socket.create_connection(("127.0.0.1", self._server)))
        self._sockets.append(server.socket)
        server.socket.sendall(struct.pack(">i", len(self._startup) + 4) + self._startup)
        self._greeting = b""
        while not self._greeting.endswith(b"Z\0\0\0\5I"):
            self._greeting += server.receive()
        return server

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(_Peer(client),), daemon=True).start()

    def _serve(self, client: _Peer) -> None:
        with suppress(OSError):
            while client.startup() in (SSL_REQUEST, GSS_REQUEST):
                client.socket.sendall(b"N")
            client.socket.sendall(self._greeting)
            while (first := client.receive()) and not first.startswith(b"X"):
                server = self._sessions.get()
                if self._relay(client, server, first):
                    self._sessions.put(server)
                else:
                    # The client disconnected during its transaction: closing the session ends it.
                    server.socket.close()
                    self._sessions.put(self._open_session())
        client.socket.close()

    def _relay(self, client: _Peer, server: _Peer, first: bytes) -> bool:
        """Relay messages until the transaction ends; False if the client disconnects first."""
        self.transactions += 1
        sent = first
        pending = 0
        while True:
            pending += client.transaction_ends(sent)
            server.socket.sendall(sent)
            sent = b""
            while not sent:
                readable, _, _ = select.select([client.socket, server.socket], [], [])
                if server.socket in readable:
                    reply = server.receive()
                    if not reply:
                        return False
                    pending -= server.transaction_ends(reply)
                    with suppress(OSError):
                        client.socket.sendall(reply)
                    if not pending and not server.in_transaction:
                        return True
                elif not (sent := client.receive()) or sent.startswith(b"X"):
                    return False


class _Peer:
    """One side of a proxied connection. It tracks the messages that pass."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._left = b""
        self.in_transaction = False

    def startup(self) -> int:
        """Read the client's startup message and return its code."""
        (length,) = struct.unpack(">i", self._receive_exactly(4))
        (code,) = struct.unpack(">i", self._receive_exactly(length - 4)[:4])
        return int(code)

    def receive(self) -> bytes:
        """The next bytes; nothing at the end of the connection."""
        with suppress(ConnectionError):
            return self.socket.recv(65_536)
        return b""

    def transaction_ends(self, passed: bytes) -> int:
        """The number of messages that request the transaction status (Query, Sync) or report it (ReadyForQuery)."""
        data, count = self._left + passed, 0
        while len(data) >= 5 and len(data) > (length := int.from_bytes(data[1:5])):
            kind, body, data = data[:1], data[5 : 1 + length], data[1 + length :]
            count += kind in (b"Q", b"S", b"Z") and not (kind == b"S" and body)
            if kind == b"Z":
                self.in_transaction = body in OPEN_TRANSACTION
        self._left = data
        return count

    def _receive_exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            more = self.socket.recv(count - len(received))
            if not more:
                raise ConnectionError
            received += more
        return received
