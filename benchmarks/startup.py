"""The time that a new process takes to import Clew and to print its help."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measurement import Setting, interleaved, wall
from benchmarks.report import Figure, at_most

COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import clew": ([sys.executable, "-c", "import clew"], 0.15),
    "from clew import Conversations, Engine, Message": (
        [sys.executable, "-c", "from clew import Conversations, Engine, Message"],
        None,
    ),
    "clew --help": ([str(Path(sys.executable).with_name("clew")), "--help"], 0.3),
}


def run(setting: Setting) -> Iterator[Figure]:
    """Wall time of whole processes in seconds, including the start of the interpreter."""
    contenders = {name: _process(command) for name, (command, _) in COMMANDS.items()}
    interleaved(1, contenders)  # compile byte code and fill the disk cache
    measured = interleaved(setting.size(9, 5), contenders)
    bare = statistics.median(measured["python -c pass"])
    for name, (_, limit) in COMMANDS.items():
        yield Figure(
            name,
            statistics.median(measured[name]),
            "s",
            baseline=None if limit is None else bare,
            budget=None if limit is None else at_most(limit),
        )


def _process(command: list[str]) -> Callable[[], float]:
    return lambda: wall(lambda: subprocess.run(command, capture_output=True, check=True))
