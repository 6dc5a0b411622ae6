"""Sessions that the frameworks themselves stored are imported into Clew."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

from agent_framework import AgentSession, Content, FileHistoryProvider, Message
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

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
    with Conversations.open("memory:") as conversations:
        conversations.import_files(tmp_path / "sessions.db")
        thread = conversations.thread(next(conversations.threads()).id)
        assert all(message.said_at and message.said_at <= message.time for message in thread.history())
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


AGENT_MESSAGES = [
    Message("user", ["Where is parcel 7?", Content.from_data(b"a picture", media_type="image/png")]),
    Message("assistant", [Content.from_text_reasoning(text="Easy."), Content.from_function_call("c1", "track")]),
    Message("tool", [Content.from_function_result("c1", result="In Cork.")]),
    Message("assistant", ["In Cork."], author_name="Desk"),
]
AGENT_TALK = [("user", "Where is parcel 7?"), ("assistant", ""), ("tool", ""), ("assistant", "In Cork.")]


def test_sessions_of_agent_framework_become_threads(tmp_path: Path) -> None:
    session = AgentSession(session_id="s")
    session.state["in_memory"] = {"messages": AGENT_MESSAGES}
    (tmp_path / "session.json").write_text(json.dumps(session.to_dict()))
    assert imported(tmp_path / "session.json") == {"s": AGENT_TALK}

    asyncio.run(FileHistoryProvider(tmp_path / "files").save_messages("s-2", AGENT_MESSAGES))
    (file,) = (tmp_path / "files").iterdir()
    assert list(imported(file).values()) == [AGENT_TALK]


def test_traces_with_the_messages_of_langchain_become_threads(tmp_path: Path) -> None:
    call = AIMessage("", tool_calls=[{"name": "track", "args": {"parcel": 7}, "id": "c1"}])
    talk = [HumanMessage("Where is parcel 7?"), call, ToolMessage("In Cork.", tool_call_id="c1"), AIMessage("In Cork.")]
    rows = []
    for number, end in enumerate((1, 3)):
        outputs = {"generations": [[{"text": talk[end].text, "message": dumpd(talk[end])}]]}
        inputs = {"messages": [[dumpd(message) for message in talk[:end]]]}
        row = {"id": f"r{number}", "trace_id": "t", "run_type": "llm", "inputs": inputs, "outputs": outputs}
        rows.append({**row, "start_time": f"2024-06-01T00:00:0{number}"})
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    assert imported(tmp_path / "runs.json") == {"t": AGENT_TALK}
