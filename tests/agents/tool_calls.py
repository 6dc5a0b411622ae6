"""Calling a tool as a run does, and types of its parameters."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from clew.agents.tools import Tool, ToolContext, ToolOutcome, call_tool, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Parcel(TypedDict):
    weight: float


class Address(BaseModel):
    """The destination."""

    street: str = Field(description="With the number.")


CONTEXT = ToolContext(deps=None, thread=None, actor="user:42", run_id="r1", call_id="c1", idempotency_key="k1")


def outcome(function: Tool | Callable[..., Any], text: str = "", **options: Any) -> ToolOutcome:
    made = function if isinstance(function, Tool) else tool(function, **options)
    return asyncio.run(call_tool(made, text, CONTEXT))


def properties(made: Tool) -> dict[str, Any]:
    return cast("dict[str, Any]", made.schema.parameters["properties"])
