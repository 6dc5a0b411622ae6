"""Sessions that the frameworks themselves stored are imported into Clew."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

from clew import Conversations

ITEMS: list[Any] = [
    {"role": "user", "content": "Where is parcel 7?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Easy."}]},
    {"type": "function_call", "call_id": "c1", "name": "track", "arguments": "{}", "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "In Cork."},
    {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "In Cork."}]},
]


def imported(*files: Path) -> dict[str, list[tuple[str, str]]]:
    """The roles and texts of the threads by their sources, after two imports, of which the second changes nothing."""
    with Conversations.open("memory:") as conversations:
        assert conversations.import_files(*files).failed == []
        events = conversations.verify().events
        again = conversations.import_files(*files)
        assert (again.threads, again.failed, conversations.verify().events) == (0, [], events)
        found: dict[str, list[tuple[str, str]]] = {}
        for summary in conversations.threads():
            history = conversations.thread(summary.id).history()
            assert all(message.said_at is not None for message in history)
            found[str(summary.metadata.get("source_id", "fork"))] = [
                (message.role, message.text) for message in history
            ]
        return found


def test_a_session_becomes_a_thread_with_its_times(tmp_path: Path) -> None:
    async def store() -> None:
        for name in ("one", "two"):
            session = SQLiteSession(name, tmp_path / "sessions.db")
            await session.add_items(ITEMS if name == "one" else ITEMS[:1])
            session.close()

    asyncio.run(store())
    roles = [
        ("user", ITEMS[0]["content"]),
        ("assistant", ""),
        ("assistant", ""),
        ("tool", ""),
        ("assistant", "In Cork."),
    ]
    assert imported(tmp_path / "sessions.db") == {"one": roles, "two": roles[:1]}
    with sqlite3.connect(tmp_path / "sessions.db") as connection:  # nothing was changed in it
        assert connection.execute("SELECT count(*) FROM agent_messages").fetchone() == (6,)
    connection.close()


def test_the_branches_of_an_advanced_session_become_forks(tmp_path: Path) -> None:
    async def store() -> None:
        session = AdvancedSQLiteSession(session_id="s", db_path=tmp_path / "sessions.db", create_tables=True)
        talk: list[Any] = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
        await session.add_items([*talk, {"role": "user", "content": "two"}, {"role": "assistant", "content": "2"}])
        await session.create_branch_from_turn(2, "other")
        await session.add_items([{"role": "user", "content": "three"}])
        session.close()

    asyncio.run(store())
    begin = [("user", "one"), ("assistant", "1")]
    assert imported(tmp_path / "sessions.db") == {
        "s": [*begin, ("user", "two"), ("assistant", "2")],
        "fork": [*begin, ("user", "three")],
    }
