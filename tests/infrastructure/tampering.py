"""A small closed store whose database is changed without Clew."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.ports import IntegrityFault


class Place(NamedTuple):
    """A row of the store: its position, and the thread and version that a fault in it must name."""

    position: int
    stream: int
    thread_id: str
    version: int


class Store:
    """A closed store. Tests change its rows, one change at a time, and verify the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = sqlite3.connect(path, isolation_level=None)
        self.raw.execute("PRAGMA synchronous = OFF")
        self.raw.text_factory = lambda text: text.decode(errors="surrogateescape")
        self.verifier = Conversations.open(f"sqlite:///{path}?synchronous=OFF")
        names = self.raw.execute("SELECT id, name, cut FROM stream ORDER BY id").fetchall()
        self.streams: dict[int, str] = {key: name for key, name, _ in names}
        self.first: dict[int, int] = {key: 1 + (cut or 0) for key, _, cut in names}
        self.forks = [key for key, _, cut in names if cut is not None]
        self.places = [
            Place(position, stream, self.thread(stream), version)
            for position, stream, version in self.raw.execute("SELECT position, stream, version FROM event")
        ]
        self.heads = {place.stream: place.version for place in sorted(self.places)}

    def close(self) -> None:
        self.raw.close()
        self.verifier.close()

    def thread(self, stream: int) -> str:
        return self.streams[stream].split("/")[2]

    def fault(self, *changes: tuple[str, Any]) -> IntegrityFault | None:
        """The fault that verify finds after the changes. The changes are then undone."""
        saved = [
            (table, self.raw.execute(f"SELECT rowid, * FROM {table}").fetchall())  # noqa: S608 - names of tables
            for table in ("stream", "event", "remains", "blob")
        ]
        try:
            for sql, parameters in changes:
                self.raw.execute(sql, parameters)
            return self.verifier.verify().first_bad
        finally:
            self.raw.execute("BEGIN")
            for table, rows in saved:
                self.raw.execute(f"DELETE FROM {table}")  # noqa: S608 - names of tables
                if not rows:
                    continue
                marks = ",".join("?" * (len(rows[0]) - 1))
                sql = f"INSERT INTO {table} VALUES ({marks})"  # noqa: S608 - names of tables
                self.raw.executemany(sql, [row[1:] for row in rows])
            self.raw.execute("COMMIT")

    def value(self, place: Place, column: str) -> Any:
        return self.raw.execute(
            f"SELECT {column} FROM event WHERE position = ?",  # noqa: S608 - names of columns
            (place.position,),
        ).fetchone()[0]

    def place(self, thread_id: str, version: int) -> Place:
        return next(each for each in self.places if (each.thread_id, each.version) == (thread_id, version))

    def places_of_type(self, type_: str) -> list[Place]:
        return [place for place in self.places if self.value(place, "type") == type_]


def build(path: Path) -> None:
    """Create two tenants, nested forks, a rewind, and two redactions. Only one stub fits into its row."""
    url = f"sqlite:///{path}?synchronous=OFF"
    ticks = iter(range(1_000_000, 2_000_000))
    with Conversations.open(url, now=lambda: next(ticks)) as conversations:
        messages = [Message.user("Hi"), Message.user("x")]
        root = conversations.start_thread("Refund", thread_id="root", messages=messages, actor="ü" * 200)
        root.checkpoint("here")
        root.append(Message.assistant("A long answer. " * 20))
        root.append(Message.user("Thanks"))
        branch = root.fork(at=4, thread_id="branch", title="What if")
        branch.append([Message.user("No"), Message.assistant("Yes")])
        twig = branch.fork(at=6, thread_id="twig")
        twig.append(Message.user("Well"))
        root.redact(2)
        root.redact(5, reason="asked")
        root.rewind(3)
        other = conversations.start_thread("Other", thread_id="other", messages=[Message.user("Hi")])
        other.label(a=1)
        other.suspend()
    with Conversations.open(url, tenant="acme", now=lambda: next(ticks)) as conversations:
        conversations.start_thread("Refund", thread_id="acme-root", messages=[Message.user("Hi"), Message.user("x")])
