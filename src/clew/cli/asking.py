"""Questions before what cannot be undone."""

from __future__ import annotations

import sys

import typer

from clew.cli.failures import FAILED, WrongUsage


def must_ask(context: typer.Context, *, yes: bool) -> bool:
    """Whether somebody is there to be asked, and has not said yes beforehand.

    Raises WrongUsage where nobody is: what cannot be undone is done only when it was said that it shall be.
    """
    if yes:
        return False
    if not sys.stdin.isatty():
        raise WrongUsage(context, f"{context.info_name}: there is no terminal to ask on. Say --yes if it shall be done")
    return True


def ask(question: str) -> None:
    """Put a question, on one line that is safe for a terminal; ends the command unless the answer is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(FAILED)
