"""Reads ``application/vnd.amazon.eventstream``, the binary stream of events that AWS services send.

A frame has its length and that of its headers, the CRC-32 of both, the headers, the payload, and the CRC-32 of all
before: https://smithy.io/2.0/aws/amazon-eventstream.html.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clew.domain.json_values import JsonObject, parse_json

_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_OVERHEAD = _PRELUDE.size + _CRC.size
_MAX_FRAME = 24 * 1024 * 1024
"""The longest frame that the format allows, in bytes. Without a limit, a damaged length would wait for ever."""

_TRUE, _FALSE, _BYTES, _STRING = 0, 1, 6, 7
_FIXED = {_TRUE: 0, _FALSE: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The bytes of a header's value by its type, for types of a fixed length."""

_STATUS = {
    "internalserverexception": 500,
    "modelstreamerrorexception": 424,
    "modeltimeoutexception": 408,
    "serviceunavailableexception": 503,
    "throttlingexception": 429,
    "validationexception": 400,
}
"""The HTTP status that the service's model gives to each exception within a stream."""


class InvalidFrameError(ValueError):
    """The bytes are not a stream of events, or were damaged on their way."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An event: its headers that are strings, and its payload."""

    headers: dict[str, str]
    payload: bytes


class FrameDecoder:
    """Yields each frame as soon as its last byte arrives. Takes time linear in the number of bytes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = _PRELUDE.size

    @property
    def is_complete(self) -> bool:
        """Whether no frame has arrived in part."""
        return self._size == 0

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Decode the next bytes. Raises InvalidFrameError."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < self._needed:
            return
        received, start = b"".join(self._pieces), 0
        self._needed = _PRELUDE.size
        while len(received) - start >= _PRELUDE.size:
            length, headers_length = _prelude(received, start)
            if len(received) - start < length:
                self._needed = length
                break
            yield _frame(received[start : start + length], headers_length)
            start += length
        rest = received[start:]
        self._pieces, self._size = [rest] if rest else [], len(rest)


def _prelude(received: bytes, start: int) -> tuple[int, int]:
    """The lengths of a frame and of its headers."""
    length, headers_length, checksum = _PRELUDE.unpack_from(received, start)
    if crc32(received[start : start + _PRELUDE.size - _CRC.size]) != checksum:
        raise InvalidFrameError("The checksum of a frame's lengths is wrong.")
    if length > _MAX_FRAME or headers_length > length - _OVERHEAD:
        raise InvalidFrameError("The lengths of a frame are wrong.")
    return length, headers_length


def _frame(frame: bytes, headers_length: int) -> Frame:
    (checksum,) = _CRC.unpack_from(frame, len(frame) - _CRC.size)
    if crc32(frame[: -_CRC.size]) != checksum:
        raise InvalidFrameError("The checksum of a frame is wrong.")
    end = _PRELUDE.size + headers_length
    try:
        headers = dict(_headers(frame[_PRELUDE.size : end]))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise InvalidFrameError("The headers of a frame are not valid.") from None
    return Frame(headers, frame[end : -_CRC.size])


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    """The headers whose values are strings; no event of these services has others that matter."""
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        kind, begin = data[name_end], name_end + 1
        if kind in {_BYTES, _STRING}:
            (size,) = struct.unpack_from(">H", data, begin)
            begin += 2
        else:
            size = _FIXED[kind]
        if begin + size > len(data):
            raise IndexError(at)
        if kind == _STRING:
            yield data[at + 1 : name_end].decode(), data[begin : begin + size].decode()
        at = begin + size


def event_of(frame: Frame) -> JsonObject:
    """The event of a frame, ``{type: payload}``."""
    headers = frame.headers
    if headers.get(":message-type") == "error":
        failure: JsonObject = {"code": headers.get(":error-code"), "message": headers.get(":error-message", "")}
        return {"exception": failure}
    payload = parse_json(frame.payload or b"{}")
    if headers.get(":message-type") != "exception":
        return {headers.get(":event-type", ""): payload}
    name = headers.get(":exception-type", "")
    details = payload if isinstance(payload, dict) else {}
    return {"exception": {"code": name, "message": details.get("message"), "status": _STATUS.get(name.lower())}}


def named_error(body: Any, headers: Mapping[str, str]) -> JsonObject:
    """The body of a refusal with its code, which the service sends in a header."""
    fields: JsonObject = body if isinstance(body, dict) else {}
    code = headers.get("x-amzn-errortype", "").partition(":")[0]
    return {**fields, "code": code or fields.get("__type")}
