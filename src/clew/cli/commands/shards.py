"""Commands that manage a directory of shards, which spreads tenants over several servers: shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.candidates import shard_names
from clew.cli.command import group
from clew.cli.options import AsJson
from clew.cli.output import one_line, plural_if_any, write_json
from clew.cli.shard_directory import NO_SERVERS, open_directory

if TYPE_CHECKING:
    from clew.infrastructure.shards import Shard
    from clew.service.shards import Shards

commands = group(
    "shards",
    heading="Maintain",
    help_="Add servers to a directory, and list them.",
    epilog="A directory, postgresql+shards://user@host/database, spreads tenants over several servers. "
    "`clew shards COMMAND --help` shows examples.",
)

NewArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A name for the server: letters, digits, dots, dashes and underscores.")
]
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of a server in the directory.", autocompletion=shard_names),
]
AddressArgument = Annotated[
    str,
    typer.Argument(metavar="HOST:PORT/DATABASE", help="Its address, or service=NAME; without user and password."),
]

_CLEW = "clew --db postgresql+shards://clew@host/directory shards"


@commands.declare(f"{_CLEW} add east db1.example.org:5432/clew", f"{_CLEW} add west service=west")
def add(context: typer.Context, name: NewArgument, address: AddressArgument, as_json: AsJson = False) -> None:
    """Add a server for new tenants. No tenant moves."""
    directory = open_directory(context)
    directory.add(name, address)
    _write(directory, name, f"Added {name}. It gets the new tenants until it has as many as the others.", as_json)


@commands.declare(f"{_CLEW} list", f"{_CLEW} list --json", name="list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the servers, with their number of tenants, and whether they can be reached."""
    directory = open_directory(context)
    shards = directory.shards()
    if not shards and not as_json:
        typer.echo(NO_SERVERS)
    for shard in shards:
        problem = directory.unreachable(shard)
        if as_json:
            write_json({**_shape(shard), "reachable": problem is None})
            continue
        takes = "takes new tenants" if shard.takes else "takes no new tenants"
        tenants = plural_if_any(shard.tenants, "tenant") or "no tenants"
        typer.echo(one_line(f"{shard.name}  {shard.address}  {tenants}, {takes}"))
        if problem is not None:
            typer.echo(f"  cannot be reached: {one_line(problem)}")


@commands.declare(f"{_CLEW} move east db3.example.org:5432/clew")
def move(context: typer.Context, name: NameArgument, address: AddressArgument, as_json: AsJson = False) -> None:
    """Change the address of a server, after its store has moved or a copy has replaced it."""
    directory = open_directory(context)
    directory.move(name, address)
    _write(directory, name, f"{name} is now at {address}. Restart services that have it open.", as_json)


@commands.declare(f"{_CLEW} close east")
def close(context: typer.Context, name: NameArgument, as_json: AsJson = False) -> None:
    """Assign no new tenants to a server. Its tenants stay."""
    directory = open_directory(context)
    directory.take_no_more(name)
    _write(directory, name, f"{name} takes no new tenants. Its tenants stay.", as_json)


def _write(directory: Shards, name: str, text: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(text)
        return
    for shard in directory.shards():
        if shard.name == name:
            write_json(_shape(shard))


def _shape(shard: Shard) -> dict[str, Any]:
    return {"shard": shard.name, "address": shard.address, "takes": shard.takes, "tenants": shard.tenants}
