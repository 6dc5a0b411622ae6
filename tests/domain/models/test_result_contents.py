"""Results of several contents, in the form of each service and for each reader."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from clew.cli.rendering.conversation import content_text
from clew.domain.differences.content_diff import plain
from clew.domain.formats.markdown import _content
from clew.domain.history import HistoryMessage
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Text
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.reducers.history_reduction import cut
from clew.domain.search_terms import searchable

PICTURE = Media(uri="data:image/png;base64,aGk=", media_type="image/png")
SOUND = Media(uri="data:audio/wav;base64,aGk=", media_type="audio/wav")
REPORT = Media(uri="data:application/pdf;base64,aGk=", media_type="application/pdf", name="report.pdf")
RESULT = FunctionResult(call_id="c", name="look", contents=(Text(text="Look:"), PICTURE, SOUND, REPORT))

BLOB = {"mimeType": "image/png", "data": "aGk="}
SOUND_BLOB = {"mimeType": "audio/wav", "data": "aGk="}
REPORT_BLOB = {"mimeType": "application/pdf", "data": "aGk="}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def last(wire: WireFormat, model: str) -> Any:
    messages = (
        Message.user("Go."),
        Message.assistant(calls=[FunctionCall(call_id="c", name="look", arguments="{}")]),
        Message(role="tool", contents=(RESULT,)),
    )
    body: Any = wire.make_body(Question(model, messages))
    return body[next(name for name in ("messages", "contents", "input") if name in body)][-1]


@pytest.mark.parametrize(
    ("wire", "model", "expected"),
    [
        (
            OPENAI_RESPONSES,
            "gpt-5",
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "Look:"},
                    {"type": "input_image", "image_url": PICTURE.uri},
                    {"type": "input_text", "text": "[audio/wav, not shown here]"},
                    {"type": "input_file", "filename": "report.pdf", "file_data": REPORT.uri},
                ],
            },
        ),
        (
            ANTHROPIC,
            "claude",
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [
                            {"type": "text", "text": "Look:"},
                            {"type": "image", "source": SOURCE},
                            {"type": "text", "text": "[audio/wav, not shown here]"},
                            {
                                "type": "document",
                                "source": {**SOURCE, "media_type": "application/pdf"},
                                "title": "report.pdf",
                            },
                        ],
                    }
                ],
            },
        ),
        (
            GEMINI,
            "gemini-3.1-pro",
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "name": "look",
                            "response": {"output": "Look:"},
                            "parts": [{"inlineData": BLOB}, {"inlineData": REPORT_BLOB}],
                        }
                    },
                    {"inlineData": SOUND_BLOB},
                ],
            },
        ),
        (
            GEMINI,
            "gemini-2.5-flash",
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "look", "response": {"output": "Look:"}}},
                    {"inlineData": BLOB},
                    {"inlineData": SOUND_BLOB},
                    {"inlineData": REPORT_BLOB},
                ],
            },
        ),
        (
            INTERACTIONS,
            "gemini-3-pro",
            {
                "type": "function_result",
                "call_id": "c",
                "name": "look",
                "result": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image", "data": "aGk=", "mime_type": "image/png"},
                    {"type": "audio", "data": "aGk=", "mime_type": "audio/wav"},
                    {"type": "document", "data": "aGk=", "mime_type": "application/pdf"},
                ],
            },
        ),
        (
            BEDROCK,
            "claude",
            {
                "role": "user",
                "content": [
                    {
                        "toolResult": {
                            "toolUseId": "c",
                            "content": [
                                {"text": "Look:"},
                                {"image": {"format": "png", "source": {"bytes": "aGk="}}},
                                {"text": "[audio/wav, not shown here]"},
                                {
                                    "document": {
                                        "format": "pdf",
                                        "source": {"bytes": "aGk="},
                                        "name": "Document 1",
                                    }
                                },
                            ],
                        }
                    }
                ],
            },
        ),
    ],
    ids=lambda each: each.name if isinstance(each, WireFormat) else each if isinstance(each, str) else "",
)
def test_each_service_gets_the_contents_in_its_own_form(wire: WireFormat, model: str, expected: object) -> None:
    assert last(wire, model) == expected


def test_people_see_each_content() -> None:
    console = Console(file=StringIO(), width=200)
    console.print(content_text(RESULT))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]  # a StringIO
        "← look: Look:",
        "[image/png: 2 bytes]",
        "[audio/wav: 2 bytes]",
        "[application/pdf: report.pdf, 2 bytes]",
    ]
    assert [*_content(RESULT)] == [
        "Result of `look` (`c`):",
        "```text\nLook:\n```",
        "Media (`image/png`): `2 bytes`",
        "Media (`audio/wav`): `2 bytes`",
        "Media (`application/pdf`): `report.pdf, 2 bytes`",
    ]


def test_search_and_diff_have_the_texts_and_names_but_no_base64() -> None:
    assert searchable({"contents": [RESULT.model_dump(mode="json")]}).split() == [
        *("look", "Look:", "image/png", "audio/wav", "application/pdf", "report.pdf")
    ]
    result: Any = plain(RESULT)["result"]
    assert [each["type"] for each in result] == ["text", "media", "media", "media"]
    assert "aGk=" not in str(result)


def test_a_reducer_cuts_the_texts_and_keeps_the_media() -> None:
    long = RESULT.model_copy(update={"contents": (Text(text="long " * 50), PICTURE, Text(text="end"))})
    item = HistoryMessage(3, "tool", Message(role="tool", contents=(long,)), "", 0)
    (result,) = cut(item, 60).results
    words, picture = result.contents
    assert (len(words.text), picture) == (60, PICTURE)  # type: ignore[union-attr]  # the first is a text
    assert words.text.endswith("… [cut: 254 characters]")  # type: ignore[union-attr]  # as above
    assert cut(item, 254) is item
