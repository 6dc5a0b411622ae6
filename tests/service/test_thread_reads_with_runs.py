"""Reading a thread with runs in all ways."""

from __future__ import annotations

import pytest
from tests.service import recorded_runs
from tests.service.recorded_runs import record

from clew.conversations import Conversations
from clew.domain.events import MessageAppended
from clew.domain.runs.events import RunEvent
from clew.domain.runs.summaries import run_summaries
from clew.infrastructure.event_log import ConversationLog
from clew.sync.threads import LocalThread

CANARY = "Canarybird"


@pytest.fixture
def thread(conversations: Conversations) -> LocalThread:
    """Return a thread with four runs; the last one waits for an approval."""
    thread = conversations.start_thread(thread_id="t")
    record(conversations, "t", "r1", *recorded_runs.with_a_tool(CANARY))
    record(conversations, "t", "r2", *recorded_runs.cut_short(CANARY))
    record(conversations, "t", "r3", *recorded_runs.failing(CANARY))
    record(conversations, "t", "r4", *recorded_runs.waiting(CANARY))
    return thread


def test_replaying_and_stepping_show_runs(thread: LocalThread) -> None:
    replayed = list(thread.replay())
    assert [event.version for event, _ in replayed] == list(range(1, 37))
    for event, state in replayed:
        assert thread.state(at=event.version) == state
        step = thread.step(at=event.version, last=50)
        assert step.event == event
        assert step.messages == state.messages
        runs = [run.run_id for run in run_summaries(thread.events(), event.version) if run.ended is None]
        assert runs == ([] if step.control.run is None else [step.control.run.id])


def test_exports_and_markdown_contain_only_the_messages_of_runs(
    conversations: Conversations, thread: LocalThread
) -> None:
    (exported,) = [*conversations.export(forks=False)]
    messages = exported["messages"]
    assert isinstance(messages, list)
    assert [each["role"] for each in messages if isinstance(each, dict)] == [
        message.role for message in thread.history()
    ]
    assert thread.markdown().count("\n## ") == len(thread.history()) == 10
    fork = thread.fork(at=15, thread_id="fork")
    compared = conversations.diff("t", "fork")
    assert (compared.shared, compared.counts.only_a, compared.counts.only_b) == (4, 6, 0)
    assert [run.outcome for run in run_summaries(fork.events())] == ["completed"]


def test_no_run_event_contains_the_text_of_messages(conversations: Conversations, thread: LocalThread) -> None:
    log = conversations._core.log
    assert isinstance(log, ConversationLog)
    rows = {row.version: row for row in log.own_rows("default/thread/t", after=0, limit=100)}
    runs = [event.version for event in thread.events() if isinstance(event.data, RunEvent)]
    messages = [event.version for event in thread.events() if isinstance(event.data, MessageAppended)]
    assert len(runs) == 25
    assert not [version for version in runs if CANARY.encode() in rows[version].state]
    assert len([version for version in messages if CANARY.encode() in rows[version].state]) == 9
    for version in messages:
        thread.redact(version)
    everything = [row.state for row in log.own_rows("default/thread/t", after=0, limit=100)]
    assert not [state for state in everything if CANARY.encode() in state]
    assert CANARY not in str([*conversations.audit()])
    assert [run.outcome for run in run_summaries(thread.events())] == ["completed", "abandoned", "failed", "waiting"]
    assert thread.verify().first_bad is None
