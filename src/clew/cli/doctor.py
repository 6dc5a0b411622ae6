"""Commands that look after a store: doctor, verify and migrate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.errors import FAILED, NOT_VERIFIED
from clew.cli.options import AsJson, YesOption, ask, must_ask, opened
from clew.cli.output import one_line, write_json

if TYPE_CHECKING:
    from clew.cli.options import Chosen
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
        from clew.cli import json_shapes

        write_json(json_shapes.verdict(found))
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


def migrate(
    context: typer.Context,
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="PATH", help="Copy the database to this file first.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            min=2,
            max=1024,
            help="Divide the tables of an empty PostgreSQL database into so many.",
        ),
    ] = None,
    row_level_security: Annotated[
        bool, typer.Option("--row-level-security", help="Let a PostgreSQL database keep tenants apart by itself.")
    ] = False,
    yes: YesOption = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database of an older Clew up to date."""
    from clew.infrastructure.stores import scheme_of, store_at

    chosen: Chosen = context.obj
    store = store_at(chosen.url)
    path, found = store.name, store.schemas()
    if found.found != found.known:
        if found.found and must_ask(context, yes=yes):  # where there are no tables yet, none can be lost
            name = one_line(path)
            first = "" if backup else f" Copy {name} and {name}-wal first, or say no and give --backup PATH."
            if scheme_of(chosen.url).startswith("postgres"):
                first = " Copy it with pg_dump first."
            ask(f"{name} has schema {found.found}, and this Clew knows schema {found.known}.{first} Migrate it now?")
        found = store.migrate(backup=backup, partitions=partitions, row_level_security=row_level_security)
    elif partitions is not None or row_level_security:
        store.migrate(partitions=partitions, row_level_security=row_level_security)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.migration(path, found, backup))
    elif found.found == found.known:
        typer.echo(f"{one_line(path)} has schema {found.known}, which is this Clew's. There is nothing to migrate.")
    elif not found.found:
        typer.echo(f"Made Clew's tables in {one_line(path)}, with schema {found.known}.")
    else:
        copied = "" if backup is None else f" A copy of what it was is {one_line(backup)}."
        typer.echo(f"Migrated {one_line(path)} from schema {found.found} to {found.known}.{copied}")
    if row_level_security and not as_json:
        typer.echo("It keeps tenants apart from now on: clew_app sees one of them, clew_operator all.")
