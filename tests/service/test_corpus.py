"""Real conversations forked at every version, and deeply nested forks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from clew.conversations import Conversations
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.messages import Message
from clew.service.conversation_transfer import import_conversation
from clew.service.effects import run
from clew.sync.threads import Thread

DEPTH = 1_000


@pytest.fixture(scope="module")
def imported(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[dict[str, Any]], scale: float
) -> list[tuple[str, list[Any], Path]]:
    """Return the thread id and messages of each sampled conversation, and the file with all of them."""
    path = tmp_path_factory.mktemp("corpus") / "clew.db"
    sample = random.Random(7).sample(corpus, max(1, min(len(corpus), round(len(corpus) * scale))))
    threads = []
    with Conversations.open(f"sqlite:///{path}?synchronous=OFF") as conversations:
        for value in sample:
            done = run(import_conversation(conversations._core, read_conversation(value), 1))
            threads.append((done.thread_id, value["messages"], path))
    return threads


def test_a_fork_at_any_version_costs_one_event_and_keeps_its_parents_history(
    imported: list[tuple[str, list[Any], Path]],
) -> None:
    url = f"sqlite:///{imported[0][2]}?synchronous=OFF"
    with Conversations.open(url) as conversations:
        log = conversations._core.log
        for thread_id, messages, _ in imported:
            thread = conversations.thread(thread_id)
            whole = thread.history().messages
            assert len(whole) == len(messages)
            last = thread.version
            forks: list[tuple[Thread, int]] = []
            for version in range(1, last + 1):
                before = log.last_position()
                forks.append((thread.fork(at=version), version))
                assert log.last_position() == before + 1
            thread.append(Message.user("The parent continues."))
            thread.rewind(to=1)
            for fork, version in forks:
                history = fork.history()
                assert history.version == version + 1
                assert history.messages == tuple(message for message in whole if message.version <= version)
                assert thread.history(at=version).messages == history.messages
                assert len(list(fork.events(after=version))) == 1
            assert len(thread.history()) == 0
            # Abandoned versions can be rewound to and forked.
            assert thread.fork(at=last).history().messages == whole
            thread.rewind(to=last)
            assert thread.history().messages == whole
        assert conversations.verify().first_bad is None


class Statements:
    """Records the SQL statements with which a service's readers read events."""

    def __init__(self, conversations: Conversations) -> None:
        self.seen: list[str] = []
        datastore = cast("Any", conversations._core.log).recorder.datastore
        if hasattr(datastore, "query"):
            self._trace_queries(datastore)
        else:
            self._trace_connections(datastore.readers)

    def _trace_queries(self, datastore: Any) -> None:
        query = datastore.query

        def traced(sql: str, *parameters: Any, **more: Any) -> Any:
            self.seen.append(sql)
            return query(sql, *parameters, **more)

        datastore.query = traced

    def _trace_connections(self, readers: Any) -> None:
        connect = readers._connect

        def traced() -> Any:
            connection = connect()
            connection.set_trace_callback(self.seen.append)
            return connection

        readers._connect = traced
        while readers._free:
            readers._free.pop().close()

    def take_count(self) -> int:
        """Return the number of statements since the last call."""
        statements = [statement for statement in self.seen if " event " in statement or " clew_event " in statement]
        self.seen.clear()
        return len(statements)


def test_reads_forks_a_thousand_deep_in_one_query(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="root", messages=[Message.user("0")])
        flat = conversations.start_thread(thread_id="flat", messages=[Message.user("0")])
        for depth in range(1, DEPTH):
            thread = thread.fork(thread_id=f"depth-{depth}")
            thread.append(Message.user(str(depth)))
        flat.append([Message.user(str(number)) for number in range(1, DEPTH)])
        deepest = thread.id
    counts: dict[str, list[int]] = {}
    for thread_id in (deepest, "flat"):
        with Conversations.open(shared_url) as conversations:
            statements = Statements(conversations)
            log = conversations._core.log
            rows = log.lineage(conversations._core.stream(thread_id))
            lineage = statements.take_count()
            texts = [message.text for message in conversations.thread(thread_id).history()]
            history = statements.take_count()
            assert texts == [str(number) for number in range(DEPTH)]
            assert len(rows) == (2 * DEPTH if thread_id == deepest else DEPTH + 1)
            conversations.thread(thread_id).history(at=500)
            counts[thread_id] = [lineage, history, statements.take_count()]
    assert counts[deepest] == counts["flat"]
    assert counts[deepest][0] == 1


def test_forks_and_rewinds_to_abandoned_versions_a_hundred_times(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(messages=[Message.user("kept")])
        for _ in range(100):
            thread.append(Message.user("abandoned"))
            abandoned = thread.version
            thread.rewind(to=2)
            thread = thread.fork(at=abandoned) if abandoned % 2 else thread.fork()
            thread.rewind(to=2)
        assert [message.text for message in thread.history()] == ["kept"]
        thread.rewind(to=abandoned)
        assert [message.text for message in thread.history()] == ["kept", "abandoned"]
        assert thread.summary().messages == 2
        assert conversations.verify().first_bad is None
