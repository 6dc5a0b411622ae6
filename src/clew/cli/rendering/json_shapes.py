"""The shapes of the JSON that commands write: stable, and documented in docs/cli.md."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from clew.cli.output import json_time
from clew.domain.events import TYPE_NAMES, Event, Opaque, Shredded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.cli.commands.completion import Installed
    from clew.domain.differences.content_diff import FieldDiff
    from clew.domain.differences.diff import Diff, DiffRow
    from clew.domain.fork_tree import Branch
    from clew.domain.formats.conversation_import import ImportReport
    from clew.domain.formats.event_import import EventsReport
    from clew.domain.history import History, HistoryMessage, Step
    from clew.domain.memory.facts import Fact, FactOrigin, FactUse, FoundFact
    from clew.domain.ports import Verdict
    from clew.domain.runs.requests import Request
    from clew.domain.runs.summaries import Contribution, RunSummary
    from clew.infrastructure.stores import Schemas
    from clew.service.audit_trail import AuditEntry
    from clew.service.memory.scope_queries import ScopeSummary
    from clew.service.message_search import Hit
    from clew.service.projection_status import ProjectionStatus
    from clew.service.thread_queries import ThreadSummary
    from clew.service.usage_queries import UsageCounts

_FAILURE = ("kind", "message", "status", "code")


def thread(summary: ThreadSummary) -> dict[str, Any]:
    """A thread in a list."""
    return {
        "thread_id": summary.id,
        "title": summary.title,
        "status": summary.status,
        "version": summary.version,
        "messages": summary.messages,
        "parent_id": summary.parent_id,
        "forked_at": summary.forked_at,
        "head": summary.head,
        "created_at": json_time(summary.created_at),
        "updated_at": json_time(summary.updated_at),
        "metadata": summary.metadata,
        "kind": summary.kind,
    }


def branch(found: Branch[ThreadSummary]) -> dict[str, Any]:
    """A thread in a tree, with the checkpoints that were made in it."""
    return {
        **thread(found.thread),
        "depth": found.depth,
        "forks": found.forks,
        "checkpoints": [mark._asdict() for mark in found.checkpoints],
    }


def hit(found: Hit) -> dict[str, Any]:
    """A message that was found."""
    return {
        "thread_id": found.thread_id,
        "version": found.version,
        "message": found.number,
        "position": found.position,
        "role": found.role,
        "author": found.author,
        "time": json_time(found.time),
        "actor": found.actor,
        "snippet": [part._asdict() for part in found.snippet],
        "forks": list(found.forks),
        "fork_count": found.fork_count,
    }


def audit_entry(found: AuditEntry) -> dict[str, Any]:
    """An entry of the audit trail."""
    return {**found._asdict(), "time": json_time(found.time)}


def usage(found: UsageCounts) -> dict[str, Any]:
    """Usage: of a thread, of a day, or in total."""
    counted = found._asdict()
    thread_id, day = counted.pop("thread_id"), counted.pop("day")
    if thread_id is not None:
        return {"thread_id": thread_id, **counted}
    return counted if day is None else {"day": day.isoformat(), **counted}


def history(found: History, runs: Sequence[RunSummary]) -> dict[str, Any]:
    """A thread's messages at a version, and its runs."""
    return {
        "thread_id": found.thread_id,
        "version": found.version,
        "messages": [message(each) for each in found],
        "runs": [_run(run) for run in runs],
    }


def _run(run: RunSummary) -> dict[str, Any]:
    found = run._asdict()
    found["agent"] = run.agent.model_dump()
    found["started_at"] = json_time(run.started)
    found["ended_at"] = None if run.ended is None else json_time(run.ended)
    found["error"] = None if run.error is None else {name: getattr(run.error, name) for name in _FAILURE}
    found["approvals"] = [asdict(each) for each in run.approvals]
    found["interrupted"] = [each._asdict() for each in run.interrupted]
    found["context"] = [_contribution(each) for each in run.context]
    return found


def _contribution(found: Contribution) -> dict[str, Any]:
    """An event about what a model received besides the history, or what was left out; a stable shape for each type."""
    event = found.said
    shape: dict[str, Any] = {"version": found.version, "type": TYPE_NAMES[type(event)]}
    for name in type(event).model_fields:
        shape[name] = _plain(getattr(event, name))
    return shape


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.model_dump() if isinstance(value, BaseModel) else value


def event(found: Event) -> dict[str, Any]:
    """An event with its envelope. ``thread_id`` is the thread that recorded it: of an inherited event, the ancestor."""
    return {
        "thread_id": found.thread_id,
        "version": found.version,
        "position": found.position,
        "type": found.type,
        "time": json_time(found.time),
        "actor": found.actor,
        "event_id": found.event_id,
        "data": _data(found),
        "hash": None if found.hash is None else found.hash.hex(),
        "run_id": found.run_id,
    }


def step(found: Step) -> dict[str, Any]:
    """A step of a replay: the event, and the state of the thread after it."""
    return {
        "thread_id": found.event.thread_id,
        "version": found.version,
        "type": found.event.type,
        "time": json_time(found.event.time),
        "actor": found.event.actor,
        "status": found.status,
        "messages": found.control.messages,
        "checkpoints": list(found.checkpoints),
        "data": _data(found.event),
    }


def diff(found: Diff, *, everything: bool = False) -> dict[str, Any]:
    """Two histories side by side; the rows that they share only with ``everything``."""
    return {
        "a": _compared(found.a),
        "b": _compared(found.b),
        "shared": {"messages": found.shared, "version": found.shared_version},
        "counts": found.counts._asdict(),
        "rows": [_row(row) for row in (found.rows if everything else found.rows[found.shared :])],
    }


