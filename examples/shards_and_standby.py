"""An application with several PostgreSQL servers: it reads from a standby and counts the events of all servers.

``say`` and ``read`` run in two processes: one uses the primary, the other its standby. ``count`` is an operator's job.
It can be stopped at any moment and continues where it stopped.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from clew import Conversations, Message, Positions, Shards


def say(primary: str, thread_id: str, text: str) -> int:
    """Append to a thread. Returns the store's position for the reader."""
    with Conversations.open(primary) as conversations:
        conversations.open_thread(thread_id).append(Message.user(text))
        return conversations.position()


def read(standby: str, thread_id: str, position: int) -> list[str]:
    """Return the texts of a thread when the standby has all of them. This needs no read models."""
    with Conversations.open(standby, projections=[]) as conversations:
        conversations.wait(position, timeout=30.0)  # ProjectionBehindError if it takes longer
        return [message.text for message in conversations.thread(thread_id).history().messages]


def count(directory: str, file: str, upto: Positions) -> dict[str, int]:
    """Return the number of events per tenant on all servers up to these positions, each counted once."""
    shards = Shards.open(directory)
    with closing(sqlite3.connect(file)) as counts:
        counts.execute("CREATE TABLE IF NOT EXISTS tenant (name TEXT PRIMARY KEY, events INTEGER)")
        counts.execute("CREATE TABLE IF NOT EXISTS progress (positions TEXT)")
        stored = counts.execute("SELECT positions FROM progress").fetchone() or ("",)
        with shards.events(after=Positions.parse(stored[0])) as events:
            while not upto <= events.positions:
                _, event, positions = next(events)
                with counts:  # the count and the positions in one transaction
                    tenant = event.stream.split("/")[0]
                    counts.execute("INSERT OR IGNORE INTO tenant VALUES (?, 0)", [tenant])
                    counts.execute("UPDATE tenant SET events = events + 1 WHERE name = ?", [tenant])
                    counts.execute("DELETE FROM progress")
                    counts.execute("INSERT INTO progress VALUES (?)", [str(positions)])
        return dict(counts.execute("SELECT name, events FROM tenant ORDER BY name"))
