"""Commands that fill projections, show how far they are and build them anew: project and rebuild."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from clew.cli.bars import position_bar
from clew.cli.failures import WrongUsage
from clew.cli.options import AsJson
from clew.cli.text import one_line, write_json

if TYPE_CHECKING:
    from clew.cli.stores import Chosen
    from clew.domain.projection import Projection
    from clew.service.core import Core
    from clew.service.read_models import ProjectionStatus
    from clew.service.running import Runner

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
        list[str] | None, typer.Option("--name", metavar="NAME", help="This projection; repeatable. By default all.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Fill what there is, then end.")] = False,
    load: LoadOption = None,
    as_json: AsJson = False,
) -> None:
    """Fill projections as events come, or show how far they are."""
    if once and action != "run":
        raise WrongUsage(context, "--once is for run: fill what there is, then end")
    with closing(_opened(context, load)) as core:
        if action == "run":
            _run(core, names or (), once=once)
        found = _statuses(core, names)
    _write(found, as_json=as_json)


def rebuild(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Projections.")] = None,
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
    """The store, which fills nothing by itself."""
    from clew.infrastructure import clock
    from clew.service.core import open_core

    chosen: Chosen = context.obj
    shown = _projections(context, load or ())
    return open_core(chosen.url, tenant=chosen.tenant, create=False, now=clock.now, projections=shown, embedded=False)


def _projections(context: typer.Context, load: Sequence[str]) -> list[Projection]:
    """Those that are shipped, and those that are to be loaded."""
    from clew.projections import SHIPPED

    found: list[Any] = list(SHIPPED)
    if load:
        sys.path.insert(0, "")
    for each in load:
        module, _, name = each.partition(":")
        if not module or not name:
            raise WrongUsage(context, f"--load {each!r}: write the name of a module, a colon and the name of an object")
        try:
            loaded: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise WrongUsage(context, f"--load {each!r}: {error}") from error
        made = loaded() if isinstance(loaded, type) else loaded
        own = list(made) if isinstance(made, list | tuple) else [made]
        if not all(hasattr(one, "project") and hasattr(one, "tables") for one in own):
            raise WrongUsage(context, f"--load {each!r}: that is no projection")
        found += own
    return found


def _run(core: Core, names: Sequence[str], *, once: bool) -> None:
    """Fill until there is nothing more to do or, unless it is to be once, until SIGINT or SIGTERM come."""
    from clew.service.running import Runner

    with position_bar("Filling") as progress:
        runner = Runner(core, names, progress)
        with _ended_by_signals(runner):
            if once:
                runner.run()
            else:
                runner.follow()


@contextmanager
def _ended_by_signals(runner: Runner) -> Iterator[None]:
    """Let the signals that end a service end it after the batch that it is at."""
    before = {number: signal.signal(number, lambda *_: runner.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _statuses(core: Core, names: Sequence[str] | None) -> list[ProjectionStatus]:
    """How far these are, by default all. Raises UnknownProjectionError."""
    from clew.domain.errors import UnknownProjectionError
    from clew.service.operations import run

    found = {each.name: each for each in run(core.models.statuses())}
    for name in names or ():
        if name not in found:
            raise UnknownProjectionError(name, list(found))
    return [found[name] for name in dict.fromkeys(names or found)]


def _write(found: Sequence[ProjectionStatus], *, as_json: bool) -> None:
    from clew.cli import shapes

    width = max((len(each.name) for each in found), default=0)
    for each in found:
        if as_json:
            write_json(shapes.projection(each))
            continue
        built = "" if each.built is None else f", built anew up to {each.built:,}"
        behind = f", {each.lag_seconds:,.0f} s behind" if each.lag else ""
        place = f"position {each.position:,} of {each.last_position:,}{behind}{built}"
        typer.echo(f"{one_line(each.name):{width}}  version {each.version}  {each.state:8}  {place}")
        for parked in each.parked_events:
            where = f"position {parked.position:,}: {parked.stream} version {parked.version}, {parked.type}"
            typer.echo(one_line(f"  went on without {where}: {parked.error}"))
        if each.parked > len(each.parked_events):
            typer.echo(f"  and {each.parked - len(each.parked_events):,} more")
