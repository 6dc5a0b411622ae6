"""Server-sent events out of the bytes of a response, as the WHATWG's HTML standard says in its section 9.2."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventDecoder:
    """Gives the data of each event as soon as its last byte is there."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take in the next bytes; raises UnicodeDecodeError for what is no UTF-8."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        if not self._rest and piece.endswith(b"\r"):
            self._rest = lines.pop() + b"\r"  # the other half of the line's end may follow
        for line in lines:
            yield from self._line(line)

    def finish(self) -> Iterator[str]:
        """What is left at the end, which some services leave without its empty line."""
        yield from self._line(self._rest.rstrip(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[str]:
        if line:
            name, _, value = line.decode().partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
        elif self._data:
            yield "\n".join(self._data)
            self._data = []
