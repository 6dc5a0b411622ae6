"""A naive model of conversations: plain lists of events that every query walks again."""

from __future__ import annotations

from typing import Any, NamedTuple

from clew.domain.errors import (
    CheckpointExistsError,
    ClewError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadHasForksError,
    ThreadStatusError,
    UnknownCheckpointError,
    UnknownVersionError,
)

ALLOWED = {
    "active": {
        "append",
        "label",
        "checkpoint",
        "fork",
        "edit",
        "rewind",
        "redact",
        "suspend",
        "end",
        "delete",
    },
    "suspended": {"label", "checkpoint", "fork", "edit", "rewind", "redact", "resume", "end", "delete"},
    "ended": {"label", "checkpoint", "fork", "edit", "redact", "delete"},
    "deleted": {"redact"},
}
CHANGES = {
    "suspend": "suspended",
    "resume": "active",
    "end": "ended",
    "delete": "deleted",
    "fork": "active",
    "restart": "active",
}


BEGINNINGS = {"start", "fork", "restart"}


class Refused(Exception):  # noqa: N818  # the model's stand-in for an error of Clew
    """The model expects this error."""

    def __init__(self, error: type[ClewError]) -> None:
        super().__init__(error.__name__)
        self.error = error


class NaiveMessage(NamedTuple):
    """A message of the model; a redacted message has the text None."""

    version: int
    role: str
    text: str | None


class NaiveEvent(NamedTuple):
    """One event: the thread that owns it, its version, its kind and its payload."""

    owner: str
    version: int
    kind: str
    payload: Any
    time: int


