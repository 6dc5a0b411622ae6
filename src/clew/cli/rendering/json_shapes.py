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
    from clew.domain.differences.diff import Diff, Row
    from clew.domain.formats.conversation_import import ImportReport
    from clew.domain.formats.event_import import EventsReport
    from clew.domain.history import History, HistoryMessage
    from clew.domain.memory.facts import Fact, Found, Use, Why
    from clew.domain.ports import Verdict
    from clew.domain.runs.request_building import Request
    from clew.domain.runs.summaries import Contribution, RunSummary
    from clew.domain.views.fork_tree import Branch
    from clew.domain.views.replay import Step
    from clew.infrastructure.stores import Schemas
    from clew.service.audit_trail import AuditEntry
    from clew.service.memory.scope_queries import ScopeSummary
    from clew.service.message_search import Hit
    from clew.service.projection_status import ProjectionStatus
    from clew.service.thread_queries import ThreadSummary
    from clew.service.usage_queries import Usage

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


def usage(found: Usage) -> dict[str, Any]:
    """What was recorded: of a thread, on a day, or all in all."""
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
        "messages": [message(said) for said in found],
        "runs": [_run(run) for run in runs],
    }


def _run(run: RunSummary) -> dict[str, Any]:
    told = run._asdict()
    told["agent"] = run.agent.model_dump()
    told["started_at"] = json_time(run.started)
    told["ended_at"] = None if run.ended is None else json_time(run.ended)
    told["error"] = None if run.error is None else {name: getattr(run.error, name) for name in _FAILURE}
    told["approvals"] = [asdict(each) for each in run.approvals]
    told["interrupted"] = [each._asdict() for each in run.interrupted]
    told["context"] = [_contribution(each) for each in run.context]
    return told


def _contribution(found: Contribution) -> dict[str, Any]:
    """What a model was told beside the history, or what of that it was not told; a stable shape for each type."""
    said = found.said
    told: dict[str, Any] = {"version": found.version, "type": TYPE_NAMES[type(said)]}
    for name in type(said).model_fields:
        told[name] = _plain(getattr(said, name))
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.model_dump() if isinstance(value, BaseModel) else value


def event(found: Event) -> dict[str, Any]:
    """An event in its envelope, under the thread that it is recorded in: for an inherited one, the ancestor."""
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
    """A step of a replay: the event, and what the thread was after it."""
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
    """Two histories side by side; the rows of what they share only when ``everything`` is asked for."""
    return {
        "a": _compared(found.a),
        "b": _compared(found.b),
        "shared": {"messages": found.shared, "version": found.shared_version},
        "counts": found.counts._asdict(),
        "rows": [_row(row) for row in (found.rows if everything else found.rows[found.shared :])],
    }


def report(found: ImportReport) -> dict[str, Any]:
    """What an import did."""
    return {**found._asdict(), "failed": [failure._asdict() for failure in found.failed]}


def checkpoint(thread_id: str, name: str, version: int) -> dict[str, Any]:
    """A version that was given a name."""
    return {"thread_id": thread_id, "name": name, "version": version}


def rewound(there: History, version: int) -> dict[str, Any]:
    """What a rewind went back to, and its own version."""
    return {"thread_id": there.thread_id, "version": version, "to": there.version, "messages": len(there)}


def labelled(summary: ThreadSummary) -> dict[str, Any]:
    """A thread's labels, all of them."""
    return {"thread_id": summary.id, "version": summary.version, "labels": summary.labels}


def request(thread_id: str, path: str, found: Request) -> dict[str, Any]:
    """What a model was asked, and whether it is what was sent."""
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
    """A message that was redacted, under the thread that it is recorded in, and the version there that says so."""
    return {"thread_id": message.thread_id, "message": message.version, "version": recorded}


def migration(path: str, found: Schemas, backup: str | None) -> dict[str, Any]:
    """The schema that a database had, the one that it has, and where the copy is that was made."""
    made = None if found.found == found.known else backup
    return {"database": path, "from": found.found, "to": found.known, "backup": made}


def projection(found: ProjectionStatus) -> dict[str, Any]:
    """How far a projection is."""
    return {**found._asdict(), "parked_events": [each._asdict() for each in found.parked_events]}


def completion(shell: str, script: str, done: Installed | None) -> dict[str, Any]:
    """The script for a shell, and where it was installed, if it was."""
    return {
        "shell": shell,
        "script": script,
        "installed": None if done is None else str(done.script),
        "read_by": None if done is None or done.startup is None else str(done.startup),
    }


def events_report(found: Sequence[tuple[str, EventsReport]]) -> dict[str, Any]:
    """What an import of files with events did, with the files' names."""
    failed = []
    for file, report in found:
        failed += [{"file": file, "line": each.line, "error": str(each.error)} for each in report.failed]
        if report.torn:
            error = "The file is torn: it has no end. It was imported up to this line; import the whole file to go on."
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
    """What verification found."""
    bad = found.first_bad
    return {
        "ok": bad is None,
        "threads": found.threads,
        "events": found.events,
        "first_bad": None if bad is None else bad._asdict(),
    }


def _compared(found: History) -> dict[str, Any]:
    return {"thread_id": found.thread_id, "version": found.version, "messages": len(found)}


def _row(row: Row) -> dict[str, Any]:
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


def message(said: HistoryMessage) -> dict[str, Any]:
    """A message in its place."""
    return {
        "version": said.version,
        "role": said.role,
        "author": said.author,
        "contents": [content.model_dump() for content in said.contents],
        "redacted": said.redacted,
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


def found_fact(found: Found) -> dict[str, Any]:
    """A fact that a search found, with its score."""
    return {**fact(found.fact), "score": found.score}


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
