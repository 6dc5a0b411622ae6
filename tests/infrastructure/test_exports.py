"""The files of ChatGPT's and Claude's exports, and the databases of the OpenAI Agents SDK."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.formats.exports import chatgpt, claude, claude_message, session_database, talk

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.formats.conversation_import import ImportFailure, Item
from clew.domain.formats.transcripts import ExportedFile
from clew.infrastructure import json_arrays
from clew.infrastructure.conversation_files import find_files, read_conversations
from clew.infrastructure.json_arrays import elements

ONE, TWO = chatgpt(*talk("Hi"), conversation_id="1"), chatgpt(*talk("Ho"), conversation_id="2")
CLAUDE = claude(claude_message("a", "human", "Hi"))


def items(*paths: Path) -> list[Item]:
    read = list(read_conversations(paths))
    assert all(isinstance(each, Item) for each in read), read
    return [each for each in read if isinstance(each, Item)]


def refusal(path: Path) -> str:
    with pytest.raises(ImportFormatError) as caught:
        list(read_conversations([path]))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def archive(path: Path, files: dict[str, object]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content if isinstance(content, bytes) else json.dumps(content))
    return path


def folder(path: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


EXPORT: dict[str, object] = {
    "in/conversations.json": [ONE, TWO],
    "in/chat.html": b"<html>",
    "in/user.json": {"email": "a@example.com"},
    "in/message_feedback.json": [],
    "in/file-abc-photo.png": b"png",
    "in/dalle/file_12ab-0000.webp": b"webp",
}


@pytest.mark.parametrize("kind", ["zip", "folder", "file"])
def test_reads_an_export_and_finds_its_files(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        path = archive(tmp_path / "export.zip", EXPORT)
    else:
        path = folder(tmp_path / "export", EXPORT)
        path = path / "in/conversations.json" if kind == "file" else path
    read = read_conversations([path])
    first = next(read)
    assert isinstance(first, Item)
    names = ("file-abc", "file-abc-photo.png", "file_12ab", "file-no", "user.json", "")
    photo, image = ExportedFile("file-abc-photo.png", b"png"), ExportedFile("file_12ab-0000.webp", b"webp")
    assert list(map(first.files, names)) == [photo, photo, image, None, None, None]
    assert [(each.value, each.number) for each in (first, *read) if isinstance(each, Item)] == [(ONE, 1), (TWO, 2)]


def test_reads_all_parts_of_an_export(tmp_path: Path) -> None:
    parts: dict[str, object] = {"conversations-001.json": [TWO], "conversations-000.json": [ONE], "users.json": []}
    assert [each.value for each in items(archive(tmp_path / "a.zip", parts))] == [ONE, TWO]
    assert [each.value for each in items(folder(tmp_path / "a", parts))] == [ONE, TWO]


def test_a_folder_is_an_export_only_with_its_other_files(tmp_path: Path) -> None:
    path = folder(tmp_path, {"conversations.json": [ONE], "more.json": [{"role": "user", "content": "Hi"}]})
    assert len(find_files([path])) == 2
    folder(tmp_path, {"users.json": []})
    assert find_files([path]) == [tmp_path / "conversations.json"]
    assert items(path)[0].files("more.json") is not None


def test_files_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.infrastructure.export_files.MAX_BYTES", 3)
    conversations = read_conversations([archive(tmp_path / "a.zip", EXPORT)])
    read = next(conversations)
    assert isinstance(read, Item)
    assert read.files("file-abc") is not None
    assert read.files("file_12ab") is None


def test_refuses_zips_that_are_not_exports(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.zip", EXPORT).read_bytes()
    (tmp_path / "torn.zip").write_bytes(whole[:-40])
    assert "torn.zip: It is not a zip that can be read" in refusal(tmp_path / "torn.zip")
    assert "has no conversations.json" in refusal(archive(tmp_path / "other.zip", {"a.json": [ONE]}))
    assert "has no conversations.json" in refusal(archive(tmp_path / "empty.zip", {}))
    damaged = whole.replace(whole[60:64], b"\xff\xff\xff\xff", 1)
    (tmp_path / "damaged.zip").write_bytes(damaged)
    assert "damaged.zip: in/conversations.json in it cannot be read" in refusal(tmp_path / "damaged.zip")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("", "ends within its array"),
        (",", "ends within its array"),
        (", {", "ends within its array"),
        (', {"a": "x', "ends within its array"),
        ("] 5", "more text follows its array"),
        (" 5]", "has no comma or ]"),
        (", {5}, 6, 7, 8, 9, 10, 11, 12]", "Expecting property name"),
        (", " + "1" * 5_000 + "]", "An integer of more than 4,200 digits"),
        (", " + "[" * 100_000 + "]", "Nested deeper"),
    ],
)
def test_reads_the_conversations_before_damage(tmp_path: Path, end: str, text: str) -> None:
    path = tmp_path / "conversations.json"
    path.write_text("[" + json.dumps(ONE) + end)
    first, *failures = read_conversations([path])
    assert isinstance(first, Item)
    assert first.value == ONE
    (failure,) = failures
    assert isinstance(failure, ImportFailure)
    assert "conversation 2: " in failure.error
    assert text in failure.error


JSON = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(JSON), st.sampled_from([{}, {"indent": 1}, {"ensure_ascii": False}]), st.integers(1, 9))
def test_reads_the_elements_of_any_array_in_chunks(value: list[Any], form: dict[str, Any], chunk: int) -> None:
    text = json.dumps(value, **form).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "CHUNK", chunk)
        assert [each.value for each in elements(io.BytesIO(text))] == json.loads(text)
        for end in {0, len(text) // 2, len(text) - 1}:
            with pytest.raises((ImportFormatError, InvalidContentError)):
                list(elements(io.BytesIO(text[:end])))


def test_holds_only_one_element_of_an_array() -> None:
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.read_bytes += len(data)
            return data

    file = Counting(json.dumps([{"text": "x" * 500_000}] * 20).encode())
    found = elements(file)
    next(found)
    assert file.read_bytes <= 2 * json_arrays.CHUNK
    assert len(list(found)) == 19


def test_reads_the_sessions_of_a_session_database(tmp_path: Path) -> None:
    hi, ho = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Ho"}
    rows = [("a", json.dumps(hi)), ("b", json.dumps(ho)), ("a", json.dumps(ho)), ("c", "{torn")]
    first, second, broken = read_conversations([session_database(tmp_path / "s.db", *rows, table='"my ""items"""')])
    assert isinstance(first, Item)
    assert first.value == {"session_id": "a", "items": [hi, ho], "times": ["2024-06-01 00:00:00+00:00"] * 2}
    assert isinstance(second, Item)
    assert isinstance(broken, ImportFailure)
    assert (
        broken.error == "conversation 3: An item of this session is not JSON. Repair the database, or delete the row."
    )


