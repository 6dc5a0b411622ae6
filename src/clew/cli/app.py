"""The application: the options before the command, and the way from arguments to an exit code."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from clew.cli import INTERRUPTED, candidates, commands
from clew.cli.command import app
from clew.cli.errors import FAILED, USAGE, report
from clew.cli.options import DEFAULT_URL, Chosen


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"clew {version('clew')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def clew(
    context: typer.Context,
    db: Annotated[
        str, typer.Option("--db", envvar="CLEW_DB", metavar="URL", help="The database: a URL, or the path of a file.")
    ] = DEFAULT_URL,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="The tenant that the threads belong to.")
    ] = "default",
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Conversations as event streams that fork, rewind, travel in time and verify."""
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)
    context.obj = Chosen(db, tenant)


@cache
def root_command() -> Any:
    """The application with every command of ``clew.cli.commands``. Building it takes longer than most commands do."""
    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}")
    return get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code. Raises nothing but KeyboardInterrupt."""
    if candidates.requested():
        candidates.write(root_command())
        return 0
    as_json = "--json" in arguments
    if sys.stdout is None:  # it was closed before Python started
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # text for people: a terminal may not have every character
    try:
        outcome = root_command()(args=list(arguments), prog_name="clew", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as ended:  # Typer exits by itself when a pipe is broken
        return _discard_output() if ended.code == FAILED else int(ended.code or 0)
    except Exception as error:  # noqa: BLE001  # never a traceback
        return report(error, as_json=as_json)
    code = outcome if isinstance(outcome, int) else 0
    return report(KeyboardInterrupt(), as_json=as_json) if code == INTERRUPTED else code


def _discard_output() -> int:
    """The reader of a pipe has left: discard what is still buffered, also when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        os.close(nowhere)
    except (OSError, ValueError):
        return FAILED
    return FAILED
