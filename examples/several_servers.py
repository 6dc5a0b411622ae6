"""What an application does with several PostgreSQL servers: it reads from a standby, and counts what is on all of them.

``say`` and ``read`` run in two processes: one is at the primary, the other at a server that follows it. ``count`` is an
operator's job, which may be ended at any moment, and goes on where it was.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from clew import Conversations, Message, Positions, Shards


def say(primary: str, thread_id: str, text: str) -> int:
    """Append to a thread; how far the store is then, for whoever is to read it."""
    with Conversations.open(primary) as here:
        here.open_thread(thread_id).append(Message.user(text))
        return here.position()


def read(standby: str, thread_id: str, written: int) -> list[str]:
    """What was said in a thread, once all of it has come to the standby. That needs no read models."""
    with Conversations.open(standby, projections=[]) as there:
        there.wait(written, timeout=30.0)  # ProjectionBehindError if it takes longer
        return [said.text for said in there.thread(thread_id).history().messages]


def count(directory: str, file: str, upto: Positions) -> dict[str, int]:
    """The number of events of each tenant on all servers up to these positions, each counted once."""
    shards = Shards.open(directory)
    with closing(sqlite3.connect(file)) as counts:
        counts.execute("CREATE TABLE IF NOT EXISTS tenant (name TEXT PRIMARY KEY, events INTEGER)")
        counts.execute("CREATE TABLE IF NOT EXISTS place (positions TEXT)")
        stored = counts.execute("SELECT positions FROM place").fetchone() or ("",)
        with shards.events(after=Positions.parse(stored[0])) as events:
            while not upto <= events.positions:
                _, event, positions = next(events)
                with counts:  # the number and the place in one transaction
                    tenant = event.stream.split("/")[0]
                    counts.execute("INSERT OR IGNORE INTO tenant VALUES (?, 0)", [tenant])
                    counts.execute("UPDATE tenant SET events = events + 1 WHERE name = ?", [tenant])
                    counts.execute("DELETE FROM place")
                    counts.execute("INSERT INTO place VALUES (?)", [str(positions)])
        return dict(counts.execute("SELECT name, events FROM tenant ORDER BY name"))
