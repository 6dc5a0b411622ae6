"""Tool schemas: the description of a function for a model, and functions that cannot have one."""

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


def test_a_schema_comes_from_the_docstring_and_the_annotations() -> None:
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


def test_a_description_in_an_annotation_overrides_the_docstring() -> None:
    def look_up(
        order: Annotated[int, Field(description="Its number.", ge=1)], note: str = Field("", max_length=5)
    ) -> str:
        """Look up.

        Args:
            order: Not this.
            note: A note.
        """
        return f"{order}{note}"

    schemas = properties(tool(look_up))
    assert schemas["order"] == {"type": "integer", "minimum": 1, "description": "Its number."}
    assert schemas["note"] == {"type": "string", "maxLength": 5, "default": "", "description": "A note."}
    assert outcome(look_up, '{"order": 1}').result == "1"
    assert outcome(look_up, '{"order": 0}').error == "InvalidArgumentsError"


def test_a_function_without_parameters_accepts_an_empty_object_or_nothing() -> None:
    def now() -> str:
        return "noon"

    assert tool(now).schema.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert tool(now).description == ""
    assert [outcome(now, text).result for text in ("", " ", "{}")] == ["noon"] * 3


def test_parameters_may_have_names_that_pydantic_uses() -> None:
    def look_up(
        model_config: int, schema: int, copy: int, title: int, self_: int, _hidden: int, json: int
    ) -> list[int]:
        return [model_config, schema, copy, title, self_, _hidden, json]

    names = ["model_config", "schema", "copy", "title", "self_", "_hidden", "json"]
    assert list(properties(tool(look_up))) == names
    assert outcome(look_up, json.dumps({name: at for at, name in enumerate(names)})).result == [0, 1, 2, 3, 4, 5, 6]


def test_resolves_types_of_the_module_and_the_enclosing_function() -> None:
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


def test_a_function_may_refer_to_itself_and_to_later_names() -> None:
    @tool
    def count(down: int) -> Json:
        return [down, count.name, later]

    later = "later"
    assert outcome(count, '{"down": 1}').result == [1, "count", "later"]


def test_resolves_types_of_a_closure_after_its_function_has_returned() -> None:
    def around() -> Callable[..., Any]:
        class Local(BaseModel):
            size: int

        def pack(local: Local) -> int:
            return Local.model_validate(local).size

        return pack

    assert outcome(tool(around()), '{"local": {"size": 3}}').result == 3


def test_names_a_type_that_cannot_be_resolved() -> None:
    def look_up(order: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821  # the test needs an unknown name
        return str(order)

    with pytest.raises(InvalidToolError, match=r"'look_up'.*'Missing' is not defined"):
        tool(look_up)


def test_ignores_an_unknown_return_type() -> None:
    def look_up() -> Missing:  # type: ignore[name-defined]  # noqa: F821  # the test needs an unknown name
        return "x"

    assert outcome(look_up).result == "x"


def test_methods_partials_and_callable_objects_are_tools() -> None:
    class Shop:
        """A shop."""

        def __init__(self, stock: int) -> None:
            self.stock = stock

        def left(self, of: str) -> str:
            """Return the rest."""
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
        ("left", "Return the rest."),
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


def test_a_decorated_function_has_the_schema_of_the_wrapped_one() -> None:
    async def fetch(of: str) -> str:
        """Fetch."""
        return of

    @functools.wraps(fetch)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return fetch(*args, **kwargs)

    made = tool(logged)
    assert made.schema == tool(fetch).schema
    assert outcome(made, '{"of": "tea"}').result == "tea"


def test_positional_only_parameters_are_supported() -> None:
    def look_up(a: int, b: str = "b", /, c: float = 0.5) -> list[Any]:
        return [a, b, c]

    assert outcome(look_up, '{"a": 1, "c": 2}').result == [1, "b", 2.0]
    assert outcome(look_up, '{"a": 1, "b": "x"}').result == [1, "x", 0.5]


def test_defaults_of_the_function_are_used() -> None:
    unset = object()

    def look_up(order: Annotated[Any, Field()] = unset) -> bool:
        return order is unset

    assert outcome(look_up, "{}").result is True
    assert "default" not in properties(tool(look_up))["order"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: 1, "'<lambda>' cannot be the name"),
        (int, "not a function"),
        (7, "not a function"),
        (len, "the parameter 'obj' has no type"),
    ],
)
def test_accepts_only_a_named_function(function: Any, reason: str) -> None:
    with pytest.raises(InvalidToolError, match=reason):
        tool(function)


class Opaque:
    """A class that pydantic cannot describe."""


def test_refuses_parameters_without_a_json_schema() -> None:
    def many(*orders: int) -> None: ...
    def named(**orders: int) -> None: ...
    def untyped(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # the test needs a missing type
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
    for function, reason in refused.items():
        with pytest.raises(InvalidToolError, match=reason):
            tool(function)


def test_refuses_generator_functions() -> None:
    def each() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    for function in (each, stream):
        with pytest.raises(InvalidToolError, match="it is a generator"):
            tool(cast("Callable[..., Any]", function))


def test_equal_code_gives_equal_schemas_in_every_process() -> None:
    code = (
        "from typing import Literal\nfrom clew.agents.tools import tool\n"
        "def f(a: frozenset[str] = frozenset({'one', 'two', 'three', 'four'}), b: dict[str, Literal['x', 'y']] = {}):\n"
        "    'Do.'\n"
        "print(tool(f).schema.model_dump_json())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["parameters"]["properties"]["a"]["default"] == ["four", "one", "three", "two"]


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
    made = tool(find)
    assert made.description == "Find a parcel."
    assert made.schema.parameters["properties"] == {"number": {"type": "string", "description": "Its number."}}
