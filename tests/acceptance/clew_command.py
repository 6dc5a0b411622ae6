"""The ``clew`` command in its own folder, as users and programs start it, and conversations to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

SCRIPT = Path(sysconfig.get_path("scripts"), "clew")
COMMAND = (str(SCRIPT),) if SCRIPT.exists() else (sys.executable, "-m", "clew")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}

TEAPOT = {
    "id": "teapot",
    "title": "Teapot",
    "metadata": {"channel": "web", "big": 10**40},
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "My teapot broke. It cost 48 euros.", "name": "Maeve"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"sum": 48}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"ok": true}'},
        {"role": "assistant", "content": "48 euros are on their way."},
    ],
}
GLAZE = {"id": "glaze", "messages": [{"role": "user", "content": "Is the green glaze safe?"}]}


class Clew:
    """The command in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**ENVIRONMENT, **options.pop("env", {})}
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=options.pop("cwd", self.folder),
            env=environment,
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            **options,
        )

    def text(self, *arguments: str, **options: Any) -> str:
        done = self.run(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.text(*arguments).splitlines()]

    def object(self, *arguments: str) -> Any:
        (line,) = self.lines(*arguments)
        return line

    def refused(self, code: int, *arguments: str, **options: Any) -> str:
        """Return the only line on stderr of a command that fails with this code."""
        done = self.run(*arguments, **options)
        assert done.returncode == code, done
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("clew: ")
        return line.removeprefix("clew: ")

    def file(self, name: str, *conversations: Any) -> str:
        lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in conversations)
        (self.folder / name).write_text(lines, encoding="utf-8")
        return name

    def ids(self) -> list[str]:
        return [each["thread_id"] for each in self.lines("threads", "--json")]
