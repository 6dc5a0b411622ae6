"""Commands that fill projections, report their progress and rebuild them: project and rebuild."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from clew.cli.candidates import projection_names
from clew.cli.command import command
from clew.cli.errors import FAILED, WrongUsage, report
from clew.cli.options import AsJson, Chosen
from clew.cli.output import one_line, plural, progress_bar, write_json
from clew.cli.shard_directory import directory_of, for_each_shard

if TYPE_CHECKING:
    from clew.domain.errors import StoreUnavailableError
    from clew.domain.projection import Projection
    from clew.infrastructure.shards import Shard
    from clew.service.core import Core
    from clew.service.projection_status import ProjectionStatus
    from clew.service.shards import Shards

LoadOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        metavar="MODULE:OBJECT",
        help="A projection of your own, or a list of them, imported from this folder or from Python's path; "
        "repeatable.",
    ),
]


@command(
    "clew project run --workers 4",
    "clew project run --once --load mine:Mine",
    "clew project status --json",
    heading="Maintain",
)
def project(
    context: typer.Context,
    action: Annotated[
        Literal["run", "status"], typer.Argument(metavar="run|status", help="Fill them, or show their progress.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Only this projection; repeatable.",
            autocompletion=projection_names,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Apply the events that exist, then end.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=256, metavar="K", help="Use K processes.")
    ] = None,
    load: LoadOption = None,
    as_json: AsJson = False,
) -> None:
    """Fill projections as events arrive, or show their progress."""
    if action != "run" and (once or workers):
        raise WrongUsage(context, f"{'--once' if once else '--workers'} is an option of `clew project run`")
    directory = directory_of(context)
    if directory is not None and action == "run" and not once:
        _fill_shards(context, directory, names or (), workers or 1, load or (), as_json=as_json)
        with _store_may_be_away(), suppress(typer.Exit):  # a shard that is down was already reported
            _project(context, action="status", names=names, once=False, workers=None, load=load, as_json=as_json)
        return
    _project(context, action=action, names=names, once=once, workers=workers, load=load, as_json=as_json)


@for_each_shard()
def _project(
    context: typer.Context,
    *,
    action: str,
    names: Sequence[str] | None,
    once: bool,
    workers: int | None,
    load: Sequence[str] | None,
    as_json: bool,
) -> None:
    succeeded, follows = True, action == "run" and not once
    if action == "run" and workers is not None:
        succeeded = _fill_in_workers(context, names or (), workers, load or (), once=once, as_json=as_json)
    elif follows:
        with progress_bar("Filling") as progress:
            away = _follow(lambda: _open_or_refuse(context, load), names or (), progress)
        if away is not None:  # do not wait for the store again, to show the status
            warn(str(away))
            return
    elif once:
        with closing(_open_or_refuse(context, load)) as core, progress_bar("Filling") as progress:
            _fill_once(core, names or (), progress)
    with _store_may_be_away() if follows else nullcontext(), closing(_open_or_refuse(context, load)) as core:
        _write_statuses(_statuses(core, names), as_json=as_json)
    if not succeeded:
        raise typer.Exit(FAILED)


@command("clew rebuild search", "clew rebuild --all", heading="Maintain")
@for_each_shard()
def rebuild(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Projections.", autocompletion=projection_names)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All projections.")] = False,
    load: LoadOption = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild projections. Reads continue on the old tables meanwhile."""
    from clew.service.operations import run

    if all_ == bool(names):
        raise WrongUsage(context, "Name the projections to rebuild, or give --all")
    with closing(_open_or_refuse(context, load)) as core:
        chosen = list(dict.fromkeys(names or core.models.projector.projections))
        for name in chosen:
            with progress_bar(f"Rebuilding {one_line(name)}") as progress:
                run(core.models.rebuild(name, progress))
        statuses = _statuses(core, chosen)
    _write_statuses(statuses, as_json=as_json)


class _NotLoadedError(Exception):
    """``--load`` does not name a projection."""


def _open_or_refuse(context: typer.Context, load: Sequence[str] | None) -> Core:
    """Raises WrongUsage if ``--load`` is wrong."""
    try:
        return _open(context.obj, load or ())
    except _NotLoadedError as error:
        raise WrongUsage(context, str(error)) from error.__cause__


def _open(chosen: Chosen, load: Sequence[str]) -> Core:
    """The store, which does not fill projections by itself."""
    from clew.infrastructure import clock
    from clew.service.core import open_core

    projections = _projections(load)
    return open_core(
        chosen.url, tenant=chosen.tenant, create=False, now=clock.now, projections=projections, embedded=False
    )


def _projections(load: Sequence[str]) -> list[Projection]:
    """The projections that ship with Clew and those of ``--load``. Raises _NotLoadedError."""
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
            raise _NotLoadedError(f"--load {each!r}: that is not a projection")
        found += own
    return found


def _fill_once(core: Core, names: Sequence[str], progress: Callable[[int, int], None]) -> None:
    """Fill until every event is applied, or until a signal."""
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
    """Fill as events come, until a signal; waits for a store that is away for a while.

    Returns the error of a store that is away at the end. A ``worker`` has no user who watches it, so it also waits for
    a store that was never there.
    """
    from clew.service.projection_runner import LastingRunner, Runner, worker_name
    from clew.service.worker_processes import ended_by_signals

    own = worker or worker_name()
    lasting = LastingRunner(
        opened, lambda core: Runner(core, names, progress, worker=own), warn, patient=worker is not None
    )
    with ended_by_signals(lasting.stop):
        return lasting.follow()


