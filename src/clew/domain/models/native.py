"""The provider's own JSON of answers: kept beside the contents, and sent back to the service that made it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TypeGuard

from clew.domain.errors import InvalidContentError
from clew.domain.json_patch import difference, escaped, patched
from clew.domain.json_values import Json, JsonObject, check_json, storable
from clew.domain.messages import Content, Message, Native, Raw, Reasoning
from clew.domain.models.client import Question

_ROOT = "json"
_REPLY = "reply"
_DEPTH = 3
"""The level of a value in a patch."""
_NOTHING: tuple[Json, ...] = (None, "", [], {})
_NAMES = frozenset({"format", "id", "name", "object", "role", "type"})
"""Fields that each piece of a stream repeats: they are not joined."""


_UNSENT = re.compile(f"(/{_ROOT})?/({_REPLY}|candidate|choice|choices|earlier|events|odd)/")
_EVENT_NAMES = frozenset({"contentBlockIndex", "event_type", "index", "item_id", "output_index", "type"})
"""Fields by which an event, or a part of one, says what it is."""


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

    ``reply`` is what the reply says besides, which ``native_json`` gives. ``signed`` says that parts of
    ``received`` are bound to what came before, ``kept`` that the provider needs parts of it again. The run adds the
    provider, the model and the prefix. What cannot be stored is replaced: see ``storable``.
    """
    before: JsonObject = {_ROOT: written}
    after: JsonObject = {_ROOT: received, **({_REPLY: reply} if reply else {})}
    patch = tuple(difference(before, after))
    try:
        check_json([*patch], "answer")
    except InvalidContentError:
        patch = tuple(difference(before, storable(after, _DEPTH)))
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
    return native_json(message, written).get(_ROOT, written)


def native_json(message: Message, written: Json) -> JsonObject:
    """What is kept of an answer: in ``json`` as ``received`` gives it, and in ``reply`` what the reply says besides."""
    if message.native is not None:
        with suppress(InvalidContentError):
            return patched({_ROOT: written}, message.native.patch)
    return {_ROOT: written}


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


SIGNATURES = frozenset({"encrypted_content", "redactedContent", "signature", "thoughtSignature", "thought_signature"})
"""Fields by which a service recognises what its model made. Only that model accepts them."""


def has_signed_parts(message: Message) -> bool:
    """Whether an answer has parts that only the model that made it accepts."""
    native = message.native
    if native is None:
        return False
    return native.prefix is not None or any(signatures(message))


def foreign_signatures(question: Question, body: JsonObject, wire: str) -> tuple[int, ...]:
    """The numbers of the answers with signed parts that another model made: they are not sent."""
    del body
    own, foreign = (wire, question.provider, question.model), list[int]()
    for number, message in enumerate(question.messages):
        native = message.native
        if native is not None and (native.wire, native.provider, native.model) != own and has_signed_parts(message):
            foreign.append(number)
    return tuple(foreign)


