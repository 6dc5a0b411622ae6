"""Servers with state, whoever wrote them: both sit in front of an aimock, which is told what to answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.aimock_server import Aimock
from tests.servers.server_process import ServerProcess

OWN_SERVER = Path(__file__).with_name("stateful_responses.py")


@dataclass(frozen=True)
class StatefulServer:
    """A server that keeps responses and conversations.

    Args:
        url: its root.
        model: the model to ask for.
    """

    url: str
    model: str

    @property
    def base_url(self) -> str:
        """What an OpenAI client is given."""
        return f"{self.url}/v1"


@contextmanager
def ogx_server(command: list[str], aimock: Aimock, folder: Path) -> Iterator[StatefulServer]:
    """Run ogx, which others wrote, on a free port while the block lasts, with what it stores in the folder."""
    settings = folder / "ogx.json"  # it reads YAML, and JSON is YAML
    settings.write_text(json.dumps(_ogx_settings(aimock, folder)), encoding="utf-8")
    ready = r"running on http://127\.0\.0\.1:(\d+)"
    environment = {
        "OGX_CONFIG": str(settings),
        "HOME": str(folder),  # where it would look for settings of the user
        "COLUMNS": "200",  # the line that says the port stays one line
    }
    with ServerProcess([*command, "--port", "0"], ready=ready, environment=environment, folder=folder) as server:
        yield StatefulServer(server.url, "aimock/gpt-4o")


@contextmanager
def own_stateful_server(aimock: Aimock) -> Iterator[StatefulServer]:
    """Run the tests' own server on a free port while the block lasts."""
    command = [sys.executable, str(OWN_SERVER), aimock.url]
    with ServerProcess(command, ready=r"Serving on http://127\.0\.0\.1:(\d+)") as server:
        yield StatefulServer(server.url, "gpt-4o")


def _ogx_settings(aimock: Aimock, folder: Path) -> dict[str, Any]:
    """The least that it serves Responses and Conversations with: one model provider, one SQLite file."""
    model = {"api_key": "none", "base_url": aimock.base_url}
    files = {"storage_dir": str(folder / "files"), "metadata_store": {"table_name": "files", "backend": "sql"}}
    stored = {"persistence": {"responses": {"table_name": "responses", "backend": "sql"}}}
    tables = ("inference", "conversations", "prompts", "connectors")
    return {
        "version": 2,
        "distro_name": "tests",
        "apis": ["inference", "responses", "files", "vector_io", "tool_runtime"],
        "providers": {
            "inference": [{"provider_id": "aimock", "provider_type": "remote::openai", "config": model}],
            "responses": [{"provider_id": "builtin", "provider_type": "inline::builtin", "config": stored}],
            # Its Responses want these to be there, if only with nothing in them.
            "files": [{"provider_id": "files", "provider_type": "inline::localfs", "config": files}],
            "vector_io": [],
            "tool_runtime": [],
        },
        "storage": {
            "backends": {
                "kv": {"type": "kv_sqlite", "db_path": str(folder / "registry.db")},
                "sql": {"type": "sql_sqlite", "db_path": str(folder / "ogx.db")},
            },
            "stores": {
                **{table: {"table_name": table, "backend": "sql"} for table in tables},
                "metadata": {"namespace": "registry", "backend": "kv"},
            },
        },
        "server": {"host": "127.0.0.1", "insecure": True},
    }
