"""A history store of one's own: a table that has the messages of every thread. Run it with the path of a database."""

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing

from clew import Agent, HistoryStore, ScriptedChatClient, StoreContext, StoredMessage


class DatabaseHistory(HistoryStore):
    """The rows of one key, which is made of tenant and thread. A message that comes twice is there once."""

    def __init__(self, path: str, ctx: StoreContext) -> None:
        self.path, self.key = path, repr((ctx.tenant, ctx.thread_id))

    def _do(self, sql: str, rows: Sequence[tuple[str, ...]]) -> list[tuple[str]]:
        with closing(sqlite3.connect(self.path, timeout=60)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS said (key TEXT, id TEXT, message TEXT, UNIQUE (key, id))")
            return [found for row in rows for found in database.execute(sql, row).fetchall()]

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages, without those that are there."""
        rows = [(self.key, each.id, each.to_text()) for each in messages]
        await asyncio.to_thread(self._do, "INSERT OR IGNORE INTO said VALUES (?, ?, ?)", rows)

    async def list_messages(self) -> list[StoredMessage]:
        """The messages in the order in which they came."""
        rows = await asyncio.to_thread(self._do, "SELECT message FROM said WHERE key = ? ORDER BY rowid", [(self.key,)])
        return [StoredMessage.from_text(text) for (text,) in rows]

    async def serialize(self, **_: object) -> dict[str, str]:
        """What no other thread may have, too."""
        return {"key": self.key}


if __name__ == "__main__":
    Agent(ScriptedChatClient(["Hello."]), history_store=lambda ctx: DatabaseHistory(sys.argv[1], ctx)).run_sync("Hi.")
