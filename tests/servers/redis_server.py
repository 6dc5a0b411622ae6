"""A Redis server of the tests: with a password, on a port of this machine, keeping nothing when it is killed."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from tests.servers.installation import redis as redis_program
from tests.servers.server_process import ServerProcess

# No letter of it is in anything else that a test looks through.
PASSWORD = "zq7-canary-0f3a"  # noqa: S105 - of a server that only this machine reaches, for as long as a test runs

# Somebody else may take a port between its being chosen and Redis' listening on it.
TRIES = 5


class RedisServer:
    """Runs until the block ends. ``kill`` ends it at once, and ``start`` begins it anew, empty, on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        for left in reversed(range(TRIES)):
            self.port = _free_port()
            try:
                self.start()
            except RuntimeError:
                if not left:
                    raise
            else:
                break
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.runs:
            self.kill()

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        """With the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [redis_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]
        keeps_nothing = ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        process = ServerProcess([*command, *keeps_nothing], ready="Ready to accept connections", port=self.port)
        self._process = process.__enter__()

    def kill(self) -> None:
        """End it with SIGKILL: what it held is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.__exit__()

    def flush(self) -> None:
        """Empty it."""
        self.ask("FLUSHALL")

    def ask(self, *words: str | int) -> Any:
        """The answer to a command."""
        with redis.Redis(host="127.0.0.1", port=self.port, password=PASSWORD, decode_responses=True) as client:
            return client.execute_command(*words)

    def keys(self) -> list[str]:
        return sorted(self.ask("KEYS", "*"))


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])
