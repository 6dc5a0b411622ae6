"""The candidates of tab completion: what a store is asked for while somebody waits at the keyboard."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from clew.infrastructure.name_listing import NameListing

MOST = 50
"""Candidates at the most: more than that nobody reads."""

PATIENCE = 1.0
"""Seconds: somebody has pressed a key and waits for the answer, and a server may be far away."""


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
    from clew.infrastructure.shards.store import shard_directory

    def names() -> list[str]:
        shards = shard_directory(context.find_root().params["db"]).shards()
        return [shard.name for shard in shards if shard.name.startswith(incomplete)]

    return _in_time(names)


def _found(context: typer.Context, look: Callable[[NameListing, str], list[str]]) -> list[str]:
    """What the store that the options before the command name is asked for, if it answers in time."""
    from clew.infrastructure.stores import store_at

    chosen = context.find_root().params

    def names() -> list[str]:
        with closing(store_at(chosen["db"]).list_names(chosen["tenant"])) as glance:
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
