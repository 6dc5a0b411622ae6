"""Commands that look after a database and the shell: migrate and completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.asking import ask, must_ask
from clew.cli.completion import Shell
from clew.cli.failures import WrongUsage
from clew.cli.options import AsJson, YesOption
from clew.cli.text import one_line, write_json

if TYPE_CHECKING:
    from clew.cli.stores import Chosen


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
    from clew.infrastructure import urls

    chosen: Chosen = context.obj
    path, found = urls.shown(chosen.url), urls.schemas(chosen.url)
    if found.found != found.known:
        if found.found and must_ask(context, yes=yes):  # where there are no tables yet, none can be lost
            name = one_line(path)
            first = "" if backup else f" Copy {name} and {name}-wal first, or say no and give --backup PATH."
            if urls.is_postgres(chosen.url):
                first = " Copy it with pg_dump first."
            ask(f"{name} has schema {found.found}, and this Clew knows schema {found.known}.{first} Migrate it now?")
        found = urls.migrate(chosen.url, backup=backup, partitions=partitions, row_level_security=row_level_security)
    elif partitions is not None or row_level_security:
        urls.migrate(chosen.url, partitions=partitions, row_level_security=row_level_security)
    if as_json:
        from clew.cli import shapes

        write_json(shapes.migration(path, found, backup))
    elif found.found == found.known:
        typer.echo(f"{one_line(path)} has schema {found.known}, which is this Clew's. There is nothing to migrate.")
    elif not found.found:
        typer.echo(f"Made Clew's tables in {one_line(path)}, with schema {found.known}.")
    else:
        copied = "" if backup is None else f" A copy of what it was is {one_line(backup)}."
        typer.echo(f"Migrated {one_line(path)} from schema {found.found} to {found.known}.{copied}")
    if row_level_security and not as_json:
        typer.echo("It keeps tenants apart from now on: clew_app sees one of them, clew_operator all.")


def completion(
    context: typer.Context,
    shell: Annotated[
        Shell | None, typer.Argument(metavar="[bash|zsh|fish]", help="The shell; by default the one that SHELL names.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Have every shell that starts from now on read it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the script for tab completion in a shell. It completes threads and checkpoints, too."""
    from clew.cli import completion as scripts

    chosen = shell or scripts.current_shell()
    if chosen is None:
        raise WrongUsage(context, "SHELL names no shell that there is completion for. Say bash, zsh or fish")
    done = scripts.install(chosen) if install else None
    if as_json:
        from clew.cli import shapes

        write_json(shapes.completion(chosen, scripts.script(chosen), done))
    elif done is None:
        typer.echo(scripts.script(chosen), nl=False)
    else:
        reads = "which fish finds" if done.startup is None else f"which {one_line(str(done.startup))} now reads"
        typer.echo(f"Wrote {one_line(str(done.script))}, {reads}. It works in the next shell that you start.")
