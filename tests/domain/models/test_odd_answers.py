"""A value of another type than documented is on the log as it came, wherever in an answer it is, whole or streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from tests.domain.models.provider_formats import FORMATS, ProviderFormat
from tests.domain.models.provider_values import Choices, EveryField
from tests.domain.models.test_provider_round_trips import made

NUMBER = 987654321.5
MARK = re.compile("<[odd0-9 ]+>")
ODD: tuple[Any, ...] = (
    *(None, True, NUMBER, "<odd>", [], {}, ["<odd>"], {"odd": "<odd>"}),
    *([{"odd": "<odd 1>"}, 7, "<odd 2>"], [["<odd>"]]),
)


class Marked(EveryField):
    """Every field is there, and each text is another one."""

    def __init__(self, number: int, numbers: Iterator[int]) -> None:
        super().__init__(number)
        self._numbers = numbers

    def text(self) -> str:
        return f"<{next(self._numbers)}>"

    def items(self) -> Iterator[Choices]:
        yield from (Marked(self._number, self._numbers), Marked(self._number + 1, self._numbers))


def paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """The places of all values within a value."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in pairs:
        yield (name,)
        yield from ((name, *path) for path in paths(each))


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a place."""
    for step in path:
        value = value[step]
    return value


def changed(value: Any, path: tuple[str | int, ...], odd: Any) -> Any:
    """A value with another one at a place."""
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], odd)
    return copy


def came(pieces: list[Any]) -> Iterator[str]:
    """The marks that must be on the log. Padding and ids of events are not kept."""
    for path in paths(pieces):
        value = at(pieces, path)
        if isinstance(value, str) and path[-1] not in {"event_id", "obfuscation", "p"}:
            yield from MARK.findall(value)
        elif isinstance(value, float) and value == NUMBER:
            yield str(NUMBER)


def check(provider: ProviderFormat, pieces: list[Any], *, whole: bool) -> None:
    """Nothing that came is lost, unless the service sent an error instead of an answer, or nothing complete."""
    reader = provider.reader()
    for piece in json.loads(json.dumps(pieces)):
        list(reader.take_whole(piece) if whole else reader.take(piece))
        if reader.failure is not None:
            return
    if (answer := reader.answer()) is None:
        return
    answer = provider.logged(answer)
    kept = json.dumps([answer.message.model_dump(mode="json"), answer.finish_reason, answer.model, answer.response_id])
    marks = set(came(pieces))
    if provider.name == "openai-responses":  # its last event has all that counts of those before
        marks = {*came(pieces[-1:]), *(mark for mark in marks if "odd" in mark or mark == str(NUMBER))}
    assert [mark for mark in marks if mark not in kept] == []
    provider.next_body(answer)


def is_repeated(provider: ProviderFormat, pieces: list[Any], path: tuple[str | int, ...], odd: Any) -> bool:
    """Whether the last event of Responses says what should be here: it holds, if both are of the same type."""
    if provider.name != "openai-responses" or path[0] == len(pieces) - 1:
        return False
    return len(path) > 2 or type(odd) is type(at(pieces, path))


def answers(provider: ProviderFormat, choices: Marked, kinds: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """An answer, whole and streamed."""
    items = [provider.items.value(choices, kind) for kind in kinds]
    reply = provider.reply(items, provider.types.value(choices))
    yield [reply], True
    if (events := provider.events(reply)) is not None:
        yield events, False


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_a_value_of_another_type_is_kept_as_it_came(kind: type[ProviderFormat]) -> None:
    provider, random = made(kind), Random(7)
    for number in range(2):
        kinds = [random.choice(provider.kinds), random.choice(provider.kinds)]
        for pieces, whole in answers(provider, Marked(number, count()), kinds):
            check(provider, pieces, whole=whole)
            for path in random.sample([each for each in paths(pieces) if len(each) > 1], 25):
                odd = random.choice(ODD)
                if not is_repeated(provider, pieces, path, odd):
                    check(provider, changed(pieces, path, odd), whole=whole)
