"""What all clients of model services share: server-sent events, and the readers that assemble an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import Answer, Update

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventDecoder:
    """Yields the data of each event as soon as its last byte arrives. Takes time linear in the number of bytes."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # pieces of the last line, which is not complete
        self._data: list[str] = []
        self._begun = False

    def feed(self, piece: bytes) -> Iterator[str]:
        """Decode the next bytes. Raises UnicodeDecodeError if they are not UTF-8."""
        if self._rest and self._rest[-1].endswith(b"\r"):
            piece = self._rest.pop() + piece
        first, *more = _LINE_END.split(piece)
        if piece.endswith(b"\r"):
            *more, last = [first, *more][:-1]  # the \n of a \r\n may follow
            first, more = (more[0], [*more[1:], last + b"\r"]) if more else (last + b"\r", [])
        self._rest.append(first)
        if more:
            lines = [b"".join(self._rest), *more[:-1]]
            self._rest = [more[-1]]
            for line in lines:
                yield from self._line(line)

    def finish(self) -> Iterator[str]:
        """The last event. Some services send no empty line after it."""
        yield from self._line(b"".join(self._rest).rstrip(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[str]:
        if not self._begun:
            self._begun, line = True, line.removeprefix(b"\xef\xbb\xbf")
        if line:
            name, _, value = line.decode().partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
        elif self._data:
            yield "\n".join(self._data)
            self._data = []


class AnswerReader(Protocol):
    """Assembles an answer from what a service sends: see ``clew.domain.models.chat_answers``."""

    begun: bool
    failure: Json

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read the next piece of a stream."""
        ...

    def take_whole(self, body: JsonObject) -> Iterator[Update]:
        """Read an answer that was not streamed."""
        ...

    def answer(self) -> Answer | None:
        """The answer; None until it is complete."""
        ...
