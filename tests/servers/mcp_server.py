"""Starts the MCP server of the tests: over its pipes, or over HTTP in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.server_process import ServerProcess

ROOT = Path(__file__).parents[2]


def stdio_command() -> list[str]:
    """The command of the server that speaks over its pipes."""
    return [sys.executable, "-m", "tests.servers.weather_mcp"]


@contextmanager
def http_server(environment: Mapping[str, str] | None = None, port: int = 0) -> Iterator[ServerProcess]:
    """Run the server over HTTP until the block ends; its path is ``/mcp``."""
    command = [*stdio_command(), str(port)]
    with ServerProcess(command, ready=r"http://127\.0\.0\.1:(\d+)", environment=environment, folder=ROOT) as server:
        yield server
