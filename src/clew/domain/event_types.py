"""Declarations of event types: all that Clew knows about a type is declared in one place, on its model.

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
"""What an actor did, from the event's stored JSON: a template such as ``pinned version {version}``, or a function."""

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the data of one schema version into the data of the next one."""

Remains: TypeAlias = Callable[[Any], Value]
"""Makes the data of an event without the texts that users and services wrote."""

ModelT = TypeVar("ModelT", bound=Value)

ACTIVE: tuple[Status, ...] = ("active",)
OPEN: tuple[Status, ...] = ("active", "suspended")
UNDELETED: tuple[Status, ...] = ("active", "suspended", "ended")
DELETED: tuple[Status, ...] = ("deleted",)
ANY: tuple[Status, ...] = ("active", "suspended", "ended", "deleted")

LONGEST = 60
"""The most characters of a title, a name or a value in a sentence."""

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False, slots=True)
class EventType:
    """A declared event type.

    ``name`` is its stored name, ``model`` the model of its data, ``stream`` the kind of its streams. ``statuses`` are
    the thread's statuses in which the event is accepted outside a run. ``headline`` says what happened ("The thread
    began"), ``sentence`` what the actor did ("started the thread"). ``sample`` has the fields of an event for tests.
    ``remains`` makes the data without the texts of users and services: that is what a redaction leaves, in the stub.
    Without it, a stub holds no data; ``shreddable`` is then false if the bytes of the event are never replaced by one.
    ``redacted`` is the sentence for what remains, if ``sentence`` would say something else than what happened.
    New events are stored with ``schema_version``.
    """

    name: str
    model: type[Value]
    stream: Kind
    statuses: frozenset[Status]
    headline: str
    sentence: Sentence
    sample: Mapping[str, Any]
    shreddable: bool
    remains: Remains | None
    redacted: Sentence | None
    upcasters: tuple[Upcaster, ...]
    schema_version: int

    def upcast(self, version: int, data: dict[str, Any]) -> dict[str, Any]:
        """Data of an earlier schema version, converted to the current one."""
        for step in self.upcasters[version - 1 :]:
            data = step(data)
        return data

    def describe(self, data: Mapping[str, Any], *, redacted: bool = False) -> str:
        """The sentence for an audit entry of an event with this data. It never quotes messages or facts.

        If the event is ``redacted``, the data is what remains of it, and the sentence says so. If the sentence does not
        fit the data, the event is only "recorded". Raises ValueError for data of another type.
        """
        sentence = (redacted and self.redacted) or self.sentence
        try:
            if callable(sentence):
                text = sentence(data)
            else:
                text = _FIELD.sub(lambda field: _format(self._value(field[1], data)), sentence)
        except Exception:  # noqa: BLE001  # sentences of applications may raise anything
            self.model.model_validate(data)
            text = f"recorded {quoted(self.name)}"
        return f"{text} (redacted since)" if redacted else text

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


def event_type(  # noqa: PLR0913  # every part of a declaration has its own parameter
    name: str,
    *,
    headline: str | None = None,
    sentence: Sentence | None = None,
    sample: Mapping[str, Any] | None = None,
    stream: Kind = "thread",
    statuses: Collection[Status] = (),
    shreddable: bool = True,
    remains: Remains | None = None,
    redacted: Sentence | None = None,
    upcasters: tuple[Upcaster, ...] = (),
) -> Callable[[type[ModelT]], type[ModelT]]:
    """Declare the model below as the data of events that are stored as ``name``, permanently.

    ``statuses`` are the thread's statuses in which the event is accepted outside a run. ``sentence`` may name fields
    with text or whole numbers: ``made checkpoint {name} at version {at}``. Text is quoted and shortened, None becomes a
    dash. Without a sentence the event is "recorded". ``sample`` has the fields of one event, as JSON. ``remains`` is
    what a redaction leaves of it, such as ``without("reason")``, and ``redacted`` the sentence for that, if another
    one is needed. Raises ValueError for a name that is already declared, and for a sentence with a field that the model
    does not have.
    """

    def declare(model: type[ModelT]) -> type[ModelT]:
        templates = [each for each in (sentence, redacted) if isinstance(each, str)]
        missing = {field for each in templates for field in _FIELD.findall(each)} - set(model.model_fields)
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
            remains,
            redacted,
            upcasters,
            len(upcasters) + 1,
        )
        _NAMES[model] = name
        return model

    return declare


def without(*fields: str) -> Remains:
    """What remains if these fields hold the texts: they get their defaults."""

    def remains(data: Value) -> Value:
        model = type(data).model_fields
        return data.model_copy(update={name: model[name].get_default(call_default_factory=True) for name in fields})

    return remains


def withdraw(name: str) -> None:
    """Remove a declaration that a test made."""
    del _NAMES[_TYPES.pop(name).model]


def quoted(text: str) -> str:
    """A name in quotes, in printable characters and not too long."""
    return repr(shortened(text))


def shortened(text: str) -> str:
    """The text, shortened if it is too long for a sentence."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _format(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if type(value) is int:
        return str(value)
    if value is None:
        return "—"
    raise TypeError(f"{type(value).__name__} cannot stand in a sentence.")
