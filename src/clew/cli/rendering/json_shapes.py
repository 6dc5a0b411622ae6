"""The JSON shapes that commands write: stable, and documented in docs/cli.md.

Every command imports this module when it starts, so this module imports nothing slow.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clew.cli.output import json_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.agents.response import Approval
    from clew.cli.commands.completion import Installation
    from clew.domain.chats.flow import FlowStep
    from clew.domain.differences.diff import Diff, DiffRow
    from clew.domain.differences.record_diff import RecordDiff
    from clew.domain.events import Event
    from clew.domain.fork_tree import Branch
    from clew.domain.formats.conversation_import import ImportReport
    from clew.domain.formats.event_import import EventsReport
    from clew.domain.history import History, HistoryMessage, Step
    from clew.domain.memory.facts import Fact, FactOrigin, FactUse, FoundFact
    from clew.domain.ports import Verdict
    from clew.domain.records import ThreadRecord
    from clew.domain.runs.request_construction import Request
    from clew.domain.runs.summaries import Contribution, RunSummary
    from clew.infrastructure.shards import Shard
    from clew.infrastructure.stores import Schemas
    from clew.service.audit_trail import AuditEntry
    from clew.service.cost_queries import Costs
    from clew.service.memory.scope_queries import ScopeSummary
    from clew.service.message_search import Hit
    from clew.service.projection_status import ProjectionStatus
    from clew.service.redactions import Purged, Redaction
    from clew.service.thread_queries import ThreadSummary
    from clew.service.usage_queries import UsageCounts

_FAILURE = ("kind", "message", "status", "code")
_COUNTS = ("threads", "messages", "events", "skipped", "definitions")


def thread(summary: ThreadSummary) -> dict[str, Any]:
    """A thread in a list."""
    return {
        "thread_id": summary.id,
        **_fields(summary, "title", "status", "version", "messages", "parent_id", "forked_at", "head"),
        **_fields(summary, "created_at", "updated_at", "metadata", "kind"),
        **({} if summary.first_said_at is None else _fields(summary, "first_said_at", "last_said_at")),
    }


def branch(branch: Branch[ThreadSummary]) -> dict[str, Any]:
    """A thread in a tree, with the checkpoints that were made in it."""
    return {**thread(branch.thread), **_fields(branch, "depth", "forks", "checkpoints")}


def flow_step(step: FlowStep) -> dict[str, Any]:
    """A step in the flow of a chat. The lane of the user is empty; the end of a run has none."""
    return {
        **_fields(step, "kind", "version", "lane", "text", "outcome", "at_once", "handoff"),
        "thread_id": step.thread_id or None,
        "approvals": [{"call": each.call, "verdict": each.verdict} for each in step.approvals],
    }


def approval(approval: Approval) -> dict[str, Any]:
    """A function call that waits for an approval. ``inner_thread_id`` is that of an agent that the run asked."""
    is_inner = approval.thread_id != approval.outer_thread_id
    return {
        "thread_id": approval.outer_thread_id,
        "request": approval.request,
        "inner_thread_id": approval.thread_id if is_inner else None,
        **_fields(approval, "version", "run_id", "agent", "on_behalf_of", "reason"),
        **_fields(approval.call, "call_id", "name", "arguments"),
    }


def hit(hit: Hit) -> dict[str, Any]:
    """A message that a search found."""
    return {
        **_fields(hit, "thread_id", "version"),
        "message": hit.number,
        **_fields(hit, "position", "role", "author", "time", "actor", "snippet", "forks", "fork_count"),
        **_said(hit),
    }


def audit_entry(entry: AuditEntry) -> dict[str, Any]:
    """An entry of the audit trail."""
    return _fields(entry, *entry._fields)


def usage(counts: UsageCounts) -> dict[str, Any]:
    """Usage: of a thread, of a day, or in total."""
    numbers = counts._asdict()
    thread_id, day = numbers.pop("thread_id"), numbers.pop("day")
    if thread_id is not None:
        return {"thread_id": thread_id, **numbers}
    return numbers if day is None else {"day": day.isoformat(), **numbers}


def costs(costs: Costs, by: str | None) -> dict[str, Any]:
    """What model calls used and cost. An amount is a text: it is exact."""
    numbers = costs._asdict()
    of = numbers.pop("of")
    numbers["cost"] = None if costs.cost is None else f"{costs.cost:f}"
    if by is None:
        return numbers
    return {f"{by}_id" if by in {"thread", "run"} else by: of.isoformat() if by == "day" else of, **numbers}


def history(history: History, runs: Sequence[RunSummary], records: Sequence[ThreadRecord]) -> dict[str, Any]:
    """A thread's messages at a version, its runs and its records."""
    return {
        "thread_id": history.thread_id,
        "version": history.version,
        "messages": [message(each) for each in history],
        "runs": [_run(run) for run in runs],
        "records": [listed_record(each) for each in records],
    }


