"""A naive model of conversations: plain lists of events, and everything found by walking them again."""

from __future__ import annotations

from typing import Any, NamedTuple

from clew.domain.errors import (
    CheckpointExistsError,
    ClewError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadExistsError,
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
        "resume",
        "end",
        "delete",
    },
    "suspended": {"label", "checkpoint", "fork", "edit", "rewind", "redact", "resume", "end", "delete"},
    "ended": {"label", "checkpoint", "fork", "edit", "redact", "delete"},
    "deleted": {"redact"},
}
CHANGES = {"suspend": "suspended", "resume": "active", "end": "ended", "delete": "deleted", "fork": "active"}


class Refused(Exception):  # noqa: N818  # what the model says instead of an error of Clew's
    """The model expects this error."""

    def __init__(self, error: type[ClewError]) -> None:
        super().__init__(error.__name__)
        self.error = error


class Said(NamedTuple):
    """A message as the model knows it: its text is None once it was redacted."""

    version: int
    role: str
    text: str | None


class Happened(NamedTuple):
    """One event: the thread that owns it, its version, its kind, and what it says."""

    owner: str
    version: int
    kind: str
    payload: Any
    time: int


class NaiveThreads:
    """Every thread as its whole lineage; forks copy it. ``redacted`` holds (owner, version)."""

    def __init__(self) -> None:
        self.lines: dict[str, list[Happened]] = {}
        self.redacted: set[tuple[str, int]] = set()
        self.events = 0

    def record(self, thread: str, kind: str, payload: Any, now: int) -> int:
        line = self.lines[thread]
        time = max(now, line[-1].time) if line else now
        line.append(Happened(thread, len(line) + 1, kind, payload, time))
        self.events += 1
        return len(line)

    def version(self, thread: str) -> int:
        return len(self.lines[thread])

    # What a thread is

    def path(self, thread: str, version: int) -> list[Happened]:
        found: list[Happened] = []
        while version:
            event = self.lines[thread][version - 1]
            found.append(event)
            version = event.payload if event.kind == "rewind" else version - 1
        return found[::-1]

    def history(self, thread: str, version: int) -> list[Said]:
        return [
            Said(e.version, e.payload[0], None if (e.owner, e.version) in self.redacted else e.payload[1])
            for e in self.path(thread, version)
            if e.kind == "message"
        ]

    def status(self, thread: str, version: int | None = None) -> str:
        found = "active"
        for event in self.lines[thread][:version]:
            found = CHANGES.get(event.kind, found)
        return found

    def title(self, thread: str, version: int | None = None) -> str | None:
        found = None
        for event in self.lines[thread][:version]:
            if event.kind in {"start", "fork"} and event.payload is not None:
                found = event.payload
        return found

    def labels(self, thread: str, version: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self.lines[thread][:version]:
            if event.kind == "label":
                name, value = event.payload
                found.pop(name, None)
                if value is not None:
                    found[name] = value
        return found

    def checkpoints(self, thread: str, version: int | None = None) -> dict[str, int]:
        return dict(event.payload for event in self.lines[thread][:version] if event.kind == "checkpoint")

    def parent(self, thread: str) -> tuple[str | None, int | None]:
        line = self.lines[thread]
        cut = next((number for number, event in enumerate(line) if event.owner == thread), 0)
        return (line[cut - 1].owner, cut) if cut else (None, None)

    def readable(self, thread: str) -> None:
        if self.status(thread) == "deleted":
            raise Refused(ThreadDeletedError)

    def check(self, thread: str, asked: str) -> None:
        status = self.status(thread)
        if asked not in ALLOWED[status]:
            raise Refused(ThreadDeletedError if status == "deleted" else ThreadStatusError)

    def at_version(self, thread: str, version: int) -> int:
        if not 1 <= version <= self.version(thread):
            raise Refused(UnknownVersionError)
        return version

    def at_checkpoint(self, thread: str, name: str) -> int:
        if name not in self.checkpoints(thread):
            raise Refused(UnknownCheckpointError)
        return self.checkpoints(thread)[name]

    def at_time(self, thread: str, time: int) -> int:
        found = sum(event.time <= time for event in self.lines[thread])
        if not found:
            raise Refused(UnknownVersionError)
        return found

    def at_message(self, thread: str, number: int) -> int:
        messages = self.history(thread, self.version(thread))
        if number > len(messages):
            raise Refused(UnknownVersionError)
        if number:
            return messages[number - 1].version
        return messages[0].version - 1 if messages else self.version(thread)

    # What is done to it

    def start(self, thread: str, title: str, texts: list[tuple[str, str]], now: int) -> None:
        if thread in self.lines:
            raise Refused(ThreadExistsError)
        self.lines[thread] = []
        self.record(thread, "start", title, now)
        for said in texts:
            self.record(thread, "message", said, now)

    def append(self, thread: str, texts: list[tuple[str, str]], now: int) -> list[int]:
        self.check(thread, "append")
        return [self.record(thread, "message", said, now) for said in texts]

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
        old = self.message(thread, version)
        if (old.owner, old.version) in self.redacted:
            raise Refused(NotRedactableError)
        self.redacted.add((old.owner, old.version))
        return self.record(old.owner, "redact", version, now)

    def message(self, thread: str, version: int) -> Happened:
        found = self.lines[thread][self.at_version(thread, version) - 1]
        if found.kind != "message":
            raise Refused(NotRedactableError)
        return found
