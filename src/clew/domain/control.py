"""The small state that decisions need: bounded, never the history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from clew.domain.events import (
    CheckpointMade,
    Event,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.json_values import Json, JsonObject

Status: TypeAlias = Literal["active", "suspended", "ended", "deleted"]

SNAPSHOT_EVERY = 128
"""Versions between two snapshots of the control: what an append or a fork folds at the most."""


@dataclass(frozen=True, slots=True)
class Control:
    """What is true of a thread at a version, but for its history.

    ``messages`` counts those on the path; ``checkpoints`` maps names to versions; times are microseconds since 1970;
    ``source_id`` is the id of the conversation that was imported as this thread.
    """

    version: int = 0
    status: Status = "active"
    title: str | None = None
    labels: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    imported: bool = False
    source_id: Json = None
    checkpoints: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    parent_id: str | None = None
    forked_at: int | None = None
    created_at: int = 0
    updated_at: int = 0


def advance(control: Control, event: Event) -> Control:
    """The control after one more event of the lineage."""
    data = event.data
    then = replace(
        control,
        version=event.version,
        messages=control.messages if event.messages < 0 else event.messages,
        updated_at=max(control.updated_at, event.recorded_at),
    )
    match data:
        case ThreadStarted():
            return replace(
                then,
                title=data.title,
                labels=data.labels,
                metadata=data.metadata,
                imported=data.source is not None,
                source_id=None if data.source is None else data.source.id,
                created_at=event.recorded_at,
            )
        case ThreadForked():
            return replace(
                then,
                status="active",
                title=control.title if data.title is None else data.title,
                imported=False,
                source_id=None,
                parent_id=data.parent_id,
                forked_at=data.parent_version,
                created_at=event.recorded_at,
            )
        case ThreadLabelled():
            merged = {**control.labels, **data.labels}
            return replace(then, labels={key: value for key, value in merged.items() if value is not None})
        case CheckpointMade():
            return replace(then, checkpoints={**control.checkpoints, data.name: data.at})
        case ThreadSuspended():
            return replace(then, status="suspended")
        case ThreadResumed():
            return replace(then, status="active")
        case ThreadEnded():
            return replace(then, status="ended")
        case ThreadDeleted():
            return replace(then, status="deleted")
        case _:
            return then
