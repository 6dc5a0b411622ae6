"""The application: how commands are declared, the options before them, and the way from arguments to an exit code."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from clew.cli import INTERRUPTED, candidates, commands
from clew.cli.errors import FAILED, USAGE, WrongUsage, report
from clew.cli.options import DEFAULT_TENANT, DEFAULT_URL, GlobalOptions

Heading: TypeAlias = Literal["Begin", "Read", "Branch and go back", "Change", "Audit and export", "Maintain", "Other"]
"""The headings of ``clew --help``, in its order."""

SIMILAR = 0.75
"""How similar a command must be to a mistyped one for a suggestion: 1 is the same name."""

EVERYWHERE = ("db", "tenant")
"""The options before the command that may also come after it."""

Function = TypeVar("Function", bound=Callable[..., None])


class Commands(typer.Typer):
    """Commands that are called by name: those of ``clew`` itself, or those of a group such as ``clew memory``."""

    def declare(
        self, *examples: str, heading: Heading = "Other", name: str | None = None
    ) -> Callable[[Function], Function]:
        """Add a command. Its name is the function's unless ``name`` is given, and its docstring is its help."""
        # \b makes Typer keep the lines that follow as they are.
        epilog = "\n".join(("\b", "Examples:", *(f"  {example}" for example in examples)))
        return self.command(name, cls=_Command, epilog=epilog, rich_help_panel=heading)


class _Command(TyperCommand):
    """A command that takes ``--db`` and ``--tenant`` too.

    Its help names its arguments as the documents do: without Python types and braces.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command, and those that may also come before it."""
        before = ctx.find_root().command.params
        return [*super().get_params(ctx), *(each for each in before if each.name in EVERYWHERE)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. ``--db`` and ``--tenant`` replace those before the command."""
        rest = super().parse_args(ctx, args)
        root = ctx.find_root()
        for name in EVERYWHERE:
            value, source = ctx.params.pop(name, None), ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                root.params[name] = value
        if ctx.obj is not None:  # it is during completion
            ctx.obj.url, ctx.obj.tenant = (root.params[name] for name in EVERYWHERE)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments of the usage line: FILE... instead of {FILE}..., but {run|status}."""
        return [re.sub(r"^\{([^|]+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options in two columns each, as Typer does."""
        own = super().get_params(ctx)
        records = [(param.param_type_name, param.get_help_record(ctx)) for param in own]
        for kind in ("argument", "option"):
            rows = [
                (re.sub(r" <.*>$", "", record[0]), record[1]) for name, record in records if record and name == kind
            ]
            if rows:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(rows)


class _Group(TyperGroup):
    """Commands that are called by name. For an unknown name, an error suggests a command only if it is very similar."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command and its arguments. Raises TyperException."""
        self.suggest_commands = False  # Typer suggests `end` for `append`
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException:
            from difflib import get_close_matches

            for name in get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=SIMILAR):
                raise WrongUsage(f"No such command {args[0]!r}. Did you mean {name!r}?", ctx=ctx) from None
            raise


class _HelpUnderHeadings(_Group):
    """Lists commands under their headings. Typer does that only with rich, which is too slow to import for help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands in two columns; the columns are the same under all headings."""
        commands = {name: self.get_command(ctx, name) for name in sorted(self.list_commands(ctx))}
        visible = {name: command for name, command in commands.items() if command is not None and not command.hidden}
        name_width = max(map(len, visible), default=0)
        help_width = formatter.width - name_width - 4  # without the indent and the space between the columns
        for heading in get_args(Heading):
            rows = [
                (name.ljust(name_width), command.get_short_help_str(help_width))
                for name, command in visible.items()
                if getattr(command, "rich_help_panel", None) == heading
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


app = Commands(
    name="clew",
    cls=_HelpUnderHeadings,
    add_completion=False,  # `clew completion` writes scripts that complete more
    rich_markup_mode=None,  # importing rich for the help would use up the time that start-up may take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `clew demo`, or with `clew import FILE`. `clew COMMAND --help` shows examples.",
)

command = app.declare
"""Declares a command of ``clew`` itself."""


def group(name: str, *, heading: Heading, help_: str, epilog: str) -> Commands:
    """A group of commands below ``clew``; its name alone shows its help, with the exit code for wrong usage."""
    commands = Commands(
        name=name, cls=_Group, invoke_without_command=True, rich_markup_mode=None, help=help_, epilog=epilog
    )
    commands.callback()(_help_without_command)
    app.add_typer(commands, help=help_, rich_help_panel=heading)
    return commands


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"clew {version('clew')}")
        raise typer.Exit


def _expand_user(db: str) -> str:
    """The shell expands ``--db ~/clew.db``, but not ``--db=~/clew.db``."""
    return os.path.expanduser(db)  # noqa: PTH111 - pathlib would change the slashes of a URL


@app.callback(invoke_without_command=True)
def clew(
    context: typer.Context,
    db: Annotated[
        str,
        typer.Option(
            "--db",
            envvar="CLEW_DB",
            metavar="URL",
            callback=_expand_user,
            help="The database: a URL, or the path of a file.",
        ),
    ] = DEFAULT_URL,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="The tenant that the threads belong to.")
    ] = DEFAULT_TENANT,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Conversations as event streams: fork, rewind, read at any past version, verify."""
    del version
    _help_without_command(context)
    options: GlobalOptions = context.obj
    options.url, options.tenant, options.command = db, tenant, context.invoked_subcommand or ""


@cache
def root_command() -> Any:
    """The application with every command of ``clew.cli.commands``. Building it takes longer than most commands do."""
    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}")
    return get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code. Raises nothing but KeyboardInterrupt."""
    if candidates.requested():
        candidates.write(root_command())
        return 0
    as_json, options = "--json" in arguments, GlobalOptions()
    if sys.stdout is None:  # it was closed before Python started
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # text for people: a terminal may not have every character
    try:
        result = root_command()(args=list(arguments), prog_name="clew", standalone_mode=False, obj=options)
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as stop:  # Typer exits by itself when a pipe is broken
        return _discard_output() if stop.code == FAILED else int(stop.code or 0)
    except Exception as error:  # noqa: BLE001  # never a traceback
        return report(error, as_json=as_json, options=options)
    code = result if isinstance(result, int) else 0
    return report(KeyboardInterrupt(), as_json=as_json) if code == INTERRUPTED else code


def _discard_output() -> int:
    """The reader of a pipe has left: discard what is still buffered, also when Python ends."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        os.close(null)
    except (OSError, ValueError):
        return FAILED
    return FAILED
