"""Names, sizes and changes of the tools of MCP servers, and what their answers become."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import AudioContent, BlobResourceContents, CallToolResult, EmbeddedResource, ResourceLink, TextContent

from clew.domain.messages import Media
from clew.infrastructure.mcp.definitions import MAX_DESCRIPTION, changes, digests_of, schema_of, tool_names
from clew.infrastructure.mcp.results import result_of
from clew.infrastructure.mcp.transports import _request_of


def test_names_are_those_that_services_accept_and_differ() -> None:
    long = "x" * 70
    names = tool_names(["a.b", "a_b", "find", long], "p_")
    assert names["find"] == "p_find"
    assert names["a.b"] == "p_a_b"
    assert names["a_b"].startswith("p_a_b_")
    assert len(names[long]) == 64
    assert len(set(names.values())) == 4
    assert tool_names([""], "") != {"": ""}


def test_a_definition_is_the_same_in_each_version_of_the_protocol() -> None:
    one: Any = {"type": "object", "properties": {"b": {"type": "string", "title": "B"}, "a": {}}, "required": ["b"]}
    two: Any = {"required": ["b"], "properties": {"b": {"title": "B", "type": "string"}, "a": {}}, "type": "object"}
    made = [schema_of("f", "Finds.", each) for each in (one, two)]
    assert made[0].model_dump_json() == made[1].model_dump_json()
    properties: Any = made[0].parameters["properties"]
    assert list(properties) == ["b", "a"], "the server's order of properties is kept"
    assert len(schema_of("f", "!" * 9_000, one).description) == MAX_DESCRIPTION


def test_changes_are_named() -> None:
    before = digests_of([schema_of("a", "A.", {}), schema_of("b", "B.", {})])
    now = digests_of([schema_of("a", "Other.", {}), schema_of("c", "C.", {})])
    assert changes(before, now) == ["changed: a", "new: c", "gone: b"]
    assert changes(before, before) == []


def text(words: str) -> TextContent:
    return TextContent(text=words)


@pytest.mark.parametrize(
    ("contents", "structured", "result"),
    [
        ([text("Rain.")], None, "Rain."),
        ([text("a"), text("b")], None, ["a", "b"]),
        ([], None, []),
        ([text("Rain.")], {"result": "Rain."}, "Rain."),
        ([text("3")], {"result": 3}, 3),
        ([text('{"a": 1}')], {"a": 1}, {"a": 1}),
        ([], {"a": 1}, {"a": 1}),
        ([text("See above.")], {"a": 1}, {"structured": {"a": 1}, "text": "See above."}),
        (
            [AudioContent(data="AAAA", mime_type="audio/wav")],
            None,
            Media(uri="data:audio/wav;base64,AAAA", media_type="audio/wav"),
        ),
        (
            [EmbeddedResource(resource=BlobResourceContents(uri="a://b", blob="AAAA", mime_type="text/x, evil"))],
            None,
            Media(uri="data:application/octet-stream;base64,AAAA", media_type="application/octet-stream"),
        ),
        (
            [ResourceLink(uri="a://b", name="b")],
            None,
            {"type": "resource_link", "uri": "a://b", "name": "b"},
        ),
    ],
)
def test_an_answer_says_each_thing_once(contents: Any, structured: Any, result: Any) -> None:
    assert result_of(CallToolResult(content=contents, structured_content=structured)) == result


def test_the_request_that_a_cut_message_answers_is_found_at_either_end() -> None:
    assert _request_of(b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"xx') == 7
    assert _request_of(b'{"result":{"content":["id":3, xx"]},"jsonrpc":"2.0","id":12}') == 12
    assert _request_of(b'{"result":"xxx') is None
