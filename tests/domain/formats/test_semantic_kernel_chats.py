"""Chats and chat histories of Semantic Kernel: ``semantic-kernel-1.45.0.json`` was written by its Python package.

The forms of .NET are written by hand, after the classes that its serializers write.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.agents.group_chats import agent_of, requests_of
from tests.domain.formats.test_traces import VALUES

from clew import Conversations, Engine, Message
from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.formats.semantic_kernel_chats import is_semantic_kernel, read_semantic_kernel
from clew.domain.formats.sources import is_foreign
from clew.domain.messages import FunctionCall, FunctionResult, Media, Raw, Reasoning, Text

PYTHON = json.loads(Path(__file__).with_name("semantic-kernel-1.45.0.json").read_text(encoding="utf-8"))

HISTORY: list[Any] = [
    {"Role": {"Label": "user"}, "Items": [{"$type": "TextContent", "Text": "Where is parcel 7?"}]},
    {
        "AuthorName": "Desk",
        "Role": {"Label": "assistant"},
        "Items": [
            {
                "$type": "FunctionCallContent",
                "Id": "c1",
                "PluginName": "parcels",
                "FunctionName": "track",
                "Arguments": {"parcel": 7},
            }
        ],
        "ModelId": "m-1",
    },
    {
        "Role": {"Label": "tool"},
        "Items": [
            {"$type": "FunctionResultContent", "CallId": "c1", "FunctionName": "track", "Result": {"city": "Cork"}},
            {"$type": "FunctionResultContent", "CallId": "c2", "Result": None},
        ],
    },
    {
        "AuthorName": "Desk",
        "Role": {"Label": "assistant"},
        "Items": [
            {"$type": "TextContent", "Text": "In Cork."},
            {"$type": "ImageContent", "MimeType": "image/png", "Data": "YQ=="},
            {"$type": "FileReferenceContent", "FileId": "f-1"},
        ],
    },
]

CHAT = {
    "Participants": [
        {"Id": "asst_1", "Name": "Desk", "Type": "Microsoft.SemanticKernel.Agents.OpenAI.OpenAIAssistantAgent"},
        {"Id": "2", "Type": "Microsoft.SemanticKernel.Agents.ChatCompletionAgent"},
    ],
    "History": HISTORY,
    "Channels": [
        {
            "ChannelKey": "one",
            "ChannelType": "Some.Channel",
            "ChannelState": [],
        },
        {"ChannelKey": "other", "ChannelType": "Some.Other", "ChannelState": "thread_abc"},
    ],
}


def lower(value: Any) -> Any:
    """Return the same as programs write it whose names begin in lower case."""
    if isinstance(value, list):
        return [lower(each) for each in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["Label"]:
        return value["Label"]
    return {name[0].lower() + name[1:]: each if name == "Result" else lower(each) for name, each in value.items()}


def messages(value: Any) -> list[Message]:
    assert is_foreign(value)
    nodes = read_semantic_kernel(value).nodes.values()
    events: list[Any] = [entry.event for node in nodes for entry in node.entries]
    return [event.message for event in events if hasattr(event, "message")]


@pytest.mark.parametrize("value", [HISTORY, lower(HISTORY), CHAT, lower(CHAT)], ids=["list", "lower", "chat", "Lower"])
def test_reads_the_forms_of_dotnet_in_any_casing(value: Any) -> None:
    read = messages(value)
    assert [(each.role, each.author) for each in read] == [
        ("user", None),
        ("assistant", "Desk"),
        ("tool", None),
        ("tool", None),
        ("assistant", "Desk"),
    ]
    contents = [each for message in read for each in message.contents]
    assert contents[:-1] == [
        Text(text="Where is parcel 7?"),
        FunctionCall(call_id="c1", name="parcels-track", arguments='{"parcel": 7}'),
        FunctionResult(call_id="c1", name="track", result={"city": "Cork"}),
        FunctionResult(call_id="c2"),
        Text(text="In Cork."),
        Media(uri="data:image/png;base64,YQ==", media_type="image/png"),
    ]
    assert isinstance(contents[-1], Raw), "a file at the service has no counterpart"


def test_reads_what_the_python_package_wrote() -> None:
    read = messages(PYTHON)
    assert [(each.role, each.author, each.contents) for each in read] == [
        ("system", None, (Text(text="You find parcels."),)),
        ("user", "Ann", (Text(text="Where is parcel 7?"), Media(uri="data:image/png;base64,YSBwaWN0dXJl"))),
        (
            "assistant",
            None,
            (
                Reasoning(text="Easy."),
                FunctionCall(call_id="c1", name="parcels-track", arguments='{"parcel": 7}'),
            ),
        ),
        ("tool", None, (FunctionResult(call_id="c1", name="parcels-track", result="{'city': 'Cork'}"),)),
        (
            "assistant",
            "Desk",
            (Text(text="In Cork."), Raw(value=PYTHON["messages"][-1]["items"][-1])),
        ),
    ]
    assert [each.source for each in read[2::2]] == [
        {"semantic-kernel": {"ai_model_id": "m-1"}},
        {"semantic-kernel": {"metadata": {"usage": 3}}},
    ]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_chat_becomes_a_thread_with_records_and_a_second_import_adds_nothing(
    tmp_path: Path, indent: int | None
) -> None:
    for name, value in (("chat", CHAT), ("history", HISTORY), ("python", PYTHON)):
        (tmp_path / f"{name}.json").write_text("\ufeff" + json.dumps(value, indent=indent), encoding="utf-8")
    with Conversations.open("memory:") as conversations:
        report = conversations.import_files(tmp_path)
        assert (report.threads, report.failed) == (3, [])
        assert report.records == {"semantic-kernel.participant": 2, "semantic-kernel.channel": 2}
        assert conversations.import_files(tmp_path).skipped == 3  # as many as files
        found = [conversations.thread(each.id) for each in conversations.threads()]
        states = [
            [each.data["ChannelState"] for each in thread.records("semantic-kernel.channel")]  # type: ignore[index,call-overload]  # an object
            for thread in found
        ]
        assert [[], "thread_abc"] in states, "the id of the thread at its service is kept"


@pytest.mark.anyio
async def test_an_imported_chat_continues_as_a_group_chat(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db?synchronous=OFF"
    answer = {**HISTORY[3], "Items": HISTORY[3]["Items"][:1]}
    (tmp_path / "chat.json").write_text(json.dumps({**CHAT, "History": [*HISTORY[:3], answer]}), encoding="utf-8")
    with Conversations.open(url) as conversations:
        conversations.import_files(tmp_path / "chat.json")
        imported = conversations.thread(next(conversations.threads()).id).history()
    async with Engine.open(url) as engine:
        desk = agent_of(engine, "Desk", lambda _: "Anything else?")
        chat = await engine.start_chat([desk], max_turns=1)
        await chat.thread.append([each.message for each in imported if each.message is not None])
        await chat.run("Thanks.")
        (body,) = requests_of(desk)
        said: Any = body["messages"]
        assert [(each["role"], each["content"]) for each in said] == [
            ("user", "Where is parcel 7?"),
            ("assistant", "In Cork."),
            ("user", "Thanks."),
        ]


def test_refuses_a_message_without_a_role() -> None:
    with pytest.raises(ImportFormatError, match="message 1: it has no role"):
        read_semantic_kernel({"History": [{"Items": []}], "Channels": []})


def test_other_json_is_not_a_chat() -> None:
    for value in ([], {}, [{"role": "user", "content": "Hi"}], {"messages": [{"role": "user", "content": "Hi"}]}):
        assert not is_semantic_kernel(value)
    assert is_semantic_kernel({"Participants": [], "History": HISTORY})
    own = {"format": "clew-chat", "history": [], "channels": []}
    assert not is_semantic_kernel(own)


@given(VALUES)
def test_any_json_in_a_chat_is_read_or_refused(value: Any) -> None:
    for place in range(3):
        chat: Any = copy.deepcopy(CHAT)
        if place == 0:
            chat["History"][0]["Items"].append(value)
        elif place == 1:
            chat["History"].append(value)
        else:
            chat["Channels"].append(value)
        try:
            read_semantic_kernel(chat)
        except (ImportFormatError, InvalidContentError):
            continue
