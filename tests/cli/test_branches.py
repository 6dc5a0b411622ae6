"""`clew checkpoint`, `fork`, `rewind` and `edit`: their effects, output and errors."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import TYPE_CHECKING

import pytest

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.errors import RunTakenOverError

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

THREAD = ["thread_id", "title", "status", "version", "messages", "parent_id", "forked_at", "head", "created_at"]
THREAD += ["updated_at", "metadata", "kind"]


def message_texts(clew: Clew, thread: str, *at: str) -> list[str]:
    """The texts of a thread's messages."""
    messages = clew.object("show", thread, *at, "--json")["messages"]
    return ["".join(content.get("text", "") for content in message["contents"]) for message in messages]


def actor(clew: Clew, thread: str) -> str | None:
    """The actor of the newest event."""
    result: str | None = clew.lines("log", thread, "--json")[-1]["actor"]
    return result


def test_a_checkpoint_has_the_documented_shape_and_is_found_by_its_name(filled: Clew) -> None:
    first = filled.ids()[0]
    result = filled.object("checkpoint", first[:5], "before refund", "--at", "message:2", "--json")
    assert result == {"thread_id": first, "name": "before refund", "version": 3}
    assert len(message_texts(filled, first, "--at", "before refund")) == 2
    assert filled.object("checkpoint", first, "now", "--json")["version"] == 7
    assert filled.text("checkpoint", first, "then", "--at", "now") == (
        f"Version 7 of {first} is now the checkpoint 'then'.\n"
    )


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("taken", 1, "already has a checkpoint 'taken'"),
        ("12", 2, "reads as a version"),
        ("message:1", 2, "reads as a version, a message or a time"),
        ("2026-01-31", 2, "reads as a version, a message or a time"),
        ("", 2, "must have 1 to 200"),
        ("x\x1b[2J", 2, "control character"),
        ("x" * 201, 2, "201 characters"),
    ],
)
def test_refuses_a_checkpoint_with_an_invalid_name(filled: Clew, name: str, code: int, why: str) -> None:
    first = filled.ids()[0]
    filled.text("checkpoint", first, "taken")
    assert why in filled.refused(code, "checkpoint", first, name)


def test_a_remote_thread_is_forked_into_a_local_one(clew: Clew) -> None:
    async def begin() -> str:
        async with Engine.open() as engine:
            thread = await engine.start_remote_thread("conv_1")
            await thread.append(Message.user("Hello."))
            return thread.id

    remote = asyncio.run(begin())
    for command in (("fork", remote), ("edit", remote, "message:1", "Hi.")):
        assert "clew fork --local" in clew.refused(1, *command)
    forked = clew.object("fork", remote, "--local", "--json")
    assert (forked["kind"], forked["parent_id"]) == ("local", remote)
    assert message_texts(clew, forked["thread_id"]) == ["Hello."]
    assert {each["thread_id"]: each["kind"] for each in clew.lines("threads", "--json")} == {
        remote: "remote",
        forked["thread_id"]: "local",
    }


def test_a_rewind_continues_from_the_version_and_says_how_to_undo_it(filled: Clew) -> None:
    first = filled.ids()[0]
    before = message_texts(filled, first)
    result = filled.object("rewind", first, "--to", "message:2", "--json")
    assert result == {"thread_id": first, "version": 7, "to": 3, "messages": 2}
    assert message_texts(filled, first) == before[:2]
    output = filled.text("rewind", first, "--to", "message:1")
    assert output.startswith(f"{first} is back at version 2 with 1 message. Nothing was deleted.\n")
    *_, undo = output.split("clew ")
    filled.text(*undo.split())
    assert message_texts(filled, first) == before[:2]
    filled.text("rewind", first, "--to", "6")
    assert message_texts(filled, first) == before


def test_a_rewind_during_a_run_needs_abandon_run(filled: Clew) -> None:
    first = filled.ids()[0]

    async def while_it_runs() -> None:
        asked, stalled = asyncio.Event(), asyncio.Event()

        async def answer(_: object) -> str:
            asked.set()
            await stalled.wait()
            return "Too late."

        async with Engine.open(f"sqlite:///{filled.folder}/clew.db") as engine:
            agent = Agent(ScriptedChatClient(answer), engine=engine)
            task = asyncio.create_task(agent.run("Hi.", thread=await engine.thread(first)))
            await asked.wait()
            refused = await asyncio.to_thread(filled.refused, 1, "rewind", first, "--to", "message:2")
            assert "a run is under way" in refused
            assert "--abandon-run" in refused
            done = await asyncio.to_thread(
                filled.object, "rewind", first, "--to", "message:2", "--abandon-run", "--json"
            )
            assert (done["to"], done["messages"]) == (3, 2)
            stalled.set()
            with pytest.raises(RunTakenOverError):
                await task

    asyncio.run(while_it_runs())
    types = [line["type"] for line in filled.lines("log", first, "--json")]
    assert types[-3:] == ["answer-interrupted", "run-abandoned", "history-rewound"]
    assert len(message_texts(filled, first)) == 2


