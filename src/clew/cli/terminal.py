"""The terminal: whether a user sits at it, lines that are typed or piped, and full-screen use with single keys."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

if TYPE_CHECKING:
    from rich.text import Text

PROMPT = "> "

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Use the alternate screen, hide the cursor, and do not wrap lines that are wider than expected."""

_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_ESCAPE_DELAY = 0.05
"""Seconds after which an incomplete key sequence counts as the escape key."""

_DEFAULT_SIZE = os.terminal_size((80, 24))
"""The size of a terminal that does not report one."""

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_INCOMPLETE_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_FINAL_BYTES = {b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"H": "home", b"F": "end"}
_NUMBERS = {b"1": "home", b"4": "end", b"5": "page up", b"6": "page down", b"7": "home", b"8": "end"}
_CHARACTERS = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace"}


def is_interactive() -> bool:
    """Whether a user sits at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def supports_full_screen() -> bool:
    """Whether a user sits at a terminal that supports full-screen output."""
    return is_interactive() and os.environ.get("TERM") != "dumb"


def typed_lines() -> Iterator[str]:
    """Lines that are typed, with editing and history, until Ctrl-D.

    Ctrl-C discards the line; a second Ctrl-C in a row ends the lines.
    """
    with suppress(ImportError):  # without it, lines cannot be edited
        import readline  # noqa: F401  # input() then uses it
    interrupted = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            if interrupted:
                return
            interrupted = True
            sys.stdout.write("Press Ctrl-C again to leave, or Ctrl-D.\n")
            continue
        interrupted = False
        if line.strip():
            yield line


def piped_lines() -> Iterator[str]:
    """The lines of standard input that are not blank, as they come. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    if sys.stdin is None:  # it was closed before Python started
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            message = f"stdin: byte {error.start} of line {number} is not UTF-8. Give the text in UTF-8."
            raise InvalidContentError(message) from None
        if text.strip():
            yield text


class Screen:
    """The terminal during full-screen use."""

    def __init__(self, keyboard: int, resized: int) -> None:
        self._keyboard = keyboard
        self._resized = resized
        self._incomplete = b""

    @property
    def size(self) -> os.terminal_size:
        """The current columns and lines."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size if size.columns and size.lines else _DEFAULT_SIZE

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines from the top, and clear the rest."""
        size = self.size
        console = Console(
            file=StringIO(),
            force_terminal=True,
            width=max(size.columns, 1),
            height=size.lines,
            markup=False,
            emoji=False,
            highlight=False,
        )
        with console.capture() as capture:
            for line in lines:
                console.print(line, end="\n", no_wrap=True, crop=True, overflow="crop", soft_wrap=False)
        content = capture.get().rstrip("\n").replace("\n", "\x1b[K\r\n")
        _write(f"\x1b[H{content}\x1b[K\x1b[J")

    def keys(self) -> list[str]:
        """Wait for keys and return them: ``resize`` after a change of the size, ``closed`` when the input has ended."""
        while True:
            delay = _ESCAPE_DELAY if self._incomplete else None
            ready, _, _ = select.select([self._keyboard, self._resized], [], [], delay)
            if self._resized in ready:
                os.read(self._resized, 1024)
                return ["resize"]
            if not ready:
                keys, self._incomplete = decode_incomplete(self._incomplete), b""
            else:
                received = os.read(self._keyboard, 1024)
                if not received:
                    return ["closed"]
                keys, self._incomplete = decode_keys(self._incomplete + received)
            if keys:
                return keys


def decode_keys(received: bytes) -> tuple[list[str], bytes]:
    """The keys in the bytes of a terminal, and the bytes at the end that are an incomplete key."""
    keys: list[str] = []
    start = 0
    while start < len(received):
        if received[start : start + 1] == b"\x1b":
            if match := _SEQUENCE.match(received, start):
                keys += _decode_sequence(match[0])
                start = match.end()
                continue
            if _INCOMPLETE_SEQUENCE.match(received, start):
                return keys, received[start:]
        character, size = _decode_character(received[start : start + 4])
        if not size:
            return keys, received[start:]
        keys += [_CHARACTERS.get(character, character)] if character else []
        start += size
    return keys, b""


def decode_incomplete(incomplete: bytes) -> list[str]:
    """The keys in the incomplete bytes of ``decode_keys`` when no more bytes came: the escape key, or none."""
    return ["escape"] if incomplete[:1] == b"\x1b" else []


def _decode_sequence(sequence: bytes) -> list[str]:
    final, parameters = sequence[-1:], sequence[2:-1].split(b";")
    name = _NUMBERS.get(parameters[0]) if final == b"~" else _FINAL_BYTES.get(final)
    return [] if name is None else [name]


def _decode_character(start: bytes) -> tuple[str, int]:
    """The first character and its number of bytes. Invalid bytes give no character, incomplete ones no number."""
    first = start[0]
    size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4  # noqa: PLR2004  # UTF-8's lengths
    try:
        return start[:size].decode(), size
    except UnicodeDecodeError as error:
        return ("", 0) if error.reason == "unexpected end of data" else ("", 1)


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Use the whole terminal. It is restored on every exit, also after Ctrl-C, SIGTERM and errors."""
    keyboard = sys.stdin.fileno()
    modes = termios.tcgetattr(keyboard)
    with _signals() as resized:
        try:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, _single_key_modes(keyboard))
            _write(_ENTER)
            yield Screen(keyboard, resized)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the restoring
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                _write(_LEAVE)
            finally:
                termios.tcsetattr(keyboard, termios.TCSAFLUSH, modes)


def _single_key_modes(keyboard: int) -> list[Any]:
    """Terminal modes without line buffering and echo. Ctrl-C interrupts, but Ctrl-Z does not suspend."""
    modes = termios.tcgetattr(keyboard)
    modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
    modes[6][termios.VSUSP] = modes[6][termios.VQUIT] = b"\x00"
    return modes


@contextmanager
def _signals() -> Iterator[int]:
    """Let a change of size write to the pipe that is yielded, and SIGTERM raise SystemExit; restore the handlers."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT)}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # the exit code that shells use


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
