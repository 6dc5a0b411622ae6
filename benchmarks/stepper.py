"""Stepping through a thread of 10,000 events: ``clew replay`` in a pseudo-terminal, from key to drawn screen."""

from __future__ import annotations

import os
import pty
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measurement import Setting, percentile, store_url, wall
from benchmarks.report import Figure, at_most
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations

COMMIT = 100
"""Messages per commit, in the thread that was written in parts."""

COMMAND = (sys.executable, "-m", "clew")

BACK, FORWARD = "\x1b[D", "\x1b[C"
DRAWN = b"\x1b[J"
"""The end of a drawn screen."""


def run(setting: Setting) -> Iterator[Figure]:
    """Seconds until a new process shows the newest version, and milliseconds per key after that."""
    events = setting.size(10_000, 2_000)
    path = setting.fresh("thread")
    generator = MessageGenerator()
    with Conversations.open(store_url(path)) as conversations:
        thread = conversations.start_thread(thread_id="many")
        while thread.version < events:
            thread.append(generator.messages(min(COMMIT, events - thread.version)))
        conversations.start_thread(thread_id="one", messages=generator.messages(events - 1))
    for thread_id, written in (("many", f"{COMMIT} messages per commit"), ("one", "one commit")):
        yield from _stepped(setting, path, thread_id, events, f"{events:,} events, {written}")


def _stepped(setting: Setting, path: Path, thread_id: str, events: int, shape: str) -> Iterator[Figure]:
    times = setting.size(40, 10)
    open_times: list[float] = []
    help_times: list[float] = []
    step_times: dict[str, list[float]] = {"a step back": [], "a step forward": [], "a jump": []}
    for _ in range(setting.size(5, 3)):
        help_times.append(wall(lambda: subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)))
        stepper = _Stepper(path, thread_id)
        open_times.append(wall(stepper.wait_for_screen))
        for number in range(times):
            step_times["a step back"].append(stepper.press(BACK))
            if number % 2:
                step_times["a step forward"].append(stepper.press(FORWARD))
        for number in range(times):
            step_times["a jump"].append(stepper.press(f"{1 + number * 3_777 % events}\r"))
        stepper.end()
    yield Figure(
        f"clew replay, {shape}: to the first screen",
        statistics.median(open_times),
        "s",
        baseline=statistics.median(help_times),
        budget=at_most(1),
        note="baseline: clew --help",
    )
    for key, took in step_times.items():
        yield Figure(
            f"{key}, {shape}",
            statistics.median(took) * 1e3,
            "ms",
            budget=at_most(100),
            note=f"p95 {percentile(took, 95) * 1e3:.1f} ms",
        )


class _Stepper:
    """A stepper in a separate process, and the other end of its terminal."""

    def __init__(self, path: Path, thread_id: str) -> None:
        self._end, terminal = pty.openpty()
        command = [*COMMAND, "--db", store_url(path), "replay", thread_id]
        environment = {**os.environ, "TERM": "xterm-256color"}
        self._process = subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment)
        os.close(terminal)
        self._pending = b""

    def wait_for_screen(self) -> None:
        """Wait until a screen is drawn."""
        while DRAWN not in self._pending:
            self._pending += os.read(self._end, 65_536)
        self._pending = self._pending.partition(DRAWN)[2]

    def press(self, keys: str) -> float:
        """Seconds from the keys to the resulting screen."""

        def press_and_wait() -> None:
            os.write(self._end, keys.encode())
            self.wait_for_screen()

        return wall(press_and_wait)

    def end(self) -> None:
        """Leave the stepper."""
        os.write(self._end, b"q")
        self._process.wait()
        os.close(self._end)
