"""A custom history store: a table with the messages of every thread. Run it with the path of a database."""

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing

from clew import Agent, HistoryStore, ScriptedChatClient, StoreContext, StoredMessage


class DatabaseHistory(HistoryStore):
    """The rows of one key, which consists of tenant and thread. A repeated message is stored once."""

    def __init__(self, path: str, ctx: StoreContext) -> None:
        self.path, self.key = path, repr((ctx.tenant, ctx.thread_id))

    def _do(self, sql: str, rows: Sequence[tuple[str, ...]]) -> list[tuple[str]]:
        with closing(sqlite3.connect(self.path, timeout=60)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS message (key TEXT, id TEXT, text TEXT, UNIQUE (key, id))")
            return [result for row in rows for result in database.execute(sql, row).fetchall()]

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages, except those that are already stored."""
        rows = [(self.key, each.id, each.to_text()) for each in messages]
        await asyncio.to_thread(self._do, "INSERT OR IGNORE INTO message VALUES (?, ?, ?)", rows)

    async def list_messages(self) -> list[StoredMessage]:
        """Return the messages in the order of their arrival."""
        rows = await asyncio.to_thread(self._do, "SELECT text FROM message WHERE key = ? ORDER BY rowid", [(self.key,)])
        return [StoredMessage.from_text(text) for (text,) in rows]

    async def serialize(self, **_: object) -> dict[str, str]:
        """Return the key, which no other thread may share."""
        return {"key": self.key}


if __name__ == "__main__":
    Agent(ScriptedChatClient(["Hello."]), history_store=lambda ctx: DatabaseHistory(sys.argv[1], ctx)).run_sync("Hi.")
