"""Tab completion: the scripts for the shells, where they go, and what they are answered with."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias, get_args

import typer

from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson
from clew.cli.output import one_line, write_json

if TYPE_CHECKING:
    from collections.abc import Callable


Shell: TypeAlias = Literal["bash", "zsh", "fish"]

ASKED = "_CLEW_COMPLETE"
"""Where a shell's script says in the environment that it wants candidates, and in which form."""


class Installed(NamedTuple):
    """Where a script was written, and the file of the shell's that now reads it; None where the shell finds it."""

    script: Path
    startup: Path | None


def asked() -> bool:
    """Whether it is a shell that started the command, for candidates."""
    return bool(os.environ.get(ASKED))


def answer(command: Callable[..., object]) -> None:
    """Write the candidates, and nothing else, whatever happens: a shell would show it in the middle of a line."""
    from typer._completion_classes import completion_init  # Typer does it only for options of its own

    with suppress(Exception, SystemExit):
        completion_init()
        command(args=[], prog_name="clew", standalone_mode=False)
        sys.stdout.flush()


def completion(
    context: typer.Context,
    shell: Annotated[
        Shell | None, typer.Argument(metavar="[bash|zsh|fish]", help="The shell; by default the one that SHELL names.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Have every shell that starts from now on read it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the script for tab completion in a shell. It completes threads and checkpoints, too."""
    chosen = shell or current_shell()
    if chosen is None:
        raise WrongUsage(context, "SHELL names no shell that there is completion for. Say bash, zsh or fish")
    done = install_script(chosen) if install else None
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.completion(chosen, script(chosen), done))
    elif done is None:
        typer.echo(script(chosen), nl=False)
    else:
        reads = "which fish finds" if done.startup is None else f"which {one_line(str(done.startup))} now reads"
        typer.echo(f"Wrote {one_line(str(done.script))}, {reads}. It works in the next shell that you start.")


def current_shell() -> Shell | None:
    """The shell that SHELL names, None if it is none that there is a script for."""
    name = Path(os.environ.get("SHELL", "")).name
    return next((shell for shell in get_args(Shell) if shell == name), None)


def script(shell: Shell) -> str:
    """The script that a shell reads."""
    return resources.files("clew.cli").joinpath(f"completion.{shell}").read_text(encoding="utf-8")


def install_script(shell: Shell) -> Installed:
    """Write the script, and have the shell read it when it starts. Again changes nothing."""
    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
        return Installed(_write(folder / "clew.fish", script(shell)), None)
    folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "clew"
    written = _write(folder / f"completion.{shell}", script(shell))
    startup = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    quoted = shlex.quote(str(written))
    line = f"[ -f {quoted} ] && . {quoted} # tab completion of clew\n"
    there = startup.read_text(encoding="utf-8", errors="surrogateescape") if startup.exists() else ""
    if line not in there:
        between = "" if there.endswith("\n") or not there else "\n"
        with startup.open("a", encoding="utf-8") as file:
            file.write(f"{between}{line}")
    return Installed(written, startup)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
