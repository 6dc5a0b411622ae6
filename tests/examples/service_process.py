"""An example service as a real process, which tests kill and start again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


class Server:
    """A service with its own database. Its socket stays open, so a restarted server has the same address.

    ``app`` is the module and the name of the application, and ``settings`` are environment variables.
    """

    def __init__(self, folder: Path, app: str, **settings: str) -> None:
        self.database = f"sqlite:///{folder / 'chat.db'}"
        self.log = folder / "server.log"
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1_000)
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.app = app
        self.settings = settings
        self.start()

    def start(self) -> None:
        """Start the server. Requests wait at the socket until it is ready."""
        options = ("--app-dir", str(ROOT), "--timeout-graceful-shutdown", "1", "--log-level", "warning")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", *options, "--fd", str(self.socket.fileno()), self.app],
                env={**os.environ, "CLEW_DB": self.database, **self.settings},
                pass_fds=(self.socket.fileno(),),
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Kill it like a power failure."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to stop, and release its address."""
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        finally:
            self.kill()
            self.socket.close()
