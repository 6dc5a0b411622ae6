"""The choice of tools in the options of a request, as the formats write it."""

from __future__ import annotations

from clew.domain.json_values import Json, JsonObject

_FREE = frozenset({"auto", "none", "validated", None})


def without_forced_call(options: JsonObject) -> JsonObject:
    """The options without what forces the model to call a tool: after the call it would never answer.

    Chat Completions, Responses and Messages have ``tool_choice``, Gemini and Converse a part of ``toolConfig``, and
    Interactions ``tool_choice`` in ``generation_config``.
    """
    kept = dict(options)
    if _forces(kept.get("tool_choice")):
        del kept["tool_choice"]
    generation = kept.get("generation_config")
    if isinstance(generation, dict) and _forces(generation.get("tool_choice")):
        kept["generation_config"] = {name: value for name, value in generation.items() if name != "tool_choice"}
    config = kept.get("toolConfig")
    if isinstance(config, dict):
        calling, choice = config.get("functionCallingConfig"), config.get("toolChoice")
        forced = {
            "functionCallingConfig": isinstance(calling, dict) and calling.get("mode") == "ANY",
            "toolChoice": isinstance(choice, dict) and "auto" not in choice,
        }
        kept["toolConfig"] = {name: value for name, value in config.items() if not forced.get(name)}
    return kept


def _forces(choice: Json) -> bool:
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        choice = allowed if isinstance(allowed, dict) else choice
        mode = choice.get("mode", choice.get("type"))
        return not isinstance(mode, str) or mode not in _FREE
    return choice not in _FREE
