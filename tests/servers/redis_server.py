"""A Redis server for the tests: with a password, on loopback, without persistence."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from tests.servers.installation import redis as redis_program
from tests.servers.server_process import ServerProcess

# A text that occurs nowhere else, so that tests can search for it.
PASSWORD = "zq7-canary-0f3a"  # noqa: S105 - for a temporary server that only this machine can reach

# Another process may take the port before Redis listens on it.
TRIES = 5


class RedisServer:
    """Runs until the block ends. ``kill`` stops it at once; ``start`` starts it again, empty, on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        for tries_left in reversed(range(TRIES)):
            self.port = _free_port()
            try:
                self.start()
            except RuntimeError:
                if not tries_left:
                    raise
            else:
                break
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.is_running:
            self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        """The URL, including the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [redis_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]
        no_persistence = ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        process = ServerProcess([*command, *no_persistence], ready="Ready to accept connections", port=self.port)
        self._process = process.__enter__()

    def kill(self) -> None:
        """Stop the server with SIGKILL. Its data is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.__exit__()

    def flush(self) -> None:
        """Delete all keys."""
        self.ask("FLUSHALL")

    def ask(self, *words: str | int) -> Any:
        """Run a command and return its answer."""
        with redis.Redis(host="127.0.0.1", port=self.port, password=PASSWORD, decode_responses=True) as client:
            return client.execute_command(*words)

    def keys(self) -> list[str]:
        return sorted(self.ask("KEYS", "*"))


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])
