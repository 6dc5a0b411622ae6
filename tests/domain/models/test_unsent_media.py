"""What a wire format says about media is what its bodies have: neither more nor less."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Native, Raw, Role, Text
from clew.domain.models.anthropic_requests import ANTHROPIC, ANTHROPIC_BEDROCK, ANTHROPIC_VERTEX
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.chat_requests import OPENAI_CHAT, media_words
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.media import UnsentMedia, unsent_media
from clew.domain.models.responses_requests import OPENAI_RESPONSES

WIRES = [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, ANTHROPIC_BEDROCK, ANTHROPIC_VERTEX, GEMINI, INTERACTIONS, BEDROCK]
MARK = b64encode(b"<the-bytes-of-the-media>").decode()
TYPES = ["image/png", "image/tiff", "audio/wav", "audio/flac", "application/pdf", "text/plain", "video/mp4", "a/b"]
ADDRESSES = ["https://e.org/MARK", "http://e.org/MARK", "gs://b/MARK", "s3://b/MARK", "data:text/plain,MARK"]

URIS = st.one_of(st.sampled_from(ADDRESSES), st.sampled_from(TYPES).map(lambda kind: f"data:{kind};base64,{MARK}"))
MEDIA = st.builds(Media, uri=URIS, media_type=st.none() | st.sampled_from(TYPES), name=st.sampled_from([None, "a.pdf"]))
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])


def sent(wire: WireFormat, *messages: Message) -> tuple[str, tuple[UnsentMedia, ...]]:
    """The body of a question as JSON, and the media that the wire does not send."""
    question = Question("m-1", messages, versions=tuple(range(2, len(messages) + 2)), provider="p")
    return json.dumps(wire.make_body(question), ensure_ascii=False), unsent_media(wire, question)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@given(media=MEDIA, role=ROLES, before=st.booleans(), text=st.booleans())
@settings(deadline=None, max_examples=150)
def test_media_are_unsent_exactly_if_the_body_does_not_have_them(
    wire: WireFormat,
    media: Media,
    role: Role,
    before: bool,  # noqa: FBT001  # hypothesis passes them
    text: bool,  # noqa: FBT001  # as above
) -> None:
    words = (Text(text="Look:"),) if text else ()
    message = Message(role=role, contents=(*words, media))
    earlier = [Message.user("Hello.")] if before else []
    body, unsent = sent(wire, *earlier, message, Message.user("Go on."))
    mark = MARK if MARK in media.uri else "MARK"
    is_sent = mark in body and json.dumps(media_words(media))[1:-1] not in body
    place = UnsentMedia(len(earlier) + 2, len(words), media.media_type or kind_in(media.uri))
    assert unsent == (() if is_sent else (place,)), body


CLIENTS = {
    "OpenAIChatClient": OPENAI_CHAT,
    "OpenAIResponsesClient": OPENAI_RESPONSES,
    "AnthropicClient": ANTHROPIC,
    "GeminiClient": GEMINI,
    "GeminiInteractionsClient": INTERACTIONS,
    "BedrockClient": BEDROCK,
}
COLUMNS = ("image/png", "audio/wav", "application/pdf")
SOURCES = ("bytes", "https:", "http:", "gs:", "s3:")


def test_the_table_of_the_documents_says_what_each_client_sends() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/media.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `") and "Client`" in line]
    assert [name.strip(" `") for name, *_ in rows] == list(CLIENTS)
    for (name, *cells), wire in zip(rows, CLIENTS.values(), strict=True):
        for cell, kind in zip(cells, COLUMNS, strict=True):
            uris = {each: f"{each}//e.org/a" for each in SOURCES} | {"bytes": f"data:{kind};base64,{MARK}"}
            media = {source: Media(uri=uri, media_type=kind) for source, uri in uris.items()}
            told = [source for source in SOURCES if not sent(wire, Message.user("Look:", media[source]))[1]]
            assert told == [source for source in SOURCES if source in cell], (name, kind)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@given(media=MEDIA, model=st.sampled_from(["gemini-2.5-pro", "gemini-3-pro"]))
@settings(deadline=None, max_examples=100)
def test_media_of_results_are_unsent_exactly_if_the_body_does_not_have_them(
    wire: WireFormat, media: Media, model: str
) -> None:
    calls = [FunctionCall(call_id=f"c{number}", name="look", arguments="{}") for number in (1, 2)]
    result = FunctionResult(call_id="c1", contents=(Text(text="Look:"), media, Text(text="(end)")))
    other = FunctionResult(call_id="c2", result="Nothing.")
    messages = (
        Message.user("Go."),
        Message.assistant(calls=calls),
        *(Message(role="tool", contents=(each,)) for each in (result, other)),
    )
    question = Question(model, messages, versions=(2, 3, 4, 5), provider="p")
    body = json.dumps(wire.make_body(question), ensure_ascii=False)
    mark = MARK if MARK in media.uri else "MARK"
    is_sent = mark in body and json.dumps(media_words(media))[1:-1] not in body
    place = UnsentMedia(4, 0, media.media_type or kind_in(media.uri))
    assert unsent_media(wire, question) == (() if is_sent else (place,)), body
    assert all(words in body for words in ("Look:", "(end)", "Nothing."))


def kind_in(uri: str) -> str:
    return uri[5:].partition(",")[0].partition(";")[0] if uri.startswith("data:") else "media"


@pytest.mark.parametrize(
    ("wire", "unsent"),
    [
        (OPENAI_CHAT, ["video/mp4"]),
        (OPENAI_RESPONSES, ["audio/wav", "video/mp4"]),
        (ANTHROPIC, ["audio/wav", "text/plain", "video/mp4"]),
        (GEMINI, []),
        (INTERACTIONS, []),
        (BEDROCK, []),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_each_wire_names_the_bytes_that_it_cannot_send(wire: WireFormat, unsent: list[str]) -> None:
    types = ["image/png", "audio/wav", "application/pdf", "text/plain", "video/mp4"]
    media = [Media(uri=f"data:{each};base64,{MARK}", media_type=each) for each in types]
    assert [each.media_type for each in sent(wire, Message.user("Look:", *media))[1]] == unsent


PARTS: dict[str, JsonObject] = {
    "openai-chat": {"type": "input_audio", "input_audio": {"data": MARK, "format": "wav"}},
    "openai-responses": {"type": "input_file", "file_id": MARK},
    "anthropic-messages": {"type": "document", "source": {"type": "file", "file_id": MARK}},
    "gemini-generate-content": {"fileData": {"fileUri": MARK}},
    "bedrock-converse": {"image": {"format": "png", "source": {"bytes": MARK}}},
}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_another_service_is_unsent_if_the_body_does_not_have_it(wire: WireFormat, part: str) -> None:
    body, unsent = sent(wire, Message(role="user", contents=(Text(text="Look:"), Raw(value=PARTS[part]))))
    assert (MARK in body) == (not unsent)
    assert (part == wire.name) <= (MARK in body), "its own"
    assert [each[:2] for each in unsent] == ([] if MARK in body else [(2, 1)])


def test_other_contents_are_never_unsent_media() -> None:
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    others = [
        Message.system("Be brief."),
        Message(role="user", contents=(Raw(value={"type": "odd"}), Raw(value=7), Raw(value={"a": 1}))),
        Message.assistant("Hm.", calls=[call]),
        Message(role="tool", contents=(FunctionResult(call_id="c", result={"type": "image"}),)),
    ]
    for wire in WIRES:
        assert sent(wire, *others)[1] == ()


@pytest.mark.parametrize("wire", [GEMINI, BEDROCK], ids=lambda wire: wire.name)
def test_media_of_an_answer_go_back_to_the_model_that_made_it(wire: WireFormat) -> None:
    part = Raw(value={"inlineData": {"mimeType": "image/png", "data": MARK}} if wire is GEMINI else PARTS[BEDROCK.name])
    for model, is_own in (("m-1", True), ("m-2", False)):
        native = Native(wire=wire.name, provider="p", model=model)
        answer = Message(role="assistant", contents=(Text(text="x"), part), native=native)
        body, unsent = sent(wire, Message.user("Draw."), answer)
        assert (MARK in body, len(unsent)) == (is_own, not is_own)


def test_a_format_that_does_not_say_sends_everything() -> None:
    silent = WireFormat(
        name="silent", make_body=lambda question: {"n": len(question.messages)}, make_path=lambda *_: "/"
    )
    assert sent(silent, Message.user("x", Media(uri="https://e.org")))[1] == ()
