"""Values of the providers' own types: with every field and every member in turn, or at random."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random
from typing import Any, Protocol

from tests.domain.models.provider_types import Schema

_DEPTH = 5
"""Objects within objects: below, only fields that are required are made."""
_TEXTS = ("", " ", "a", "text é🧶", "{}", '{"a": ', "null", "\n\x00\u2028", '"\\')
_JSON: tuple[Any, ...] = (None, True, 0, -1.5, 2**53, 10**30, "", "text", [], {}, [None, {"a": []}], {"b": {"c": None}})


class Choices(Protocol):
    """Chooses what the types leave open."""

    def number(self, count: int) -> int:
        """A number below ``count``."""
        ...

    def optional(self) -> bool:
        """Whether a field is there that need not be."""
        ...

    def null(self) -> bool:
        """Whether a field is null that may be."""
        ...

    def text(self) -> str:
        """A text."""
        ...

    def items(self) -> Iterator[Choices]:
        """The choices for each item of a list."""
        ...


class EveryField:
    """Every field is there. The number chooses the member of each union and the value of each enum."""

    def __init__(self, number: int) -> None:
        self._number = number

    def number(self, count: int) -> int:
        return self._number % count

    def optional(self) -> bool:
        return True

    def null(self) -> bool:
        return False

    def text(self) -> str:
        return f"text {self._number} é🧶"

    def items(self) -> Iterator[Choices]:
        yield from (EveryField(self._number), EveryField(self._number + 1))


class AtRandom:
    """Anything goes."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def number(self, count: int) -> int:
        return self._random.randrange(count)

    def optional(self) -> bool:
        return self._random.random() < 0.4

    def null(self) -> bool:
        return self._random.random() < 0.2

    def text(self) -> str:
        return self._random.choice(_TEXTS)

    def items(self) -> Iterator[Choices]:
        for _ in range(self._random.randrange(3)):
            yield self


def extended(value: Any, numbers: Iterator[int], but: Collection[str] = ()) -> Any:
    """A value with a new field in each object within it, which has the next number. Fields in ``but`` stay the same."""
    if isinstance(value, dict):
        fields = {name: each if name in but else extended(each, numbers, but) for name, each in value.items()}
        return {**fields, "futureField": f"<{next(numbers)}>"}
    return [extended(each, numbers, but) for each in value] if isinstance(value, list) else value


class Types:
    """The types of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.root = {name: value for name, value in schema.items() if name != "$defs"}
        self._defs: dict[str, Schema] = schema.get("$defs", {})

    def resolved(self, schema: Schema) -> Schema:
        """The definition that a reference names."""
        return self._defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def members(self, schema: Schema | None = None) -> list[Schema]:
        """The members of a union, or the only one; with null if it may be null."""
        schema = self.resolved(self.root if schema is None else schema)
        members = schema.get("oneOf") or schema.get("anyOf")
        if members is None:
            return [schema]
        return [found for each in members for found in self.members(each)]

    def value(self, choices: Choices, schema: Schema | None = None, depth: int = 0) -> Any:
        """A value of a type."""
        members = self.members(schema)
        filled = [each for each in members if each.get("type") != "null"]
        if not filled or (len(filled) < len(members) and (depth > _DEPTH or choices.null())):
            return None
        chosen = filled[choices.number(len(filled))]
        if "const" in chosen or "enum" in chosen:
            values = chosen.get("enum") or [chosen.get("const")]
            return values[choices.number(len(values))]
        match chosen.get("type"):
            case "string" if chosen.get("format") in {"base64url", "binary"}:
                return ("aGk=", "eHl6", "AAECAw==")[choices.number(3)]
            case "string":
                return choices.text()
            case "integer":
                return choices.number(10**6)
            case "number":
                return choices.number(100) + 0.5
            case "boolean":
                return choices.number(2) == 0
            case "array":
                items = () if depth > _DEPTH else choices.items()
                return [self.value(each, chosen.get("items", {}), depth + 1) for each in items]
            case "object":
                return self._object(choices, chosen, depth)
            case _:
                return _JSON[choices.number(len(_JSON))]

    def _object(self, choices: Choices, schema: Schema, depth: int) -> Any:
        fields: dict[str, Schema] = schema.get("properties", {})
        if not fields:
            more = schema.get("additionalProperties")
            inner = more if isinstance(more, dict) else {}
            return {f"key {number}": self.value(each, inner, depth + 1) for number, each in enumerate(choices.items())}
        if schema.get("maxProperties") == 1:
            names = [[*fields][choices.number(len(fields))]]
        else:
            required = schema.get("required", ())
            names = [
                name
                for name, field in fields.items()
                if name in required or "const" in field or (depth <= _DEPTH and choices.optional())
            ]
        return {name: self.value(choices, fields[name], depth + 1) for name in names}

    def variants(self, schema: Schema) -> int:
        """How many numbers give a value with every member of each union."""
        return max(self._sizes(schema, frozenset()), default=1)

    def _sizes(self, schema: Any, seen: frozenset[str]) -> Iterator[int]:
        if isinstance(schema, list):
            for value in schema:
                yield from self._sizes(value, seen)
        elif isinstance(schema, dict):
            yield from (len(schema[name]) for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list))
            if schema.get("maxProperties") == 1:
                yield len(schema["properties"])
            name = schema.get("$ref")
            if isinstance(name, str) and name not in seen:
                yield from self._sizes(self.resolved(schema), seen | {name})
            for value in schema.values():
                yield from self._sizes(value, seen)
