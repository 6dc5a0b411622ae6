"""The conversations of other programs, read from what they export."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.formats.exports import ISO, SAID, chatgpt, chatgpt_message, claude, claude_message, talk

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.events import MessageAppended, RecordAppended
from clew.domain.formats.conversation_import import Item
from clew.domain.formats.sources import is_foreign, read_transcript
from clew.domain.formats.transcripts import ExportedFile, Files, Node, Transcript, TranscriptPath, record
from clew.domain.json_values import JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PNG_URI = f"data:image/png;base64,{b64encode(PNG).decode()}"


def no_files(_: str) -> None:
    return None


def transcript(value: object, files: Files = no_files) -> Transcript:
    read = read_transcript(Item("export", None, value, files=files))
    assert read is not None
    return read


def path(value: object, files: Files = no_files) -> TranscriptPath:
    return transcript(value, files).path()


def messages(value: object, files: Files = no_files) -> list[Message]:
    return [each.event.message for each in path(value, files).entries if isinstance(each.event, MessageAppended)]


def records(value: object) -> list[str]:
    return [each.event.type for each in path(value).entries if isinstance(each.event, RecordAppended)]


def only(role: str, *contents: Content) -> tuple[str, tuple[Content, ...]]:
    return role, contents


THOUGHTS: JsonObject = {
    "content_type": "thoughts",
    "thoughts": [{"summary": "Plan", "content": "First this."}, {"content": "Then."}],
}
IMAGE = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_a1#p", "size_bytes": 28}
AUDIO = {
    "content_type": "real_time_user_audio_video_asset_pointer",
    "audio_asset_pointer": {"asset_pointer": "sediment://file_b"},
}
QUOTE: JsonObject = {"content_type": "tether_quote", "url": "https://a.example", "text": "Quoted", "title": "A"}


@pytest.mark.parametrize(
    ("given_message", "expected"),
    [
        (("user", "Hi"), only("user", Text(text="Hi"))),
        (("user", "one", "two"), only("user", Text(text="one"), Text(text="two"))),
        (("system", "Be brief."), only("system", Text(text="Be brief."))),
        (("assistant", THOUGHTS), only("assistant", Reasoning(text="Plan\nFirst this.\n\nThen."))),
        (("user", "Look", IMAGE), only("user", Text(text="Look"), Media(uri="sediment://file_a1#p"))),
        (("user", AUDIO), only("user", Media(uri="sediment://file_b"))),
        (("user", {"content_type": "audio_transcription", "text": "Said"}), only("user", Text(text="Said"))),
        (("user", {"content_type": "new", "x": 1}), only("user", Raw(value={"content_type": "new", "x": 1}))),
        (("assistant", {"content_type": "code", "text": "x = 1"}), only("assistant", Text(text="x = 1"))),
    ],
    ids=range(9),
)
def test_reads_each_kind_of_chatgpts_messages(given_message: Any, expected: Any) -> None:
    role, *parts = given_message
    whole = (
        parts[0] if parts[0] == THOUGHTS or (isinstance(parts[0], dict) and parts[0].get("text") == "x = 1") else None
    )
    value = chatgpt((None, chatgpt_message("a", role, *parts, content=whole)))
    (read,) = messages(value)
    assert (read.role, read.contents) == expected
    (entry,) = path(value).entries
    assert entry.said == SAID


def test_pairs_chatgpts_calls_with_their_results() -> None:
    value = chatgpt(
        (None, chatgpt_message("u", "user", "1+1?")),
        ("u", chatgpt_message("call", "assistant", content={"content_type": "code", "text": "print(2)"}, to="python")),
        (
            "call",
            chatgpt_message("out", "tool", author="python", content={"content_type": "execution_output", "text": "2"}),
        ),
        ("out", chatgpt_message("quote", "tool", author="browser", content=QUOTE)),
        ("quote", chatgpt_message("end", "assistant", "Two.")),
        ("end", chatgpt_message("u2", "user", "And a file?")),
        ("u2", chatgpt_message("lone", "tool", "Found", author="myfiles_browser")),
    )
    _, call, result, quote, _, _, lone = (each.contents for each in messages(value))
    assert call == (FunctionCall(call_id="call", name="python", arguments="print(2)"),)
    assert result == (FunctionResult(call_id="call", name="python", result="2"),)
    assert quote == (FunctionResult(call_id="call", name="browser", result=QUOTE),)
    assert lone == (FunctionResult(call_id="lone", name="myfiles_browser", result="Found"),)  # of no call


def test_images_that_a_tool_made_follow_its_result() -> None:
    content = {"content_type": "multimodal_text", "parts": [IMAGE, "Drawn."]}
    value = chatgpt(
        (None, chatgpt_message("call", "assistant", '{"prompt": "a clew"}', to="dalle.text2im")),
        ("call", chatgpt_message("out", "tool", author="dalle.text2im", content=content)),
    )
    _, result, image = messages(value, {"file_a1": ExportedFile("file_a1-x.dat", PNG)}.get)
    assert result.contents == (FunctionResult(call_id="call", name="dalle.text2im", result="Drawn."),)
    assert (image.role, image.contents) == only(
        "assistant", Media(uri=PNG_URI, media_type="image/png", name="file_a1-x.dat")
    )


def test_attached_files_are_in_the_message_once() -> None:
    attachments = [{"id": "file_a1", "name": "a.png", "mime_type": "image/png"}, {"id": "file-2", "name": "b.csv"}]
    content = {"content_type": "multimodal_text", "parts": [IMAGE, "Look"]}
    value = chatgpt((None, chatgpt_message("a", "user", content=content, attachments=attachments)))
    files = {"file-2": ExportedFile("file-2-b.csv", b"1,2"), "file_a1": ExportedFile("file_a1.png", PNG)}
    image, _, table = messages(value, files.get)[0].contents
    assert isinstance(image, Media)
    assert isinstance(table, Media)
    assert (image.data, table.data, table.name, table.media_type) == (PNG, b"1,2", "b.csv", "text/csv")
    assert messages(value)[0].contents[2] == Media(uri="file-service://file-2", name="b.csv")


def test_keeps_what_is_not_a_message_as_records() -> None:
    context = {"content_type": "user_editable_context", "user_profile": "Ann", "user_instructions": ""}
    value = chatgpt(
        (None, chatgpt_message("s", "system", "", is_visually_hidden_from_conversation=True)),
        ("s", chatgpt_message("c", "user", content=context)),
        ("c", chatgpt_message("e", "assistant", "")),
        (
            "e",
            chatgpt_message("r", "assistant", content={"content_type": "reasoning_recap", "content": "Thought for 6s"}),
        ),
        ("r", chatgpt_message("w", "assistant", content={"content_type": "super_widget", "widget": {}})),
        ("w", chatgpt_message("x", "critic", "No")),
    )
    kinds = ["hidden", "user_editable_context", "empty", "reasoning_recap", "super_widget", "item"]
    assert records(value) == [f"chatgpt.{kind}" for kind in kinds]
    first = path(value).entries[1].event
    assert isinstance(first, RecordAppended)
    assert (first.key, first.data) == ("c", value["mapping"]["c"]["message"])  # all of it


def test_keeps_all_that_chatgpt_says_about_a_message() -> None:
    given_message = chatgpt_message("a", "assistant", "Yes", model_slug="gpt-5", citations=[{"start_ix": 1}])
    source: Any = messages(chatgpt((None, given_message)))[0].source["chatgpt"]
    assert source == {
        key: given_message[key] for key in ("id", "update_time", "status", "weight", "metadata", "recipient")
    }


def test_the_path_leads_to_the_message_that_is_shown_and_the_others_begin_forks() -> None:
    edges = talk("Q", "A", "Q2", "A2")
    edges += [("m0", chatgpt_message("b", "assistant", "Other A")), ("m1", chatgpt_message("c", "user", "Other Q2"))]
    read = transcript(chatgpt(*edges, shown="m3"))
    main = read.path()
    assert (main.nodes, list(main.forks())) == (("root", "m0", "m1", "m2", "m3"), ["b", "c"])
    fork = read.path("b")
    assert (fork.nodes, fork.shared, fork.key()) == (("root", "m0", "b"), 1, ["chatgpt", "c-1", "b"])
    assert transcript(chatgpt(*edges, shown="c")).path().nodes[-1] == "c"
    assert (
        transcript(chatgpt(*edges, shown="c")).path(None, "m3").nodes == main.nodes
    )  # a stored thread stays on its path


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"a": 5}, "A node of its mapping is int"),
        ({"a": {"parent": None, "message": "Hi"}}, "A message of its mapping is str"),
        ({"a": {"parent": "b"}, "b": {"parent": "a"}, "c": {"parent": None}}, "2 of its 3 messages answer each other"),
        ({"a": {"parent": "a"}}, "1 of its 1 messages"),
        ({}, "A conversation has no id"),
    ],
)
def test_refuses_a_damaged_tree(change: Any, text: str) -> None:
    with pytest.raises(ImportFormatError, match=text):
        path({"mapping": change})


@pytest.mark.parametrize("value", ["\ud800", float("nan")])
def test_refuses_what_cannot_be_stored(value: object) -> None:
    for given_value in (chatgpt((None, chatgpt_message("a", "user", "Hi", x=value))), chatgpt(*talk("Hi"), x=value)):
        with pytest.raises(InvalidContentError):
            path(given_value)
    with pytest.raises(InvalidContentError):
        path(claude(claude_message("a", "human", "Hi", x=value)))


def test_reads_claudes_rounds_of_thinking_calls_and_results() -> None:
    use = {
        "type": "tool_use",
        "id": "t1",
        "name": "search",
        "input": {"q": "a"},
        "start_timestamp": "2024-06-01T00:00:01Z",
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "name": "search",
        "content": [{"type": "text", "text": "Found"}],
    }
    older = {"type": "tool_use", "name": "repl", "input": {}}
    answer = {"type": "tool_result", "name": "repl", "content": [{"type": "image"}, 1], "is_error": True}
    blocks = [{"type": "thinking", "thinking": "Hm"}, "Wait.", use, result, older, answer, "Done.", {"type": "flag"}]
    value = claude(claude_message("h", "human", "Hi"), claude_message("a", "assistant", *blocks))
    read = messages(value)
    assert [(each.role, each.contents) for each in read] == [
        only("user", Text(text="Hi")),
        only(
            "assistant",
            Reasoning(text="Hm"),
            Text(text="Wait."),
            FunctionCall(call_id="t1", name="search", arguments='{"q": "a"}'),
        ),
        only("tool", FunctionResult(call_id="t1", name="search", result="Found")),
        only("assistant", FunctionCall(call_id="a:5", name="repl", arguments="{}")),
        only("tool", FunctionResult(call_id="a:5", name="repl", result=[{"type": "image"}, 1])),
        only("assistant", Text(text="Done.")),
    ]
    assert records(value) == ["claude.flag"]
    assert [entry.said for entry in path(value).entries][:2] == [SAID, SAID + 750_000]
    assert read[1].source["claude"]["updated_at"] == ISO  # type: ignore[index,call-overload]
    assert read[4].source["claude"] == {"uuid": "a", "blocks": [{"is_error": True}]}


def test_reads_claudes_files_and_older_messages() -> None:
    attachments = [
        {"file_name": "paste.txt", "file_type": "txt", "extracted_content": "Pasted"},
        {"file_name": "b.pdf"},
    ]
    files = [{"file_name": "p.png", "file_uuid": "f1"}, {"file_name": "gone.png"}]
    value = claude(claude_message("a", "human", text="Older", attachments=attachments, files=files))
    (read,) = messages(value, {"f1": ExportedFile("f1.png", PNG)}.get)
    text, pasted, pdf, image, gone = read.contents
    assert (text, isinstance(pasted, Media) and pasted.data) == (Text(text="Older"), b"Pasted")
    assert pdf == Media(uri="claude-file:b.pdf", name="b.pdf")
    assert image == Media(uri=PNG_URI, media_type="image/png", name="p.png")
    assert gone == Media(uri="claude-file:gone.png", name="gone.png")
    assert records(claude(claude_message("a", "human"))) == ["claude.empty"]


def test_claudes_parents_make_branches() -> None:
    zero = "00000000-0000-4000-8000-000000000000"
    value = claude(
        claude_message("a", "human", "Q", parent_message_uuid=zero),
        claude_message("b", "assistant", "A", parent_message_uuid="a"),
        claude_message("c", "assistant", "B", parent_message_uuid="a"),
    )
    assert (path(value).nodes, list(path(value).forks())) == (("a", "c"), ["b"])
    assert path({**value, "current_leaf_message_uuid": "b"}).nodes == ("a", "b")
    older = claude(*[{**each, "parent_message_uuid": None} for each in value["chat_messages"]])
    assert path(older).nodes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (5, "message 1: int is not an object"),
        ({"sender": "human"}, "message 1 has no id"),
        ({"uuid": "a", "sender": "robot"}, "message 1: its sender is neither"),
    ],
)
def test_refuses_damaged_messages_of_claude(message: Any, text: str) -> None:
    with pytest.raises(ImportFormatError, match=text):
        path(claude(message))


def test_reads_the_items_of_an_agents_session() -> None:
    reasoning: JsonObject = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm"}]}
    search: JsonObject = {"type": "web_search_call", "id": "w", "status": "completed"}
    items = [
        {"role": "user", "content": "Hi"},
        reasoning,
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}", "id": "fc"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "2"}]},
        search,
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "content": [{"type": "output_text", "text": "2", "annotations": []}],
        },
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://a.example/a.png"}, {"type": "input_x"}],
        },
        {"type": "image_generation_call", "id": "i", "result": b64encode(PNG).decode()},
        {"type": "custom_tool_call", "call_id": "d", "name": "run", "input": "ls"},
    ]
    assert [(each.role, each.contents) for each in messages(items)] == [
        only("user", Text(text="Hi")),
        only("assistant", Reasoning(text="Hm", data=reasoning)),
        only("assistant", FunctionCall(call_id="c", name="add", arguments="{}")),
        only("tool", FunctionResult(call_id="c", result=[{"type": "input_text", "text": "2"}])),
        only("assistant", Raw(value=search)),
        only("assistant", Text(text="2")),
        only("user", Media(uri="https://a.example/a.png"), Raw(value={"type": "input_x"})),
        only(
            "assistant",
            Raw(value={"type": "image_generation_call", "id": "i"}),
            Media(uri=PNG_URI, media_type="image/png"),
        ),
        only("assistant", FunctionCall(call_id="d", name="run", arguments="ls")),
    ]
    session: dict[str, Any] = {"session_id": "s", "items": items[:2], "times": [ISO, None]}
    assert [entry.said for entry in path(session).entries] == [SAID, None]
    assert path(session).key() == ["openai-agents", "s"]
    assert path(items).key() == path(list(items)).key() != path(items[:2]).key()


@pytest.mark.parametrize("item", [5, {"role": "wizard", "content": ""}, {"call_id": "c"}])
def test_refuses_items_of_another_kind(item: object) -> None:
    with pytest.raises(ImportFormatError, match="item 2: "):
        path([{"type": "reasoning"}, item])


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [{"role": "user", "content": "Hi"}],
        {"messages": [], "session_id": "s"},
        [{"type": "chat", "messages": []}],
        {"mapping": []},
        {"chat_messages": None},
        {"items": [], "session_id": 5},
    ],
)
def test_leaves_other_values_to_the_format_of_openai(value: object) -> None:
    assert not is_foreign(value)
    assert read_transcript(Item("a", None, value)) is None


@st.composite
def trees(draw: st.DrawFn) -> Transcript:
    """Trees whose nodes come in any order; some have no entries."""
    size = draw(st.integers(0, 12))
    parents = [draw(st.none() if number == 0 else st.none() | st.integers(0, number - 1)) for number in range(size)]
    empty = draw(st.sets(st.integers(0, 12), max_size=4))
    nodes = [
        Node(
            str(number),
            None if parent is None else str(parent),
            () if number in empty else (record("t", "x", number, "k"),),
        )
        for number, parent in enumerate(parents)
    ]
    shown = draw(st.none() | st.integers(0, 12).map(str))
    ordered = draw(st.permutations(nodes))
    return Transcript("t", "id", None, {}, {node.id: node for node in ordered}, shown, branches=True)


@given(trees(), st.none() | st.integers(0, 12).map(str))
def test_the_threads_of_a_tree_have_each_entry_once(tree: Transcript, leads_to: str | None) -> None:
    pending, own, keys, threads = [tree.path(None, leads_to)], list[Any](), set[str](), 0
    while pending:
        taken, threads = pending.pop(), threads + 1
        keys.add(str(taken.key()))
        own += [entry.event.data for entry in taken.entries[taken.shared :]]  # type: ignore[union-attr]
        # A path that is stored stays as it is, whatever is shown.
        assert tree.path(taken.first, taken.nodes[-1] if taken.nodes else None).nodes == taken.nodes
        forks = [tree.path(first) for first in taken.forks()]
        assert all(taken.entries[: fork.shared] == fork.entries[: fork.shared] for fork in forks)
        pending += forks
    every: list[Any] = [entry.event for node in tree.nodes.values() for entry in node.entries]
    assert sorted(own) == sorted(event.data for event in every)
    assert len(keys) == threads


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["author", "role", "content", "content_type", "parts", "thoughts", "text", "recipient", "metadata", "sender"]
) | st.sampled_from(
    ["uuid", "type", "name", "input", "id", "call_id", "create_time", "summary", "output", "files", "attachments"]
)
WORDS = st.sampled_from(
    ["user", "assistant", "tool", "human", "text", "code", "thoughts", "tool_use", "tool_result", "reasoning", "all"]
)
MESSAGE = st.recursive(
    JSON | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=12,
)


@given(MESSAGE)
def test_any_json_is_read_or_refused_with_an_error_of_clew(value: Any) -> None:
    items = value if isinstance(value, list) else [value]
    for whole in (
        {"mapping": {"a": {"parent": None, "message": value}}},
        {"mapping": value if isinstance(value, dict) else {}, "id": "c"},
        {"uuid": "k", "chat_messages": items},
        {"session_id": "s", "items": items},
    ):
        try:
            read = path(whole)
        except (ImportFormatError, InvalidContentError):
            continue
        assert len(read.values) == len(read.entries)
