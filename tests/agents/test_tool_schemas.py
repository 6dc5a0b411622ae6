"""Tools: what a model is told of a function, and which functions it cannot be told of."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field
from tests.agents.tool_calls import Address, Colour, Parcel, Point, outcome, properties

from clew.agents.tools import ToolContext, as_tools, tool
from clew.domain.json_values import Json
from clew.domain.runs.errors import InvalidToolError


def test_a_function_is_described_by_its_docstring_and_its_annotations() -> None:
    @tool
    def look_up(order: int, where: Literal["here", "there"] = "here") -> str:
        """Look up an order.

        It takes a while.

        Args:
            order (int): The number
                of the order.
            where: Where to look: here, or there.

        Returns:
            Words: not a parameter.
        """
        return f"{order} {where}"

    assert look_up.schema.model_dump() == {
        "name": "look_up",
        "description": "Look up an order.\n\nIt takes a while.",
        "parameters": {
            "type": "object",
            "properties": {
                "order": {"type": "integer", "description": "The number of the order."},
                "where": {
                    "type": "string",
                    "enum": ["here", "there"],
                    "default": "here",
                    "description": "Where to look: here, or there.",
                },
            },
            "required": ["order"],
            "additionalProperties": False,
        },
    }
    assert look_up(7) == "7 here"


def test_rest_fields_describe_parameters_too() -> None:
    def look_up(order: int, note: str, more: str) -> str:
        """Look up an order.

        :param order: The number
            of the order.
        :param str note: A note.
        :returns: Words.
        :param more:
        """
        return f"{order}{note}{more}"

    made = tool(look_up)
    assert made.description == "Look up an order."
    assert properties(made)["order"]["description"] == "The number of the order."
    assert properties(made)["note"]["description"] == "A note."
    assert "description" not in properties(made)["more"]


def test_a_description_in_the_annotation_comes_before_the_docstring() -> None:
    def look_up(
        order: Annotated[int, Field(description="Its number.", ge=1)], note: str = Field("", max_length=5)
    ) -> str:
        """Look up.

        Args:
            order: Not this.
            note: A note.
        """
        return f"{order}{note}"

    told = properties(tool(look_up))
    assert told["order"] == {"type": "integer", "minimum": 1, "description": "Its number."}
    assert told["note"] == {"type": "string", "maxLength": 5, "default": "", "description": "A note."}
    assert outcome(look_up, '{"order": 1}').result == "1"
    assert outcome(look_up, '{"order": 0}').error == "InvalidArgumentsError"


def test_a_function_without_parameters_takes_an_empty_object_or_nothing() -> None:
    def now() -> str:
        return "noon"

    assert tool(now).schema.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert tool(now).description == ""
    assert [outcome(now, text).result for text in ("", " ", "{}")] == ["noon"] * 3


def test_parameters_may_be_called_as_pydantic_calls_its_own() -> None:
    def look_up(
        model_config: int, schema: int, copy: int, title: int, self_: int, _hidden: int, json: int
    ) -> list[int]:
        return [model_config, schema, copy, title, self_, _hidden, json]

    names = ["model_config", "schema", "copy", "title", "self_", "_hidden", "json"]
    assert list(properties(tool(look_up))) == names
    assert outcome(look_up, json.dumps({name: at for at, name in enumerate(names)})).result == [0, 1, 2, 3, 4, 5, 6]


def test_types_of_the_module_and_of_the_function_around_are_found() -> None:
    class Local(BaseModel):
        size: int

    @tool
    def pack(local: Local, where: Address, points: list[Point], parcel: Parcel, colour: Colour = Colour.RED) -> Json:
        return [local.size, where.street, [point.x for point in points], parcel["weight"], colour.value]

    definitions = cast("dict[str, Any]", pack.schema.parameters["$defs"])
    assert sorted(definitions) == ["Address", "Colour", "Local", "Parcel", "Point"]
    assert definitions["Address"]["properties"]["street"]["description"] == "With the number."
    assert properties(pack)["colour"]["default"] == "red"
    text = '{"local": {"size": 1}, "where": {"street": "A 1"}, "points": [{"x": 2}], "parcel": {"weight": 0.5}}'
    assert outcome(pack, text).result == [1, "A 1", [2], 0.5, "red"]


def test_a_function_may_name_itself_and_what_comes_later() -> None:
    @tool
    def count(down: int) -> Json:
        return [down, count.name, later]

    later = "later"
    assert outcome(count, '{"down": 1}').result == [1, "count", "later"]


def test_types_that_a_function_closes_over_are_found_when_the_one_around_has_ended() -> None:
    def around() -> Callable[..., Any]:
        class Local(BaseModel):
            size: int

        def pack(local: Local) -> int:
            return Local.model_validate(local).size

        return pack

    assert outcome(tool(around()), '{"local": {"size": 3}}').result == 3


def test_a_type_that_cannot_be_found_is_told_with_its_name() -> None:
    def look_up(order: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821  # it is what this is about
        return str(order)

    with pytest.raises(InvalidToolError, match=r"'look_up'.*'Missing' is not defined"):
        tool(look_up)


def test_what_a_function_returns_need_not_be_found() -> None:
    def look_up() -> Missing:  # type: ignore[name-defined]  # noqa: F821  # it is what this is about
        return "x"

    assert outcome(look_up).result == "x"


def test_methods_partials_and_objects_that_are_called_are_tools() -> None:
    class Shop:
        """A shop."""

        def __init__(self, stock: int) -> None:
            self.stock = stock

        def left(self, of: str) -> str:
            """What is left."""
            return f"{self.stock} {of}"

        @tool(idempotent=True)
        def sold(self, of: str) -> str:
            return f"-{self.stock} {of}"

        def __call__(self, of: str) -> str:
            return f"?{self.stock} {of}"

    async def fetch(region: str, of: str) -> str:
        """Fetch."""
        return f"{region} {of}"

    shop = Shop(3)
    by_place, by_name = functools.partial(fetch, "eu"), functools.partial(fetch, region="us")
    tools = as_tools([shop.left, shop.sold, shop, by_place, tool(by_name, name="us")])
    assert [(each.name, each.description) for each in tools] == [
        ("left", "What is left."),
        ("sold", ""),
        ("Shop", "A shop."),
        ("fetch", "Fetch."),
        ("us", "Fetch."),
    ]
    assert {tuple(properties(each)) for each in tools} == {("of",)}
    results = [outcome(each, '{"of": "tea"}').result for each in tools]
    assert results == ["3 tea", "-3 tea", "?3 tea", "eu tea", "us tea"]
    assert shop.sold("tea") == "-3 tea"
    assert shop.sold.idempotent
    with pytest.raises(InvalidToolError, match="'sold' is a method without its object"):
        as_tools([Shop.sold])


def test_a_decorated_function_is_described_by_what_it_wraps() -> None:
    async def fetch(of: str) -> str:
        """Fetch."""
        return of

    @functools.wraps(fetch)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return fetch(*args, **kwargs)

    made = tool(logged)
    assert made.schema == tool(fetch).schema
    assert outcome(made, '{"of": "tea"}').result == "tea"


def test_positional_only_parameters_are_given_by_place() -> None:
    def look_up(a: int, b: str = "b", /, c: float = 0.5) -> list[Any]:
        return [a, b, c]

    assert outcome(look_up, '{"a": 1, "c": 2}').result == [1, "b", 2.0]
    assert outcome(look_up, '{"a": 1, "b": "x"}').result == [1, "x", 0.5]


def test_defaults_are_the_functions_own() -> None:
    unset = object()

    def look_up(order: Annotated[Any, Field()] = unset) -> bool:
        return order is unset

    assert outcome(look_up, "{}").result is True
    assert "default" not in properties(tool(look_up))["order"]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda: 1, "'<lambda>' cannot be the name"),
        (int, "not a function"),
        (7, "not a function"),
        (len, "the parameter 'obj' has no type"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function: Any, found: str) -> None:
    with pytest.raises(InvalidToolError, match=found):
        tool(function)


class Opaque:
    """Nothing that pydantic knows."""


def test_parameters_that_a_model_cannot_be_told_are_refused() -> None:
    def many(*orders: int) -> None: ...
    def named(**orders: int) -> None: ...
    def untyped(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # it is what this is about
    def called(order: Callable[[], int]) -> None: ...
    def opaque(order: Opaque) -> None: ...
    def endless(order: float = math.inf) -> None: ...
    def twice(one: ToolContext, two: ToolContext) -> None: ...

    refused: dict[Callable[..., None], str] = {
        many: r"what \*orders takes",
        named: r"what \*\*orders takes",
        untyped: "'order' has no type",
        called: "Cannot generate a JsonSchema",
        opaque: "Opaque'>.$",
        endless: "inf is not a JSON number",
        twice: "one and two both take the context",
    }
    for function, found in refused.items():
        with pytest.raises(InvalidToolError, match=found):
            tool(function)


def test_functions_that_yield_are_refused() -> None:
    def each() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    for function in (each, stream):
        with pytest.raises(InvalidToolError, match="it yields"):
            tool(cast("Callable[..., Any]", function))


def test_equal_code_gives_equal_schemas_in_every_process() -> None:
    code = (
        "from typing import Literal\nfrom clew.agents.tools import tool\n"
        "def f(a: frozenset[str] = frozenset({'one', 'two', 'three', 'four'}), b: dict[str, Literal['x', 'y']] = {}):\n"
        "    'Do.'\n"
        "print(tool(f).schema.model_dump_json())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert json.loads(said.pop())["parameters"]["properties"]["a"]["default"] == ["four", "one", "three", "two"]


@pytest.mark.parametrize(
    "docstring",
    [
        "Find a parcel.\n\nArgs:\n    number: Its number.\n\nReturns:\n    Where it is.",
        "Find a parcel.\n\nParameters\n----------\nnumber : str\n    Its number.\n\nReturns\n-------\nstr\n    There.",
        "Find a parcel.\n\n:param number: Its number.\n:returns: Where it is.",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_every_style_of_docstring_describes_the_parameters(docstring: str) -> None:
    def find(number: str) -> str:
        return number

    find.__doc__ = docstring
    found = tool(find)
    assert found.description == "Find a parcel."
    assert found.schema.parameters["properties"] == {"number": {"type": "string", "description": "Its number."}}
