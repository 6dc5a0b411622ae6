"""The directory of threads: what a list shows of each, with labels, checkpoints and the tree of forks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clew.domain.events import APPENDED_TYPES, FIRST_MICROSECOND, MESSAGE_APPENDED
from clew.domain.json_values import comparable
from clew.domain.projection import Change, Column, Delete, Query, Recorded, Rows, RowValues, Table, Upsert, Where

_STATUSES = {
    "thread-suspended": "suspended",
    "thread-resumed": "active",
    "thread-ended": "ended",
    "thread-deleted": "deleted",
}
"""The status after each of these events."""

_GIVEN_BY = {"title": "titled", "metadata": "described"}
"""For each of these columns of a thread the column with the version of the event that gave it its value."""

_NOTHING: dict[str, Any] = {"title": None, "metadata": {}}

_THREAD = (Column("tenant"), Column("thread_id"))


class Directory:
    """One row for each thread, forks included. Times are microseconds since 1970.

    ``begun`` is the position of the thread's first event. ``tree`` is that position of the root of its tree of forks.
    ``marked`` is 1 if it has checkpoints, inherited ones included. ``first_said`` is when the thread began, or when the
    first of its own messages and records was said, if that was earlier; ``last_said`` is when the last one was said. A
    message without ``said_at``, or with a later time, was said when it was recorded. ``titled`` and ``described`` are
    the versions of the events that gave it its title and its metadata: a fork inherits them, and redactions name them.
    """

    name = "directory"
    version = 6
    code_digest = "directory-6"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "thread",
            (
                *_THREAD,
                Column("begun", "integer"),
                Column("title"),
                Column("status"),
                Column("version", "integer"),
                Column("messages", "integer"),
                Column("parent_id"),
                Column("forked_at", "integer"),
                Column("tree", "integer"),
                Column("head"),
                Column("created_at", "integer"),
                Column("updated_at", "integer"),
                Column("metadata", "json"),
                Column("labels", "json"),
                Column("imported", "integer"),
                Column("source_id", "json"),
                Column("kind"),
                Column("marked", "integer"),
                Column("first_said", "integer"),
                Column("last_said", "integer"),
                Column("titled", "integer"),
                Column("described", "integer"),
            ),
            key=("tenant", "thread_id"),
            indexes=(
                ("tenant", "begun", "updated_at", "status"),  # threads of a label are sorted without their rows
                ("tenant", "updated_at", "begun"),
                ("tenant", "status", "begun"),
                ("tenant", "status", "updated_at", "begun"),
                ("tenant", "parent_id", "begun"),
                ("tenant", "tree", "begun"),
            ),
        ),
        # At the version of its event; a fork has copies of those that it inherits.
        Table(
            "checkpoint",
            (*_THREAD, Column("name"), Column("at", "integer"), Column("version", "integer")),
            key=("tenant", "thread_id", "name"),
        ),
        # Every value that a label ever had, at the version of its event, so that a fork copies that of the cut. newest
        # is 1 for what it is now, same is what values are compared by, begun that of the thread, so that threads are
        # found in that order.
        Table(
            "label",
            (
                *_THREAD,
                Column("name"),
                Column("version", "integer"),
                Column("value", "json"),
                Column("same"),
                Column("newest", "integer"),
                Column("begun", "integer"),
            ),
            key=("tenant", "thread_id", "name", "version"),
            indexes=(("tenant", "name", "same", "newest", "begun"),),
        ),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Move the thread's version and head; some events change other columns."""
        if event.kind != "thread":
            return ()
        row: dict[str, Any] = {
            "tenant": event.tenant,
            "thread_id": event.thread_id,
            "version": event.version,
            "head": event.hash.hex(),
        }
        if event.messages >= 0:
            row["messages"] = event.messages
        if event.recorded_at:
            row["updated_at"] = event.recorded_at
        if event.type in APPENDED_TYPES and event.recorded_at:
            row["last_said"] = event.recorded_at
            if isinstance(event.said, int):  # a forged event may have anything there
                row |= _said(event, event.said, rows)
        if event.type == MESSAGE_APPENDED:  # by far the most frequent
            return (Upsert("thread", row),)
        return self._other(event, row, rows)

    def _other(self, event: Recorded, row: dict[str, Any], rows: Rows) -> Iterator[Change]:
        if event.data is not None:
            yield from self._change(event, event.data, row, rows)
        elif rows.get("thread", event.tenant, event.thread_id) is None:  # this Clew does not know its first event
            row |= {**_begun(event), "created_at": 0, "metadata": {}, "imported": 0, "kind": "local"}
        yield Upsert("thread", row)

    def _change(self, event: Recorded, data: dict[str, Any], row: dict[str, Any], rows: Rows) -> Iterator[Change]:
        match event.type:
            case "thread-started":
                source = data.get("source")
                row |= _begun(event)
                row |= {
                    "imported": int(source is not None),
                    "source_id": None if source is None else source.get("id"),
                    "kind": data.get("kind", "local"),
                }
                yield from _start(event, data, row, event.position)
            case "thread-restarted":
                row |= {"imported": 0, "source_id": None, "kind": "local"}
                row |= {"status": "active", "created_at": event.recorded_at, "marked": 0}
                row |= {"first_said": event.recorded_at, "last_said": None}
                yield from _start(event, data, row, _there(event, rows).get("begun"))
            case "thread-forked":
                row |= _begun(event)
                yield from _fork(event, data, row, rows)
            case "thread-labelled":
                newest = Query("label", (*_of(event.tenant, event.thread_id), Where("newest", "=", 1)))
                yield from _label(event, data["labels"], row, rows.select(newest), _there(event, rows).get("begun"))
            case "checkpoint-made":
                if data["name"]:  # it is empty if it was redacted
                    row["marked"] = 1
                    yield _mark(event, data["name"], data["at"], event.version)
            case "message-redacted" if '"d":' in data["stub"]:  # not of a message: its texts may be in these rows
                yield from _forget(event, data["version"], data["version"], rows)
            case "thread-purged":
                yield from _forget(event, (_there(event, rows).get("forked_at") or 0) + 1, event.version, rows)
                yield from (Delete(table, (event.tenant, event.thread_id)) for table in ("checkpoint", "label"))
                row |= {**_NOTHING, **dict.fromkeys(_GIVEN_BY.values(), event.version), "labels": {}, "marked": 0}
            case type_ if type_ in _STATUSES:
                row["status"] = _STATUSES[type_]
            case _:
                pass


