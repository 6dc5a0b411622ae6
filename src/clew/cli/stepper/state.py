"""The state of the stepper, and how keys change it. Nothing here does I/O."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

PAGE = 10
"""Versions that a page key moves."""

MOST_DIGITS = 18
"""Digits of a version that can be typed; no version has more."""

MOVES = {
    "right": 1,
    "down": 1,
    "l": 1,
    "n": 1,
    " ": 1,
    "left": -1,
    "up": -1,
    "h": -1,
    "p": -1,
    "page down": PAGE,
    "page up": -PAGE,
}

HELP = (
    ("→ l n space", "the next version"),
    ("← h p", "the previous version"),
    ("PgDn PgUp", f"{PAGE} versions forward, {PAGE} back"),
    ("Home g", "the first version"),
    ("End G", "the newest version, including one that was just appended"),
    ("] [", "the next message, the previous one"),
    ("c", "the next version that has a checkpoint"),
    (": or digits, Enter", "the version with that number"),
    ("?", "this help; any key closes it"),
    ("q", "quit"),
)
"""The keys and what they do."""

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_FINAL = {b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"H": "home", b"F": "end"}
_NUMBERED = {b"1": "home", b"4": "end", b"5": "page up", b"6": "page down", b"7": "home", b"8": "end"}
_NAMED = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace"}


class Stepper(NamedTuple):
    """The position in a thread: ``version`` of ``newest``, and ``stops``, the versions with checkpoints, ascending.

    ``typed`` holds the digits of a version that is being typed, None otherwise. ``seeking`` is 1 or -1 while the next
    or the previous message must be searched. ``note`` is a message about the last key.
    """

    version: int
    newest: int
    stops: tuple[int, ...] = ()
    typed: str | None = None
    helping: bool = False
    seeking: int = 0
    note: str = ""
    ended: bool = False


def decode(sent: bytes) -> tuple[list[str], bytes]:
    """The keys in the bytes of a terminal, and the bytes at the end that are an incomplete key."""
    keys: list[str] = []
    at = 0
    while at < len(sent):
        if sent[at : at + 1] == b"\x1b":
            if found := _SEQUENCE.match(sent, at):
                keys += _sequence(found[0])
                at = found.end()
                continue
            if _BEGUN.match(sent, at):
                return keys, sent[at:]
        character, size = _character(sent[at : at + 4])
        if not size:
            return keys, sent[at:]
        keys += [_NAMED.get(character, character)] if character else []
        at += size
    return keys, b""


def left_over(rest: bytes) -> list[str]:
    """The keys in the rest that ``decode`` returned, when nothing followed: the escape key, or nothing."""
    return ["escape"] if rest[:1] == b"\x1b" else []


def _sequence(found: bytes) -> list[str]:
    final, parameters = found[-1:], found[2:-1].split(b";")
    name = _NUMBERED.get(parameters[0]) if final == b"~" else _FINAL.get(final)
    return [] if name is None else [name]


def _character(begun: bytes) -> tuple[str, int]:
    """The first character and its number of bytes. Invalid bytes give no character, incomplete ones no number."""
    first = begun[0]
    size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4  # noqa: PLR2004  # UTF-8's lengths
    try:
        return begun[:size].decode(), size
    except UnicodeDecodeError as error:
        return ("", 0) if error.reason == "unexpected end of data" else ("", 1)


def with_newest(stepper: Stepper, newest: int, stops: tuple[int, ...]) -> Stepper:
    """The stepper after others may have appended to the thread."""
    return stepper._replace(newest=max(stepper.newest, newest), stops=stops)


def press(stepper: Stepper, key: str) -> Stepper:
    """The stepper after a key. Unknown keys change nothing."""
    stepper = stepper._replace(seeking=0, note="")
    if key == "closed":
        return stepper._replace(ended=True)
    if stepper.helping and key != "resize":
        return stepper._replace(helping=False)
    if stepper.typed is not None:
        return _type(stepper, stepper.typed, key)
    if key in MOVES:
        return _go(stepper, stepper.version + MOVES[key])
    if key.isascii() and key.isdigit():
        return stepper._replace(typed=key)
    action = _ACTIONS.get(key)
    return stepper if action is None else action(stepper)


def after_search(stepper: Stepper, version: int | None) -> Stepper:
    """The stepper after a search: at the version that was found, or with a note that there is none."""
    if version is not None:
        return _go(stepper._replace(seeking=0), version)
    side = "after" if stepper.seeking > 0 else "before"
    return stepper._replace(seeking=0, note=f"There is no message {side} this version.")


def _type(stepper: Stepper, typed: str, key: str) -> Stepper:
    if key.isascii() and key.isdigit():
        return stepper._replace(typed=(typed + key)[:MOST_DIGITS])
    if key == "backspace":
        return stepper._replace(typed=typed[:-1] if typed else None)
    if key in {"escape", "q"} or (key == "enter" and not typed):
        return stepper._replace(typed=None)
    if key == "enter":
        there, version = stepper._replace(typed=None), int(typed)
        if 1 <= version <= there.newest:
            return _go(there, version)
        return there._replace(note=f"There is no version {version}. The thread has versions 1 to {there.newest}.")
    return stepper


def _next_stop(stepper: Stepper) -> Stepper:
    index = bisect_right(stepper.stops, stepper.version)
    if index == len(stepper.stops):
        return stepper._replace(note="There is no checkpoint after this version.")
    return _go(stepper, stepper.stops[index])


def _go(stepper: Stepper, version: int) -> Stepper:
    there = max(1, min(version, stepper.newest))
    edge = "This is the first version." if version < there else "This is the newest version."
    return stepper._replace(version=there, note=edge if version != there == stepper.version else "")


_ACTIONS: dict[str, Callable[[Stepper], Stepper]] = {
    **dict.fromkeys(("home", "g"), lambda stepper: _go(stepper, 1)),
    **dict.fromkeys(("end", "G"), lambda stepper: _go(stepper, stepper.newest)),
    "]": lambda stepper: stepper._replace(seeking=1),
    "[": lambda stepper: stepper._replace(seeking=-1),
    "c": _next_stop,
    ":": lambda stepper: stepper._replace(typed=""),
    "?": lambda stepper: stepper._replace(helping=True),
    "q": lambda stepper: stepper._replace(ended=True),
}
