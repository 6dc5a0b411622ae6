"""A custom read model: the threads that wait for an answer. Run it with the URL of a database."""

import sys
from collections.abc import Iterator

from clew import Conversations
from clew.projections import SHIPPED, Change, Column, Query, Recorded, Rows, Table, Upsert, Where

THREAD = ("tenant", "thread_id")


class OpenQuestions:
    """One row per thread with messages; ``asked_at`` is set while the newest message is a user's."""

    name = "open_questions"
    version = 1
    tables = (
        Table("thread", (*map(Column, THREAD), Column("asked_at", "integer")), THREAD, (("tenant", "asked_at"),)),
    )
    texts = ()
    types = frozenset({"message-appended"})

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        """Set or clear ``asked_at``. A redacted message still has its role."""
        role = event.role if event.message is None else event.message.role
        asked_at = event.recorded_at if role == "user" else None
        yield Upsert("thread", {"tenant": event.tenant, "thread_id": event.thread_id, "asked_at": asked_at})


if __name__ == "__main__":
    longest_first = Query("thread", [Where("tenant", "=", "default"), Where("asked_at", ">", 0)], order=["asked_at"])
    with Conversations.open(sys.argv[1], projections=[*SHIPPED, OpenQuestions()]) as conversations:
        for row in conversations.rows("open_questions", longest_first):
            print(row["thread_id"], conversations.thread(row["thread_id"]).history().messages[-1].text)
