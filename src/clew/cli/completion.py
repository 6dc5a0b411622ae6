"""Tab completion: the scripts for the shells, where they go, and what they are answered with."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from clew.infrastructure.name_listing import Glance

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

ASKED = "_CLEW_COMPLETE"
"""Where a shell's script says in the environment that it wants candidates, and in which form."""

MOST = 50
"""Candidates at the most: more than that nobody reads."""


PATIENCE = 1.0
"""Seconds: somebody has pressed a key and waits for the answer, and a server may be far away."""


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


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of threads that begin so."""
    from clew.infrastructure import name_listing

    return _found(context, lambda glance, tenant: name_listing.thread_ids(glance, tenant, incomplete, MOST))


def checkpoint_names(context: typer.Context, incomplete: str) -> list[str]:
    """The checkpoints of the thread that is named before, if it is."""
    from clew.infrastructure import name_listing

    # Before an option that has no value yet, arguments are not sorted out: then the thread is the first of them.
    thread = context.params.get("thread") or next(iter(context.args), None)
    if not isinstance(thread, str):
        return []
    return _found(
        context, lambda glance, tenant: name_listing.checkpoint_names(glance, tenant, thread, incomplete, MOST)
    )


def scope_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of memory scopes that begin so."""
    from clew.infrastructure import name_listing

    return _found(context, lambda glance, tenant: name_listing.scope_names(glance, tenant, incomplete, MOST))


def model_calls(context: typer.Context, incomplete: str) -> list[str]:
    """The versions of the model calls of the thread that is named before, the newest first."""
    from clew.infrastructure import name_listing

    thread = context.params.get("thread")
    if not isinstance(thread, str):
        return []
    return _found(context, lambda glance, tenant: name_listing.model_calls(glance, tenant, thread, incomplete, MOST))


def projection_names(incomplete: str) -> list[str]:
    """The projections that ship, as far as their names begin so."""
    from clew.projections import SHIPPED

    return [each.name for each in SHIPPED if each.name.startswith(incomplete)]


def shard_names(context: typer.Context, incomplete: str) -> list[str]:
    """The shards of the directory that is named, as far as their names begin so."""
    from clew.infrastructure import urls

    def names() -> list[str]:
        shards = urls.directory(context.find_root().params["db"]).shards()
        return [shard.name for shard in shards if shard.name.startswith(incomplete)]

    return _in_time(names)


def current_shell() -> Shell | None:
    """The shell that SHELL names, None if it is none that there is a script for."""
    name = Path(os.environ.get("SHELL", "")).name
    return next((shell for shell in get_args(Shell) if shell == name), None)


def script(shell: Shell) -> str:
    """The script that a shell reads."""
    return resources.files("clew.cli").joinpath(f"completion.{shell}").read_text(encoding="utf-8")


def install(shell: Shell) -> Installed:
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


def _found(context: typer.Context, look: Callable[[Glance, str], list[str]]) -> list[str]:
    """What the store that the options before the command name is asked for, if it answers in time."""
    from clew.infrastructure import urls

    chosen = context.find_root().params

    def names() -> list[str]:
        with closing(urls.glance(chosen["db"], tenant=chosen["tenant"])) as glance:
            return look(glance, chosen["tenant"])

    return _in_time(names)


def _in_time(names: Callable[[], list[str]]) -> list[str]:
    """The names, none if that fails or takes too long."""
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):
            found.extend(names())

    asking = threading.Thread(target=ask, name="clew-completion", daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return list(found)
