"""Commands that run once for each shard when ``--db`` names a directory of shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer

from clew.cli.errors import report
from clew.cli.options import Chosen
from clew.cli.output import first_fields

if TYPE_CHECKING:
    from clew.service.shards import Shards

NO_SERVERS = "There are no servers in the directory. `clew shards add NAME HOST:PORT/DATABASE` adds one."


def directory_of(context: typer.Context) -> Shards | None:
    """The directory that ``--db`` names; None if it names a single store."""
    from clew.infrastructure.stores import scheme_of

    return open_directory(context) if scheme_of(context.obj.url) == "postgresql+shards" else None


def open_directory(context: typer.Context) -> Shards:
    """The directory that ``--db`` names. Raises StoreUrlError for anything else."""
    from clew.service.shards import Shards

    chosen: Chosen = context.obj
    return Shards.open(chosen.url)


def for_each_shard(
    *, unless: str | None = None, first: Callable[[Shards], None] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command run for each shard of a directory in turn; with any other ``--db`` it runs once.

    With a value for its parameter ``unless`` it runs once as well: that is one tenant's. ``first`` is called with the
    directory before. The output names the shard. A shard that fails does not stop the others; the exit code is the
    worst of all.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **options: Any) -> None:
            directory = directory_of(context)
            if directory is None or (unless is not None and options[unless] is not None):
                command(context, **options)
                return
            if first is not None:
                first(directory)
            _run_for_each(context, directory, lambda: command(context, **options), as_json=options["as_json"])

        return run

    return decorate


def _run_for_each(context: typer.Context, directory: Shards, command: Callable[[], None], *, as_json: bool) -> None:
    from clew.domain.errors import ClewError

    chosen: Chosen = context.obj
    worst = 0
    shards = directory.shards()
    if not shards and not as_json:
        typer.echo(NO_SERVERS)
    for shard in shards:
        context.obj = Chosen(directory.url(shard), chosen.tenant)
        if not as_json:
            typer.echo(f"shard {shard.name}:")
        with first_fields(shard=shard.name):
            try:
                command()
            except typer.Exit as ended:
                worst = max(worst, ended.exit_code)
            except ClewError as error:
                worst = max(worst, report(error, as_json=as_json))
            finally:
                context.obj = chosen
    if worst:
        raise typer.Exit(worst)
