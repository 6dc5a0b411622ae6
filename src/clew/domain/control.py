"""The small state that decisions need: bounded, never the history."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.events import (
    MESSAGE_APPENDED,
    CheckpointMade,
    Event,
    HistoryRewound,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import RunResumed, RunStarted, ServiceThreadBound
from clew.domain.runs.open_run import OpenRun, run_after

Status: TypeAlias = Literal["active", "suspended", "ended", "deleted"]

_STATUS_AFTER: dict[str, Status] = {
    "thread-suspended": "suspended",
    "thread-resumed": "active",
    "thread-ended": "ended",
    "thread-deleted": "deleted",
}

SNAPSHOT_EVERY = 128
"""Versions between two snapshots of the control: what an append or a fork folds at the most."""


class Control(NamedTuple):
    """What is true of a thread at a version, but for its history.

    ``head`` is the hash of the version, empty where it is not recorded yet; ``messages`` counts those on the
    path; ``checkpoints`` maps names to versions; times are microseconds since 1970; ``source_id`` is the id of the
    conversation that was imported as this thread; ``run`` is the run that has begun and not ended;
    ``agents`` maps the ids of agents to the version where each last began, or went on with, a run;
    ``service_thread_id`` is what the service that holds the thread calls it; ``as_of`` is the cut, by thread and
    version, as of which it reads memory scopes, None when it reads them as they are. Nothing in it is changed in place.
    """

    # The first four change with every event.
    version: int = 0
    head: bytes = b""
    messages: int = 0
    updated_at: int = 0
    status: Status = "active"
    title: str | None = None
    labels: JsonObject = {}  # noqa: RUF012  # nothing in a control is changed in place
    metadata: JsonObject = {}  # noqa: RUF012  # the same
    imported: bool = False
    source_id: Json = None
    checkpoints: dict[str, int] = {}  # noqa: RUF012  # the same
    parent_id: str | None = None
    forked_at: int | None = None
    created_at: int = 0
    kind: ThreadKind = "local"
    run: OpenRun | None = None
    agents: dict[str, int] = {}  # noqa: RUF012  # the same
    service_thread_id: str | None = None
    as_of: tuple[str, int] | None = None


def detached(control: Control) -> Control:
    """The same, sharing nothing that could be changed in place."""
    return control._replace(
        labels=deepcopy(control.labels),
        metadata=deepcopy(control.metadata),
        checkpoints=dict(control.checkpoints),
        agents=dict(control.agents),
    )


def advance(control: Control, event: Event) -> Control:
    """The control after one more event of the lineage."""
    data = event.data
    messages = control.messages if event.messages < 0 else event.messages
    updated_at = max(control.updated_at, event.recorded_at)
    then = Control(event.version, event.hash or b"", messages, updated_at, *control[4:])
    if event.type == MESSAGE_APPENDED:  # by far the most
        return then
    match data:
        case ThreadStarted():
            return then._replace(
                title=data.title,
                labels={key: value for key, value in data.labels.items() if value is not None},
                metadata=data.metadata,
                imported=data.source is not None,
                source_id=None if data.source is None else data.source.id,
                created_at=event.recorded_at,
                kind=data.kind,
            )
        case ThreadForked():
            return then._replace(
                run=None,
                kind=data.kind or control.kind,
                status="active",
                title=control.title if data.title is None else data.title,
                imported=False,
                source_id=None,
                parent_id=data.parent_id,
                forked_at=data.parent_version,
                created_at=event.recorded_at,
                as_of=_as_of(control, data),
            )
        case ThreadLabelled():
            merged = {**control.labels, **data.labels}
            return then._replace(labels={key: value for key, value in merged.items() if value is not None})
        case CheckpointMade():
            return then._replace(checkpoints={**control.checkpoints, data.name: data.at})
        case ThreadSuspended() | ThreadResumed() | ThreadEnded() | ThreadDeleted():
            over = isinstance(data, ThreadEnded | ThreadDeleted)
            return then._replace(status=_STATUS_AFTER[event.type], run=None if over else control.run)
        case HistoryRewound(service_thread_id=service_thread_id):
            # What began on the path that was left does not go on.
            return then._replace(run=None, service_thread_id=service_thread_id)
        case ServiceThreadBound(id=service_thread_id):
            return then._replace(service_thread_id=service_thread_id)
        case RunStarted(agent=agent) | RunResumed(agent=agent):
            run = run_after(control.run, event.version, event.run_id, data)
            return then._replace(run=run, agents={**control.agents, agent.id: event.version})
        case _:
            run = run_after(control.run, event.version, event.run_id, data)
            return then if run is control.run else then._replace(run=run)


def _as_of(control: Control, forked: ThreadForked) -> tuple[str, int] | None:
    """As of which cut a fork reads memory scopes: unless it says so itself, as its parent does."""
    if forked.memory is None:
        return control.as_of
    return (forked.parent_id, forked.parent_version) if forked.memory == "as-of" else None