def message(message: HistoryMessage) -> dict[str, Any]:
    """A message in its place."""
    return {
        "version": message.version,
        "role": message.role,
        "author": message.author,
        "contents": [content.model_dump() for content in message.contents],
        "redacted": message.redacted,
        **_said(message),
    }


def _said(item: HistoryMessage | Hit | ThreadRecord | Event) -> dict[str, Any]:
    """When it was said, if that is known."""
    return {} if item.said_at is None else {"said_at": json_time(item.said_at)}


def _run(run: RunSummary) -> dict[str, Any]:
    return {
        **_fields(run, *run._fields),
        "started_at": json_time(run.started),
        "ended_at": None if run.ended is None else json_time(run.ended),
        "error": None if run.error is None else _fields(run.error, *_FAILURE),
        "context": [_contribution(contribution) for contribution in run.context],
    }


def _contribution(contribution: Contribution) -> dict[str, Any]:
    """An event about what a model received besides the history, or what was left out; a stable shape for each type."""
    from clew.domain.events import TYPE_NAMES

    kind = type(contribution.said)
    return {
        "version": contribution.version,
        "type": TYPE_NAMES[kind],
        **_fields(contribution.said, *kind.model_fields),
    }


def event(event: Event) -> dict[str, Any]:
    """An event with its envelope. ``thread_id`` is the thread that recorded it: of an inherited event, the ancestor."""
    return {
        "thread_id": event.thread_id,
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "time": json_time(event.time),
        "actor": event.actor,
        "event_id": event.event_id,
        "data": _data(event),
        "hash": None if event.hash is None else event.hash.hex(),
        "run_id": event.run_id,
        **_said(event),
        **_behalf(event),
    }


def _behalf(event: Event) -> dict[str, Any]:
    return {} if event.on_behalf_of is None else {"on_behalf_of": event.on_behalf_of}


def step(step: Step) -> dict[str, Any]:
    """A step of a replay: the event, and the state of the thread after it."""
    return {
        "thread_id": step.event.thread_id,
        "version": step.version,
        "type": step.event.type,
        "time": json_time(step.event.time),
        "actor": step.event.actor,
        "status": step.status,
        "messages": step.control.messages,
        "checkpoints": list(step.checkpoints),
        "data": _data(step.event),
        **_behalf(step.event),
    }


def _data(event: Event) -> dict[str, Any] | None:
    from clew.domain.events import Opaque, Shredded

    match event.data:
        case Shredded():
            return None
        case Opaque(state=state):
            return {"opaque": b64encode(state).decode("ascii")}
        case data:
            return data.model_dump()


def diff(diff: Diff, *, everything: bool = False) -> dict[str, Any]:
    """Two histories side by side; the rows that they share only with ``everything``."""
    return {
        "a": _side(diff.a),
        "b": _side(diff.b),
        "shared": {"messages": diff.shared, "version": diff.shared_version},
        "counts": diff.counts._asdict(),
        "rows": [_diff_row(row) for row in (diff.rows if everything else diff.rows[diff.shared :])],
        "records": [_record_diff(row) for row in diff.records],
    }


def record(record: ThreadRecord) -> dict[str, Any]:
    """A record, with its bytes in base64."""
    base64 = None if record.blob is None else b64encode(record.blob).decode()
    return {**_fields(record, "version", "type", "data", "key"), "base64": base64, "redacted": record.redacted}


def listed_record(each: ThreadRecord) -> dict[str, Any]:
    """A record in a list, with its envelope."""
    behalf = {} if each.on_behalf_of is None else {"on_behalf_of": each.on_behalf_of}
    return {**record(each), **_fields(each, "time", "actor", "event_id"), **_said(each), **behalf}


def _record_diff(row: RecordDiff) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "a": None if row.a is None else record(row.a),
        "b": None if row.b is None else record(row.b),
        **_fields(row, "fields"),
    }


def _side(history: History) -> dict[str, Any]:
    return {"thread_id": history.thread_id, "version": history.version, "messages": len(history)}


def _diff_row(row: DiffRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "a": None if row.a is None else message(row.a),
        "b": None if row.b is None else message(row.b),
        **_fields(row, "fields", "contents"),
    }


def import_report(report: ImportReport) -> dict[str, Any]:
    """The result of an import of conversations."""
    return {**_fields(report, *report._fields), "records": dict(report.records)}


