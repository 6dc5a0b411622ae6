"""Redactions beyond messages, and redactions that wait for another program's reader."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from tests.service.counting_projections import Counting

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient, tool
from clew.domain.errors import IdempotencyKeyReusedError, NotRedactableError
from clew.domain.events import Event, ThreadEnded
from clew.domain.runs.errors import ModelRequestError
from clew.domain.runs.events import ApprovalGiven, Failure, ModelFailed, RunFailed
from clew.projections import SHIPPED
from clew.service.doctor import examine
from clew.sync.threads import Thread
from clew.testing import call

CARD = "4111-2222"


@contextmanager
def reader_of(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that reads the state of a file as it is now."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    try:
        yield connection
    finally:
        connection.close()


def files_with(text: str, folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if text.encode() in path.read_bytes()]


def finding(url: str) -> tuple[str, str]:
    return next((each.state, each.found) for each in examine(url, tenant="default") if each.name == "redactions")


def test_a_redaction_is_pending_while_another_program_reads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user(CARD), Message.user("other")])
        assert not thread.redact(3).pending
        with reader_of(tmp_path / "clew.db"):
            assert thread.redact(2).pending
            assert not conversations.erase(timeout=0)
            assert files_with(CARD, tmp_path)
            state, found = finding(url)
            assert state == "warning"
            assert found.endswith("redacted by default/thread/t version 5.")
        assert conversations.erase(timeout=60)
        assert files_with(CARD, tmp_path) == []
        thread.append(Message.user("later"))
        assert finding(url)[0] == "ok"


def test_a_pending_redaction_is_known_after_its_process_has_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user(CARD)])
    with reader_of(tmp_path / "clew.db"):
        with Conversations.open(url) as conversations:
            assert conversations.thread("t").redact(2).pending
        assert finding(url)[0] == "warning"
        with Conversations.open(url) as conversations:
            conversations.thread("t").append(Message.user("later"))
            assert not conversations.erase(timeout=0)
        assert finding(url)[0] == "warning"
    assert finding(url)[0] == "ok"
    assert files_with(CARD, tmp_path) == []


def test_a_redaction_is_pending_while_another_program_reads_only_the_read_models(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("confidential"), Message.user("other")])
        assert len(conversations.search("confidential")) == 1
    with reader_of(tmp_path / "clew.db.projections"):
        with Conversations.open(url) as conversations:
            assert conversations.thread("t").redact(2).pending
        assert files_with("confidential", tmp_path) == ["clew.db.projections"]
        for embedded in (True, False):
            with Conversations.open(url, embedded=embedded) as conversations:
                assert not conversations.erase(timeout=0)
        assert finding(url) == (
            "warning",
            f"{tmp_path}/clew.db.projections-wal still has content that was redacted by default/thread/t version 4.",
        )
    with Conversations.open(url, embedded=False) as conversations:
        assert conversations.erase(timeout=60)
        assert files_with("confidential", tmp_path) == []
        conversations.thread("t").append(Message.user("later"))
    assert finding(url)[0] == "ok"


REDACT_AND_DIE = """
import os, sys
from clew import Conversations
from clew.service.read_models import ReadModels
ReadModels.forget = lambda *_: os._exit(1)
with Conversations.open(sys.argv[1], embedded=False) as conversations:
    conversations.thread("t").redact(2)
