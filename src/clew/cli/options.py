"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from clew.cli.completion import checkpoint_names, thread_ids


def _checked_actor(actor: str | None) -> str | None:
    """An actor that can be recorded. Raises InvalidNameError before anything is opened or made."""
    if actor is not None:
        from clew.domain.names import check_id

        check_id(actor, "actor")
    return actor


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, and errors as JSON too.")]

ThreadArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="THREAD", help="A thread's id, or the beginning of it that no other has.", autocompletion=thread_ids
    ),
]

LimitOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="The newest N of them, and no more.")
]

AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All of them, however many; so does --json.")]

AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="X",
        help="A version, message:N, a time such as 2026-01-31T12:00:00Z, or a checkpoint's name; "
        "by default the newest version.",
        autocompletion=checkpoint_names,
    ),
]

ToOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="X",
        help="A version, message:N, a time such as 2026-01-31T12:00:00Z, or a checkpoint's name.",
        autocompletion=checkpoint_names,
    ),
]

MessageArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="A message of the thread: message:N, or its version.")
]

ActorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="CLEW_ACTOR",
        metavar="A",
        callback=_checked_actor,
        help="Who does this, as the audit trail names it.",
    ),
]

ReasonOption: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="R", help="Why, for the audit trail.")]

YesOption: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal to ask on.")
]