def _begun(event: Recorded) -> dict[str, Any]:
    return {
        **dict.fromkeys(_GIVEN_BY.values(), event.version),
        "begun": event.position,
        "tree": event.position,
        "status": "active",
        "created_at": event.recorded_at,
        "updated_at": event.recorded_at,
        "labels": {},
        "marked": 0,
        "first_said": event.recorded_at,
    }


def _said(event: Recorded, said: int, rows: Rows) -> dict[str, int]:
    """When the first and the last message or record of the thread was said, so far; this one names its time."""
    said = max(FIRST_MICROSECOND, min(said, event.recorded_at))
    known = rows.get("thread", event.tenant, event.thread_id) or {}
    first, last = known.get("first_said"), known.get("last_said")
    return {
        "first_said": said if first is None else min(first, said),
        "last_said": said if last is None else max(last, said),
    }


def _start(event: Recorded, data: dict[str, Any], row: dict[str, Any], begun: int | None) -> Iterator[Change]:
    for column, given_by in _GIVEN_BY.items():
        row[column], row[given_by] = data.get(column, _NOTHING[column]), event.version
    yield from _label(event, data.get("labels", {}), row, (), begun)


def _fork(event: Recorded, data: dict[str, Any], row: dict[str, Any], rows: Rows) -> Iterator[Change]:
    """Copy what the thread inherits from its parent at the cut."""
    parent, cut = data["parent_id"], data["parent_version"]
    there = rows.get("thread", event.tenant, parent) or {}
    row |= {
        "imported": 0,
        "source_id": None,
        "parent_id": parent,
        "forked_at": cut,
        "tree": there.get("tree", event.position),
        "kind": data.get("kind") or there.get("kind", "local"),
    }
    for column, given_by in _GIVEN_BY.items():
        if data.get(column) is None:
            row |= _inherited(row, column, rows, {})
        else:
            row[column], row[given_by] = data[column], event.version
    of_parent = (*_of(event.tenant, parent), Where("version", "<=", cut))
    for mark in rows.select(Query("checkpoint", of_parent)):
        row["marked"] = 1
        yield _mark(event, mark["name"], mark["at"], mark["version"])
    at_cut = {each["name"]: each for each in rows.select(Query("label", of_parent, order=("name", "version")))}
    for each in at_cut.values():
        yield Upsert("label", {**each, "thread_id": event.thread_id, "newest": 1, "begun": event.position})
    row["labels"] = _values(at_cut)