def test_sessions_are_read_in_the_threads_of_a_pool(tmp_path: Path) -> None:
    message = json.dumps({"role": "user", "content": "Hi"})
    sessions = read_conversations([session_database(tmp_path / "s.db", ("a", message), ("b", message))])
    read: list[Any] = []
    for _ in range(2):  # an engine reads each group in some thread
        thread = Thread(target=lambda: read.append(next(sessions)))
        thread.start()
        thread.join()
    assert [each.value["session_id"] for each in read] == ["a", "b"]


def test_refuses_other_databases(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE notes (id INTEGER)")
    connection.close()
    assert "it is a SQLite database. If Clew wrote it" in refusal(tmp_path / "other.db")
    (tmp_path / "torn.db").write_bytes((tmp_path / "other.db").read_bytes()[:3_000])
    assert "torn.db: The database cannot be read" in refusal(tmp_path / "torn.db")


def run_of(trace: str, number: int) -> dict[str, Any]:
    return {"id": f"{trace}{number}", "trace_id": trace, "run_type": "chain", "inputs": {}, "start_time": None}


ROWS = [run_of("a", 1), run_of("b", 1), run_of("a", 2)]
TRACES = [{"trace_id": "a", "runs": [ROWS[0], ROWS[2]]}, {"trace_id": "b", "runs": [ROWS[1]]}]
SPAN = {"id": "o", "traceId": "l", "type": "SPAN", "startTime": None}
LANGFUSE = {"id": "l", "observations": [SPAN]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (json.dumps(ROWS), TRACES),
        (json.dumps(ROWS, indent=1), TRACES),
        ("\n".join(map(json.dumps, ROWS)), TRACES),
        (json.dumps(ROWS[1]), TRACES[1:]),
        (json.dumps({"data": [SPAN], "meta": {}}), [LANGFUSE]),
        (json.dumps({"data": [LANGFUSE]}), [LANGFUSE]),
        (json.dumps([LANGFUSE, LANGFUSE]), [LANGFUSE, LANGFUSE]),
        ("\n".join(map(json.dumps, [LANGFUSE, LANGFUSE])), [LANGFUSE, LANGFUSE]),
        (json.dumps(LANGFUSE, indent=1), [LANGFUSE]),
    ],
    ids=range(9),
)
def test_rows_of_one_trace_are_one_conversation(tmp_path: Path, text: str, values: list[Any]) -> None:
    (tmp_path / "runs.json").write_text(text)
    assert [each.value for each in items(tmp_path / "runs.json")] == values


def test_a_row_of_another_kind_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("\n".join([json.dumps(ROWS[0]), '{"role": "user"}', "{torn"]))
    other, torn, trace = read_conversations([tmp_path / "runs.jsonl"])
    assert isinstance(other, ImportFailure)
    assert isinstance(torn, ImportFailure)
    assert other.error == "conversation 2: It is not a run of LangSmith or Langfuse, and others are."
    assert torn.error.startswith("conversation 3: It is not valid JSON")
    assert torn.error.endswith("Its trace may be incomplete.")
    assert isinstance(trace, Item)
    assert trace.value == {"trace_id": "a", "runs": [ROWS[0]]}


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_of_messages_of_agent_framework_is_one_session(tmp_path: Path, count: int) -> None:
    messages = [{"role": "user", "contents": [{"type": "text", "text": "Hi"}]}] * count
    (tmp_path / "s-1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in messages))
    (read,) = items(tmp_path / "s-1.jsonl")
    assert read.value == {"type": "session", "session_id": "s-1", "state": {"file": {"messages": messages}}}
