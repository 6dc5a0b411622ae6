"""The providers' own types, as JSON schemas, and the inventory of their members and fields.

If a new release of a package changes its types, ``test_provider_types.py`` fails with the names. Read what is new, let
the format read and send it, and write the inventories again: ``python -m tests.domain.models.provider_types``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

Schema: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent / "inventories"


def _sdk(module: str, *names: str) -> dict[str, Any]:
    """Types of a package by their names."""
    found = import_module(module)
    return {name: getattr(found, name) for name in names}


def _anthropic() -> dict[str, Any]:
    return _sdk(
        "anthropic.types",
        *("ContentBlock", "ContentBlockParam", "Message", "MessageParam", "RawContentBlockDelta"),
        *("RawMessageStreamEvent", "StopReason", "Usage"),
    )


def _anthropic_beta() -> dict[str, Any]:
    names = (
        *("ContentBlock", "ContentBlockParam", "Message", "MessageParam", "RawContentBlockDelta"),
        *("RawMessageStreamEvent", "StopReason", "Usage"),
    )
    return _sdk("anthropic.types.beta", *(f"Beta{name}" for name in names))


def _openai_chat() -> dict[str, Any]:
    return _sdk("openai.types.chat", "ChatCompletion", "ChatCompletionChunk", "ChatCompletionMessageParam")


def _openai_responses() -> dict[str, Any]:
    return _sdk(
        "openai.types.responses",
        *("Response", "ResponseInputItemParam", "ResponseOutputItem", "ResponseStreamEvent"),
    )


def _gemini() -> dict[str, Any]:
    return _sdk(
        "google.genai.types",
        *("Candidate", "Content", "FinishReason", "GenerateContentConfig", "GenerateContentResponse", "Part"),
    )


def _interactions() -> dict[str, Any]:
    return _sdk("google.genai.interactions", "Interaction", "InteractionSSEEvent", "Step", "StepDeltaData")


_PYDANTIC: Mapping[str, Callable[[], dict[str, Any]]] = {
    "anthropic": _anthropic,
    "anthropic-beta": _anthropic_beta,
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "gemini": _gemini,
    "gemini-interactions": _interactions,
}
_BEDROCK = ("ConverseRequest", "ConverseResponse", "ConverseStreamOutput", "ContentBlock", "StopReason")

PROVIDERS = (*_PYDANTIC, "bedrock")


@cache
def schemas(provider: str) -> dict[str, Schema]:
    """The JSON schema of each type that Clew reads or writes, by name. References are resolved by ``$defs``."""
    if provider == "bedrock":
        session: Any = import_module("botocore.session")
        model = session.get_session().get_service_model("bedrock-runtime")
        return {name: _of_shapes(model.shape_for(name)) for name in _BEDROCK}
    return {name: _known(TypeAdapter(type_).json_schema()) for name, type_ in _PYDANTIC[provider]().items()}


def _known(schema: Any) -> Any:
    """A schema without the types in which google-genai puts what it does not know: ``UnknownStep`` and others."""
    if isinstance(schema, dict):
        return {name: _known(value) for name, value in schema.items() if not name.startswith("Unknown")}
    if isinstance(schema, list):
        return [_known(each) for each in schema if not _is_unknown(each)]
    return schema


def _is_unknown(member: Any) -> bool:
    return isinstance(member, dict) and str(member.get("$ref")).startswith("#/$defs/Unknown")


_OF_SHAPES: Mapping[str, Schema] = {
    "blob": {"type": "string", "format": "binary"},
    "boolean": {"type": "boolean"},
    "double": {"type": "number"},
    "float": {"type": "number"},
    "integer": {"type": "integer"},
    "long": {"type": "integer"},
}


def _of_shapes(root: Any) -> Schema:
    """A shape of botocore as a JSON schema."""
    defs: dict[str, Schema] = {}
    return {**_of_shape(root, defs), "$defs": defs}


def _of_shape(shape: Any, defs: dict[str, Schema]) -> Schema:
    match shape.type_name:
        case "structure":
            return _of_structure(shape, defs)
        case "list":
            return {"type": "array", "items": _of_shape(shape.member, defs)}
        case "map":
            return {"type": "object", "additionalProperties": _of_shape(shape.value, defs)}
        case "string" if shape.enum:
            return {"type": "string", "enum": list(shape.enum)}
        case name:
            return _OF_SHAPES.get(name, {"type": "string"})


def _of_structure(shape: Any, defs: dict[str, Schema]) -> Schema:
    """A structure, which any JSON is for a document. A union has exactly one of its members."""
    if shape.is_document_type:
        return {}
    if shape.name not in defs:
        defs[shape.name] = {}  # some structures contain themselves
        fields = {name: _of_shape(member, defs) for name, member in shape.members.items()}
        is_union = shape.is_tagged_union
        defs[shape.name] |= {
            "type": "object",
            "properties": fields,
            "required": [] if is_union else list(shape.required_members),
            **({"minProperties": 1, "maxProperties": 1} if is_union else {}),
        }
    return {"$ref": f"#/$defs/{shape.name}"}


def inventory(provider: str) -> list[str]:
    """Each member and field of the types: ``Type.field``, ``Type.field: Member`` and ``Type.field = value``."""
    lines: set[str] = set()
    for name, schema in schemas(provider).items():
        lines.add(name)
        lines.update(_listed(name, {key: value for key, value in schema.items() if key != "$defs"}))
        for def_name, definition in schema.get("$defs", {}).items():
            lines.update(_listed(def_name, definition))
    return sorted(lines)


def _listed(name: str, schema: Schema) -> Iterator[str]:
    for field, value in schema.get("properties", {}).items():
        yield f"{name}.{field}"
        yield from _listed(f"{name}.{field}", value)
    if "$ref" in schema:
        yield f"{name}: {schema['$ref'].rpartition('/')[2]}"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    yield from (f"{name} = {value}" for value in values)
    members = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if {"type": "string"} in members:  # a list of known values, such as models: any other is as good
        members = [each for each in members if "enum" not in each and "const" not in each]
    members += [each for key in ("items", "additionalProperties") if isinstance(each := schema.get(key), dict)]
    for member in members:
        yield from _listed(name, member)


def recorded(provider: str) -> list[str]:
    """The inventory that Clew's formats were written for."""
    return (FOLDER / f"{provider}.txt").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for each in PROVIDERS:
        (FOLDER / f"{each}.txt").write_text("\n".join(inventory(each)) + "\n", encoding="utf-8")