def report(found: ImportReport) -> dict[str, Any]:
    """The result of an import."""
    return {**found._asdict(), "failed": [failure._asdict() for failure in found.failed]}


def checkpoint(thread_id: str, name: str, version: int) -> dict[str, Any]:
    """A checkpoint."""
    return {"thread_id": thread_id, "name": name, "version": version}


def rewound(there: History, version: int) -> dict[str, Any]:
    """The version of a rewind, and the version that the thread is back at."""
    return {"thread_id": there.thread_id, "version": version, "to": there.version, "messages": len(there)}


def labelled(summary: ThreadSummary) -> dict[str, Any]:
    """All labels of a thread."""
    return {"thread_id": summary.id, "version": summary.version, "labels": summary.labels}


def request(thread_id: str, path: str, found: Request) -> dict[str, Any]:
    """The rebuilt request of a model call, and whether it is what was sent."""
    return {
        "thread_id": thread_id,
        "version": found.version,
        "client": found.client,
        "model": found.model,
        "path": path,
        "digest": found.digest,
        "verified": found.verified,
        "redacted": list(found.redacted),
        "body": found.body,
    }


def redacted(message: Event, recorded: int) -> dict[str, Any]:
    """A redacted message in the thread that recorded it, and the version of the event that redacted it."""
    return {"thread_id": message.thread_id, "message": message.version, "version": recorded}


def migration(path: str, found: Schemas, backup: str | None) -> dict[str, Any]:
    """The schema of a database before and after a migration, and the backup that was made."""
    made = None if found.found == found.known else backup
    return {"database": path, "from": found.found, "to": found.known, "backup": made}


def projection(found: ProjectionStatus) -> dict[str, Any]:
    """The progress of a projection."""
    return {**found._asdict(), "parked_events": [each._asdict() for each in found.parked_events]}


def completion(shell: str, script: str, done: Installed | None) -> dict[str, Any]:
    """The script for a shell, and where it was installed, if at all."""
    return {
        "shell": shell,
        "script": script,
        "installed": None if done is None else str(done.script),
        "read_by": None if done is None or done.startup is None else str(done.startup),
    }


def events_report(found: Sequence[tuple[str, EventsReport]]) -> dict[str, Any]:
    """The result of an import of files with events, by file."""
    failed = []
    for file, report in found:
        failed += [{"file": file, "line": each.line, "error": str(each.error)} for each in report.failed]
        if report.torn:
            error = "The file has no end. It was imported up to this line; import the complete file to continue."
            failed.append({"file": file, "line": report.line, "error": error})
    return {
        "threads": sum(report.threads for _, report in found),
        "messages": sum(report.messages for _, report in found),
        "events": sum(report.events for _, report in found),
        "skipped": sum(report.skipped for _, report in found),
        "definitions": sum(report.definitions for _, report in found),
        "torn": any(report.torn for _, report in found),
        "failed": failed,
    }


def verdict(found: Verdict) -> dict[str, Any]:
    """The result of a verification."""
    bad = found.first_bad
    return {
        "ok": bad is None,
        "threads": found.threads,
        "events": found.events,
        "first_bad": None if bad is None else bad._asdict(),
    }


def _compared(found: History) -> dict[str, Any]:
    return {"thread_id": found.thread_id, "version": found.version, "messages": len(found)}


def _row(row: DiffRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "a": None if row.a is None else message(row.a),
        "b": None if row.b is None else message(row.b),
        "fields": [_field(each) for each in row.fields],
        "contents": [
            {
                "kind": each.kind,
                "a": None if each.a is None else each.a.model_dump(),
                "b": None if each.b is None else each.b.model_dump(),
                "fields": [_field(field) for field in each.fields],
            }
            for each in row.contents
        ],
    }


def _field(found: FieldDiff) -> dict[str, Any]:
    return {**found._asdict(), "parts": [part._asdict() for part in found.parts]}


def message(found: HistoryMessage) -> dict[str, Any]:
    """A message in its place."""
    return {
        "version": found.version,
        "role": found.role,
        "author": found.author,
        "contents": [content.model_dump() for content in found.contents],
        "redacted": found.redacted,
    }


def _data(found: Event) -> dict[str, Any] | None:
    match found.data:
        case Shredded():
            return None
        case Opaque(state=state):
            return {"opaque": b64encode(state).decode("ascii")}
        case data:
            return data.model_dump()


def scope(found: ScopeSummary) -> dict[str, Any]:
    """A memory scope in a list."""
    times = {"opened_at": json_time(found.opened_at), "updated_at": json_time(found.updated_at)}
    return {**found._asdict(), **times}


def fact(found: Fact) -> dict[str, Any]:
    """A fact at the version at which the scope was read."""
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


def found_fact(found: FoundFact) -> dict[str, Any]:
    """A fact that a search found, with its score."""
    return {**fact(found.fact), "score": found.score}


def why(origin: FactOrigin, uses: Sequence[FactUse]) -> dict[str, Any]:
    """The origin of a fact, and the model calls that received it."""
    return {**_why(origin), "used_by": [use._asdict() for use in uses]}


def _why(origin: FactOrigin) -> dict[str, Any]:
    return {
        "fact": fact(origin.fact),
        "thread_id": origin.thread_id,
        "version": origin.version,
        "message": None if origin.message is None else message(origin.message),
        "redacted": origin.redacted,
        "promoted_from": None if origin.promoted_from is None else _why(origin.promoted_from),
    }
