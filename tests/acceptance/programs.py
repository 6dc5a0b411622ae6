"""Run programs in their own process; rebuild the requests of a thread from its events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def in_another_process(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the folder."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # for the components of the tests
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def json_output(program: str, folder: Path, *arguments: str) -> Any:
    """Return the JSON that a program prints."""
    done = in_another_process(program, folder, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def turns_in(request: Any) -> list[tuple[str, str | None]]:
    """Return role and text of each message of a request."""
    return [(message["role"], message["content"]) for message in request.body["messages"]]


async def requests(thread: Any) -> list[Any]:
    """Return the requests that were sent, rebuilt from the events."""
    return [await thread.request(event.version) async for event in thread.events() if event.type == "model-called"]
