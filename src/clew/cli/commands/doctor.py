"""Commands that look after a store: doctor, verify and migrate."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.errors import FAILED, NOT_VERIFIED
from clew.cli.options import AsJson, YesOption, confirm, must_confirm, open_store
from clew.cli.output import console as new_console
from clew.cli.output import one_line, plural, write_json
from clew.cli.shard_directory import for_each_shard

if TYPE_CHECKING:
    from rich.text import Text

    from clew.cli.options import Chosen
    from clew.domain.diagnostics import Finding
    from clew.domain.ports import Verdict

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


@command("clew doctor", "clew doctor --verify --json", heading="Maintain")
@for_each_shard()
def doctor(
    context: typer.Context,
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole database, however long it takes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for problems, and say what to do about them.

    For SQLite: the file and the disk. For PostgreSQL: the server, its settings and rights. For both: the projections.
    """
    from clew.service.doctor import examine

    chosen: Chosen = context.obj
    failed = 0
    for finding in examine(chosen.url, tenant=chosen.tenant, verify=verify):
        failed += finding.state == "failed"
        if as_json:
            write_json(finding._asdict())
        else:
            _print_finding(finding)
    if failed:
        raise typer.Exit(FAILED)


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    console = new_console()
    state = (f"{finding.state:8}", STYLES[finding.state])
    console.print(Text.assemble(state, f" {finding.name}: {one_line(finding.found)}"), soft_wrap=True)
    if finding.advice is not None:
        console.print(Text(f"         → {one_line(finding.advice)}"), soft_wrap=True)


@command("clew verify", "clew verify 3f2a --json", heading="Audit and export")
@for_each_shard(unless="thread")
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
    """Recompute every hash. If one is wrong: names the first such event, and exits with code 3."""
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        watched = sys.stderr.isatty() and not as_json
        with new_console(stderr=True).status("Verifying …") if watched else nullcontext():
            verdict = conversations.verify(id_)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.verdict(verdict))
    else:
        new_console().print(verdict_text(verdict))
    if verdict.first_bad is not None:
        raise typer.Exit(NOT_VERIFIED)


def verdict_text(verdict: Verdict) -> Text:
    """What ``clew verify`` prints."""
    from rich.text import Text

    checked = f"{plural(verdict.threads, 'thread')}, {verdict.events:,} events"
    bad = verdict.first_bad
    if bad is None:
        return Text.assemble(("Verified", "bold green"), f": {checked}, every hash follows from what is stored.")
    return Text.assemble(
        ("NOT VERIFIED", "bold red"),
        f": thread {one_line(bad.thread_id)}, version {bad.version}: {one_line(bad.reason)}. Checked {checked}.",
    )


@command("clew migrate --backup before.db", heading="Maintain")
@for_each_shard(first=lambda directory: directory.make())  # the directory has its own tables
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
            help="Divide the tables of an empty PostgreSQL database into N partitions.",
        ),
    ] = None,
    row_level_security: Annotated[
        bool, typer.Option("--row-level-security", help="Let PostgreSQL itself keep the tenants apart.")
    ] = False,
    yes: YesOption = False,
    as_json: AsJson = False,
) -> None:
    """Bring an old database up to date, or make Clew's tables in a new one."""
    from clew.infrastructure.stores import scheme_of, store_at

    chosen: Chosen = context.obj
    store = store_at(chosen.url)
    path, schema = store.name, store.schemas() or store.migrate()  # without schemas, its error
    if schema.found != schema.known:
        if schema.found and must_confirm(context, yes=yes):  # without tables there is nothing to lose
            name = one_line(path)
            first = "" if backup else f" Copy {name} and {name}-wal first, or answer no and give --backup PATH."
            if scheme_of(chosen.url).startswith("postgres"):
                first = " Copy it with pg_dump first."
            confirm(
                f"{name} has schema {schema.found}, and this Clew needs schema {schema.known}.{first} Migrate it now?"
            )
        schema = store.migrate(backup=backup, partitions=partitions, row_level_security=row_level_security)
    elif partitions is not None or row_level_security:
        store.migrate(partitions=partitions, row_level_security=row_level_security)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.migration(path, schema, backup))
        return
    if schema.found == schema.known:
        typer.echo(f"{one_line(path)} already has schema {schema.known}. There is nothing to migrate.")
    elif not schema.found:
        typer.echo(f"Made Clew's tables in {one_line(path)}, with schema {schema.known}.")
    else:
        copied = "" if backup is None else f" {one_line(backup)} is a copy from before."
        typer.echo(f"Migrated {one_line(path)} from schema {schema.found} to {schema.known}.{copied}")
    if row_level_security:
        typer.echo("It keeps tenants apart from now on: clew_app sees one of them, clew_operator all.")
