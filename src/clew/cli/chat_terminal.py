"""The terminal of a chat: what is typed or piped in, and answers on their way to the screen."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from clew.cli import rendering
from clew.cli.output import safe
from clew.domain import messages as said_as

if TYPE_CHECKING:
    from clew.agents.response import AgentResponse, AgentUpdate
    from clew.agents.stream import AgentStream
    from clew.aio.threads import Thread

_THOUGHT = "dim italic"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def followed(stream: AgentStream[Thread], show: Callable[[AgentUpdate], None]) -> AgentResponse[Thread] | None:
    """Show a run as it goes on; None when Ctrl-C ended it, which is on the log then, with what had come.

    Raises what the run does, or ``show``, which ends the run too; and SystemExit when the program is to end, as when
    its terminal is closed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if task is not None and not task.cancelling():  # a second Ctrl-C would not have it recorded sooner
            task.cancel()

    for each in _ENDING:
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
        for each in _ENDING:
            loop.remove_signal_handler(each)


class Answers:
    """Writes what comes of runs: the words, and for ``people`` also what the model thinks and calls."""

    def __init__(self, *, people: bool) -> None:
        self._people = people
        self._console = rendering.console()
        self._open: Literal["text", "reasoning"] | None = None
        self._held = ""
        self._ended = True
        self._streamed = False
        self.began = False

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
        """Write what does not come in pieces: calls and results, and the words of an answer that came whole."""
        match content:
            case said_as.Text(text=text):
                if not self._streamed:
                    self._piece("text", text)
                    self.close()
            case said_as.Reasoning():
                pass
            case _ if self._people:
                self._console.print(rendering.content_text(content), soft_wrap=True)

    def _piece(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._open not in {kind, None}:
            self.close()
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""  # it is one line end with a newline that comes next
        self._open, self.began = kind, True
        self._streamed = self._streamed or kind == "text"
        self._write(safe(text.removesuffix("\r")), kind)

    def _write(self, shown: str, kind: Literal["text", "reasoning"]) -> None:
        self._ended = shown.endswith("\n") if shown else self._ended
        if kind == "reasoning":
            self._console.print(Text(shown, style=_THOUGHT), end="", soft_wrap=True)
        else:
            sys.stdout.write(shown)
        sys.stdout.flush()


PROMPT = "> "


def prompted() -> Iterator[str]:
    """Lines from a terminal, edited and found again with the keys of readline, until Ctrl-D.

    Ctrl-C drops what was typed; when nothing was typed since the last one, it ends.
    """
    with suppress(ImportError):  # a Python without it has plainer lines
        import readline  # noqa: F401  # input() uses it when it is there
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
            sys.stdout.write("Ctrl-C again leaves, as Ctrl-D does.\n")
            continue
        again = False
        if line.strip():
            yield line


def piped() -> Iterator[str]:
    """Lines of standard input, as they come, those left out that say nothing. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    if sys.stdin is None:  # it was closed before Python began
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            message = f"stdin: byte {error.start} of line {number} is no UTF-8. Give the text in UTF-8."
            raise InvalidContentError(message) from None
        if text.strip():
            yield text
