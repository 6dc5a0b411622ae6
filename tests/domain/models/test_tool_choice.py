"""The choice of tools: what forces a call is left out, and everything else stays."""

from __future__ import annotations

from typing import Any

import pytest

from clew.domain.json_values import JsonObject
from clew.domain.models.tool_choice import without_forced_call


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "any",
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "name": "f"},
        {"type": "any"},
        {"type": "tool", "name": "f"},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        {"allowed_tools": {"mode": "any", "tools": ["f"]}},
    ],
)
def test_leaves_out_a_forced_choice(choice: Any) -> None:
    assert without_forced_call({"tool_choice": choice, "temperature": 1}) == {"temperature": 1}


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "none",
        "validated",
        {"type": "auto"},
        {"type": "none"},
        {"type": "allowed_tools", "mode": "auto"},
        {"allowed_tools": {"mode": "auto", "tools": ["f"]}},
    ],
)
def test_keeps_a_free_choice(choice: Any) -> None:
    assert without_forced_call({"tool_choice": choice}) == {"tool_choice": choice}


def test_knows_the_field_of_interactions() -> None:
    config: JsonObject = {"tool_choice": "any", "seed": 1}
    assert without_forced_call({"generation_config": config}) == {"generation_config": {"seed": 1}}
    free: JsonObject = {"generation_config": {"tool_choice": "auto"}}
    assert without_forced_call(free) == free


def test_knows_the_fields_of_gemini_and_converse() -> None:
    any_: JsonObject = {"functionCallingConfig": {"mode": "ANY"}}
    auto: JsonObject = {"functionCallingConfig": {"mode": "AUTO"}}
    assert without_forced_call({"toolConfig": {**any_, "retrievalConfig": {}}}) == {
        "toolConfig": {"retrievalConfig": {}}
    }
    assert without_forced_call({"toolConfig": auto}) == {"toolConfig": auto}
    assert without_forced_call({"toolConfig": {"toolChoice": {"tool": {"name": "f"}}}}) == {"toolConfig": {}}
    assert without_forced_call({"toolConfig": {"toolChoice": {"auto": {}}}}) == {
        "toolConfig": {"toolChoice": {"auto": {}}}
    }


def test_changes_nothing_in_the_given_options() -> None:
    given: dict[str, Any] = {"tool_choice": "required", "toolConfig": {"toolChoice": {"any": {}}}}
    without_forced_call(given)
    assert given == {"tool_choice": "required", "toolConfig": {"toolChoice": {"any": {}}}}
