"""The command that shows what Clew does: demo."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clew.cli.options import AsJson
from clew.cli.output import utf_8_output, write_json


def demo(
    samples: Annotated[
        bool, typer.Option("--samples", help="Write the conversations of the demo, to try things with, and no more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what Clew does, on a temporary database. Nothing of it stays."""
    from clew.cli import demo_steps

    if samples:
        utf_8_output()
        sys.stdout.write(demo_steps.samples())
        return
    if as_json:
        write_json(demo_steps.run(quiet=True))
    else:
        demo_steps.run(quiet=False)