def unsent_signatures(question: Question, wire: str, sent: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the answers with bound parts that are not in a body.

    ``sent`` are the signatures of the bound parts in the body, in order; the text of a part without one.
    """
    unsent, place = list[int](), 0
    for number, message in enumerate(question.messages):
        native = message.native
        if native is None:
            continue
        if not is_own(message, question, wire):
            if has_signed_parts(message):
                unsent.append(number)
        elif native.prefix is not None:
            own = {*signatures(message), *(each.text for each in message.contents if isinstance(each, Reasoning))}
            before = place
            while place < len(sent) and sent[place] in own:
                place += 1
            if place == before:
                unsent.append(number)
    return tuple(unsent)


def signatures(message: Message) -> Iterator[str]:
    """What a request with all signed parts of an answer contains."""
    native = message.native
    contents = [each.data if isinstance(each, Reasoning) else each.value for each in message.contents if _is_item(each)]
    patch = () if native is None else native.patch
    yield from _signatures([*(each for each in patch if not _is_about_reply(each)), *contents])


def without_unbound(
    before: JsonObject,
    after: JsonObject,
    head: Sequence[str],
    plain: Callable[[Json], Json],
    is_signed: Callable[[Json], bool],
) -> JsonObject:
    """A changed body without the signed blocks that come after the first change.

    Blocks are bound to the fields ``head`` and to all messages before theirs, compared as ``plain`` gives them.
    """
    earlier, messages = before.get("messages"), after.get("messages")
    if not isinstance(earlier, list) or not isinstance(messages, list):
        return after
    first = 0
    if all(plain(before.get(name)) == plain(after.get(name)) for name in head):
        equal = (plain(one) == plain(two) for one, two in zip(earlier, messages, strict=False))
        first = 1 + sum(1 for _ in takewhile(bool, equal))  # a block is not bound to its own message
    return {**after, "messages": [*messages[:first], *(_unsigned(each, is_signed) for each in messages[first:])]}


def _unsigned(message: Json, is_signed: Callable[[Json], bool]) -> Json:
    if not isinstance(message, dict) or not isinstance(content := message.get("content"), list):
        return message
    return {**message, "content": [block for block in content if not is_signed(block)] or content}


def _is_about_reply(operation: JsonObject) -> bool:
    """Whether an operation of a patch is about fields around the answer, which is not sent back."""
    return _UNSENT.match(f"{operation.get('path')}/") is not None


def _is_item(content: Content) -> TypeGuard[Reasoning | Raw]:
    return isinstance(content, Reasoning | Raw)


def _signatures(value: Json) -> Iterator[str]:
    """The signatures anywhere in a value; an operation of a patch has the name of its field in its path."""
    if isinstance(value, list):
        for each in value:
            yield from _signatures(each)
    elif isinstance(value, dict):
        path = value.get("path")
        if isinstance(path, str) and path.rpartition("/")[2] in SIGNATURES and isinstance(value.get("value"), str):
            value = {"signature": value["value"]}
        elif value.get("type") == "redacted_thinking":
            value = {"signature": value.get("data")}
        for name, each in value.items():
            if name in SIGNATURES and isinstance(each, str) and each:
                yield each
            else:
                yield from _signatures(each)


def merge(total: JsonObject, piece: JsonObject, earlier: list[Json], path: str) -> None:
    """Add a piece of a stream to the fields that have arrived: texts are joined, and items of lists by their index.

    Any other value replaces the one before, which goes to ``earlier`` with its ``path``. A null replaces nothing.
    """
    for name, value in piece.items():
        before, at = total.get(name), f"{path}/{escaped(name)}"
        if value in _NOTHING and not isinstance(value, bool | int | float):
            continue
        if isinstance(value, str) and isinstance(before, str) and name not in _NAMES:
            total[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict | None):
            total[name] = merged = before or {}
            merge(merged, value, earlier, at)
        elif isinstance(value, list) and isinstance(before, list | None):
            total[name] = _merged_items(before or [], value, earlier, at)
        else:
            if before is not None and before != value:
                earlier.append({"path": at, "value": before})
            total[name] = copied(value)


def gather(
    total: JsonObject,
    piece: JsonObject,
    earlier: list[Json],
    pieces: Collection[str] = (),
    path: str = "",
) -> None:
    """Add a piece of a stream to the pieces before, so that nothing is lost.

    Objects are joined field by field. A list that begins with all of the earlier one was sent again, and has grown;
    another one is appended to it. Texts and lists with a name in ``pieces`` are always appended. Any other value
    replaces the one before, which goes to ``earlier`` with its ``path``. A null replaces nothing.
    """
    for name, value in piece.items():
        before = total.get(name)
        if before is None:
            total[name] = copied(value)
        elif isinstance(value, dict) and isinstance(before, dict):
            gather(before, value, earlier, pieces, f"{path}/{escaped(name)}")
        elif isinstance(value, list) and isinstance(before, list):
            again = name not in pieces and value[: len(before)] == before
            before += value[len(before) :] if again else value
        elif isinstance(value, str) and isinstance(before, str) and name in pieces:
            total[name] = before + value
        elif value is not None and value != before:
            earlier.append({"path": f"{path}/{escaped(name)}", "value": before})
            total[name] = value


def copied(value: Json) -> Json:
    """A value of which the objects and their lists are other ones: ``gather`` changes them."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return [*value] if isinstance(value, list) else value


def unknown(fields: JsonObject, known: frozenset[str]) -> JsonObject:
    """The fields that are not known."""
    return {name: value for name, value in fields.items() if name not in known}


def rest_of(event: JsonObject, read: Mapping[str, object] | None) -> JsonObject | None:
    """What an event of a stream has beyond the fields that are read, with its names; None if it has nothing more.

    ``read`` is None for an event of an unknown type: it is kept as it is.
    """
    if read is None:
        return event
    if event.keys() <= read.keys():
        return None
    return {name: value for name, value in event.items() if name not in read or name in _EVENT_NAMES}


def unread(counts: JsonObject, read: Mapping[str, Collection[str]], total: tuple[str, int] = ("", 0)) -> JsonObject:
    """The counts of tokens that are not read: all but those that ``read`` names, with the names of counts within them.

    ``total`` is the name and the value of a count that says nothing more, as zeros do.
    """
    left: JsonObject = {}
    for name, value in counts.items():
        if _is_number(value) and ((name in read and not read[name]) or (name, value) == total):
            continue
        within = read.get(name, ())
        rest: Json = (
            {key: each for key, each in value.items() if each and not (key in within and _is_number(each))}
            if isinstance(value, dict)
            else value
        )
        if rest:
            left[name] = rest
    return left


def add_counts(total: JsonObject, piece: JsonObject, earlier: list[Json]) -> None:
    """Add counts of tokens, of which the last ones hold. What they replace and is not a count goes to ``earlier``."""
    if replaced := {name: value for name, value in replace(total, piece).items() if not _is_count(value)}:
        earlier.append({"usage": replaced})


def _is_count(value: Json) -> bool:
    return _is_number(value) or (isinstance(value, dict) and all(map(_is_count, value.values())))


def _is_number(value: Json) -> bool:
    return type(value) is int and value >= 0


def replace(total: JsonObject, piece: JsonObject) -> JsonObject:
    """Add fields of which the last value holds: what a stream says of the whole answer in each of its pieces.

    Returns the fields that had another value, with that value.
    """
    earlier: JsonObject = {}
    for name, value in piece.items():
        if value not in _NOTHING or isinstance(value, bool | int | float):
            if name in total and total[name] != value:
                earlier[name] = total[name]
            total[name] = value
    return earlier


def beyond(value: Json, asked: Json) -> Json:
    """What a value of a reply has that the value of the request has not; None if they are the same."""
    if value == asked:
        return None
    if isinstance(value, dict):
        asked = asked if isinstance(asked, dict) else {}
        more: JsonObject = {
            name: rest for name, each in value.items() if (rest := beyond(each, asked.get(name))) is not None
        }
        return more or None
    if isinstance(value, list) and isinstance(asked, list) and len(value) == len(asked):
        rests = [beyond(each, other) for each, other in zip(value, asked, strict=True)]
        return rests if any(rest is not None for rest in rests) else None
    return value


def _merged_items(items: list[Json], pieces: list[Json], earlier: list[Json], path: str) -> list[Json]:
    for piece in pieces:
        if not isinstance(piece, dict):
            items.append(piece)
            continue
        at, item = _item_of(items, piece.get("index"))
        merge(item, piece, earlier, f"{path}/{at}")
    return items


def _item_of(items: list[Json], place: Json) -> tuple[int, JsonObject]:
    """The item with this index, and its number; a new one if there is none."""
    if place is not None:
        for number, each in enumerate(items):
            if isinstance(each, dict) and each.get("index") == place:
                return number, each
    item: JsonObject = {}
    items.append(item)
    return len(items) - 1, item
