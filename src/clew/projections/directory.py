"""The directory of threads: what a list shows of each, with labels, checkpoints and the tree of forks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clew.domain.events import APPENDED_TYPES, FIRST_MICROSECOND, MESSAGE_APPENDED
from clew.domain.json_values import comparable
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Upsert, Where

_THREAD = (Column("tenant"), Column("thread_id"))


class Directory:
    """One row for each thread, forks included. Times are microseconds since 1970.

    ``begun`` is the position of the thread's first event. ``tree`` is that position of the root of its tree of forks.
    ``marked`` is 1 if it has checkpoints, inherited ones included. ``first_said`` is when the thread began, or when the
    first of its own messages and records was said, if that was earlier; ``last_said`` is when the last one was said. A
    message without ``said_at``, or with a later time, was said when it was recorded.
    """

    name = "directory"
    version = 4
    code_digest = "directory-4"  # of this version: change both where it makes other rows
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
        # Every value that a label ever had, so that a fork inherits that of the cut; newest is 1 for what it is now.
        # same is what values are compared by, begun that of the thread, so that threads are found in that order.
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
                    "title": data.get("title"),
                    "metadata": data.get("metadata", {}),
                    "imported": int(source is not None),
                    "source_id": None if source is None else source.get("id"),
                    "kind": data.get("kind", "local"),
                }
                yield from self._label(event, data.get("labels", {}), row, {}, event.position)
            case "thread-forked":
                row |= _begun(event)
                yield from self._fork(event, data, row, rows)
            case "thread-labelled":
                there = rows.get("thread", event.tenant, event.thread_id) or {}
                of_thread = (Where("tenant", "=", event.tenant), Where("thread_id", "=", event.thread_id))
                newest = rows.select(Query("label", (*of_thread, Where("newest", "=", 1))))
                now = {each["name"]: each for each in newest}
                yield from self._label(event, data["labels"], row, now, there.get("begun"))
            case "checkpoint-made":
                row["marked"] = 1
                yield _mark(event, data["name"], data["at"], event.version)
            case "thread-suspended":
                row["status"] = "suspended"
            case "thread-resumed":
                row["status"] = "active"
            case "thread-ended":
                row["status"] = "ended"
            case "thread-deleted":
                row["status"] = "deleted"
            case _:
                pass

    def _fork(self, event: Recorded, data: dict[str, Any], row: dict[str, Any], rows: Rows) -> Iterator[Change]:
        """Copy what the thread inherits from its parent at the cut."""
        parent, cut = data["parent_id"], data["parent_version"]
        there = rows.get("thread", event.tenant, parent) or {}
        title, metadata = data.get("title"), data.get("metadata")
        row |= {
            "title": there.get("title") if title is None else title,
            "metadata": (there.get("metadata") or {}) if metadata is None else metadata,
            "imported": 0,
            "source_id": None,
            "parent_id": parent,
            "forked_at": cut,
            "tree": there.get("tree", event.position),
            "kind": data.get("kind") or there.get("kind", "local"),
        }
        of_parent = (Where("tenant", "=", event.tenant), Where("thread_id", "=", parent), Where("version", "<=", cut))
        for mark in rows.select(Query("checkpoint", of_parent)):
            row["marked"] = 1
            yield _mark(event, mark["name"], mark["at"], mark["version"])
        labels: dict[str, Any] = {}
        for each in rows.select(Query("label", of_parent, order=("name", "version"))):
            labels[each["name"]] = each["value"]
        yield from self._label(event, labels, row, {}, event.position)

    def _label(
        self, event: Recorded, labels: dict[str, Any], row: dict[str, Any], now: dict[str, Any], begun: int | None
    ) -> Iterator[Change]:
        """Set labels, in addition to those that the thread has ``now``, which are rows by name."""
        for name, value in labels.items():
            if name in now:
                yield Upsert("label", {**now[name], "newest": 0})
            now[name] = {"tenant": event.tenant, "thread_id": event.thread_id, "name": name, "version": event.version}
            now[name] |= {"value": value, "same": comparable(value), "newest": 1, "begun": begun}
            yield Upsert("label", now[name])
        row["labels"] = {name: each["value"] for name, each in now.items() if each["value"] is not None}


def _begun(event: Recorded) -> dict[str, Any]:
    return {
        "begun": event.position,
        "tree": event.position,
        "status": "active",
        "created_at": event.recorded_at,
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


def _mark(event: Recorded, name: str, at: int, version: int) -> Upsert:
    values = {"tenant": event.tenant, "thread_id": event.thread_id, "name": name, "at": at, "version": version}
    return Upsert("checkpoint", values)
