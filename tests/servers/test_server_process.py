"""Servers end with whoever started them, and say why they did not start."""

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

# It serves, and so does its child; both end only when they are killed.
STUBBORN = """
import os, signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listening = socket.create_server(("127.0.0.1", 0))
os.fork()
print("Serving on", listening.getsockname()[1], flush=True)
time.sleep(600)
"""


def stubborn() -> ServerProcess:
    return ServerProcess([sys.executable, "-c", STUBBORN], ready=r"Serving on (\d+)")


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_and_its_children_are_gone_after_the_block() -> None:
    with stubborn() as server:
        assert answers(server.port)
    assert not answers(server.port)


def test_a_server_and_its_children_are_gone_when_the_tests_are_killed() -> None:
    program = """
    import time
    from tests.servers.test_server_process import stubborn
    with stubborn() as server:
        print(server.port, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        port = int(tests.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            tests.kill()
            # Both the server and its child hold the socket that listens. When both are gone, so is the connection.
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert not answers(port)


def test_says_what_a_server_printed_that_did_not_start() -> None:
    command = [sys.executable, "-c", "print('no such fixture'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match="no such fixture"), ServerProcess(command, ready=r"on (\d+)"):
        pass


def test_a_server_sees_no_key_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = "import os; print('on 1' if 'OPENAI_API_KEY' in os.environ else 'on 2', flush=True); input()"
    with ServerProcess([sys.executable, "-c", program], ready=r"on (\d)") as server:
        assert server.port == 2
