"""The command that sets up tab completion in a shell: completion."""

from __future__ import annotations

import os
import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

import typer

from clew.cli.app import command
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson
from clew.cli.output import one_line, write_json
from clew.cli.rendering import json_shapes

Shell: TypeAlias = Literal["bash", "zsh", "fish"]


class Installation(NamedTuple):
    """The script that was written, and the start-up file that reads it; None for a shell that finds it itself."""

    script: Path
    startup: Path | None


@command(
    'eval "$(clew completion bash)"', "clew completion fish | source", "clew completion --install", heading="Begin"
)
def completion(
    shell: Annotated[
        Shell | None, typer.Argument(metavar="bash|zsh|fish", help="The shell; by default the one that SHELL names.")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Set it up for every shell that you start later.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the script for tab completion in a shell. It completes threads and checkpoints, too."""
    shell = shell or current_shell()
    if shell is None:
        raise WrongUsage("SHELL does not name a supported shell. Give bash, zsh or fish")
    installation = install_script(shell) if install else None
    if as_json:
        write_json(json_shapes.completion(shell, read_script(shell), installation))
    elif installation is None:
        typer.echo(read_script(shell), nl=False)
    else:
        file, startup = installation
        reader = "which fish finds" if startup is None else f"which {one_line(str(startup))} now reads"
        typer.echo(f"Wrote {one_line(str(file))}, {reader}. It works in the next shell that you start.")


def current_shell() -> Shell | None:
    """The shell that SHELL names; None if there is no script for it."""
    name = Path(os.environ.get("SHELL", "")).name
    return next((shell for shell in get_args(Shell) if shell == name), None)


def read_script(shell: Shell) -> str:
    """The script for a shell."""
    return resources.files("clew.cli.commands").joinpath(f"completion.{shell}").read_text(encoding="utf-8")


def install_script(shell: Shell) -> Installation:
    """Write the script and make the shell read it when it starts. A second call changes nothing."""
    home = Path.home()
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
        return Installation(_write(folder / "clew.fish", read_script(shell)), None)
    folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "clew"
    file = _write(folder / f"completion.{shell}", read_script(shell))
    startup = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    quoted = shlex.quote(str(file))
    line = f"[ -f {quoted} ] && . {quoted} # tab completion of clew\n"
    existing = startup.read_text(encoding="utf-8", errors="surrogateescape") if startup.exists() else ""
    if line not in existing:
        between = "" if existing.endswith("\n") or not existing else "\n"
        with startup.open("a", encoding="utf-8") as opened:
            opened.write(f"{between}{line}")
    return Installation(file, startup)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
