"""Full-screen use of the terminal: keys come one by one, and the terminal is restored at the end."""

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

from clew.cli.stepper.state import decode, left_over

if TYPE_CHECKING:
    from rich.text import Text

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Use the alternate screen, hide the cursor, and do not wrap lines that are wider than expected."""

_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_PATIENCE = 0.05
"""Seconds after which an incomplete key sequence counts as the escape key."""

_SMALLEST = os.terminal_size((80, 24))
"""The size to assume for a terminal that does not report one."""


def is_available() -> bool:
    """Whether a user sits at a terminal that supports full-screen output."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """The terminal during full-screen use."""

    def __init__(self, keyboard: int, wake: int) -> None:
        self._keyboard = keyboard
        self._wake = wake
        self._rest = b""

    @property
    def size(self) -> os.terminal_size:
        """The current columns and lines."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size if size.columns and size.lines else _SMALLEST

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines from the top, and clear the rest."""
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
        """Wait for keys and return them: ``resize`` after a change of the size, ``closed`` when the input has ended."""
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
    """Use the whole terminal. It is restored on every exit, also after Ctrl-C, SIGTERM and errors."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    with _signals() as wake:
        try:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, _key_by_key(keyboard))
            _write(_ENTER)
            yield Screen(keyboard, wake)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the restoring
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                _write(_LEAVE)
            finally:
                termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _key_by_key(keyboard: int) -> list[Any]:
    """Terminal modes without line buffering and echo. Ctrl-C interrupts, but Ctrl-Z does not suspend."""
    after = termios.tcgetattr(keyboard)
    after[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    after[6][termios.VMIN], after[6][termios.VTIME] = 1, 0
    after[6][termios.VSUSP] = after[6][termios.VQUIT] = b"\x00"
    return after


@contextmanager
def _signals() -> Iterator[int]:
    """Make a change of size wake the reader of keys, and SIGTERM raise SystemExit; restore the handlers at the end."""
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
    raise SystemExit(128 + number)  # the exit code that shells use


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
