"""A server ends with the process that starts it, and reports why it does not start."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.servers.server_process import ServerProcess

ROOT = Path(__file__).parent.parent.parent

# A server whose child also serves. Both end only when they are killed.
STUBBORN = """
import os, signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listening = socket.create_server(("127.0.0.1", 0))
os.fork()
print("Serving on", listening.getsockname()[1], flush=True)
time.sleep(600)
"""


def stubborn_server() -> ServerProcess:
    return ServerProcess([sys.executable, "-c", STUBBORN], ready=r"Serving on (\d+)")


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_and_its_children_are_gone_after_the_block() -> None:
    with stubborn_server() as server:
        assert answers(server.port)
    assert not answers(server.port)


def test_a_server_and_its_children_are_gone_when_the_tests_are_killed() -> None:
    program = """
    import time
    from tests.servers.test_server_process import stubborn_server
    with stubborn_server() as server:
        print(server.port, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        port = int(tests.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            tests.kill()
            # The server and its child share the listening socket. The connection closes when both have ended.
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert not answers(port)


def test_shows_the_output_of_a_server_that_does_not_start() -> None:
    command = [sys.executable, "-c", "print('no such fixture'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match="no such fixture"), ServerProcess(command, ready=r"on (\d+)"):
        pass


def test_a_server_does_not_inherit_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = "import os; print('on 1' if 'OPENAI_API_KEY' in os.environ else 'on 2', flush=True); input()"
    with ServerProcess([sys.executable, "-c", program], ready=r"on (\d)") as server:
        assert server.port == 2
