"""The command that looks for what goes wrong, and says what to do: doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.failures import FAILED
from clew.cli.options import AsJson
from clew.cli.text import one_line, write_json

if TYPE_CHECKING:
    from clew.cli.stores import Chosen
    from clew.domain.views.diagnostics import Finding

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(
    context: typer.Context,
    verify: Annotated[bool, typer.Option("--verify", help="Read all of the database, however long it takes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what goes wrong, and say what to do.

    With SQLite, the file and the disk; the PostgreSQL server, its settings and rights; and the projections.
    """
    from clew.service import doctoring

    chosen: Chosen = context.obj
    failed = 0
    for found in doctoring.examine(chosen.url, tenant=chosen.tenant, verify=verify):
        failed += found.state == "failed"
        if as_json:
            write_json(found._asdict())
        else:
            _show(found)
    if failed:
        raise typer.Exit(FAILED)


def _show(found: Finding) -> None:
    from rich.text import Text

    from clew.cli import rendering

    console = rendering.console()
    state = (f"{found.state:8}", STYLES[found.state])
    console.print(Text.assemble(state, f" {found.name}: {one_line(found.found)}"), soft_wrap=True)
    if found.advice is not None:
        console.print(Text(f"         → {one_line(found.advice)}"), soft_wrap=True)
