"""Runs the two stateful servers, ogx and the tests' own. Both get their answers from an aimock."""

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
    """A server that stores responses and conversations.

    Args:
        url: the root of the server.
        model: the model to request.
    """

    url: str
    model: str

    @property
    def base_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.url}/v1"


@contextmanager
def ogx_server(command: list[str], aimock: Aimock, folder: Path) -> Iterator[StatefulServer]:
    """Run ogx, a third-party server, on a free port until the block ends. It stores its data in the folder."""
    settings = folder / "ogx.json"  # ogx reads YAML, and JSON is YAML
    settings.write_text(json.dumps(_ogx_settings(aimock, folder)), encoding="utf-8")
    ready = r"running on http://127\.0\.0\.1:(\d+)"
    environment = {
        "OGX_CONFIG": str(settings),
        "HOME": str(folder),  # otherwise ogx reads the user's settings
        "COLUMNS": "200",  # otherwise ogx breaks the line with the port
    }
    with ServerProcess([*command, "--port", "0"], ready=ready, environment=environment, folder=folder) as server:
        yield StatefulServer(server.url, "aimock/gpt-4o")


@contextmanager
def own_stateful_server(aimock: Aimock) -> Iterator[StatefulServer]:
    """Run the tests' own server on a free port until the block ends."""
    command = [sys.executable, str(OWN_SERVER), aimock.url]
    with ServerProcess(command, ready=r"Serving on http://127\.0\.0\.1:(\d+)") as server:
        yield StatefulServer(server.url, "gpt-4o")


def _ogx_settings(aimock: Aimock, folder: Path) -> dict[str, Any]:
    """The minimal settings to serve Responses and Conversations: one model provider and one SQLite file."""
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
            # The Responses API requires these entries, even if they are empty.
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
