"""The recipe "Add a projection" of CONTRIBUTING.md: declare one, open a store with it, and read its rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clew import Conversations, Message
from clew.projections import SHIPPED, Change, Column, Query, Recorded, Rows, Table, Upsert


class Roles:
    """How many messages of each role a thread has."""

    name = "roles"
    version = 1
    tables = (
        Table(
            "role",
            (Column("tenant"), Column("thread_id"), Column("role"), Column("messages", "integer", adds=True)),
            key=("tenant", "thread_id", "role"),
        ),
    )
    texts = ()
    types = frozenset({"message-appended"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Count a message that is readable."""
        del rows
        if event.data is None:
            return ()
        role = event.data["message"]["role"]
        values = {"tenant": event.tenant, "thread_id": event.thread_id, "role": role, "messages": 1}
        return (Upsert("role", values),)


def test_a_new_projection_has_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread_id = conversations.start_thread(messages=[Message.user("one"), Message.assistant("two")]).id
    with Conversations.open(url, projections=[*SHIPPED, Roles()]) as conversations:
        conversations.thread(thread_id).append(Message.user("three"))
        rows = conversations.rows("roles", Query("role", order=["role"]))
        assert [(row["role"], row["messages"]) for row in rows] == [("assistant", 1), ("user", 2)]
        assert conversations.search("three")[0].thread_id == thread_id
