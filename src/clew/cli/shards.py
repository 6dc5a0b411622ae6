"""Commands for several servers: shards, and those that look after each shard of a directory in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli import doctor, projections
from clew.cli.candidates import shard_names
from clew.cli.errors import USAGE, report
from clew.cli.options import AsJson, Chosen
from clew.cli.output import counted, named, one_line, write_json

if TYPE_CHECKING:
    from clew.infrastructure.shards import Shard
    from clew.service.shards import Shards

NONE = "There are no servers in the directory. `clew shards add NAME HOST:PORT/DATABASE` adds one."

NewArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A name for the server: letters, digits, dots, dashes and underscores.")
]
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of a server, as the directory has it.", autocompletion=shard_names),
]
AddressArgument = Annotated[
    str, typer.Argument(metavar="HOST:PORT/DATABASE", help="Where it is, or service=NAME; without user and password.")
]


def add(context: typer.Context, name: NewArgument, address: AddressArgument, as_json: AsJson = False) -> None:
    """Add a server, which is given tenants from now on. No tenant moves."""
    shards = _shards(context)
    shards.add(name, address)
    _tell(shards, name, f"Added {name}. New tenants come to it until it has as many as the others.", as_json=as_json)


def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the servers: how many tenants each has, and whether it can be reached."""
    shards = _shards(context)
    listed = shards.shards()
    if not listed and not as_json:
        typer.echo(NONE)
    for shard in listed:
        down = shards.unreachable(shard)
        if as_json:
            write_json({**_shape(shard), "reachable": down is None})
            continue
        takes = "takes new tenants" if shard.takes else "takes no more tenants"
        tenants = counted(shard.tenants, "tenant") or "no tenants"
        typer.echo(one_line(f"{shard.name}  {shard.address}  {tenants}, {takes}"))
        if down is not None:
            typer.echo(f"  cannot be reached: {one_line(down)}")


def move(context: typer.Context, name: NameArgument, address: AddressArgument, as_json: AsJson = False) -> None:
    """Say where the store of a server is now: the same store, or a copy that takes its place."""
    shards = _shards(context)
    shards.move(name, address)
    _tell(
        shards, name, f"{name} is at {address} now. Services that have it open are to open it again.", as_json=as_json
    )


def close(context: typer.Context, name: NameArgument, as_json: AsJson = False) -> None:
    """Give a server no more tenants. Those that it has stay."""
    shards = _shards(context)
    shards.take_no_more(name)
    _tell(shards, name, f"{name} takes no more tenants. Those that it has stay.", as_json=as_json)


commands = typer.Typer(
    name="shards",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog="A directory, postgresql+shards://user@host/database, says on which of several servers each tenant is. "
    "`clew shards COMMAND --help` shows examples.",
)

_DB = "clew --db postgresql+shards://clew@host/directory shards"

COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    ("add", add, (f"{_DB} add east db1.example.org:5432/clew", f"{_DB} add west service=west")),
    ("list", list_, (f"{_DB} list", f"{_DB} list --json")),
    ("move", move, (f"{_DB} move east db3.example.org:5432/clew",)),
    ("close", close, (f"{_DB} close east",)),
)
"""The commands of the group, each with examples."""


@commands.callback()
def shards(context: typer.Context) -> None:
    """Add servers to a directory, and list them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def over_shards(command: Callable[..., None], *, unless: str | None = None) -> Callable[..., None]:
    """The command; of a directory, for each shard in turn, unless it was given what is named: that is a tenant's.

    What it writes names the shard. One that fails does not keep it from the others; the exit code is the worst.
    """

    @wraps(command)
    def each(context: typer.Context, **options: Any) -> None:
        found = _directory(context)
        if found is None or (unless is not None and options[unless] is not None):
            command(context, **options)
            return
        _for_each(context, found, lambda: command(context, **options), as_json=options["as_json"])

    return each


@wraps(doctor.migrate)
def migrate(context: typer.Context, **options: Any) -> None:
    """Of a directory its own tables before those of its shards."""
    found = _directory(context)
    if found is not None:
        found.make()
    over_shards(doctor.migrate)(context, **options)


@wraps(projections.project)
def project(context: typer.Context, **options: Any) -> None:
    """Of a directory all shards at once, where it does not end by itself."""
    found = _directory(context)
    if found is not None and options["action"] == "run" and not options["once"]:
        _fill(context, found, options)
        options |= {"action": "status", "workers": None}
        with projections.ending(), suppress(typer.Exit):  # what is down was told of
            over_shards(projections.project)(context, **options)
        return
    over_shards(projections.project)(context, **options)


def _fill(context: typer.Context, found: Shards, options: dict[str, Any]) -> None:
    """Fill in a process for each shard, or in so many, until a signal ends it; one that cannot is tried again.

    A shard that comes to the directory meanwhile is filled as well.
    """
    from clew.service.projection_runner import worker_name
    from clew.service.shards import watch_shards
    from clew.service.worker_processes import Workers, ended_by_signals

    load, own = options["load"] or (), worker_name()
    names = projections.named_projections(context, options["names"] or (), load)
    workers = Workers(projections.work, (), projections.say, again=True)
    known: set[str] = set()
    ended = threading.Event()

    def start(shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.name not in known:
                known.add(shard.name)
                for number in range(options["workers"] or 1):
                    worker = f"{own}:{number + 1}"
                    workers.add((context.obj, load, names, worker, options["as_json"], shard.name))

    watch_shards(found.shards, start, ended)
    try:
        with ended_by_signals(workers.stop):
            workers.run()
    finally:
        ended.set()


def _for_each(context: typer.Context, found: Shards, command: Callable[[], None], *, as_json: bool) -> None:
    from clew.domain.errors import ClewError

    chosen: Chosen = context.obj
    worst = 0
    shards = found.shards()
    if not shards and not as_json:
        typer.echo(NONE)
    for shard in shards:
        context.obj = Chosen(found.url(shard), chosen.tenant)
        if not as_json:
            typer.echo(f"shard {shard.name}:")
        with named(shard=shard.name):
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


def _directory(context: typer.Context) -> Shards | None:
    """The directory that ``--db`` names, None if it names anything else."""
    from clew.infrastructure.stores import scheme_of

    return _shards(context) if scheme_of(context.obj.url) == "postgresql+shards" else None


def _shards(context: typer.Context) -> Shards:
    from clew.service.shards import Shards

    chosen: Chosen = context.obj
    return Shards.open(chosen.url)


def _tell(found: Shards, name: str, said: str, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(said)
        return
    for shard in found.shards():
        if shard.name == name:
            write_json(_shape(shard))


def _shape(shard: Shard) -> dict[str, Any]:
    return {"shard": shard.name, "address": shard.address, "takes": shard.takes, "tenants": shard.tenants}