"""


@pytest.mark.parametrize("embedded", [True, False])
def test_erases_what_a_process_that_was_killed_after_its_redaction_left_in_the_read_models(
    tmp_path: Path, *, embedded: bool
) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("confidential")])
        assert len(conversations.search("confidential")) == 1
    subprocess.run([sys.executable, "-c", REDACT_AND_DIE, url], check=False)
    assert files_with("confidential", tmp_path) == ["clew.db.projections"]
    assert finding(url) == (
        "warning",
        f"{tmp_path}/clew.db.projections still has content that was redacted by default/thread/t version 3.",
    )
    with Conversations.open(url, embedded=embedded) as conversations:
        assert conversations.erase(timeout=60)
    assert files_with("confidential", tmp_path) == []
    assert finding(url)[0] == "ok"


def test_nothing_is_erased_while_only_another_process_can_fill_the_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, projections=[*SHIPPED, Counting()]) as counting:
        counting.start_thread(thread_id="t", messages=[Message.user(CARD)])
        counting.wait()
    with Conversations.open(url) as other:
        assert other.thread("t").redact(2).pending
        assert not other.erase(timeout=0)
        with Conversations.open(url, projections=[*SHIPPED, Counting()]) as counting:
            counting.wait()
        assert other.erase(timeout=0)


def test_waits_until_no_program_reads_the_content(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "clew.db") as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user(CARD)])
        with reader_of(tmp_path / "clew.db") as connection:
            assert thread.redact(2).pending
            threading.Timer(0.3, connection.close).start()
            assert conversations.erase()
            assert files_with(CARD, tmp_path) == []


def failed_run(url: str) -> str:
    """A thread with a run that failed twice with an error that quotes the input."""

    async def run() -> str:
        async with Engine.open(url) as engine:
            thread = await engine.start_thread(messages=[Message.user(CARD)])
            quoting = ModelRequestError(f"Refused: {CARD} is not allowed.", status=400, code=CARD)
            for agent in (
                Agent(ScriptedChatClient(quoting), engine=engine),
                Agent(ScriptedChatClient("ok"), engine=engine),
            ):
                try:
                    await agent.run(f"My card is {CARD}", thread=thread)
                except ModelRequestError:
                    continue
            return thread.id

    return asyncio.run(run())


def quoting_events(thread: Thread) -> list[Event]:
    return [event for event in thread.events() if event.type in {"model-failed", "run-failed"}]


def test_a_redaction_of_a_message_takes_the_errors_that_may_quote_it(
    tmp_path: Path, conversations: Conversations
) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    thread_id = failed_run(source)
    with Conversations.open(source) as opened:
        thread = opened.thread(thread_id)
        before = [event.version for event in quoting_events(thread)]
        messages = [message.version for message in thread.history()]
        redaction = thread.redact(messages[1])
        assert redaction.errors == tuple(before)
        assert len(before) == 2
        for event in quoting_events(thread):
            assert isinstance(event.data, ModelFailed | RunFailed)
            assert event.redacted
            assert event.data.error == Failure(kind="ModelRequestError", status=400)
        thread.redact(messages[0])
        thread.redact(messages[2])
        assert files_with(CARD, tmp_path) == []
        assert opened.verify().first_bad is None
        document = thread.serialize()
        assert conversations.import_events(BytesIO(b"".join(opened.export_events()))).events == thread.version
        assert conversations.verify().first_bad is None
        copies = [event._replace(position=None) for event in conversations.thread(thread_id).events()]
        assert copies == [event._replace(position=None) for event in thread.events()]
    with Conversations.open("memory:") as other:
        assert other.restore_thread(document).version == len(copies)
        assert other.verify().first_bad is None


def test_redacts_the_reason_of_an_approval(tmp_path: Path) -> None:
    @tool(approval="always")
    def pay(card: str) -> str:
        """Pay."""
        return card

    async def rejected() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = Agent(ScriptedChatClient([call("pay", card="x"), "Done."]), engine=engine, tools=[pay])
            response = await agent.run("Pay")
            await response.approvals[0].reject(f"It is {CARD}", actor="user:1")
            thread = response.thread
            (given,) = [event async for event in thread.events(types=["approval-given"])]
            await thread.redact(given.version)
            (redacted,) = [event async for event in thread.events(types=["approval-given"])]
            assert redacted.data == ApprovalGiven(request=given.version - 1, approved=False)
            response = await agent.continue_run(thread)
            assert response.text == "Done."
            for message in await thread.history():
                if CARD in str(message):
                    await thread.redact(message)
            assert (await engine.verify()).first_bad is None

    asyncio.run(rejected())
    assert files_with(CARD, tmp_path) == []


def test_redacts_reasons(url: str) -> None:
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.suspend(reason=CARD)
        thread.resume()
        thread.end(reason=CARD)
        for version in (2, 4):
            thread.redact(version, reason=CARD)
        thread.redact(5)
        thread.redact(6)
        assert not any(CARD in str(event) for event in thread.events())
        assert next(thread.events(after=3)).data == ThreadEnded()
        assert thread.status == "ended"
        with pytest.raises(NotRedactableError, match="holds no text"):
            thread.redact(3)
        assert conversations.verify().first_bad is None


def test_no_file_holds_an_idempotency_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(thread_id="t")
        first = thread.append(Message.user("pay"), idempotency_key=CARD)
        assert thread.append(Message.user("pay"), idempotency_key=CARD) == first
    assert files_with(CARD, tmp_path) == []
    with Conversations.open(url) as conversations:
        assert conversations.thread("t").append(Message.user("pay"), idempotency_key=CARD) == first


def test_knows_a_key_that_an_older_clew_has_stored_as_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="t").append(Message.user("pay"), idempotency_key=CARD)
    with sqlite3.connect(tmp_path / "clew.db") as connection:
        connection.execute("UPDATE append_key SET key = ?", (CARD,))
    connection.close()
    with Conversations.open(url) as conversations:
        assert conversations.thread("t").append(Message.user("pay"), idempotency_key=CARD) == first
        with pytest.raises(IdempotencyKeyReusedError):
            conversations.thread("t").append(Message.user("other"), idempotency_key=CARD)
