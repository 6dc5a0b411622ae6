"""A pooler before a PostgreSQL server: each transaction of a client gets another session of the server's.

So does PgBouncer in transaction mode. What a client leaves behind in a session, as a setting or a prepared statement,
the next transaction does not find, or finds of somebody else's.
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
    """Listens until the block ends; ``sessions`` sessions serve all clients. The server trusts whoever comes."""

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
            self._sessions.put(self._session())
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

    def _session(self) -> _Peer:
        """A new session, with the greeting that every client is given."""
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
                if self._carry(client, server, first):
                    self._sessions.put(server)
                else:
                    # The client went in the middle of its transaction: it ends with its session.
                    server.socket.close()
                    self._sessions.put(self._session())
        client.socket.close()

    def _carry(self, client: _Peer, server: _Peer, first: bytes) -> bool:
        """Carry messages to and fro until a transaction has ended; False when the client goes before."""
        self.transactions += 1
        sent = first
        due = 0
        while True:
            due += client.ends(sent)
            server.socket.sendall(sent)
            sent = b""
            while not sent:
                readable, _, _ = select.select([client.socket, server.socket], [], [])
                if server.socket in readable:
                    answered = server.receive()
                    if not answered:
                        return False
                    due -= server.ends(answered)
                    with suppress(OSError):
                        client.socket.sendall(answered)
                    if not due and not server.in_transaction:
                        return True
                elif not (sent := client.receive()) or sent.startswith(b"X"):
                    return False


class _Peer:
    """One end of a connection, whose messages are followed as they pass."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._left = b""
        self.in_transaction = False

    def startup(self) -> int:
        """Read what a client begins with; its code."""
        (length,) = struct.unpack(">i", self._exactly(4))
        (code,) = struct.unpack(">i", self._exactly(length - 4)[:4])
        return int(code)

    def receive(self) -> bytes:
        """What comes next, nothing at the end."""
        with suppress(ConnectionError):
            return self.socket.recv(65_536)
        return b""

    def ends(self, passed: bytes) -> int:
        """How many messages among these have one for an answer that says how the transaction stands, or are one."""
        data, count = self._left + passed, 0
        while len(data) >= 5 and len(data) > (length := int.from_bytes(data[1:5])):
            kind, body, data = data[:1], data[5 : 1 + length], data[1 + length :]
            count += kind in (b"Q", b"S", b"Z") and not (kind == b"S" and body)
            if kind == b"Z":
                self.in_transaction = body in OPEN_TRANSACTION
        self._left = data
        return count

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise ConnectionError
            found += more
        return found