class NaiveThreads:
    """Each thread is its whole lineage, and a fork copies it. ``redacted`` holds (owner, version)."""

    def __init__(self) -> None:
        self.lines: dict[str, list[NaiveEvent]] = {}
        self.redacted: set[tuple[str, int]] = set()
        self.events = 0

    def record(self, thread: str, kind: str, payload: Any, now: int) -> int:
        line = self.lines[thread]
        time = max(now, line[-1].time) if line else now
        line.append(NaiveEvent(thread, len(line) + 1, kind, payload, time))
        self.events += 1
        return len(line)

    def version(self, thread: str) -> int:
        return len(self.lines[thread])

    # Queries

    def path(self, thread: str, version: int) -> list[NaiveEvent]:
        path: list[NaiveEvent] = []
        while version:
            event = self.lines[thread][version - 1]
            path.append(event)
            version = event.payload if event.kind == "rewind" else version - 1
        return path[::-1]

    def history(self, thread: str, version: int) -> list[NaiveMessage]:
        return [
            NaiveMessage(e.version, e.payload[0], None if (e.owner, e.version) in self.redacted else e.payload[1])
            for e in self.path(thread, version)
            if e.kind == "message"
        ]

    def status(self, thread: str, version: int | None = None) -> str:
        status = "active"
        for event in self.lines[thread][:version]:
            status = CHANGES.get(event.kind, status)
        return status

    def title(self, thread: str, version: int | None = None) -> str | None:
        title = None
        for event in self.lines[thread][:version]:
            own = None if (event.owner, event.version) in self.redacted else event.payload
            if event.kind in {"start", "restart", "purge"} or (event.kind == "fork" and own is not None):
                title = own
        return title

    def labels(self, thread: str, version: int | None = None) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        for event in self.lines[thread][:version]:
            if event.kind == "label":
                name, value = event.payload
                labels.pop(name, None)
                if value is not None and (event.owner, event.version) not in self.redacted:
                    labels[name] = value
            elif event.kind == "purge":
                labels.clear()
        return labels

    def checkpoints(self, thread: str, version: int | None = None) -> dict[str, int]:
        marks: dict[str, int] = {}
        for event in self.lines[thread][:version]:
            if event.kind == "checkpoint" and (event.owner, event.version) not in self.redacted:
                marks.update([event.payload])
            elif event.kind == "purge":
                marks.clear()
        return marks

    def parent(self, thread: str) -> tuple[str | None, int | None]:
        line = self.lines[thread]
        cut = next((number for number, event in enumerate(line) if event.owner == thread), 0)
        return (line[cut - 1].owner, cut) if cut else (None, None)

    def began(self, thread: str) -> int:
        """The version from which on the events are not those of a purged thread with the same id."""
        return max((event.version for event in self.lines[thread] if event.kind == "restart"), default=1)

    def is_fork(self, thread: str, parent: str) -> bool:
        owner, cut = self.parent(thread)
        return owner == parent and cut is not None and cut >= self.began(parent)

    def readable(self, thread: str) -> None:
        if self.status(thread) == "deleted":
            raise Refused(ThreadDeletedError)

    def check(self, thread: str, operation: str) -> None:
        status = self.status(thread)
        if operation not in ALLOWED[status]:
            raise Refused(ThreadDeletedError if status == "deleted" else ThreadStatusError)

    def at_version(self, thread: str, version: int) -> int:
        if not 1 <= version <= self.version(thread) or 1 < version < self.began(thread):
            raise Refused(UnknownVersionError)
        return version

    def at_checkpoint(self, thread: str, name: str) -> int:
        if name not in self.checkpoints(thread):
            raise Refused(UnknownCheckpointError)
        return self.checkpoints(thread)[name]

    def at_time(self, thread: str, time: int) -> int:
        count = sum(event.time <= time for event in self.lines[thread])
        return self.at_version(thread, count)

    def at_message(self, thread: str, number: int) -> int:
        messages = self.history(thread, self.version(thread))
        if number > len(messages):
            raise Refused(UnknownVersionError)
        if number:
            return messages[number - 1].version
        return messages[0].version - 1 if messages else self.version(thread)

    # Commands

    def start(self, thread: str, title: str, texts: list[tuple[str, str]], now: int) -> None:
        if thread in self.lines:
            raise Refused(ThreadExistsError)
        self.lines[thread] = []
        self.record(thread, "start", title, now)
        for message in texts:
            self.record(thread, "message", message, now)

    def append(self, thread: str, texts: list[tuple[str, str]], now: int) -> list[int]:
        self.check(thread, "append")
        return [self.record(thread, "message", message, now) for message in texts]

    def change(self, thread: str, kind: str, now: int) -> None:
        self.check(thread, kind)
        self.record(thread, kind, None, now)

    def label(self, thread: str, name: str, value: object, now: int) -> None:
        self.check(thread, "label")
        self.record(thread, "label", (name, value), now)

    def checkpoint(self, thread: str, name: str, version: int | None, now: int) -> int:
        self.readable(thread)
        at = self.version(thread) if version is None else self.at_version(thread, version)
        self.check(thread, "checkpoint")
        if name in self.checkpoints(thread):
            raise Refused(CheckpointExistsError)
        self.record(thread, "checkpoint", (name, at), now)
        return at

    def rewind(self, thread: str, version: int, now: int) -> int:
        self.readable(thread)
        to = self.at_version(thread, version)
        self.check(thread, "rewind")
        return self.record(thread, "rewind", to, now)

    def fork(self, thread: str, version: int, new: str, title: str | None, now: int) -> None:
        self.readable(thread)
        cut = self.at_version(thread, version)
        if cut < self.began(thread):
            cut = self.began(thread) + 1
        if new in self.lines:
            raise Refused(ThreadExistsError)
        self.lines[new] = self.lines[thread][:cut]
        self.record(new, "fork", title, now)

    def edit(self, thread: str, version: int, text: str, new: str, now: int) -> None:
        self.readable(thread)
        old = self.message(thread, version)
        self.fork(thread, version - 1, new, None, now)
        self.record(new, "message", (old.payload[0], text), now)

    def redact(self, thread: str, version: int, now: int) -> int:
        old = self.event(thread, version)
        if not self.holds_text(old) or (old.owner, old.version) in self.redacted:
            raise Refused(NotRedactableError)
        self.redacted.add((old.owner, old.version))
        return self.record(old.owner, "redact", version, now)

    def holds_text(self, event: NaiveEvent) -> bool:
        if event.kind == "label":
            return event.payload[1] is not None
        return event.kind in {"message", "checkpoint"} or (event.kind in BEGINNINGS and event.payload is not None)

    def purge(self, thread: str, now: int, *, forks: bool) -> None:
        line = self.lines[thread]
        if line[-1].kind == "purge" and line[-1].owner == thread:
            raise Refused(NotRedactableError)
        if not forks and any(self.is_fork(each, thread) for each in self.lines):
            raise Refused(ThreadHasForksError)
        self.redacted |= {(thread, each.version) for each in line if each.owner == thread and self.holds_text(each)}
        if self.status(thread) != "deleted":
            self.record(thread, "delete", None, now)
        self.record(thread, "purge", None, now)

    def restart(self, thread: str, title: str, now: int) -> None:
        if self.lines[thread][-1].kind != "purge":
            raise Refused(ThreadExistsError)
        self.record(thread, "restart", title, now)
        self.record(thread, "rewind", 1, now)

    def event(self, thread: str, version: int) -> NaiveEvent:
        if not 1 <= version <= self.version(thread):
            raise Refused(UnknownVersionError)
        return self.lines[thread][version - 1]

    def message(self, thread: str, version: int) -> NaiveEvent:
        event = self.event(thread, version)
        if event.kind != "message":
            raise Refused(NotRedactableError)
        return event
