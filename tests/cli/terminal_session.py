"""A command in a pseudo-terminal, whose keyboard and screen a test uses."""

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
"""Seconds to wait for a screen before the test fails."""

AGAIN = 5.0
"""Seconds after which a key is pressed again."""

# The command needs the terminal as its own, so that Ctrl-C and changes of its size reach it.
_LAUNCH = "import os, sys; os.login_tty(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
_TOP = "\x1b[H"
_DRAWN = "\x1b[J"
_ENTERED = "\x1b[?1049h"


class Session:
    """A command on its own terminal, which has 24 lines of 80 columns at the start."""

    def __init__(self, folder: Path, *arguments: str, term: str = "xterm-256color", **environment: str) -> None:
        self._master, self._terminal = pty.openpty()
        self.resize(24, 80)
        self.modes = self._modes()
        self.output = ""
        self._read = b""
        self._matched = 0
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
        """The lines of the last complete screen, without colours."""
        drawn = self.output.rpartition(_DRAWN)[0].rpartition(_TOP)[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", drawn).split("\n")

    def until(self, *texts: str) -> list[str]:
        """Wait for a screen that shows all these texts; returns its lines."""
        self._wait(lambda: all(text in "\n".join(self.screen) for text in texts), texts)
        return self.screen

    def until_height(self, lines: int) -> list[str]:
        """Wait for a screen of this height; returns its lines."""
        self._wait(lambda: len(self.screen) == lines, lines)
        return self.screen

    def until_written(self, text: str) -> None:
        """Wait until the command writes this text."""
        self._wait(lambda: text in self.output, text)

    def next_output(self, text: str) -> str:
        """Wait until the text is written after the previous one; returns the output up to its end."""
        start = self._matched
        self._wait(lambda: text in self.output[start:], text)
        self._matched = self.output.index(text, start) + len(text)
        return self.output[start : self._matched]

    def end(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < until, self.output
            self._take(0.02)
        while self._take(0):
            pass
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal has its old modes, and the full screen was left last."""
        entered, left = self.output.rfind(_ENTERED), self.output.rfind("\x1b[?1049l")
        cursor, wraps = self.output.rfind("\x1b[?25h"), self.output.rfind("\x1b[?7h")
        return 0 <= entered < min(left, cursor, wraps) and self._modes() == self.modes

    def is_full_screen(self) -> bool:
        """Whether the command uses the full screen."""
        return _ENTERED in self.output and self._modes() != self.modes

    def interrupt(self) -> None:
        self.press("\x03")

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until the text is written: readline may handle the first one only with the second."""
        start, until = self._matched, time.monotonic() + PATIENCE
        while text not in self.output[start:]:
            assert time.monotonic() < until, self.output
            self.interrupt()
            again = time.monotonic() + AGAIN
            while text not in self.output[start:] and time.monotonic() < again:
                self._take(0.2)
        self.next_output(text)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def _wait(self, reached: Callable[[], bool], wanted: object) -> None:
        until = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < until, (wanted, self.output)
            assert self._take(0.2) or self.process.poll() is None, (wanted, self.output)

    def _take(self, patience: float) -> bool:
        """Read the available output; returns whether there was any."""
        ready, _, _ = select.select([self._master], [], [], patience)
        if not ready:
            return False
        self._read += os.read(self._master, 65_536)
        self.output = self._read.decode(errors="replace")
        return True