@contextmanager
def _store_may_be_away() -> Iterator[None]:
    """For a process that is about to end: then an unavailable store is a warning, not a failure."""
    from clew.domain.errors import StoreUnavailableError

    try:
        yield
    except StoreUnavailableError as error:
        warn(str(error))


def warn(message: str) -> None:
    """Write a line to stderr."""
    typer.echo(f"clew: {one_line(message)}", err=True)


def _fill_in_workers(
    context: typer.Context, names: Sequence[str], number: int, load: Sequence[str], *, once: bool, as_json: bool
) -> bool:
    """Fill in several processes; returns whether all of them succeeded."""
    from clew.domain.errors import ClewError
    from clew.service.projection_runner import Runner
    from clew.service.worker_processes import Workers, ended_by_signals

    with closing(_open_or_refuse(context, load)) as core, progress_bar("Filling") as progress:
        runner = Runner(core, names, progress)
        shares = _shares(list(dict.fromkeys(names or core.models.projector.projections)), number, once=once)
        workers = Workers(work, [(context.obj, load, *share, as_json) for share in shares], warn, again=not once)

        def show_progress() -> None:
            with suppress(ClewError):  # the workers wait for a server that is away, so this waits too
                runner.tell()

        with ended_by_signals(workers.stop):
            return workers.run(show_progress if sys.stderr.isatty() else lambda: None)


def _shares(names: Sequence[str], number: int, *, once: bool) -> list[tuple[Sequence[str], str | None]]:
    """The projections of each worker and the name under which it takes leases. With ``once`` it needs no leases.

    A worker that replaces another gets its name, and with it its leases.
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
    """The body of a worker process. Without the name of a worker it fills once.

    With the name of a ``shard`` it opens the store where the directory says that the shard is now: it may move.
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


def _fill_shards(
    context: typer.Context,
    directory: Shards,
    names: Sequence[str],
    number: int,
    load: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Fill in ``number`` processes for each shard until a signal; a process that fails is started again.

    A shard that is added to the directory meanwhile is filled as well.
    """
    from clew.service.projection_runner import worker_name
    from clew.service.shards import watch_shards
    from clew.service.worker_processes import Workers, ended_by_signals

    own = worker_name()
    wanted = _known_names(context, names, load)
    workers = Workers(work, (), warn, again=True)
    known: set[str] = set()
    ended = threading.Event()

    def start(shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.name not in known:
                known.add(shard.name)
                for each in range(number):
                    workers.add((context.obj, load, wanted, f"{own}:{each + 1}", as_json, shard.name))

    watch_shards(directory.shards, start, ended)
    try:
        with ended_by_signals(workers.stop):
            workers.run()
    finally:
        ended.set()


def _known_names(context: typer.Context, names: Sequence[str], load: Sequence[str]) -> list[str]:
    """These projections, by default all. Raises UnknownProjectionError or WrongUsage."""
    from clew.domain.errors import UnknownProjectionError

    try:
        known = [each.name for each in _projections(load)]
    except _NotLoadedError as error:
        raise WrongUsage(context, str(error)) from error.__cause__
    for name in names:
        if name not in known:
            raise UnknownProjectionError(name, sorted(known))
    return list(names) or known


def _url_of(directory: Chosen, name: str) -> str:
    from clew.service.shards import Shards

    shards = Shards.open(directory.url)
    return next(shards.url(shard) for shard in shards.shards() if shard.name == name)


def _statuses(core: Core, names: Sequence[str] | None) -> list[ProjectionStatus]:
    """The progress of these projections, by default of all. Raises UnknownProjectionError."""
    from clew.domain.errors import UnknownProjectionError
    from clew.service.projection_status import read_statuses

    found = {each.name: each for each in read_statuses(core.models.projector)}
    for name in names or ():
        if name not in found:
            raise UnknownProjectionError(name, list(found))
    return [found[name] for name in dict.fromkeys(names or found)]


def _write_statuses(statuses: Sequence[ProjectionStatus], *, as_json: bool) -> None:
    from clew.cli.rendering import json_shapes

    width = max((len(each.name) for each in statuses), default=0)
    for each in statuses:
        if as_json:
            write_json(json_shapes.projection(each))
            continue
        rebuilt = "" if each.built is None else f", rebuilt up to {each.built:,}"
        least = "" if each.lag_exact else "at least "
        behind = f", {least}{plural(each.lag, 'event')} and {each.lag_seconds:,.0f} s behind" if each.lag else ""
        worker = "" if each.worker is None else f", filled by {one_line(each.worker)}"
        place = f"position {each.position:,} of {each.last_position:,}{behind}{rebuilt}{worker}"
        typer.echo(f"{one_line(each.name):{width}}  version {each.version}  {each.state:8}  {place}")
        for parked in each.parked_events:
            where = f"position {parked.position:,}: {parked.stream} version {parked.version}, {parked.type}"
            typer.echo(one_line(f"  skipped {where}: {parked.error}"))
        if each.parked > len(each.parked_events):
            typer.echo(f"  and {each.parked - len(each.parked_events):,} more")
