"""Random bytes of the operating system's, taken from it some hundred at a time: asked for few it costs as much."""

from __future__ import annotations

import os

SIZE = 16
_AT_A_TIME = 256

_kept: list[bytes] = []
os.register_at_fork(after_in_child=_kept.clear)


def sixteen_bytes() -> bytes:
    """Sixteen random bytes that nobody else gets, in this process or one that is forked off it."""
    try:
        return _kept.pop()
    except IndexError:
        block = os.urandom(SIZE * _AT_A_TIME)
        _kept.extend(block[begin : begin + SIZE] for begin in range(SIZE, len(block), SIZE))
        return block[:SIZE]
