"""The candidates of tab completion. They are read from the store while the user waits at the keyboard."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "_CLEW_COMPLETE"
"""The environment variable by which a shell's script requests candidates, in Typer's protocol."""

MOST = 50
"""The most candidates in a list."""

TIMEOUT = 1.0
"""Seconds that a store has for its answer; a server may be far away."""


def requested() -> bool:
    """Whether a shell started this process to get candidates."""
    return bool(os.environ.get(VARIABLE))


def write(command: Callable[..., object]) -> None:
    """Write the candidates and nothing else, not even errors: a shell would show them within the command line."""
    from typer._completion_classes import completion_init  # Typer itself calls it only for its --show-completion

    with suppress(Exception, SystemExit):
        completion_init()
        command(args=[], prog_name="clew", standalone_mode=False)
        sys.stdout.flush()


def thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of threads with this prefix."""
    from clew.infrastructure import completion_names

    return _from_store(context, completion_names.thread_ids, incomplete)


def checkpoint_names(context: typer.Context, incomplete: str) -> list[str]:
    """The checkpoints of the thread that comes before in the command line."""
    from clew.infrastructure import completion_names

    return _of_thread(context, completion_names.checkpoint_names, incomplete)


def scope_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of memory scopes with this prefix."""
    from clew.infrastructure import completion_names

    return _from_store(context, completion_names.scope_names, incomplete)


def model_calls(context: typer.Context, incomplete: str) -> list[str]:
    """The versions of the model calls of the thread that comes before in the command line, newest first."""
    from clew.infrastructure import completion_names

    thread = context.params.get("thread")
    return _from_store(context, completion_names.model_calls, thread, incomplete) if isinstance(thread, str) else []


def record_types(context: typer.Context, incomplete: str) -> list[str]:
    """The types of the records of the thread that comes before in the command line."""
    from clew.infrastructure import completion_names

    return _of_thread(context, completion_names.record_types, incomplete)


def record_keys(context: typer.Context, incomplete: str) -> list[str]:
    """The keys of the records of the thread that comes before in the command line."""
    from clew.infrastructure import completion_names

    return _of_thread(context, completion_names.record_keys, incomplete)


def _of_thread(context: typer.Context, names: Callable[..., list[str]], incomplete: str) -> list[str]:
    """Names in the thread that comes before an option in the command line."""
    # Typer does not parse the arguments before an option that has no value yet: then the thread is the first of them.
    thread = context.params.get("thread") or next(iter(context.args), None)
    return _from_store(context, names, thread, incomplete) if isinstance(thread, str) else []


def projection_names(incomplete: str) -> list[str]:
    """The projections that ship with Clew and have this prefix."""
    from clew.projections import SHIPPED

    return [each.name for each in SHIPPED if each.name.startswith(incomplete)]


def shard_names(context: typer.Context, incomplete: str) -> list[str]:
    """The shards of the directory that ``--db`` names, with this prefix."""
    from clew.infrastructure.shards.store import shard_directory

    url = context.find_root().params["db"]
    return _in_time(lambda: [each.name for each in shard_directory(url).shards() if each.name.startswith(incomplete)])


def _from_store(context: typer.Context, query: Callable[..., list[str]], *arguments: str) -> list[str]:
    """The result of a query of ``completion_names`` in the store of the command line."""
    from clew.infrastructure.stores import store_at

    options = context.find_root().params

    def read() -> list[str]:
        with closing(store_at(options["db"]).list_names(options["tenant"])) as names:
            return query(names, options["tenant"], *arguments, MOST)

    return _in_time(read)


def _in_time(read: Callable[[], list[str]]) -> list[str]:
    """The names; none if reading fails or takes too long."""
    names: list[str] = []

    def run() -> None:
        with suppress(Exception):
            names.extend(read())

    thread = threading.Thread(target=run, name="clew-completion", daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return list(names)