def test_a_rewind_takes_a_time_and_a_checkpoint(filled: Clew) -> None:
    first = filled.ids()[0]
    filled.text("checkpoint", first, "before refund", "--at", "3")
    assert filled.object("rewind", first, "--to", "before refund", "--json")["to"] == 3
    time = filled.lines("log", first, "--json")[6]["time"]
    assert filled.object("rewind", first, "--to", time, "--json")["to"] == 7


@pytest.mark.parametrize(
    ("to", "code", "why"),
    [
        ("2026-01-31T12:00", 2, "--to '2026-01-31T12:00' has no UTC offset"),
        ("0", 1, "no version 0"),
        ("9" * 50, 1, "--to: no thread has a version of 50 digits"),
        ("message:9", 1, "no message 9"),
        ("nowhere", 1, "no checkpoint 'nowhere'"),
    ],
)
def test_refuses_to_rewind_to_an_unknown_version(filled: Clew, to: str, code: int, why: str) -> None:
    assert why in filled.refused(code, "rewind", filled.ids()[0], "--to", to)


def test_a_rewind_requires_the_option_to(filled: Clew) -> None:
    assert "Missing option '--to'" in filled.refused(2, "rewind", filled.ids()[0])


@pytest.mark.parametrize("message", ["message:2", "3", "003"])
def test_an_edit_is_a_fork_with_another_text_in_the_message(filled: Clew, message: str) -> None:
    first = filled.ids()[0]
    before = message_texts(filled, first)
    fork = filled.object("edit", first, message, "My cup broke.", "--title", "Cup", "--json")
    assert list(fork)[: len(THREAD)] == THREAD
    assert (fork["parent_id"], fork["forked_at"], fork["messages"], fork["title"]) == (first, 2, 2, "Cup")
    assert message_texts(filled, fork["thread_id"]) == [before[0], "My cup broke."]
    assert message_texts(filled, first) == before
    output = filled.text("edit", first, message, "My cup broke.")
    assert output.startswith(f"Forked {first} at version 2: the new thread is ")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"One\nTwo\n", "One\nTwo"),
        ("Grüße".encode(), "Grüße"),
        (b"One\r\n", "One"),
        (b"One\n\n", "One\n"),
    ],
)
def test_the_text_of_an_edit_can_come_from_stdin(
    filled: Clew, written: bytes, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), encoding="ascii"))
    fork = filled.object("edit", filled.ids()[0], "message:2", "-", "--json")
    assert message_texts(filled, fork["thread_id"])[-1] == read


