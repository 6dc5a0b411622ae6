"""A server in a process of its own: started on a free port, stopped for certain."""

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

KEEPER = Path(__file__).with_name("keeper.py")

# Seconds. A busy machine starts slowly; a server that says nothing for so long has failed.
PATIENCE = 120

# A server gets no settings of the shell, so that it starts alike everywhere and holds no key of anybody.
INHERITED = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TMPDIR")


class ServerProcess:
    """A command that serves until the block ends, or until this process does, killed or not.

    Args:
        command: what to run; it listens on a port that the system chooses, and prints a line that says which.
        ready: what that line contains; its first group is the port.
        port: of a command that is told its port, and whose line says none.
        environment: variables beside those of `INHERITED`.
        folder: where it runs; as it is here, if None.
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
        self._given_port = port
        self._ready = re.compile(ready)
        self._environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._environment |= environment or {}
        self._folder = folder
        self._last_lines: deque[str] = deque(maxlen=40)
        self._announced: Future[int] = Future()

    def __enter__(self) -> Self:
        # -I and -S: the keeper needs no site-packages, and starts faster without.
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop their servers
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
        """Until the command has ended by itself."""
        self._process.wait(PATIENCE)

    @property
    def url(self) -> str:
        """The root of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def last_lines(self) -> str:
        """What the server has printed last."""
        return "\n".join(self._last_lines)

    def _read(self, output: IO[Any]) -> None:
        # To the end, because a server whose pipe is full stands still.
        for raw in output:
            line = raw.decode("utf-8", errors="replace").rstrip()
            self._last_lines.append(line)
            if not self._announced.done() and (found := self._ready.search(line)):
                self._announced.set_result(self._given_port or int(found[1]))
        if not self._announced.done():
            said = f"{self.command[0]} ended before it served. It said:\n{self.last_lines}"
            self._announced.set_exception(RuntimeError(said))
