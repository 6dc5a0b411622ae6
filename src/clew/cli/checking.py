"""The command that checks: verify."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from clew.cli.completion import thread_ids
from clew.cli.failures import NOT_VERIFIED
from clew.cli.options import AsJson
from clew.cli.stores import opened
from clew.cli.text import write_json


def verify(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread, checked with its ancestors; by default the whole store.",
            autocompletion=thread_ids,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash. Names the first event that is not as it was written, with exit code 3."""
    with opened(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        with _busy(as_json=as_json):
            found = conversations.verify(id_)
    if as_json:
        from clew.cli import shapes

        write_json(shapes.verdict(found))
    else:
        from clew.cli import rendering

        rendering.console().print(rendering.verdict(found))
    if found.first_bad is not None:
        raise typer.Exit(NOT_VERIFIED)


@contextmanager
def _busy(*, as_json: bool) -> Iterator[None]:
    """A sign of life while hashes are computed, on a terminal only: how many there are is not known beforehand."""
    if as_json or not sys.stderr.isatty():
        yield
        return

    from clew.cli import rendering

    with rendering.console(stderr=True).status("Verifying …"):
        yield
