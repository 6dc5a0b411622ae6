"""The shapes of the JSON that ``clew memory`` writes: stable, and documented in docs/cli.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.cli.shapes import message
from clew.cli.text import json_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.domain.memory.facts import Fact, Found, Use, Why
    from clew.service.memory.scope_queries import ScopeSummary


def scope(found: ScopeSummary) -> dict[str, Any]:
    """A memory scope in a list."""
    times = {"opened_at": json_time(found.opened_at), "updated_at": json_time(found.updated_at)}
    return {**found._asdict(), **times}


def fact(found: Fact) -> dict[str, Any]:
    """A fact as it was at the version that the scope was read at."""
    return {
        "scope": found.scope,
        "fact": found.id,
        "text": found.text,
        "key": found.key,
        "kind": found.kind,
        "status": found.status,
        "version": found.version,
        "recorded_at": json_time(found.recorded_at),
        "valid_from": json_time(found.valid_from),
        "valid_to": None if found.valid_to is None else json_time(found.valid_to),
        "learned": None if found.learned is None else found.learned.model_dump(),
        "promoted": None if found.promoted is None else found.promoted.model_dump(),
        "replaces": found.replaces,
        "actor": found.actor,
        "metadata": found.metadata,
    }


def found(each: Found) -> dict[str, Any]:
    """A fact that was found, with how well."""
    return {**fact(each.fact), "score": each.score}


def why(told: Why, uses: Sequence[Use]) -> dict[str, Any]:
    """Where a fact came from, and the model calls that were given it."""
    return {**_why(told), "used_by": [use._asdict() for use in uses]}


def _why(told: Why) -> dict[str, Any]:
    return {
        "fact": fact(told.fact),
        "thread_id": told.thread_id,
        "version": told.version,
        "message": None if told.message is None else message(told.message),
        "redacted": told.redacted,
        "promoted_from": None if told.promoted_from is None else _why(told.promoted_from),
    }
