"""The provider's own JSON of answers: kept beside the contents, and sent back to the service that made it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clew.domain.errors import InvalidContentError
from clew.domain.json_patch import difference, patched
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import Content, Message, Native, Raw, Reasoning
from clew.domain.models.client import Question

_ROOT = "json"
_REPLY = "reply"
_NOTHING: tuple[Json, ...] = (None, "", [], {})
_NAMES = frozenset({"format", "id", "name", "object", "role", "type"})
"""Fields that each piece of a stream repeats: they are not joined."""


def with_native(
    message: Message,
    wire: str,
    written: Json,
    received: Json,
    *,
    reply: JsonObject | None = None,
    signed: bool = False,
    kept: bool = False,
) -> Message:
    """The message, with what ``received`` has beyond ``written``, which the format ``wire`` writes for its contents.

    ``reply`` is what the reply says besides: it is on the log, and is never sent. ``signed`` says that parts of
    ``received`` are bound to what came before, ``kept`` that the provider needs parts of it again. The run adds the
    provider, the model and the prefix. JSON that cannot be stored is left out.
    """
    about: JsonObject = {_REPLY: reply} if reply else {}
    patch = tuple(difference({_ROOT: written}, {_ROOT: received, **about}))
    try:
        check_json([*patch], "answer")
    except InvalidContentError:
        patch = ()
    if not patch and not signed and not kept:
        return message
    return message.model_copy(update={"native": Native(wire=wire, patch=patch, prefix="" if signed else None)})


def has_raw(message: Message) -> bool:
    """Whether an answer has parts that only the format that read them knows: they go back to who made them."""
    return any(isinstance(content, Raw) for content in message.contents)


def received(message: Message, written: Json) -> Json:
    """The provider's JSON of an answer, from what its format writes for the contents.

    It is ``written`` itself if the answer has nothing more, or was changed since.
    """
    if message.native is None:
        return written
    try:
        return patched({_ROOT: written}, message.native.patch)[_ROOT]
    except (InvalidContentError, KeyError):
        return written


def is_own(message: Message, question: Question, wire: str) -> bool:
    """Whether the provider and the model that are asked made this answer, in this format."""
    native = message.native
    return native is not None and (native.wire, native.provider, native.model) == (
        wire,
        question.provider,
        question.model,
    )


def bare(content: Content) -> Content:
    """A content without ids and statuses, which may differ each time that a service lists it."""
    match content:
        case Reasoning(text=text):
            return Reasoning(text=text)
        case Raw(value=dict(item)):
            return Raw(value={name: value for name, value in item.items() if name not in {"id", "status"}})
        case _:
            return content


def merge(total: JsonObject, piece: JsonObject) -> None:
    """Add a piece of a stream to the fields that have arrived: texts are joined, and items of lists by their index."""
    for name, value in piece.items():
        before = total.get(name)
        if value in _NOTHING and not isinstance(value, bool | int | float):
            continue
        if isinstance(value, str) and isinstance(before, str):
            total[name] = before if name in _NAMES else before + value
        elif isinstance(value, dict):
            merged: JsonObject = before if isinstance(before, dict) else {}
            merge(merged, value)
            total[name] = merged
        elif isinstance(value, list):
            total[name] = _merged_items(before if isinstance(before, list) else [], value)
        else:
            total[name] = value


def unknown(fields: JsonObject, known: frozenset[str]) -> JsonObject:
    """The fields that are not known."""
    return {name: value for name, value in fields.items() if name not in known}


def unread(counts: JsonObject, read: Mapping[str, Collection[str]], total: tuple[str, int]) -> JsonObject:
    """The counts of tokens that are not read: all but those that ``read`` names, with the names of counts within them.

    ``total`` is the name and the value of a count that says nothing more, as zeros do.
    """
    left: JsonObject = {}
    for name, value in counts.items():
        if (name in read and not read[name]) or (name, value) == total:
            continue
        within = read.get(name, ())
        rest: Json = (
            {key: each for key, each in value.items() if each and key not in within}
            if isinstance(value, dict)
            else value
        )
        if rest:
            left[name] = rest
    return left


def replace(total: JsonObject, piece: JsonObject) -> None:
    """Add fields of which the last value holds: what a stream says of the whole answer in each of its pieces."""
    for name, value in piece.items():
        if value not in _NOTHING or isinstance(value, bool | int | float):
            total[name] = value


def _merged_items(items: list[Json], pieces: list[Json]) -> list[Json]:
    for piece in pieces:
        if not isinstance(piece, dict):
            items.append(piece)
            continue
        place = piece.get("index")
        same = [each for each in items if isinstance(each, dict) and place is not None and each.get("index") == place]
        if not same:
            same = [{}]
            items += same
        merge(same[0], piece)
    return items
