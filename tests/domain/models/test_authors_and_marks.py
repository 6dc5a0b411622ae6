"""Who wrote a message, and that an answer was cut off: what a model reads of it, in each format."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from clew.domain.messages import FunctionCall, Media, Message, Native, Text
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.chat_requests import CUT_OFF, OPENAI_CHAT
from clew.domain.models.client import Question, ToolSchema, WireFormat
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.runs.request_construction import prefix_of, request_bytes

WIRES = (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, GEMINI, INTERACTIONS, BEDROCK)
every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
PICTURE = Media(uri="data:image/png;base64,AAAA", media_type="image/png")
CALL = FunctionCall(call_id="a", name="f", arguments='{"n": 1}')


def sent(wire: WireFormat, question: Question) -> list[Any]:
    """The messages of a request, in the words of its format."""
    body: Any = wire.make_body(question)
    messages: list[Any] = body[wire.prefix_fields[-1]] if wire.prefix_fields else body["messages"]
    return messages


def read(messages: list[Any]) -> list[str]:
    """What a model reads: each text in order, a field for the author before its message."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content", message.get("parts"))
        author = f"<{message['name']}> " if "name" in message else ""
        parts = [content] if isinstance(content, str) else [part["text"] for part in content or () if "text" in part]
        texts += [author + part for part in parts]
    return texts


def conversation(author: str, agent: str | None) -> Question:
    answer = Message.assistant("No.", author="Critic")
    own = Message.assistant("Yes.", author="Writer")
    return Question("m", (Message.user("Hello", author=author), answer, own), agent=agent)


AUTHORS = [
    (OPENAI_CHAT, "anna", ["<anna> Hello", "<Critic> No.", "Yes."]),
    (OPENAI_CHAT, "Anna B.", ["Anna B.: Hello", "<Critic> No.", "Yes."]),
    (OPENAI_RESPONSES, "Anna B.", ["Anna B.: Hello", "Critic:", "No.", "Yes."]),
    (ANTHROPIC, "Anna B.", ["Anna B.: Hello", "Critic:", "No.", "Yes."]),
    (GEMINI, "Anna B.", ["Anna B.: Hello", "Critic:", "No.", "Yes."]),
    (INTERACTIONS, "Anna B.", ["Anna B.: Hello", "Critic:", "No.", "Yes."]),
    (BEDROCK, "Anna B.", ["Anna B.: Hello", "Critic:", "No.", "Yes."]),
]


@pytest.mark.parametrize(("wire", "author", "expected"), AUTHORS, ids=lambda each: getattr(each, "name", None))
def test_authors_are_in_the_field_of_the_format_or_a_prefix(wire: WireFormat, author: str, expected: list[str]) -> None:
    question = conversation(author, agent="Writer")
    assert read(sent(wire, question)) == expected, "its own answers have no author"
    for other in ("Critic", None):
        names = [text for text in read(sent(wire, replace(question, agent=other))) if "Writer" in text]
        assert len(names) == 1, "the answers of another agent have theirs"


EARLIER = {
    "openai-chat": ["Hello", "No.", "Yes."],
    "openai-responses": ["Hello", "No.", "Yes."],
    "anthropic-messages": ["Anna B.: Hello", "No.", "Yes."],
    "gemini": ["Anna B.: Hello", "No.", "Yes."],
    "gemini-interactions": ["Anna B.: Hello", "No.", "Yes."],
    "bedrock-converse": ["Anna B.: Hello", "No.", "Yes."],
}


@every_wire
def test_a_request_of_the_first_edition_has_the_authors_that_it_had(wire: WireFormat) -> None:
    question = replace(conversation("Anna B.", agent="Writer"), edition=1)
    assert read(sent(wire, question)) == EARLIER[wire.name]


@every_wire
def test_an_author_of_media_or_of_an_empty_name(wire: WireFormat) -> None:
    picture = Message(role="user", author="Anna B.", contents=(PICTURE,))
    assert any(text.startswith("Anna B.") for text in read(sent(wire, Question("m", (picture,)))))
    nobody = Message(role="user", author="", contents=(Text(text="Hello"),))
    assert read(sent(wire, Question("m", (nobody,)))) == ["Hello"] or wire in {ANTHROPIC, GEMINI, INTERACTIONS, BEDROCK}


@every_wire
@pytest.mark.parametrize("native", [False, True], ids=["partial", "the service's own"])
def test_a_cut_answer_is_marked_as_cut(wire: WireFormat, native: bool) -> None:  # noqa: FBT001  # pytest passes it
    own = Native(wire=wire.name, model="m") if native else None
    answer = Message.assistant("Half").model_copy(update={"cut": True, "native": own})
    messages = (Message.user("Hello"), answer, Message.user("Go on."))
    texts = read(sent(wire, Question("m", messages)))
    assert "\n\n".join(texts) == f"Hello\n\nHalf\n\n{CUT_OFF}\n\nGo on."
    whole = (messages[0], answer.model_copy(update={"cut": False}), messages[2])
    assert read(sent(wire, Question("m", whole))) == ["Hello", "Half", "Go on."]


@every_wire
def test_a_cut_answer_with_calls_is_marked_before_them(wire: WireFormat) -> None:
    answer = Message.assistant(calls=[CALL]).model_copy(update={"cut": True})
    tool = ToolSchema(name="f", parameters={"type": "object"})
    question = Question("m", (Message.user("Hello"), answer, Message.tool("a", "1")), tools=(tool,))
    written = str(sent(wire, question))
    assert written.count(CUT_OFF) == 1
    if wire is not OPENAI_RESPONSES:
        assert read(sent(wire, question))[1] == CUT_OFF


@pytest.mark.parametrize("wire", [OPENAI_CHAT, OPENAI_RESPONSES, GEMINI], ids=lambda wire: wire.name)
def test_the_prefix_is_the_digest_of_what_the_model_reads(wire: WireFormat) -> None:
    tool = ToolSchema(name="f", parameters={"type": "object"})
    question = Question("m", (Message.user("Zwölf 🧶"),), "Be brief.", (tool,), options={"top_p": 0.5})
    body: Any = wire.make_body(question)
    *fields, messages = wire.prefix_fields
    shorter = request_bytes({name: body[name] for name in fields if name in body})
    expected = sha256(shorter + request_bytes({"": body[messages]})[4:-1]).hexdigest()
    for order in (list(body), list(reversed(body))):
        ordered = {name: body[name] for name in order}
        assert prefix_of(wire, ordered, request_bytes(ordered)) == expected


@every_wire
def test_the_prefix_depends_on_nothing_else(wire: WireFormat) -> None:
    def prefix(question: Question) -> str | None:
        body = wire.make_body(question)
        return prefix_of(wire, body, request_bytes(body))

    question = Question("m", (Message.user("Hello"),), "Be brief.")
    tool = ToolSchema(name="f", parameters={"type": "object"})
    assert prefix(question) == prefix(replace(question, model="n", options={"metadata": {"a": "b"}}))
    others = (
        replace(question, instructions="Be long."),
        replace(question, tools=(tool,)),
        replace(question, messages=(Message.user("Hi"),)),
    )
    assert len({prefix(each) for each in (question, *others)}) == len(others) + 1


def test_a_format_that_names_no_fields_has_no_prefix() -> None:
    wire = WireFormat(name="w", make_body=lambda _: {"ask": []}, make_path=lambda _, __: "/")
    assert prefix_of(wire, {"ask": []}, b'{"ask":[]}') is None