def events_report(reports: Sequence[tuple[str, EventsReport]]) -> dict[str, Any]:
    """The result of an import of files with events, by file."""
    failed = []
    for file, report in reports:
        failed += [{"file": file, "line": failure.line, "error": str(failure.error)} for failure in report.failed]
        if report.torn:
            error = "The file has no end. It was imported up to this line; import the complete file to continue."
            failed.append({"file": file, "line": report.line, "error": error})
    return {
        **{name: sum(getattr(report, name) for _, report in reports) for name in _COUNTS},
        "torn": any(report.torn for _, report in reports),
        "failed": failed,
    }


def checkpoint(thread_id: str, name: str, version: int) -> dict[str, Any]:
    """A checkpoint."""
    return {"thread_id": thread_id, "name": name, "version": version}


def rewind(target: History, version: int) -> dict[str, Any]:
    """The version of a rewind, and the version to which the thread is back."""
    return {"thread_id": target.thread_id, "version": version, "to": target.version, "messages": len(target)}


def labels(summary: ThreadSummary) -> dict[str, Any]:
    """All labels of a thread."""
    return {"thread_id": summary.id, "version": summary.version, "labels": summary.labels}


def redaction(message: Event, redaction: Redaction) -> dict[str, Any]:
    """A redacted message in the thread that recorded it, and the version of the event that redacted it."""
    return {
        "thread_id": message.thread_id,
        "message": message.version,
        **_fields(redaction, "version", "errors", "pending"),
    }


def purge(thread_id: str, purged: Purged) -> dict[str, Any]:
    """A purged thread: the version of the event of the purge, and the number of events that lost their texts."""
    return {"thread_id": thread_id, **_fields(purged, "version", "events", "pending", "children")}


def request(thread_id: str, request: Request) -> dict[str, Any]:
    """The rebuilt request of a model call, and whether it equals what was sent."""
    return {
        "thread_id": thread_id,
        **_fields(
            request,
            *("version", "client", "model", "path", "digest", "verified", "sent", "redacted", "changed_by"),
            "withheld_by",
        ),
        "body": request.body,
    }


def migration(path: str, schema: Schemas, backup: str | None) -> dict[str, Any]:
    """The schema of a database before and after a migration, and the backup if one was made."""
    backup = None if schema.found == schema.known else backup
    return {"database": path, "from": schema.found, "to": schema.known, "backup": backup}


def projection(status: ProjectionStatus) -> dict[str, Any]:
    """The progress of a projection."""
    return _fields(status, *status._fields)


def shard(shard: Shard) -> dict[str, Any]:
    """A server in a directory."""
    return {"shard": shard.name, **_fields(shard, "address", "takes", "tenants")}


def completion(shell: str, script: str, installation: Installation | None) -> dict[str, Any]:
    """The script for a shell, and where it was installed, if at all."""
    file, startup = installation or (None, None)
    return {
        "shell": shell,
        "script": script,
        "installed": None if file is None else str(file),
        "read_by": None if startup is None else str(startup),
    }


def verdict(verdict: Verdict) -> dict[str, Any]:
    """The result of a verification."""
    return {"ok": verdict.first_bad is None, **_fields(verdict, "threads", "events", "first_bad")}


def scope(scope: ScopeSummary) -> dict[str, Any]:
    """A memory scope in a list."""
    names = "name", "holds", "version", "facts", "embedder", "dimensions", "opened_at", "updated_at"
    return _fields(scope, *names)


def fact(fact: Fact) -> dict[str, Any]:
    """A fact at the version at which the scope was read."""
    return {
        "scope": fact.scope,
        "fact": fact.id,
        **_fields(fact, "text", "key", "kind", "status", "version", "recorded_at", "valid_from", "valid_to"),
        **_fields(fact, "learned", "promoted", "replaces", "actor", "metadata", "value", "created_at"),
    }


def found_fact(result: FoundFact) -> dict[str, Any]:
    """A fact that a search found, with its score."""
    return {**fact(result.fact), "score": result.score}


def fact_origin(origin: FactOrigin, uses: Sequence[FactUse]) -> dict[str, Any]:
    """The origin of a fact, and the model calls that received it."""
    return {**_origin(origin), "used_by": _plain(uses)}


def _origin(origin: FactOrigin) -> dict[str, Any]:
    return {
        "fact": fact(origin.fact),
        "thread_id": origin.thread_id,
        "version": origin.version,
        "message": None if origin.message is None else message(origin.message),
        "redacted": origin.redacted,
        "promoted_from": None if origin.promoted_from is None else _origin(origin.promoted_from),
    }


def _fields(value: object, *names: str) -> dict[str, Any]:
    """These attributes, as JSON values."""
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    """A value of Clew's as JSON: models, dataclasses and named tuples as objects, times as text."""
    if isinstance(value, datetime):
        return json_time(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "_fields"):
        return _fields(value, *value._fields)
    if is_dataclass(value):
        return _fields(value, *(field.name for field in fields(value)))
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
