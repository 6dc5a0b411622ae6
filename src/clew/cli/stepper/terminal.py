"""The whole terminal, for a while: keys come one by one, the screen is drawn over, and all is put back at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from clew.cli.stepper.keys import decode, left_over

if TYPE_CHECKING:
    from rich.text import Text

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""To the other screen, without a cursor, and without wrapping what is wider than thought."""

_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_PATIENCE = 0.05
"""Seconds after which the beginning of a key is taken for the escape key."""

_SMALLEST = os.terminal_size((80, 24))
"""What a terminal is taken for that does not know its size."""


def is_there() -> bool:
    """Whether people sit before a terminal that can be drawn over."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """A terminal that is all ours."""

    def __init__(self, keyboard: int, wake: int) -> None:
        self._keyboard = keyboard
        self._wake = wake
        self._rest = b""

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size if size.columns and size.lines else _SMALLEST

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines from the top, and nothing below them."""
        size = self.size
        drawn = Console(
            file=StringIO(),
            force_terminal=True,
            width=max(size.columns, 1),
            height=size.lines,
            markup=False,
            emoji=False,
            highlight=False,
        )
        with drawn.capture() as capture:
            for line in lines:
                drawn.print(line, end="\n", no_wrap=True, crop=True, overflow="crop", soft_wrap=False)
        shown = capture.get().rstrip("\n").replace("\n", "\x1b[K\r\n")
        sys.stdout.write(f"\x1b[H{shown}\x1b[K\x1b[J")
        sys.stdout.flush()

    def keys(self) -> list[str]:
        """The keys that were pressed, once there are any: ``resize`` when the size changed, ``closed`` at the end."""
        while True:
            ready, _, _ = select.select([self._keyboard, self._wake], [], [], _PATIENCE if self._rest else None)
            if self._wake in ready:
                os.read(self._wake, 1024)
                return ["resize"]
            if not ready:
                keys, self._rest = left_over(self._rest), b""
            else:
                sent = os.read(self._keyboard, 1024)
                if not sent:
                    return ["closed"]
                keys, self._rest = decode(self._rest + sent)
            if keys:
                return keys


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Take the terminal. It is given back as it was on every way out: Ctrl-C, SIGTERM and errors included."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    with _signals() as wake:
        try:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, _one_by_one(keyboard))
            _write(_ENTER)
            yield Screen(keyboard, wake)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                _write(_LEAVE)
            finally:
                termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _one_by_one(keyboard: int) -> list[Any]:
    """The terminal's modes without waiting for lines, without echo; Ctrl-C interrupts, but Ctrl-Z does not suspend."""
    after = termios.tcgetattr(keyboard)
    after[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    after[6][termios.VMIN], after[6][termios.VTIME] = 1, 0
    after[6][termios.VSUSP] = after[6][termios.VQUIT] = b"\x00"
    return after


@contextmanager
def _signals() -> Iterator[int]:
    """Wake up who waits for keys when the size changes, and end in good order when asked to; afterwards as before."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    before = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT)}
    noticed = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, _end)
    try:
        yield wake
    finally:
        signal.set_wakeup_fd(noticed)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(woken)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # as shells have it


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
