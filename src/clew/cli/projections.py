"""Commands that fill projections, show how far they are and build them anew: project and rebuild."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from clew.cli.candidates import projection_names
from clew.cli.errors import FAILED, WrongUsage, report
from clew.cli.options import AsJson, Chosen
from clew.cli.output import one_line, position_bar, write_json

if TYPE_CHECKING:
    from clew.domain.errors import StoreUnavailableError
    from clew.domain.projection import Projection
    from clew.service.core import Core
    from clew.service.projection_status import ProjectionStatus

LoadOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        metavar="MODULE:OBJECT",
        help="A projection of your own, or a list of them, imported from here or where Python finds it; repeatable.",
    ),
]


def project(
    context: typer.Context,
    action: Annotated[
        Literal["run", "status"], typer.Argument(metavar="run|status", help="Fill them, or show how far they are.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="This projection; repeatable. By default all.",
            autocompletion=projection_names,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Fill what there is, then end.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=256, metavar="K", help="Share them among so many processes.")
    ] = None,
    load: LoadOption = None,
    as_json: AsJson = False,
) -> None:
    """Fill projections as events come, or show how far they are."""
    if action != "run" and (once or workers):
        option = "--once is for run: fill what there is, then end" if once else "--workers is for run"
        raise WrongUsage(context, option)
    fine, follows = True, action == "run" and not once
    if action == "run" and workers is not None:
        fine = _share(context, names or (), workers, load or (), once=once, as_json=as_json)
    elif follows:
        with position_bar("Filling") as progress:
            away = _follow(lambda: _opened(context, load), names or (), progress)
        if away is not None:  # and is not waited for again
            say(str(away))
            return
    elif once:
        with closing(_opened(context, load)) as core, position_bar("Filling") as progress:
            _fill_once(core, names or (), progress)
    with ending() if follows else nullcontext(), closing(_opened(context, load)) as core:
        _write(_statuses(core, names), as_json=as_json)
    if not fine:
        raise typer.Exit(FAILED)


def rebuild(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Projections.", autocompletion=projection_names)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    load: LoadOption = None,
    as_json: AsJson = False,
) -> None:
    """Build projections anew, beside what is read meanwhile."""
    from clew.service.operations import run

    if all_ == bool(names):
        raise WrongUsage(context, "Name the projections that are to be built anew, or say --all")
    with closing(_opened(context, load)) as core:
        chosen = list(dict.fromkeys(names or core.models.projector.projections))
        for name in chosen:
            with position_bar(f"Rebuilding {one_line(name)}") as progress:
                run(core.models.rebuild(name, progress))
        found = _statuses(core, chosen)
    _write(found, as_json=as_json)


def _opened(context: typer.Context, load: Sequence[str] | None) -> Core:
    try:
        return _open(context.obj, load or ())
    except _NotLoadedError as error:
        raise WrongUsage(context, str(error)) from error.__cause__


def _open(chosen: Chosen, load: Sequence[str]) -> Core:
    """The store, which fills nothing by itself."""
    from clew.infrastructure import clock
    from clew.service.core import open_core

    shown = _projections(load)
    return open_core(chosen.url, tenant=chosen.tenant, create=False, now=clock.now, projections=shown, embedded=False)


def named_projections(context: typer.Context, names: Sequence[str], load: Sequence[str]) -> list[str]:
    """The names of these projections, by default of all. Raises UnknownProjectionError or WrongUsage."""
    from clew.domain.errors import UnknownProjectionError

    try:
        known = [each.name for each in _projections(load)]
    except _NotLoadedError as error:
        raise WrongUsage(context, str(error)) from error.__cause__
    for name in names:
        if name not in known:
            raise UnknownProjectionError(name, sorted(known))
    return list(names) or known


class _NotLoadedError(Exception):
    """What ``--load`` names is no projection."""


def _projections(load: Sequence[str]) -> list[Projection]:
    """Those that are shipped, and those that are to be loaded."""
    from clew.projections import SHIPPED

    found: list[Any] = list(SHIPPED)
    if load and "" not in sys.path:
        sys.path.insert(0, "")
    for each in load:
        module, _, name = each.partition(":")
        if not module or not name:
            message = f"--load {each!r}: write the name of a module, a colon and the name of an object"
            raise _NotLoadedError(message)
        try:
            loaded: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise _NotLoadedError(f"--load {each!r}: {error}") from error
        made = loaded() if isinstance(loaded, type) else loaded
        own = list(made) if isinstance(made, list | tuple) else [made]
        if not all(hasattr(one, "project") and hasattr(one, "tables") for one in own):
            raise _NotLoadedError(f"--load {each!r}: that is no projection")
        found += own
    return found


def _fill_once(core: Core, names: Sequence[str], progress: Callable[[int, int], None]) -> None:
    """Fill until there is nothing more to do, or until a signal ends it."""
    from clew.service.projection_runner import Runner
    from clew.service.worker_processes import ended_by_signals

    runner = Runner(core, names, progress)
    with ended_by_signals(runner.stop):
        runner.run()


def _follow(
    opened: Callable[[], Core],
    names: Sequence[str],
    progress: Callable[[int, int], None],
    *,
    worker: str | None = None,
) -> StoreUnavailableError | None:
    """Fill as events come until a signal ends it, also after the store was away for a while.

    Returns what was said of a store that is away by then. A ``worker`` is told nothing that somebody looks at, and so
    waits for a store that was never there, too.
    """
    from clew.service.projection_runner import LastingRunner, Runner, worker_name
    from clew.service.worker_processes import ended_by_signals

    own = worker or worker_name()
    lasting = LastingRunner(
        opened, lambda core: Runner(core, names, progress, worker=own), say, patient=worker is not None
    )
    with ended_by_signals(lasting.stop):
        return lasting.follow()


@contextmanager
def ending() -> Iterator[None]:
    """What is told at the end of a process that was told to end: a store that is away just then is no failure of it."""
    from clew.domain.errors import StoreUnavailableError

    try:
        yield
    except StoreUnavailableError as error:
        say(str(error))


def say(said: str) -> None:
    """Tell who looks after a process what it does about something that went wrong."""
    typer.echo(f"clew: {one_line(said)}", err=True)


def _share(
    context: typer.Context, names: Sequence[str], number: int, load: Sequence[str], *, once: bool, as_json: bool
) -> bool:
    """Fill in several processes; whether all did."""
    from clew.domain.errors import ClewError
    from clew.service.projection_runner import Runner
    from clew.service.worker_processes import Workers, ended_by_signals

    with closing(_opened(context, load)) as core, position_bar("Filling") as progress:
        runner = Runner(core, names, progress)
        shares = _shares(list(dict.fromkeys(names or core.models.projector.projections)), number, once=once)
        workers = Workers(work, [(context.obj, load, *share, as_json) for share in shares], say, again=not once)

        def tell() -> None:
            with suppress(ClewError):  # a server that is gone may be back soon: the workers wait for it
                runner.tell()

        with ended_by_signals(workers.stop):
            return workers.run(tell if sys.stderr.isatty() else lambda: None)


def _shares(names: Sequence[str], number: int, *, once: bool) -> list[tuple[Sequence[str], str | None]]:
    """What each worker is to fill, and the name under which it takes leases; once, they need none.

    One that takes the place of another has its name, and so its leases.
    """
    from clew.service.projection_runner import worker_name

    if once:
        return [(share, None) for first in range(number) if (share := names[first::number])]
    own = worker_name()
    return [(names, f"{own}:{each + 1}") for each in range(number)]


def work(
    chosen: Chosen,
    load: Sequence[str],
    names: Sequence[str],
    worker: str | None,
    as_json: bool,
    shard: str | None = None,
) -> None:
    """What a process of several does: without the name of a worker it fills these once.

    With the name of a ``shard`` the store is where the directory says at that moment, which may change.
    """

    def opened() -> Core:
        return _open(chosen if shard is None else Chosen(_url_of(chosen, shard), chosen.tenant), load)

    try:
        if worker is None:
            with closing(opened()) as core:
                _fill_once(core, names, lambda *_: None)
        else:
            _follow(opened, names, lambda *_: None, worker=worker)
    except Exception as error:  # noqa: BLE001  # never a traceback
        sys.exit(report(error, as_json=as_json))


def _url_of(directory: Chosen, name: str) -> str:
    from clew.service.shards import Shards

    shards = Shards.open(directory.url)
    return next(shards.url(shard) for shard in shards.shards() if shard.name == name)


def _statuses(core: Core, names: Sequence[str] | None) -> list[ProjectionStatus]:
    """How far these are, by default all. Raises UnknownProjectionError."""
    from clew.domain.errors import UnknownProjectionError
    from clew.service.projection_status import read_statuses

    found = {each.name: each for each in read_statuses(core.models.projector)}
    for name in names or ():
        if name not in found:
            raise UnknownProjectionError(name, list(found))
    return [found[name] for name in dict.fromkeys(names or found)]


def _write(found: Sequence[ProjectionStatus], *, as_json: bool) -> None:
    from clew.cli import json_shapes

    width = max((len(each.name) for each in found), default=0)
    for each in found:
        if as_json:
            write_json(json_shapes.projection(each))
            continue
        built = "" if each.built is None else f", built anew up to {each.built:,}"
        least = "" if each.lag_exact else "at least "
        behind = f", {least}{each.lag:,} events and {each.lag_seconds:,.0f} s behind" if each.lag else ""
        worker = "" if each.worker is None else f", filled by {one_line(each.worker)}"
        place = f"position {each.position:,} of {each.last_position:,}{behind}{built}{worker}"
        typer.echo(f"{one_line(each.name):{width}}  version {each.version}  {each.state:8}  {place}")
        for parked in each.parked_events:
            where = f"position {parked.position:,}: {parked.stream} version {parked.version}, {parked.type}"
            typer.echo(one_line(f"  went on without {where}: {parked.error}"))
        if each.parked > len(each.parked_events):
            typer.echo(f"  and {each.parked - len(each.parked_events):,} more")
