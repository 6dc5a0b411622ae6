"""The Markdown of a diff, read back by a Markdown parser: it shows the messages, and none of their text is markup."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # rich requires this parser, so it is always installed
from markdown_it.token import Token
from tests.domain.difference_strategies import history

from clew.cli.output import safe
from clew.cli.rendering.diff_markdown import diff_document
from clew.domain.differences.diff import diff
from clew.domain.messages import FunctionCall, Message

PARSER = MarkdownIt("commonmark").enable(["strikethrough", "table"])

OURS = {"s": "only-a", "strong": "only-b"}
TAGS = {"<del>": "only-a", "<strong>": "only-b"}

marks = ["*", "**", "_", "__", "~", "~~", "`", "```", "<b>", "<!--", "</del>", "&amp;", "&", "[x](y)", "![", "]", "#"]
starts = ["> ", "- ", "+ ", "* ", "1. ", "12) ", "= ", "===", "---", "|", "| a |\n|---|", "\n", "\n\n", "    ", "\t"]
plain = [
    "http://x.y",
    "www.a.b",
    "word",
    "two words ",
    "\\",
    "$",
    "a_b",
    "!",
    "é",
    ":",
    "x",
    " ",
    "\x1b[2J",
    "\u202e",
    "。",
]
texts = st.lists(st.sampled_from([*marks, *starts, *plain]), max_size=10).map("".join)


def quoted(document: str) -> list[Token]:
    """The tokens within the quotes, which hold the text of users and models."""
    result: list[Token] = []
    depth = 0
    for token in PARSER.parse(document):
        depth += {"blockquote_open": 1, "blockquote_close": -1}.get(token.type, 0)
        if depth:
            result.append(token)
    return result


def sides(document: str) -> tuple[str, str]:
    """The text of each side without spaces, from the marks; fails on markup that the diff does not write."""
    ours = theirs = ""
    blocks = {"blockquote_open", "blockquote_close", "paragraph_open", "paragraph_close", "inline"}
    for block in quoted(document):
        assert block.type in blocks, block
        kind = "same"
        for token in block.children or ():
            if token.type == "text":
                ours += token.content if kind != "only-b" else ""
                theirs += token.content if kind != "only-a" else ""
            elif token.type.removesuffix("_open") in OURS:
                assert kind == "same"
                kind = OURS[token.type.removesuffix("_open")]
            elif token.type == "html_inline" and token.content in TAGS:
                assert kind == "same"
                kind = TAGS[token.content]
            elif token.type.removesuffix("_close") in OURS or token.content in {"</del>", "</strong>"}:
                kind = "same"
            else:
                assert token.type in {"softbreak", "hardbreak"}, token
    return without_space(ours), without_space(theirs)


def without_space(text: str) -> str:
    return "".join(text.split())


def document(ours: list[Message | None], theirs: list[Message | None], *, everything: bool = False) -> str:
    result = diff(history(ours, "a"), history(theirs, "b"))
    return "\n".join(diff_document(result, everything=everything))


@given(texts, texts)
@example("a. This", "a, this")
@example("http://x.y/a", "http://x.y/b")
def test_changed_text_is_read_back_and_is_not_markup(a: str, b: str) -> None:
    ours, theirs = f"kept words {a}", f"kept words {b}"
    markdown = document([Message.user(ours)], [Message.user(theirs)], everything=True)
    result = sides(markdown)
    if " · changed · " in markdown:
        assert result == (without_space(safe(ours)), without_space(safe(theirs)))
    elif a == b:
        assert result[0] == without_space(safe(ours))
    else:
        assert result[0] == without_space(safe(ours) + safe(theirs))


@given(texts)
def test_text_on_one_side_is_read_back_line_by_line(text: str) -> None:
    markdown = document([Message.user(text)], [])
    assert sides(markdown)[0] == without_space(safe(text))
    breaks = sum(token.type == "hardbreak" for block in quoted(markdown) for token in block.children or ())
    lines = [line.strip() for line in safe(text).split("\n")]
    assert breaks == sum(bool(one and other) for one, other in pairwise(lines))


@given(texts, texts)
def test_names_authors_and_arguments_are_not_markup(name: str, value: str) -> None:
    call = Message.assistant(calls=[FunctionCall(call_id="1", name=name, arguments=value)], author=name)
    markdown = document([call], [], everything=True)
    assert all(token.type != "html_block" for token in PARSER.parse(markdown))
    assert all(
        token.type in {"text", "strong_open", "strong_close", "softbreak", "hardbreak", "s_open", "s_close"}
        for block in PARSER.parse(markdown)
        for token in block.children or ()
    )


def test_the_document_says_what_is_compared_and_marks_what_differs() -> None:
    markdown = document(
        [Message.system("Be kind."), Message.user("It cost 48 euros, it broke."), Message.assistant("Oh.")],
        [Message.system("Be kind."), Message.user("It cost 24 euros, and it broke.")],
    )
    assert (
        markdown
        == """\
# Diff

| | thread | version | messages |
|---|---|---|---|
| a | a | 4 | 3 |
| b | b | 3 | 2 |

1 the same, 1 changed, 1 only in a. Words only in a are ~~struck through~~, words only in b are **bold**.

*… 1 message the same (version 2):* system: Be kind.

### user · changed · version 3

> It cost ~~48~~ **24** euros, **and** it broke.

### assistant · only in a · version 4

> Oh."""
    )


def test_arguments_are_a_list_also_if_they_are_long_or_have_lines() -> None:
    calls = [
        Message.assistant(calls=[FunctionCall(call_id="1", name="book", arguments=f'{{"to": "{to}", "why": "{why}"}}')])
        for to, why in (("Rome", r"It is\nlate"), ("Oslo", r"It is\nlate now"))
    ]
    markdown = document([calls[0]], [calls[1]])
    assert markdown.endswith("\n> → book\n>\n> - *to*: ~~Rome~~ **Oslo**\n> - *why*: It is<br>late **now**")


def test_different_paragraphs_are_on_their_own_lines() -> None:
    long = "word " * 20
    markdown = document([Message.user(f"Well then, said he: {long}here.")], [Message.user("Well then, said he: no.")])
    assert f"> Well then, said he: ~~{long}here~~\\\n> **no**." in markdown


@given(texts)
def test_the_start_of_an_unchanged_message_is_not_markup(text: str) -> None:
    markdown = document([Message.user(text)], [Message.user(text)])
    last = [block for block in PARSER.parse(markdown) if block.type == "inline"][-1]
    shown_as = [token.type for token in last.children or () if token.content or token.type != "text"]
    assert shown_as == ["em_open", "text", "em_close", "text"]
