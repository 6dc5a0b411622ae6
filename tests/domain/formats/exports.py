"""Conversations as ChatGPT, Claude and the OpenAI Agents SDK store them: the documented form, written by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

TIME = 1_717_200_000.25
SAID = 1_717_200_000_250_000
ISO = "2024-06-01T00:00:00.250000Z"


def chatgpt_message(
    id_: str, role: str, *parts: Any, author: str | None = None, to: str = "all", content: Any = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "id": id_,
        "author": {"role": role, "name": author, "metadata": {}},
        "create_time": TIME,
        "update_time": None,
        "content": {"content_type": "text", "parts": list(parts)} if content is None else content,
        "status": "finished_successfully",
        "weight": 1.0,
        "metadata": metadata,
        "recipient": to,
    }


def chatgpt(*edges: tuple[str | None, Any], shown: str | None = None, **fields: Any) -> dict[str, Any]:
    """A conversation of messages, each with the id of its parent; a parent of None is the root."""
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    for parent, message in edges:
        above = parent or "root"
        mapping[message["id"]] = {"id": message["id"], "message": message, "parent": above, "children": []}
        mapping[above]["children"].append(message["id"])
    last = edges[-1][1]["id"] if edges else "root"
    known = {"title": "Trip", "create_time": TIME, "conversation_id": "c-1", "current_node": shown or last}
    return {**known, **fields, "mapping": mapping}


def talk(*texts: str, after: str | None = None, prefix: str = "m") -> list[tuple[str | None, dict[str, Any]]]:
    """Messages of the user and the assistant in turn, one after another."""
    edges: list[tuple[str | None, dict[str, Any]]] = []
    for number, text in enumerate(texts):
        id_ = f"{prefix}{number}"
        edges.append((after, chatgpt_message(id_, "assistant" if number % 2 else "user", text)))
        after = id_
    return edges


def claude_message(uuid: str, sender: str, *blocks: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    text = "".join(block for block in blocks if isinstance(block, str))
    known = {"uuid": uuid, "sender": sender, "text": text, "content": content, "created_at": ISO, "updated_at": ISO}
    return {**known, "attachments": [], "files": [], **fields}


def claude(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    known = {"uuid": "k-1", "name": "Plans", "created_at": ISO, "account": {"uuid": "a"}}
    return {**known, **fields, "chat_messages": list(messages)}


def session_database(path: Path, *rows: tuple[str, str], table: str = "agent_messages") -> Path:
    """The tables of SQLiteSession."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP)")
        connection.execute(
            f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, "
            "message_data TEXT NOT NULL, created_at TIMESTAMP DEFAULT '2024-06-01 00:00:00')"
        )
        connection.executemany(f"INSERT INTO {table} (session_id, message_data) VALUES (?, ?)", rows)  # noqa: S608 - a test
    connection.close()
    return path
