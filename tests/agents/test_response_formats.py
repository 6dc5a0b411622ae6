"""The formats that an answer can be asked for: what the service is sent, and what the caller gets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Any, Required
from typing import TypedDict as StandardTypedDict

import pytest
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from clew import Agent, ScriptedChatClient
from clew.agents.response_formats import answer_value, response_format_of
from clew.errors import AgentConfigurationError, AnswerFormatError

pytestmark = pytest.mark.anyio


class City(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    founded: date | None = None


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    depth: int


CORK = {"name": "Cork", "founded": "1185-01-01"}
SCHEMA: dict[str, Any] = {"title": "The answer", "type": "object", "properties": {"n": {"type": "integer"}}}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "model": (City, CORK, City(name="Cork", founded=date(1185, 1, 1))),
    "dataclass": (Point, {"x": 1, "y": 2}, Point(1, 2)),
    "typed dict": (Options, {"depth": 3}, {"depth": 3}),
    "list": (list[City], {"value": [CORK]}, [City(name="Cork", founded=date(1185, 1, 1))]),
    "union": (Point | City, {"value": {"x": 1, "y": 2}}, Point(1, 2)),
    "schema": (SCHEMA, {"n": 1}, {"n": 1}),
    "schema of a list": ({"type": "array", "items": {"type": "string"}}, {"value": ["a"]}, ["a"]),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_answer_is_what_was_asked_for(case: str) -> None:
    wanted, told, value = CASES[case]
    client = ScriptedChatClient(json.dumps(told))
    response = await Agent(client).run("Go", response_format=wanted)
    assert response.value == value
    sent: Any = client.requests[0]["response_format"]
    schema = sent["json_schema"]["schema"]
    assert schema["type"] == "object"
    assert set(told) <= set(schema["properties"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("text", ["", "not JSON", "[]", "null", '{"value": 7, "x": "y"}', "7"])
def test_another_answer_is_an_error_with_its_text(case: str, text: str) -> None:
    wanted = CASES[case][0]
    if case == "typed dict" and text.startswith("{"):
        text = '{"depth": "deep"}'
    if case.startswith("schema") and text not in {"", "not JSON"}:
        return  # a JSON Schema is not checked, only read
    with pytest.raises(AnswerFormatError) as refused:
        answer_value(wanted, text)
    assert refused.value.text == text


def test_a_json_schema_is_sent_as_it_is() -> None:
    asked = response_format_of(SCHEMA)
    assert asked is not None
    assert (asked.name, asked.json_schema) == ("The_answer", SCHEMA)


def test_schemas_of_types_are_closed() -> None:
    asked = response_format_of(list[City])
    assert asked is not None
    assert asked.json_schema["additionalProperties"] is False
    definitions: Any = asked.json_schema["$defs"]
    assert definitions["City"]["required"] == ["name", "founded"]


@pytest.mark.parametrize("wanted", [dict, str, 7, "City", object(), lambda: None, {"type": {1, 2}}, type(None).__mro__])
def test_what_is_not_a_format_is_refused(wanted: Any) -> None:
    with pytest.raises(AgentConfigurationError):
        response_format_of(wanted)


class Line(StandardTypedDict):
    lamp: str


class Bill(StandardTypedDict, total=False):
    lines: Required[list[Line]]
    paid: bool


def test_takes_a_typed_dict_of_the_standard_library() -> None:
    wanted = response_format_of(Bill)
    assert wanted is not None
    assert set(wanted.json_schema["properties"]) == {"lines", "paid"}  # type: ignore[arg-type] # an object
    assert answer_value(Bill, '{"lines": [{"lamp": "bark"}]}') == {"lines": [{"lamp": "bark"}]}
    assert answer_value(list[Line], '{"value": [{"lamp": "bark"}]}') == [{"lamp": "bark"}]
    with pytest.raises(AnswerFormatError):
        answer_value(Bill, '{"paid": true}')
