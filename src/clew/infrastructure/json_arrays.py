"""The elements of a large JSON array, one by one: only one of them is in memory."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.json_values import MAX_DEPTH

CHUNK = 1 << 20
LONGEST = 256 << 20
"""The most characters of one element."""

_NEAR = 16
"""An error this close to the end of what is read may be due to the end: no word of JSON is longer, and strings have an
error of their own."""

_LONGEST_CUT = 3
"""The characters after a number that may belong to it: ``e+`` continues with a digit."""

_SPACE = " \t\r\n"


class Element(NamedTuple):
    """An element, and the number of its characters."""

    value: Any
    size: int


def elements(file: IO[bytes]) -> Iterator[Element]:
    """The elements of the array in a file.

    After the elements before it, raises ImportFormatError for anything that is not valid, and InvalidContentError for
    an element that Python cannot read.
    """
    reader = _Reader(file)
    if reader.next() != "[":
        raise ImportFormatError("It is not a JSON array.")
    separator = "[" if reader.peek() != "]" else reader.next()
    while separator in ("[", ","):
        yield reader.element()
        separator = reader.next()
        if separator not in (",", "]"):
            raise ImportFormatError(_ENDS if not separator else "It is not valid JSON: its array has no comma or ].")
    if reader.next():
        raise ImportFormatError("It is not valid JSON: more text follows its array.")


_ENDS = "It is not valid JSON: it ends within its array. It may be only the beginning of a file."


class _Reader:
    """The text of a file, of which only the part is held that is not yet read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decode = getincrementaldecoder("utf-8-sig")().decode
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more(CHUNK)

    def next(self) -> str:
        """The same, and it is read."""
        found = self.peek()
        self._at += len(found)
        return found

    def element(self) -> Element:
        """The next element."""
        if not self.peek():
            raise ImportFormatError(_ENDS)
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _NEAR
                if not is_cut:
                    raise ImportFormatError(f"It is not valid JSON: {error.msg}.") from None
                if self._ended:
                    raise ImportFormatError(_ENDS) from None
            except ValueError:  # Python's limit for the text of an integer
                raise InvalidContentError("An integer of more than 4,200 digits. Use a string.") from None
            except RecursionError:
                raise InvalidContentError(f"Nested deeper than {MAX_DEPTH} levels.") from None
            else:
                if end + _LONGEST_CUT <= len(self._text) or self._ended:
                    size, self._at = end - self._at, end
                    return Element(value, size)
            self._more(max(CHUNK, len(self._text) - self._at))  # twice as much, so that the work stays linear

    def _more(self, size: int) -> None:
        """Read more text, and forget what is read."""
        data = self._file.read(size)
        self._ended = not data
        try:
            text = self._decode(data, final=self._ended)
        except UnicodeDecodeError:
            raise ImportFormatError("It is not UTF-8. Convert it to UTF-8 first.") from None
        self._text = self._text[self._at :] + text
        self._at = 0
        if len(self._text) > LONGEST:
            raise ImportFormatError(f"One of its elements has more than {LONGEST:,} characters.")
