"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, and errors as JSON too.")]

ThreadArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="THREAD", help="A thread's id, or the beginning of it that no other has.")
]

AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="X",
        help="A version, message:N, a time such as 2026-01-31T12:00:00Z, or a checkpoint's name; "
        "by default the newest version.",
    ),
]