def _inherited(row: RowValues, column: str, rows: Rows, known: dict[str, RowValues]) -> RowValues:
    """A column of a fork, and the version that gave it its value, from its parent at the cut.

    ``known`` rows are newer than those in the tables. A parent that was purged has its value from a later version: the
    value at the cut is then that of the parent's own parent.
    """
    given_by = _GIVEN_BY[column]
    nearest: RowValues | None = row
    while nearest is not None and (parent := nearest["parent_id"]) is not None:
        cut = nearest["forked_at"]
        nearest = known.get(parent) or rows.get("thread", row["tenant"], parent)
        if nearest is not None and nearest[given_by] <= cut:
            return {column: nearest[column], given_by: nearest[given_by]}
    return {column: _NOTHING[column]}


def _label(
    event: Recorded, labels: dict[str, Any], row: dict[str, Any], newest: Iterable[RowValues], begun: int | None
) -> Iterator[Change]:
    """Set labels, in addition to the ``newest`` rows of the thread."""
    now = {each["name"]: each for each in newest}
    for name, value in labels.items():
        if name in now:
            yield Upsert("label", {**now[name], "newest": 0})
        now[name] = {"tenant": event.tenant, "thread_id": event.thread_id, "name": name, "version": event.version}
        now[name] |= {"value": value, "same": comparable(value), "newest": 1, "begun": begun}
        yield Upsert("label", now[name])
    row["labels"] = _values(now)


def _values(labels: dict[str, RowValues]) -> dict[str, Any]:
    return {name: each["value"] for name, each in labels.items() if each["value"] is not None}


def _forget(event: Recorded, first: int, last: int, rows: Rows) -> Iterator[Change]:
    """Remove the texts of the thread's own events from one version to another, also from the rows of its forks."""
    known: dict[str, RowValues] = {}
    threads = [(event.thread_id, last)]
    for thread_id, upto in threads:
        of_thread = _of(event.tenant, thread_id)
        of_events = (*of_thread, Where("version", ">=", first), Where("version", "<=", upto))
        labels, marks = rows.select(Query("label", of_events)), rows.select(Query("checkpoint", of_events))
        row = rows.get("thread", event.tenant, thread_id) or {}
        lost = [column for column, given_by in _GIVEN_BY.items() if first <= row.get(given_by, 0) <= upto]
        if not labels and not marks and not lost:
            if _was_purged(row):  # its forks may still have what they inherited through it
                threads += _forks(event, thread_id, first, upto, rows)
            continue  # otherwise its forks have inherited nothing
        others = rows.select(Query("checkpoint", of_thread, limit=len(marks) + 1)) if marks else []
        for each in labels:
            yield Upsert("label", {**each, "value": None, "same": comparable(None)})
        for each in marks:
            yield Delete("checkpoint", (event.tenant, thread_id, each["name"]))
        known[thread_id] = row = {**row}
        for column in lost:
            is_own = row["parent_id"] is None or row[_GIVEN_BY[column]] > row["forked_at"] + 1
            row |= {column: _NOTHING[column]} if is_own else _inherited(row, column, rows, known)
        emptied = {each["name"] for each in labels if each["newest"]}
        row["labels"] = {name: value for name, value in row["labels"].items() if name not in emptied}
        if marks and len(others) == len(marks):
            row["marked"] = 0
        changed = ("tenant", "thread_id", "labels", "marked", *_GIVEN_BY, *_GIVEN_BY.values())
        yield Upsert("thread", {column: row[column] for column in changed})
        threads += _forks(event, thread_id, first, upto, rows)


def _forks(event: Recorded, thread_id: str, first: int, upto: int, rows: Rows) -> list[tuple[str, int]]:
    """The forks of a thread with events from ``first`` on, and up to which version each has those up to ``upto``."""
    of_parent = (Where("tenant", "=", event.tenant), Where("parent_id", "=", thread_id))
    forks = rows.select(Query("thread", of_parent, columns=("thread_id", "forked_at")))
    return [(fork["thread_id"], min(upto, fork["forked_at"])) for fork in forks if fork["forked_at"] >= first]


def _was_purged(row: RowValues) -> bool:
    """Whether a thread's title is of a later event than its first: then it was purged, and perhaps started again."""
    return bool(row.get(_GIVEN_BY["title"], 0) > (row.get("forked_at") or 0) + 1)


def _there(event: Recorded, rows: Rows) -> RowValues:
    """The row of the event's thread."""
    return rows.get("thread", event.tenant, event.thread_id) or {}


def _of(tenant: str, thread_id: str) -> tuple[Where, Where]:
    return Where("tenant", "=", tenant), Where("thread_id", "=", thread_id)


def _mark(event: Recorded, name: str, at: int, version: int) -> Upsert:
    values = {"tenant": event.tenant, "thread_id": event.thread_id, "name": name, "at": at, "version": version}
    return Upsert("checkpoint", values)
