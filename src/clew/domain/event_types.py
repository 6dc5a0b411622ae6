"""Declarations of event types: everything that Clew knows of a type, in one place, on its model.

The registries of models, stored names, schema versions, upcasters, sentences and samples derive from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from clew.domain.errors import InvalidContentError
from clew.domain.messages import Value
from clew.domain.streams import Kind

Status: TypeAlias = Literal["active", "suspended", "ended", "deleted"]

Sentence: TypeAlias = str | Callable[[Mapping[str, Any]], str]
"""What an event did, from its stored JSON: a template such as ``pinned version {version}``, or a function."""

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the data of one schema version into the data of the next one."""

ModelT = TypeVar("ModelT", bound=Value)

ACTIVE: tuple[Status, ...] = ("active",)
OPEN: tuple[Status, ...] = ("active", "suspended")
UNDELETED: tuple[Status, ...] = ("active", "suspended", "ended")
ANY: tuple[Status, ...] = ("active", "suspended", "ended", "deleted")

LONGEST = 60
"""Characters of a title, a name or a value within a sentence."""

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False, slots=True)
class EventType:
    """A declared event type.

    ``name`` is its stored name and ``model`` the model of its data. ``stream`` is the kind of stream that it belongs
    to; ``statuses`` are those in which a thread accepts it outside a run. ``headline`` says what happened ("The thread
    began"), ``sentence`` what the actor did ("started the thread"). ``sample`` holds the fields of an event for tests.
    ``shreddable`` is false when its stored bytes are never replaced by a stub. New events are stored with
    ``schema_version``.
    """

    name: str
    model: type[Value]
    stream: Kind
    statuses: frozenset[Status]
    headline: str
    sentence: Sentence
    sample: Mapping[str, Any]
    shreddable: bool
    upcasters: tuple[Upcaster, ...]
    schema_version: int

    def upcast(self, version: int, data: dict[str, Any]) -> dict[str, Any]:
        """Data of an earlier schema version, converted to the current one."""
        for step in self.upcasters[version - 1 :]:
            data = step(data)
        return data

    def describe(self, data: Mapping[str, Any]) -> str:
        """The sentence on an event with this data, for audit entries: without the words of messages and facts.

        Without a sentence that suits the data the event is "recorded". Raises ValueError for data that is not of this
        type.
        """
        try:
            if callable(self.sentence):
                return self.sentence(data)
            return _FIELD.sub(lambda field: _shown(self._value(field[1], data)), self.sentence)
        except Exception:  # noqa: BLE001 - sentences are also other people's code
            self.model.model_validate(data)
            return f"recorded {quoted(self.name)}"

    def _value(self, field: str, data: Mapping[str, Any]) -> object:
        """Stored data leaves out None."""
        if field in data or self.model.model_fields[field].is_required():
            return data[field]
        return self.model.model_fields[field].get_default(call_default_factory=True)


class _TypeNames(dict[type[Value], str]):
    def __missing__(self, model: type[Value]) -> str:
        raise InvalidContentError(
            f"{model.__name__} is not declared as an event. Write @event_type(…) above its class."
        )


_TYPES: dict[str, EventType] = {}
_NAMES = _TypeNames()

EVENT_TYPES: Mapping[str, EventType] = MappingProxyType(_TYPES)

TYPE_NAMES: Mapping[type[Value], str] = MappingProxyType(_NAMES)
"""Views of the declared types, complete once ``clew.domain.events`` is imported: import them from there.

``TYPE_NAMES[model]`` raises InvalidContentError for a model without a declaration."""


def event_type(
    name: str,
    *,
    headline: str | None = None,
    sentence: Sentence | None = None,
    sample: Mapping[str, Any] | None = None,
    stream: Kind = "thread",
    statuses: Collection[Status] = (),
    shreddable: bool = True,
    upcasters: tuple[Upcaster, ...] = (),
) -> Callable[[type[ModelT]], type[ModelT]]:
    """Declare the model below as the data of events that are stored as ``name``, permanently.

    ``statuses`` are those in which a thread accepts the event outside a run. ``sentence`` may name fields that are text
    or whole numbers: ``made checkpoint {name} at version {at}``. Text comes quoted and shortened, None as a dash.
    Without words the event is "recorded". ``sample`` has the fields of one event, as JSON. Raises ValueError for a name
    that is taken, and for a sentence with a field that the model lacks.
    """

    def declare(model: type[ModelT]) -> type[ModelT]:
        missing = set(_FIELD.findall(sentence)) - set(model.model_fields) if isinstance(sentence, str) else ()
        if missing:
            fields = ", ".join(sorted(missing))
            raise ValueError(f"The sentence of {name!r} names fields that {model.__name__} lacks: {fields}.")
        if name in _TYPES:
            raise ValueError(f"The event type {name!r} is already declared, by {_TYPES[name].model.__name__}.")
        _TYPES[name] = EventType(
            name,
            model,
            stream,
            frozenset(statuses),
            headline or f"{quoted(name)} was recorded",
            sentence or f"recorded {quoted(name)}",
            MappingProxyType(dict(sample or {})),
            shreddable,
            upcasters,
            len(upcasters) + 1,
        )
        _NAMES[model] = name
        return model

    return declare


def withdraw(name: str) -> None:
    """Forget a declaration that a test made."""
    del _NAMES[_TYPES.pop(name).model]


def quoted(text: str) -> str:
    """A name in quotes, in printable characters and not too long."""
    return repr(shortened(text))


def shortened(text: str) -> str:
    """Text that is not too long for a sentence."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if type(value) is int:
        return str(value)
    if value is None:
        return "—"
    raise TypeError(f"{type(value).__name__} cannot stand in a sentence.")
