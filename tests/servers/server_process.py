"""A server in another process: starts on a free port, and always stops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Self

WATCHDOG = Path(__file__).with_name("watchdog.py")

# Seconds until a server that has not announced its port has failed. A busy machine starts slowly.
PATIENCE = 120

# A server inherits only these variables, so that it starts the same everywhere and sees no keys.
INHERITED = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TMPDIR")


class ServerProcess:
    """A command that serves until the block or this process ends, even if the process is killed.

    Args:
        command: the command to run. It listens on a port that the system chooses, and prints a line with that port.
        ready: a pattern that the line matches. Its first group is the port.
        port: the port, for a command that gets its port as an option and does not print it.
        environment: variables in addition to `INHERITED`.
        folder: the working directory; this process's if None.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        ready: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.command = [str(word) for word in command]
        self.port = 0
        self._known_port = port
        self._ready = re.compile(ready)
        self._environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._environment |= environment or {}
        self._folder = folder
        self._last_lines: deque[str] = deque(maxlen=40)
        self._announced: Future[int] = Future()

    def __enter__(self) -> Self:
        # With -I and -S, the watchdog starts faster, because it needs no site-packages.
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCHDOG), *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,  # Ctrl-C goes to the tests, which then stop their servers
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        try:
            self.port = self._announced.result(PATIENCE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait(self) -> None:
        """Wait until the command ends by itself."""
        self._process.wait(PATIENCE)

    @property
    def url(self) -> str:
        """The root of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def last_lines(self) -> str:
        """The last lines that the server printed."""
        return "\n".join(self._last_lines)

    def _read(self, output: IO[Any]) -> None:
        # Reads to the end, because a full pipe blocks the server.
        for raw in output:
            line = raw.decode("utf-8", errors="replace").rstrip()
            self._last_lines.append(line)
            if not self._announced.done() and (match := self._ready.search(line)):
                self._announced.set_result(self._known_port or int(match[1]))
        if not self._announced.done():
            message = f"{self.command[0]} ended before it served. Its output:\n{self.last_lines}"
            self._announced.set_exception(RuntimeError(message))
