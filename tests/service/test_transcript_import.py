"""Conversations of other programs become threads, forks and records, once."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.domain.formats.exports import chatgpt, chatgpt_message, claude, claude_message, talk

from clew.conversations import Conversations
from clew.domain.formats.conversation_import import ImportReport, Item, thread_id
from clew.domain.records import Record
from clew.sync.threads import Thread

MAIN = thread_id(["chatgpt", "c-1"])
EDGES = [*talk("Q", "A", "Q2", "A2"), ("m1", chatgpt_message("b", "user", "Other Q2"))]
EDGES.append(("b", chatgpt_message("b2", "assistant", "Other A2")))
EDGES.append(("b", chatgpt_message("d", "assistant", "Another A2")))


@pytest.fixture
def conversations(any_url: str) -> Any:
    with Conversations.open(any_url) as opened:
        yield opened


def bring(conversations: Conversations, *values: Any) -> ImportReport:
    return conversations.import_items([Item("export", None, deepcopy(value)) for value in values])


def texts(thread: Thread) -> list[str]:
    return [message.text for message in thread.history()]


def all_texts(conversations: Conversations) -> list[list[str]]:
    return sorted(texts(conversations.thread(summary.id)) for summary in conversations.threads())


def test_branches_become_forks_and_a_second_import_changes_nothing(conversations: Conversations) -> None:
    value = chatgpt(*EDGES, shown="m3")
    report = bring(conversations, value)
    assert (report.threads, report.messages, report.failed) == (3, 7, [])
    assert all_texts(conversations) == [
        ["Q", "A", "Other Q2", "Another A2"],
        ["Q", "A", "Other Q2", "Other A2"],
        ["Q", "A", "Q2", "A2"],
    ]
    main = conversations.thread(MAIN)
    assert texts(main) == ["Q", "A", "Q2", "A2"]
    assert [message.said_at for message in main.history()] == [datetime(2024, 6, 1, 0, 0, 0, 250_000, UTC)] * 4
    assert main.summary().title == "Trip"
    events = conversations.verify().events
    report = bring(conversations, {**value, "current_node": "d", "title": "Renamed", "update_time": 5})
    assert (report.threads, report.skipped, report.failed) == (0, 3, [])
    assert conversations.verify().events == events
    assert conversations.verify().first_bad is None


def test_a_later_export_extends_threads_and_adds_forks(conversations: Conversations) -> None:
    bring(conversations, chatgpt(*talk("Q", "A", "Q2", "A2")))
    conversations.thread(MAIN).append(Record("app.note", {"seen": True}))
    more = [*EDGES, ("m3", chatgpt_message("e", "user", "More")), ("e", chatgpt_message("f", "assistant", "Yes"))]
    for _ in range(2):
        report = bring(conversations, chatgpt(*more, shown="d"))
        assert report.failed == []
    assert texts(conversations.thread(MAIN)) == ["Q", "A", "Q2", "A2", "More", "Yes"]  # although another is shown
    assert len(all_texts(conversations)) == 3


def test_redacted_messages_do_not_come_back(conversations: Conversations) -> None:
    bring(conversations, chatgpt(*talk("Q", "A")))
    main = conversations.thread(MAIN)
    main.redact(main.history().messages[-1])
    later = [*talk("Q", "A"), ("m0", chatgpt_message("b", "assistant", "B"))]
    for _ in range(2):
        assert bring(conversations, chatgpt(*later)).failed == []
    assert all_texts(conversations) == [["Q", ""], ["Q", "B"]]


def test_what_is_not_a_message_is_a_record_and_the_report_says_so(conversations: Conversations) -> None:
    hidden = chatgpt_message("s", "system", "", is_visually_hidden_from_conversation=True)
    value = chatgpt((None, hidden), *talk("Q", after="s"))
    assert bring(conversations, value).records == {"chatgpt.hidden": 1}
    (record,) = conversations.thread(MAIN).records("chatgpt.hidden")
    assert (record.key, record.data) == ("s", hidden)
    assert bring(conversations, value).records == {}


def test_a_changed_message_is_refused_with_its_thread_and_without_its_forks(conversations: Conversations) -> None:
    bring(conversations, chatgpt(*talk("Q", "A")))
    value = chatgpt(*talk("Q", "Changed"), ("m0", chatgpt_message("b", "assistant", "B")), shown="m1")
    (failure,) = bring(conversations, value, claude(claude_message("a", "human", "Hi"))).failed
    assert f"Conversation of thread {MAIN!r}: it differs from its thread at message 2" in failure.error
    assert all_texts(conversations) == [["Hi"], ["Q", "A"]]


def test_equal_ids_of_two_programs_are_two_conversations(conversations: Conversations) -> None:
    session = {"session_id": "c-1", "items": [{"role": "user", "content": "Hi"}]}
    chat = {"id": "c-1", "messages": [{"role": "user", "content": "Ho"}]}
    report = bring(
        conversations, chatgpt(*talk("Q")), claude(claude_message("a", "human", "K"), uuid="c-1"), session, chat
    )
    assert (report.threads, report.failed) == (4, [])


def test_a_session_grows_item_by_item(conversations: Conversations) -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    items.append({"type": "function_call_output", "call_id": "c", "output": "1"})
    for length in (1, 3, 2, 3):
        assert bring(conversations, {"session_id": "s", "items": items[:length]}).failed == []
    view = conversations.thread(thread_id(["openai-agents", "s"])).view()
    assert ([message.role for message in view.messages], view.repairs) == (["user", "assistant", "tool"], ())


def test_forks_of_a_deleted_thread_fail_one_by_one(conversations: Conversations) -> None:
    bring(conversations, chatgpt(*talk("Q", "A")))
    conversations.thread(MAIN).delete()
    value = chatgpt(*talk("Q", "A"), ("m0", chatgpt_message("b", "assistant", "B")))
    (failure,) = bring(conversations, value).failed
    assert "deleted" in failure.error


IMPORT = """
import sys
from clew import Conversations
with Conversations.open(sys.argv[1]) as conversations:
    conversations.import_files(sys.argv[2], progress=lambda report: print(report.threads, flush=True))
"""


def test_a_killed_import_leaves_whole_threads_and_continues(tmp_path: Path) -> None:
    values = [chatgpt(*EDGES, conversation_id=f"c-{number}", shown="m3") for number in range(20)]
    file, store = tmp_path / "conversations.json", tmp_path / "clew.db"
    file.write_text(json.dumps(values))
    with Conversations.open("memory:") as conversations:
        conversations.import_files(file)
        whole = {summary.id: texts(conversations.thread(summary.id)) for summary in conversations.threads()}
    for killed_at in (1, 20, 41):  # of 60 threads: 20 and their forks
        command = [sys.executable, "-c", IMPORT, str(store), str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while process.stdout.readline() not in {f"{killed_at}\n", ""}:
                pass
            process.kill()
        with Conversations.open(store) as conversations:
            found = {summary.id: texts(conversations.thread(summary.id)) for summary in conversations.threads()}
            assert found.items() <= whole.items()
            assert conversations.verify().first_bad is None
    with Conversations.open(store) as conversations:
        assert conversations.import_files(file).failed == []
        found = {summary.id: texts(conversations.thread(summary.id)) for summary in conversations.threads()}
        assert found == whole
