"""Directories of shards: commands that manage one, and how other commands run once for each shard."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.app import group
from clew.cli.candidates import shard_names
from clew.cli.errors import report
from clew.cli.options import AsJson, GlobalOptions
from clew.cli.output import first_fields, one_line, plural_if_any, write_result
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.service.shards import Shards

NO_SERVERS = "There are no servers in the directory. `clew shards add NAME HOST:PORT/DATABASE` adds one."

commands = group(
    "shards",
    heading="Maintain",
    help_="Add servers to a directory, and list them.",
    epilog="A directory, postgresql+shards://user@host/database, spreads tenants over several servers. "
    "`clew shards COMMAND --help` shows examples.",
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a server in the directory.", autocompletion=shard_names)
]
AddressArgument = Annotated[
    str, typer.Argument(metavar="HOST:PORT/DATABASE", help="Its address, or service=NAME; without user and password.")
]

_CLEW = "clew --db postgresql+shards://clew@host/directory shards"


@commands.declare(f"{_CLEW} add east db1.example.org:5432/clew", f"{_CLEW} add west service=west")
def add(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name for the server: letters, digits, dots, dashes and underscores."),
    ],
    address: AddressArgument,
    as_json: AsJson = False,
) -> None:
    """Add a server for new tenants. No tenant moves."""
    directory = open_directory(context)
    directory.add(name, address)
    text = f"Added {name}. It gets the new tenants until it has as many as the others."
    write_result(_shape(directory, name), text, as_json=as_json)


@commands.declare(f"{_CLEW} list", f"{_CLEW} list --json", name="list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the servers and their tenants. A server that cannot be reached is listed with the reason."""
    directory = open_directory(context)
    shards = directory.shards()
    if not shards and not as_json:
        typer.echo(NO_SERVERS)
    for shard in shards:
        problem = directory.unreachable(shard)
        takes = "takes new tenants" if shard.takes else "takes no new tenants"
        tenants = plural_if_any(shard.tenants, "tenant") or "no tenants"
        text = one_line(f"{shard.name}  {shard.address}  {tenants}, {takes}")
        if problem is not None:
            text += f"\n  cannot be reached: {one_line(problem)}"
        write_result({**json_shapes.shard(shard), "reachable": problem is None}, text, as_json=as_json)


@commands.declare(f"{_CLEW} move east db3.example.org:5432/clew")
def move(context: typer.Context, name: NameArgument, address: AddressArgument, as_json: AsJson = False) -> None:
    """Change the address of a server. Its store must have moved there, or a copy of it."""
    directory = open_directory(context)
    directory.move(name, address)
    text = f"{name} is now at {address}. Restart services that have it open."
    write_result(_shape(directory, name), text, as_json=as_json)


@commands.declare(f"{_CLEW} close east")
def close(context: typer.Context, name: NameArgument, as_json: AsJson = False) -> None:
    """Assign no new tenants to a server. Its tenants stay."""
    directory = open_directory(context)
    directory.take_no_more(name)
    write_result(_shape(directory, name), f"{name} takes no new tenants. Its tenants stay.", as_json=as_json)


def _shape(directory: Shards, name: str) -> dict[str, Any]:
    return next(json_shapes.shard(shard) for shard in directory.shards() if shard.name == name)


def directory_of(context: typer.Context) -> Shards | None:
    """The directory that ``--db`` names; None if it names a single store."""
    from clew.infrastructure.stores import scheme_of

    return open_directory(context) if scheme_of(context.obj.url) == "postgresql+shards" else None


def open_directory(context: typer.Context) -> Shards:
    """The directory that ``--db`` names. Raises StoreUrlError for anything else."""
    from clew.service.shards import Shards

    options: GlobalOptions = context.obj
    return Shards.open(options.url)


def for_each_shard(
    *, unless: str | None = None, prepare: Callable[[Shards], None] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a command for each shard of a directory in turn. With any other ``--db`` it runs once.

    It also runs once if its parameter ``unless`` has a value, because that belongs to one tenant. ``prepare`` is called
    with the directory first. The output names the shard. A shard that fails does not stop the others; the exit code is
    the highest of all.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **options: Any) -> None:
            directory = directory_of(context)
            if directory is None or (unless is not None and options[unless] is not None):
                command(context, **options)
                return
            if prepare is not None:
                prepare(directory)
            _run_for_each(context, directory, lambda: command(context, **options), as_json=options["as_json"])

        return run

    return decorate


def _run_for_each(context: typer.Context, directory: Shards, command: Callable[[], None], *, as_json: bool) -> None:
    from clew.domain.errors import ClewError

    options: GlobalOptions = context.obj
    exit_code = 0
    shards = directory.shards()
    if not shards and not as_json:
        typer.echo(NO_SERVERS)
    for shard in shards:
        context.obj = GlobalOptions(directory.url(shard), options.tenant)
        if not as_json:
            typer.echo(f"shard {shard.name}:")
        with first_fields(shard=shard.name):
            try:
                command()
            except typer.Exit as stop:
                exit_code = max(exit_code, stop.exit_code)
            except ClewError as error:
                exit_code = max(exit_code, report(error, as_json=as_json))
            finally:
                context.obj = options
    if exit_code:
        raise typer.Exit(exit_code)
