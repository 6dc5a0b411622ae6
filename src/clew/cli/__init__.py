"""The command line: thin commands over the service."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

COLLECT_AFTER = 50_000
"""New objects between two garbage collections of a command. More often, it would search the modules that it loads."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells: 128 and the number of SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clew`` with these arguments, by default those of the process; returns the exit code.

    0: done, 1: failed, 2: wrong usage, 3: verification failed, 5: redaction pending, 130: interrupted.
    """
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    try:
        from clew.cli.app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # also while modules are still being imported
        print("clew: interrupted.", file=sys.stderr)  # noqa: T201  # typer may not be imported yet
        return INTERRUPTED
