"""The input and output of a chat: typed or piped lines, and answers as they arrive."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from clew.cli.output import console as new_console
from clew.cli.output import safe
from clew.cli.rendering.messages import content_text
from clew.domain import messages as said_as

if TYPE_CHECKING:
    from clew.agents.response import AgentResponse, AgentUpdate
    from clew.agents.stream import AgentStream
    from clew.aio.threads import Thread

_REASONING_STYLE = "dim italic"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def follow(stream: AgentStream[Thread], show: Callable[[AgentUpdate], None]) -> AgentResponse[Thread] | None:
    """Show the updates of a run; None if Ctrl-C stopped it. The log then has the stop and the partial answer.

    Raises what the run raises, or ``show``, which ends the run too. Raises SystemExit when the program must end, for
    example because its terminal was closed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if task is not None and not task.cancelling():  # a second Ctrl-C would not make it faster
            task.cancel()

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop, each)
    try:
        async for update in stream:
            show(update)
        return await stream.get_final_response()
    except asyncio.CancelledError:
        for each in received:
            if each is not signal.SIGINT:
                raise SystemExit(128 + each) from None
        return None
    finally:
        await stream.aclose()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)


class Answers:
    """Writes the updates of runs: the text, and for ``people`` also reasoning, calls and results."""

    def __init__(self, *, people: bool) -> None:
        self._people = people
        self._console = new_console()
        self._open: Literal["text", "reasoning"] | None = None
        self._held = ""
        self._ended = True
        self._streamed = False
        self.started = False

    def take(self, update: AgentUpdate) -> None:
        """Write an update."""
        match update.type:
            case "text":
                self._piece("text", update.text)
            case "reasoning" if self._people:
                self._piece("reasoning", update.text)
            case "answer" | "result":
                self.close()
                for content in () if update.message is None else update.message.contents:
                    self._whole(content)
                self._streamed = False

    def close(self) -> None:
        """End the line that is open."""
        if self._open is not None and (self._held or not self._ended):
            self._write(f"{safe(self._held)}\n", "text")
        self._open, self._held = None, ""

    def _whole(self, content: said_as.Content) -> None:
        """Write what does not stream: calls and results, and the text of an answer that came as a whole."""
        match content:
            case said_as.Text(text=text):
                if not self._streamed:
                    self._piece("text", text)
                    self.close()
            case said_as.Reasoning():
                pass
            case _ if self._people:
                self._console.print(content_text(content), soft_wrap=True)

    def _piece(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._open not in {kind, None}:
            self.close()
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""  # a newline may follow: together they are one line end
        self._open, self.started = kind, True
        self._streamed = self._streamed or kind == "text"
        self._write(safe(text.removesuffix("\r")), kind)

    def _write(self, shown: str, kind: Literal["text", "reasoning"]) -> None:
        self._ended = shown.endswith("\n") if shown else self._ended
        if kind == "reasoning":
            self._console.print(Text(shown, style=_REASONING_STYLE), end="", soft_wrap=True)
        else:
            sys.stdout.write(shown)
        sys.stdout.flush()


PROMPT = "> "


def prompted() -> Iterator[str]:
    """Lines that are typed, with editing and history, until Ctrl-D.

    Ctrl-C drops the line; a second Ctrl-C in a row ends the chat.
    """
    with suppress(ImportError):  # without it, lines cannot be edited
        import readline  # noqa: F401  # input() then uses it
    again = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            if again:
                return
            again = True
            sys.stdout.write("Press Ctrl-C again to leave, or Ctrl-D.\n")
            continue
        again = False
        if line.strip():
            yield line


def piped() -> Iterator[str]:
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
