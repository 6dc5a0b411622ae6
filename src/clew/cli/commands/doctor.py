"""Commands that maintain a store: doctor, verify and migrate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.app import command
from clew.cli.commands.shards import for_each_shard
from clew.cli.errors import FAILED, NOT_VERIFIED, WrongUsage
from clew.cli.options import AsJson, GlobalOptions, YesOption, confirm, must_confirm, open_store, thread_argument
from clew.cli.output import console as new_console
from clew.cli.output import one_line, plural, print_lines, write_json, write_result
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.text import Text

    from clew.domain.diagnostics import Finding
    from clew.domain.ports import Verdict
    from clew.infrastructure.stores import Schemas

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

    options: GlobalOptions = context.obj
    failed = False
    for finding in examine(options.url, tenant=options.tenant, verify=verify):
        failed = failed or finding.state == "failed"
        if as_json:
            write_json(finding._asdict())
        else:
            print_lines(_finding_lines(finding))
    if failed:
        raise typer.Exit(FAILED)


def _finding_lines(finding: Finding) -> Iterator[Text]:
    from rich.text import Text

    state = (f"{finding.state:8}", STYLES[finding.state])
    yield Text.assemble(state, f" {finding.name}: {one_line(finding.found)}")
    if finding.advice is not None:
        yield Text(f"         → {one_line(finding.advice)}")


@command("clew verify", "clew verify 3f2a --json", heading="Audit and export")
@for_each_shard(unless="thread")
def verify(
    context: typer.Context,
    thread: Annotated[
        str | None, thread_argument("A thread, checked with its ancestors; by default the whole store.")
    ] = None,
    children: Annotated[
        bool, typer.Option("--children", help="Also the threads on which its calls ran agents, and the links to them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash, and check that each event can follow those before it.

    If not, names the first such event, and exits with code 3.
    """
    if children and thread is None:
        raise WrongUsage("--children needs a thread; without one, all threads are verified")
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        watched = sys.stderr.isatty() and not as_json
        with new_console(stderr=True).status("Verifying …") if watched else nullcontext():
            verdict = conversations.verify(id_, children=children)
    if as_json:
        write_json(json_shapes.verdict(verdict))
    else:
        new_console().print(verdict_text(verdict))
    if verdict.first_bad is not None:
        raise typer.Exit(NOT_VERIFIED)


def verdict_text(verdict: Verdict) -> Text:
    """The output of ``clew verify``."""
    from rich.text import Text

    checked = f"{plural(verdict.threads, 'thread')}, {verdict.events:,} events"
    bad = verdict.first_bad
    if bad is None:
        return Text.assemble(("Verified", "bold green"), f": {checked}, every hash follows from what is stored.")
    place = f"thread {one_line(bad.thread_id)}, version {bad.version}"
    if bad.kind == "senseless":
        place = f"every hash is right, but {place} makes no sense"
    return Text.assemble(("NOT VERIFIED", "bold red"), f": {place}: {one_line(bad.reason)}. Checked {checked}.")


@command("clew migrate --backup before.db", heading="Maintain")
@for_each_shard(prepare=lambda directory: directory.make())  # the directory has its own tables
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
    """Update an old database, or make Clew's tables in a new one."""
    from clew.infrastructure.stores import scheme_of, store_at

    if backup == "":
        raise WrongUsage("--backup '' is empty. Give the path of a file that does not exist")
    options: GlobalOptions = context.obj
    store = store_at(options.url)
    name, schema = one_line(store.name), store.schemas() or store.migrate()  # without schemas, migrate() raises
    if schema.found != schema.known:
        if schema.found and must_confirm(context, yes=yes):  # without tables, no data can be lost
            if scheme_of(options.url).startswith("postgres"):
                advice = " Copy it with pg_dump first."
            else:
                advice = "" if backup else f" Copy {name} and {name}-wal first, or answer no and give --backup PATH."
            confirm(
                f"{name} has schema {schema.found}, and this Clew needs schema {schema.known}.{advice} Migrate it now?"
            )
        schema = store.migrate(backup=backup, partitions=partitions, row_level_security=row_level_security)
    elif partitions is not None or row_level_security:
        store.migrate(partitions=partitions, row_level_security=row_level_security)
    text = _migration_text(name, schema, backup)
    if row_level_security:
        text += "\nIt keeps tenants apart from now on: clew_app sees one of them, clew_operator all."
    write_result(json_shapes.migration(store.name, schema, backup), text, as_json=as_json)


def _migration_text(name: str, schema: Schemas, backup: str | None) -> str:
    if schema.found == schema.known:
        return f"{name} already has schema {schema.known}. There is nothing to migrate."
    if not schema.found:
        return f"Made Clew's tables in {name}, with schema {schema.known}."
    copy = "" if backup is None else f" {one_line(backup)} is a copy from before."
    return f"Migrated {name} from schema {schema.found} to {schema.known}.{copy}"
