"""The application: its options, its commands, and the way from arguments to an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from clew.cli import INTERRUPTED, branching, checking, demo, reading, transfer
from clew.cli.failures import FAILED, USAGE, report
from clew.cli.stores import DEFAULT_URL, Chosen

app = typer.Typer(
    name="clew",
    rich_markup_mode=None,  # help in rich costs more than the whole budget of start-up
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `clew demo`, or with `clew import FILE`. `clew COMMAND --help` shows examples.",
)

_COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    ("import", transfer.import_, ("clew import chats.jsonl", "clew import exports/ more.json --json")),
    (
        "export",
        transfer.export,
        ("clew export > chats.jsonl", "clew export 3f2a 9c01", "clew export --forks --format openai"),
    ),
    ("threads", reading.threads, ("clew threads", "clew threads --json | jq -r .thread_id")),
    (
        "show",
        reading.show,
        (
            "clew show 3f2a",
            "clew show 3f2a --at message:4",
            'clew show 3f2a --at "before refund"',
            "clew show 3f2a --at 2026-01-31T12:00:00Z --json",
        ),
    ),
    ("log", reading.log, ("clew log 3f2a", "clew log 3f2a --json | jq -c '[.version, .type, .actor]'")),
    (
        "fork",
        branching.fork,
        ("clew fork 3f2a --at message:4", 'clew fork 3f2a --at "before refund" --title "What if"'),
    ),
    ("verify", checking.verify, ("clew verify", "clew verify 3f2a --json")),
    ("demo", demo.demo, ("clew demo", "clew demo --samples > samples.jsonl")),
)
"""The commands in the order of the help, each with examples."""

for _name, _command, _examples in _COMMANDS:
    # \b keeps the lines that follow as they are.
    app.command(_name, epilog="\n".join(("\b", "Examples:", *(f"  {example}" for example in _examples))))(_command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"clew {version('clew')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def clew(
    context: typer.Context,
    db: Annotated[str, typer.Option("--db", envvar="CLEW_DB", metavar="URL", help="The database.")] = DEFAULT_URL,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose threads.")] = "default",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Conversations as event streams that fork, rewind, travel in time and verify."""
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)
    context.obj = Chosen(db, tenant)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code. Nothing is raised but KeyboardInterrupt."""
    as_json = "--json" in arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for people: what a terminal has no character for
    try:
        outcome = app(args=list(arguments), prog_name="clew", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _quietly()
    except SystemExit as ended:  # Typer's own way out of a broken pipe
        return _quietly() if ended.code == FAILED else int(ended.code or 0)
    except Exception as error:  # noqa: BLE001  # never a traceback
        return report(error, as_json=as_json)
    code = outcome if isinstance(outcome, int) else 0
    return report(KeyboardInterrupt(), as_json=as_json) if code == INTERRUPTED else code


def _quietly() -> int:
    """Whoever read the output has read enough. What is still buffered goes nowhere, also when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        os.close(nowhere)
    except (OSError, ValueError):
        return FAILED
    return FAILED
