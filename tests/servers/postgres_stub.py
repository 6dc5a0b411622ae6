"""A server that speaks just enough of PostgreSQL's protocol to report an old version."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SSL = struct.pack(">II", 8, 80_877_103)
_GSS = struct.pack(">II", 8, 80_877_104)


@contextmanager
def server_of_version(version: str) -> Iterator[int]:
    """The port of a server that accepts every user and reports the version. It executes nothing."""
    parameter = b"server_version\0" + version.encode() + b"\0"
    greeting = _message(b"R", struct.pack(">I", 0)) + _message(b"S", parameter) + _message(b"Z", b"I")

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            while client.recv(4_096) in (_SSL, _GSS):
                client.sendall(b"N")
            client.sendall(greeting)
            client.recv(4_096)  # until the client disconnects

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content
