"""A command in a pseudo-terminal: its keyboard and its screen in the hands of a test."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.acceptance.clew_command import COMMAND, ENVIRONMENT

PATIENCE = 60.0
"""Seconds after which a screen that does not come is a failure."""

AGAIN = 5.0
"""Seconds after which a key is pressed again."""

# The command needs the terminal as its own, so that Ctrl-C and changes of its size reach it.
_LAUNCH = "import os, sys; os.login_tty(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
_TOP = "\x1b[H"
_DRAWN = "\x1b[J"
_ENTERED = "\x1b[?1049h"


class Session:
    """A command on a terminal of its own, 24 lines of 80 columns to begin with."""

    def __init__(self, folder: Path, *arguments: str, term: str = "xterm-256color", **environment: str) -> None:
        self._master, self._terminal = pty.openpty()
        self.resize(24, 80)
        self.modes = self._modes()
        self.output = ""
        self._read = b""
        self._told = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(self._terminal), *COMMAND, *arguments],
            cwd=folder,
            env={**ENVIRONMENT, **environment, "TERM": term},
            pass_fds=[self._terminal],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._terminal)

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self._terminal)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def screen(self) -> list[str]:
        """The lines of the last screen that was drawn whole, without their colours."""
        drawn = self.output.rpartition(_DRAWN)[0].rpartition(_TOP)[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", drawn).split("\n")

    def until(self, *texts: str) -> list[str]:
        """Wait for a screen that shows all this; returns its lines."""
        self._wait(lambda: all(text in "\n".join(self.screen) for text in texts), texts)
        return self.screen

    def until_high(self, lines: int) -> list[str]:
        """Wait for a screen of so many lines; returns them."""
        self._wait(lambda: len(self.screen) == lines, lines)
        return self.screen

    def until_said(self, text: str) -> None:
        """Wait until this was written."""
        self._wait(lambda: text in self.output, text)

    def then_said(self, text: str) -> str:
        """Wait until this was written after what was waited for so before; returns what came up to its end."""
        start = self._told
        self._wait(lambda: text in self.output[start:], text)
        self._told = self.output.index(text, start) + len(text)
        return self.output[start : self._told]

    def end(self) -> int:
        """The exit code, when the command has ended."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < until, self.output
            self._take(0.02)
        while self._take(0):
            pass
        return self.process.returncode

    def given_back(self) -> bool:
        """Whether the terminal is as it was, and the last thing that was done to the screen was to leave it."""
        entered, left = self.output.rfind(_ENTERED), self.output.rfind("\x1b[?1049l")
        cursor, wraps = self.output.rfind("\x1b[?25h"), self.output.rfind("\x1b[?7h")
        return 0 <= entered < min(left, cursor, wraps) and self._modes() == self.modes

    def taken(self) -> bool:
        """Whether the command has the terminal for itself."""
        return _ENTERED in self.output and self._modes() != self.modes

    def interrupt(self) -> None:
        self.press("\x03")

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until this is written: a readline that is not waiting yet sees it with the next one."""
        start, until = self._told, time.monotonic() + PATIENCE
        while text not in self.output[start:]:
            assert time.monotonic() < until, self.output
            self.interrupt()
            again = time.monotonic() + AGAIN
            while text not in self.output[start:] and time.monotonic() < again:
                self._take(0.2)
        self.then_said(text)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def _wait(self, reached: Callable[[], bool], wanted: object) -> None:
        until = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < until, (wanted, self.output)
            assert self._take(0.2) or self.process.poll() is None, (wanted, self.output)

    def _take(self, patience: float) -> bool:
        """Read what there is; whether there was anything."""
        ready, _, _ = select.select([self._master], [], [], patience)
        if not ready:
            return False
        self._read += os.read(self._master, 65_536)
        self.output = self._read.decode(errors="replace")
        return True