def test_refuses_a_text_that_is_not_utf_8(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert "byte 2 is not UTF-8" in filled.refused(1, "edit", filled.ids()[0], "message:2", "-")
    assert len(filled.ids()) == 2


@pytest.mark.parametrize(
    ("message", "code", "why"),
    [
        ("first", 2, "give message:N"),
        ("message:x", 2, "give message:N"),
        ("2026-01-31T12:00:00Z", 2, "give message:N"),
        ("", 2, "give message:N"),
        ("²", 2, "give message:N"),
        ("message:0", 2, "The first is message:1"),
        ("message:9", 1, "no message 9"),
        ("99", 1, "no version 99"),
        ("0", 1, "no version 0"),
        ("9" * 30, 1, "MESSAGE: no thread has a version of 30 digits"),
    ],
)
def test_edit_and_redact_refuse_an_invalid_message(filled: Clew, message: str, code: int, why: str) -> None:
    first = filled.ids()[0]
    filled.text("checkpoint", first, "first")
    before = filled.lines("threads", "--json")
    assert why in filled.refused(code, "edit", first, message, "text")
    assert why in filled.refused(code, "redact", first, message, "--yes")
    assert filled.lines("threads", "--json") == before


def test_version_1_is_no_message_but_has_the_title_which_can_be_redacted(filled: Clew) -> None:
    first = filled.ids()[0]
    assert "version 1 of thread" in filled.refused(1, "edit", first, "1", "text")
    filled.text("redact", first, "1", "--yes")
    assert filled.lines("threads", "--json")[0]["title"] is None
    assert "is already redacted" in filled.refused(1, "redact", first, "1", "--yes")


def test_the_audit_and_the_log_say_that_a_title_a_label_and_a_name_were_redacted(filled: Clew) -> None:
    first = filled.ids()[0]
    filled.text("label", first, "topic=secret", "gone=")
    filled.text("checkpoint", first, "secret")
    version = filled.lines("threads", "--json")[0]["version"]
    for each in (1, version - 1, version):
        filled.text("redact", first, str(each), "--yes")
    audit = {each["version"]: each["what"] for each in filled.lines("audit", "--thread", first, "--json")}
    assert audit[1].endswith("the thread (redacted since)")
    assert audit[version - 1].startswith("set or removed label 'topic'")
    assert audit[version] == f"made a checkpoint at version {version - 1} (redacted since)"
    log = filled.text("log", first)
    assert "topic=[redacted]" in log
    assert f"[redacted]: version {version - 1}" in log
    assert log.count("[redacted]") >= 3
    assert "null" not in log


def test_the_actor_comes_from_the_option_or_else_the_environment(filled: Clew) -> None:
    first = filled.ids()[0]
    commands = [
        ["checkpoint", first, "a name"],
        ["rewind", first, "--to", "2"],
        ["label", first, "topic=refund"],
        ["redact", first, "3", "--yes"],
        ["end", first],
        ["delete", first],
    ]
    for number, command in enumerate(commands):
        filled.text(*command, "--actor", f"user:{number}")
        assert actor(filled, first) == f"user:{number}"
    second = filled.ids()[1]
    here = {"CLEW_ACTOR": "user:env"}
    filled.text("fork", second, env=here)
    filled.text("edit", second, "message:1", "Hello", env=here)
    filled.text("fork", second, "--actor", "user:7", env=here)
    assert [actor(filled, id_) for id_ in filled.ids()[2:]] == ["user:env", "user:env", "user:7"]


def test_an_import_records_its_actor_and_an_invalid_actor_creates_no_database(clew: Clew) -> None:
    file = clew.file("one.jsonl", {"messages": [{"role": "user", "content": "Hello"}]})
    assert "actor" in clew.refused(2, "import", file, "--actor", "")
    assert [each.name for each in clew.folder.iterdir()] == [file]
    clew.text("import", file, "--actor", "user:7")
    assert {event["actor"] for event in clew.lines("log", clew.ids()[0], "--json")} == {"user:7"}


def test_a_change_that_the_status_forbids_is_refused_in_one_line(filled: Clew) -> None:
    ended, deleted = filled.ids()
    filled.text("end", ended)
    filled.text("delete", deleted)
    assert "is ended: rewind is refused. Fork it to continue." in filled.refused(1, "rewind", ended, "--to", "2")
    assert "is ended: end is refused" in filled.refused(1, "end", ended)
    filled.text("checkpoint", ended, "the end")
    filled.text("edit", ended, "message:2", "On it goes.")
    for command in (
        ["checkpoint", deleted, "late"],
        ["rewind", deleted, "--to", "2"],
        ["edit", deleted, "2", "text"],
        ["fork", deleted],
        ["label", deleted, "a=1"],
        ["end", deleted],
        ["delete", deleted],
        ["show", deleted],
        ["redact", deleted, "message:1", "--yes"],
    ):
        assert "is deleted" in filled.refused(1, *command)
    filled.text("redact", deleted, "2", "--yes")


def test_titles_reasons_labels_and_ids_cannot_control_the_terminal(clew: Clew) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ex"
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        thread = conversations.start_thread(evil, thread_id=evil, messages=[Message.user(evil)])
    outputs = [
        clew.text("checkpoint", thread.id, "a name"),
        clew.text("label", thread.id, f"{evil}={evil}", "--actor", evil),
        clew.text("fork", thread.id, "--title", evil),
        clew.text("edit", thread.id, "message:1", evil, "--title", evil),
        clew.text("rewind", thread.id, "--to", "2"),
        clew.text("redact", thread.id, "2", "--yes", "--reason", evil),
        clew.text("end", thread.id, "--reason", evil),
        clew.text("log", thread.id),
        clew.text("threads"),
        clew.text("log", thread.id, "--json"),
        clew.refused(1, "rewind", thread.id, "--to", evil),
        clew.refused(2, "redact", thread.id, evil, "--yes"),
        clew.refused(2, "label", thread.id, evil),
        clew.refused(2, "checkpoint", thread.id, evil),
        clew.text("delete", thread.id, "--reason", evil),
        clew.refused(1, "rewind", thread.id, "--to", "1"),
    ]
    for output in outputs:
        assert not set(output) & set("\x1b\x07\x9b\r\u202e"), ascii(output)
