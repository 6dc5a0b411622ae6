"""The command that shows what Clew does: demo."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clew.cli.app import command
from clew.cli.options import AsJson
from clew.cli.output import use_utf_8, write_json


@command("clew demo", "clew demo --samples > samples.jsonl", heading="Begin")
def demo(
    samples: Annotated[bool, typer.Option("--samples", help="Write only the demo's conversations.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what Clew does, in a temporary database."""
    from clew.cli import demo_steps

    if samples:
        use_utf_8()
        sys.stdout.write(demo_steps.samples())
        return
    result = demo_steps.run(quiet=as_json)
    if as_json:
        write_json(result)
