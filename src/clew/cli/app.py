"""The application: its options, its commands, and the way from arguments to an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from clew.cli import (
    INTERRUPTED,
    audit,
    branches,
    changes,
    chat,
    completion,
    demo,
    diff,
    doctor,
    history,
    memory,
    projections,
    replay,
    requests,
    search,
    shards,
    threads,
    transfer,
)
from clew.cli.errors import FAILED, USAGE, report
from clew.cli.headings import GroupedCommands
from clew.cli.options import DEFAULT_URL, Chosen

app = typer.Typer(
    name="clew",
    cls=GroupedCommands,
    add_completion=False,  # `clew completion` does more
    rich_markup_mode=None,  # help in rich costs more than the whole budget of start-up
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `clew demo`, or with `clew import FILE`. `clew COMMAND --help` shows examples.",
)

_COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    (
        "import",
        transfer.import_,
        ("clew import chats.jsonl", "clew import exports/ more.json --json", "clew import copy.jsonl"),
    ),
    (
        "export",
        transfer.export,
        (
            "clew export > chats.jsonl",
            "clew export 3f2a 9c01 --forks",
            "clew export --format clew > copy.jsonl",
            "clew export 3f2a --format markdown > thread.md",
        ),
    ),
    (
        "threads",
        threads.threads,
        ("clew threads", "clew threads --label topic=refund --newest", "clew threads --json | jq -r .thread_id"),
    ),
    (
        "chat",
        chat.chat,
        (
            "clew chat",
            "clew chat 3f2a",
            'clew chat --model gpt-5.4-mini --instructions "Answer in one sentence."',
            "echo 'What is a clew?' | clew chat",
        ),
    ),
    (
        "show",
        history.show,
        (
            "clew show 3f2a",
            "clew show 3f2a --at message:4",
            'clew show 3f2a --at "before refund"',
            "clew show 3f2a --at 2026-01-31T12:00:00Z --json",
        ),
    ),
    (
        "log",
        history.log,
        (
            "clew log 3f2a",
            "clew log 3f2a --json | jq -c '[.version, .type, .actor]'",
            "clew log 3f2a -f",
            "clew log -f",
        ),
    ),
    (
        "diff",
        diff.diff,
        (
            "clew diff 3f2a 9c01",
            'clew diff 3f2a --at "before refund"',
            "clew diff 3f2a 9c01 --format markdown > diff.md",
        ),
    ),
    (
        "request",
        requests.request,
        ("clew request 3f2a", "clew request 3f2a 5 --curl | sh", "clew request 3f2a 5 --python > request.py"),
    ),
    ("tree", threads.tree, ("clew tree", "clew tree 3f2a --json")),
    (
        "search",
        search.search,
        (
            "clew search teapot refund",
            "clew search '\"green glaze\" teapot* -broken'",
            "clew search teapot --thread 3f2a",
        ),
    ),
    (
        "replay",
        replay.replay,
        ("clew replay 3f2a", 'clew replay 3f2a --at "before refund"', "clew replay 3f2a --json"),
    ),
    (
        "fork",
        branches.fork,
        ("clew fork 3f2a --at message:4", 'clew fork 3f2a --at "before refund" --title "What if"'),
    ),
    (
        "checkpoint",
        branches.checkpoint,
        ('clew checkpoint 3f2a "before refund"', 'clew checkpoint 3f2a "before refund" --at message:4'),
    ),
    ("rewind", branches.rewind, ('clew rewind 3f2a --to "before refund"', "clew rewind 3f2a --to message:2")),
    (
        "edit",
        branches.edit,
        ('clew edit 3f2a message:3 "Where is my refund?"', "clew edit 3f2a message:3 - < question.txt"),
    ),
    ("label", changes.label, ("clew label 3f2a topic=refund stars=5", "clew label 3f2a topic=")),
    ("end", changes.end, ('clew end 3f2a --reason "The refund was paid"',)),
    ("delete", changes.delete, ('clew delete 3f2a --reason "A test"',)),
    (
        "redact",
        changes.redact,
        ('clew redact 3f2a message:2 --reason "A card number"', "clew redact 3f2a 3 --yes"),
    ),
    (
        "audit",
        audit.audit,
        ("clew audit", "clew audit --actor user:42 --since 2026-01-31T12:00:00Z", "clew audit --type message-redacted"),
    ),
    ("stats", audit.stats, ("clew stats", "clew stats --by day", "clew stats 3f2a --json")),
    ("verify", shards.over_shards(doctor.verify, unless="thread"), ("clew verify", "clew verify 3f2a --json")),
    ("doctor", shards.over_shards(doctor.doctor), ("clew doctor", "clew doctor --verify --json")),
    (
        "project",
        shards.project,
        ("clew project run --workers 4", "clew project run --once --load mine:Mine", "clew project status --json"),
    ),
    ("rebuild", shards.over_shards(projections.rebuild), ("clew rebuild search", "clew rebuild --all")),
    ("migrate", shards.migrate, ("clew migrate --backup before.db",)),
    (
        "completion",
        completion.completion,
        ('eval "$(clew completion bash)"', "clew completion fish | source", "clew completion --install"),
    ),
    ("demo", demo.demo, ("clew demo", "clew demo --samples > samples.jsonl")),
)
"""The commands, each with examples; headings.py says where the help lists them."""

for _group, _members in (
    (app, _COMMANDS),
    (memory.commands, memory.COMMANDS),
    (shards.commands, shards.COMMANDS),
):
    for _name, _command, _examples in _members:
        # \b keeps the lines that follow as they are.
        _epilog = "\n".join(("\b", "Examples:", *(f"  {example}" for example in _examples)))
        _group.command(_name, epilog=_epilog)(_command)
app.add_typer(memory.commands)
app.add_typer(shards.commands)


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


@cache
def command() -> Callable[..., object]:
    """The application as a command, made once a process: it takes longer than most commands do."""
    return get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code. Nothing is raised but KeyboardInterrupt."""
    if completion.asked():
        completion.answer(command())
        return 0
    as_json = "--json" in arguments
    if sys.stdout is None:  # it was closed before Python began
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for people: what a terminal has no character for
    try:
        outcome = command()(args=list(arguments), prog_name="clew", standalone_mode=False)
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
