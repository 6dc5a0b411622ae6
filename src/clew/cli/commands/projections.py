"""Commands that fill projections, report their progress and rebuild them: project and rebuild."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from clew.cli.app import command
from clew.cli.candidates import projection_names
from clew.cli.commands.shards import directory_of, for_each_shard
from clew.cli.errors import FAILED, WrongUsage, report
from clew.cli.options import AsJson, GlobalOptions, imported
from clew.cli.output import one_line, plural, progress_bar, warn, write_result
from clew.cli.rendering import json_shapes

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
            "--name", metavar="NAME", help="Only this projection; repeatable.", autocompletion=projection_names
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
        raise WrongUsage(f"{'--once' if once else '--workers'} is an option of `clew project run`")
    directory = directory_of(context)
    if directory is not None and action == "run" and not once:
        _fill_shards(context.obj, directory, names or (), workers or 1, load or (), as_json=as_json)
        with _warn_if_unavailable(), suppress(typer.Exit):  # a shard that is down was already reported
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
        succeeded = _fill_in_workers(context.obj, names or (), workers, load or (), once=once, as_json=as_json)
    elif follows:
        with progress_bar("Filling") as progress:
            unavailable = _follow(lambda: _open(context.obj, load), names or (), progress)
        if unavailable is not None:  # do not wait for the store again, to show the status
            warn(str(unavailable))
            return
    elif once:
        with closing(_open(context.obj, load)) as core, progress_bar("Filling") as progress:
            _fill_once(core, names or (), progress)
    with _warn_if_unavailable() if follows else nullcontext(), closing(_open(context.obj, load, reads=True)) as core:
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
    from clew.service.effects import run

    if all_ and names:
        raise WrongUsage("Name projections, or give --all, not both")
    if not all_ and not names:
        raise WrongUsage("Name the projections to rebuild, or give --all")
    with closing(_open(context.obj, load)) as core:
        selected = _selected_names(core, names)
        for name in selected:
            with progress_bar(f"Rebuilding {one_line(name)}") as progress:
                run(core.models.rebuild(name, progress))
        statuses = _statuses(core, selected)
    _write_statuses(statuses, as_json=as_json)


def _open(options: GlobalOptions, load: Sequence[str] | None, *, reads: bool = False) -> Core:
    """The store, without filling projections by itself.

    Raises WrongUsage if ``--load`` is wrong, and ReadOnlyStoreError unless the command only ``reads``.
    """
    from clew.domain.errors import ReadOnlyStoreError
    from clew.infrastructure import clock
    from clew.infrastructure.stores import store_at
    from clew.service.core import open_core

    projections = _load_projections(load or ())
    store = store_at(options.url)
    read_only = store.read_only or not store.can_be_written()
    if read_only and not reads:
        raise ReadOnlyStoreError(store.name)
    return open_core(
        options.url,
        tenant=options.tenant,
        create=False,
        now=clock.now,
        projections=projections,
        embedded=False,
        read_only=read_only,
    )


def _load_projections(load: Sequence[str]) -> list[Projection]:
    """The projections that ship with Clew and those of ``--load``. Raises WrongUsage."""
    from clew.projections import SHIPPED

    projections: list[Any] = list(SHIPPED)
    for each in load:
        loaded = imported("--load", each)
        instance = loaded() if isinstance(loaded, type) else loaded
        own = list(instance) if isinstance(instance, list | tuple) else [instance]
        if not all(hasattr(one, "project") and hasattr(one, "tables") for one in own):
            raise WrongUsage(f"--load {each!r}: that is not a projection")
        projections += own
    return projections


def _selected_names(core: Core, names: Sequence[str] | None) -> list[str]:
    """These names without duplicates; by default those of all projections."""
    return list(dict.fromkeys(names or core.models.projector.projections))


def _fill_once(core: Core, names: Sequence[str], progress: Callable[[int, int], None]) -> None:
    """Fill until every event is applied, or until a signal."""
    from clew.service.projection_worker import Runner
    from clew.service.worker_processes import ended_by_signals

    runner = Runner(core, names, progress)
    with ended_by_signals(runner.stop):
        runner.run()


def _follow(
    open_core: Callable[[], Core],
    names: Sequence[str],
    progress: Callable[[int, int], None],
    *,
    worker: str | None = None,
) -> StoreUnavailableError | None:
    """Fill as events come, until a signal. Waits while the store is unavailable.

    Returns the error of a store that is unavailable at the end. With the name of a ``worker`` process it waits for a
    store from the beginning; without one, a store that is unavailable at the start is an error.
    """
    from clew.service.projection_worker import LastingRunner, Runner, worker_name
    from clew.service.worker_processes import ended_by_signals

    name = worker or worker_name()
    lasting = LastingRunner(
        open_core, lambda core: Runner(core, names, progress, worker=name), warn, patient=worker is not None
    )
    with ended_by_signals(lasting.stop):
        return lasting.follow()


@contextmanager
def _warn_if_unavailable() -> Iterator[None]:
    """For a process that is about to end: an unavailable store is a warning then, not a failure."""
    from clew.domain.errors import StoreUnavailableError

    try:
        yield
    except StoreUnavailableError as error:
        warn(str(error))


def _fill_in_workers(
    options: GlobalOptions, names: Sequence[str], number: int, load: Sequence[str], *, once: bool, as_json: bool
) -> bool:
    """Fill in several processes; returns whether all of them succeeded."""
    from clew.domain.errors import ClewError
    from clew.service.projection_worker import Runner
    from clew.service.worker_processes import Workers, ended_by_signals

    with closing(_open(options, load)) as core, progress_bar("Filling") as progress:
        runner = Runner(core, names, progress)
        shares = _shares(_selected_names(core, names), number, once=once)
        workers = Workers(work, [(options, load, *share, as_json) for share in shares], warn, again=not once)

        def show_progress() -> None:
            with suppress(ClewError):  # the workers wait for an unavailable server, so this waits too
                runner.report_progress()

        with ended_by_signals(workers.stop):
            return workers.run(show_progress if sys.stderr.isatty() else lambda: None)


def _shares(names: Sequence[str], number: int, *, once: bool) -> list[tuple[Sequence[str], str | None]]:
    """The projections of each worker, and the name under which it takes leases. With ``once`` it needs no leases.

    A worker that replaces another one gets its name, and with it its leases.
    """
    from clew.service.projection_worker import worker_name

    if once:
        return [(share, None) for first in range(number) if (share := names[first::number])]
    own = worker_name()
    return [(names, f"{own}:{each + 1}") for each in range(number)]


def work(
    options: GlobalOptions,
    load: Sequence[str],
    names: Sequence[str],
    worker: str | None,
    as_json: bool,
    shard: str | None = None,
) -> None:
    """The body of a worker process. Without the name of a worker it fills once.

    With the name of a ``shard`` it opens the store at the current address in the directory, which may change.
    """

    def open_core() -> Core:
        return _open(options if shard is None else _shard_options(options, shard), load)

    try:
        if worker is None:
            with closing(open_core()) as core:
                _fill_once(core, names, lambda *_: None)
        else:
            _follow(open_core, names, lambda *_: None, worker=worker)
    except Exception as error:  # noqa: BLE001  # never a traceback
        sys.exit(report(error, as_json=as_json))


def _shard_options(options: GlobalOptions, name: str) -> GlobalOptions:
    from clew.service.shards import Shards

    directory = Shards.open(options.url)
    url = next(directory.url(shard) for shard in directory.shards() if shard.name == name)
    return GlobalOptions(url, options.tenant)


def _fill_shards(
    options: GlobalOptions,
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
    from clew.domain.errors import UnknownProjectionError
    from clew.service.projection_worker import worker_name
    from clew.service.shards import watch_shards
    from clew.service.worker_processes import Workers, ended_by_signals

    known_names = [projection.name for projection in _load_projections(load)]
    for name in names:
        if name not in known_names:
            raise UnknownProjectionError(name, sorted(known_names))
    own = worker_name()
    workers = Workers(work, (), warn, again=True)
    started: set[str] = set()
    ended = threading.Event()

    def start(shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.name not in started:
                started.add(shard.name)
                for each in range(number):
                    workers.add((options, load, names or known_names, f"{own}:{each + 1}", as_json, shard.name))

    watch_shards(directory.shards, start, ended)
    try:
        with ended_by_signals(workers.stop):
            workers.run()
    finally:
        ended.set()


def _statuses(core: Core, names: Sequence[str] | None) -> list[ProjectionStatus]:
    """The progress of these projections, by default of all. Raises UnknownProjectionError."""
    from clew.domain.errors import UnknownProjectionError
    from clew.service.projection_status import read_statuses

    statuses = {status.name: status for status in read_statuses(core.models.projector)}
    for name in names or ():
        if name not in statuses:
            raise UnknownProjectionError(name, list(statuses))
    return [statuses[name] for name in dict.fromkeys(names or statuses)]


def _write_statuses(statuses: Sequence[ProjectionStatus], *, as_json: bool) -> None:
    width = max((len(status.name) for status in statuses), default=0)
    for status in statuses:
        write_result(json_shapes.projection(status), _status_text(status, width), as_json=as_json)


def _status_text(status: ProjectionStatus, width: int) -> str:
    rebuilt = "" if status.built is None else f", rebuilt up to {status.built:,}"
    least = "" if status.lag_exact else "at least "
    lag = f", {least}{plural(status.lag, 'event')} and {status.lag_seconds:,.0f} s behind" if status.lag else ""
    worker = "" if status.worker is None else f", filled by {one_line(status.worker)}"
    place = f"position {status.position:,} of {status.last_position:,}{lag}{rebuilt}{worker}"
    lines = [f"{one_line(status.name):{width}}  version {status.version}  {status.state:8}  {place}"]
    for event in status.parked_events:
        where = f"position {event.position:,}: {event.stream} version {event.version}, {event.type}"
        lines.append(one_line(f"  skipped {where}: {event.error}"))
    if status.parked > len(status.parked_events):
        lines.append(f"  and {status.parked - len(status.parked_events):,} more")
    return "\n".join(lines)
