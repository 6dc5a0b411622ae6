"""A chat: it sends lines to an agent, and runs the commands that begin with a slash."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer
from rich.text import Text

from clew.cli.chat.terminal import Answers, follow
from clew.cli.commands.history import runs_of
from clew.cli.errors import WrongUsage, report
from clew.cli.output import console as new_console
from clew.cli.output import one_line, plural, safe, write_json
from clew.cli.rendering import json_shapes
from clew.domain.errors import ClewError, UnknownThreadError
from clew.domain.runs.errors import UnsupportedThreadError

if TYPE_CHECKING:
    import asyncio

    from clew.agents.response import AgentResponse
    from clew.aio import threads as aio_threads
    from clew.conversations import Conversations
    from clew.engine import Agent, Engine
    from clew.sync import threads


class Chat:
    """A chat with an agent on a thread of a store.

    An ``interactive`` chat has a user at a terminal: it reports errors and continues. Otherwise an error ends the chat,
    as the next lines may depend on what failed. With ``as_json`` it writes nothing but JSON.
    """

    def __init__(
        self,
        context: typer.Context,
        conversations: Conversations,
        engine: Engine,
        agent: Agent,
        runner: asyncio.Runner,
        *,
        interactive: bool,
        as_json: bool,
    ) -> None:
        self.context = context
        self.conversations = conversations
        self.console = new_console()
        self.as_json = as_json
        self.over = False
        self._engine = engine
        self._agent = agent
        self._runner = runner
        self._interactive = interactive
        self._started_here = False
        self._thread: aio_threads.Thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how to resume the thread."""
        if self._started_here:
            with suppress(WrongUsage):  # it has no messages
                self.note(f"Resume it with: clew chat {quote(self.thread.id)}")

    @property
    def thread(self) -> threads.Thread:
        """The current thread. Raises WrongUsage for a new one, which has no messages yet."""
        try:
            return self.conversations.thread(self._thread.id)
        except UnknownThreadError:
            raise WrongUsage(self.context, "There is no thread yet: say something first") from None

    def begin(self) -> None:
        """Use a new thread, which the first message starts."""
        thread = self._engine.unstarted_thread("local")
        self._thread, self._started_here = thread, True
        if self._interactive:
            self.note(f"New thread {thread.id} · {self._agent.client.model} · /help")

    def resume(self, id_: str) -> None:
        """Use an existing thread. Raises UnsupportedThreadError if a service stores its history."""
        self._thread = self._runner.run(self._engine.thread(id_))
        if self._thread.kind == "remote":
            raise UnsupportedThreadError("clew chat", "remote", ("local",))
        if self._interactive:
            for line in self._status_lines():
                self.note(line)

    def fork(self, title: str | None) -> str:
        """Fork the thread as it is now and use the fork; returns its id."""
        fork = self.thread.fork(title=title)
        self._thread, self._started_here = self._runner.run(self._engine.thread(fork.id)), True
        return fork.id

    def converse(self, lines: Iterable[str], run_command: Callable[[Chat, str], None]) -> None:
        """Answer each line, or run it if it begins with a slash, until the lines end."""
        for line in lines:
            try:
                if line.startswith("/"):
                    run_command(self, line)
                else:
                    self._answer(line)
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
            except WrongUsage as error:
                if not self._interactive:
                    raise
                self.note(f"{error.message}.")
            except ClewError as error:
                if not self._interactive:
                    raise
                sys.stdout.flush()
                report(error, as_json=False)
            if self.over:
                return

    def note(self, text: str) -> None:
        """Write a note about the chat: dim on a terminal, otherwise to stderr; nothing in JSON mode."""
        if self._interactive:
            self.console.print(Text(safe(text), style="dim"), soft_wrap=True)
        elif not self.as_json:
            sys.stdout.flush()
            typer.echo(safe(text), err=True)

    def _answer(self, text: str) -> None:
        answers = Answers(people=self._interactive)
        start = time.perf_counter()
        stream = self._agent.run(text, thread=self._thread, stream=True, on_conflict="wait")
        try:
            response = self._runner.run(follow(stream, answers.take if not self.as_json else lambda _: None))
        finally:
            answers.close()
        if response is None:
            if self._interactive:
                kept = "The part that had arrived is stored." if answers.started else "Nothing had arrived."
                self.note(f"Stopped. {kept}")
            raise KeyboardInterrupt
        if self._interactive:
            self.note(_cost_text(response, time.perf_counter() - start))
        elif self.as_json:
            for message in response.messages:
                write_json({"thread_id": self._thread.id, **json_shapes.message(message)})
            sys.stdout.flush()

    def _status_lines(self) -> Iterator[str]:
        """What the user should know about a resumed thread."""
        history, summary = self.thread.history(), self.thread.summary()
        title = "" if summary.title is None else f"{one_line(summary.title)} · "
        messages = plural(len(history), "message")
        yield f"{title}{one_line(self._thread.id)} · {messages} · {self._agent.client.model} · /help, /history"
        last = next(reversed(runs_of(self.conversations, history)), None)
        if last is None:
            return
        if last.outcome == "waiting":
            yield from self._waiting()
        elif last.outcome == "open":
            if self._runner.run(self._thread.runs.lease()) is not None:
                yield "Another run is in progress on this thread. Your messages are answered after it."
            else:
                yield "The program of the last answer ended. What had arrived is stored with your next message."
        elif last.interrupted and history.messages and last.interrupted[-1].message == history.messages[-1].version:
            yield "The last answer was interrupted. The part that had arrived is stored."

    def _waiting(self) -> Iterator[str]:
        """The calls of another program's run that wait for approval. Only that program has the tools to continue it."""
        for approval in self._runner.run(self._thread.approvals()):
            call = one_line(f"{approval.call.name}({approval.call.arguments})")
            yield f"A run waits for approval of {call}, version {approval.version}."
        yield "Decide in Python: thread.approvals(), agent.continue_run(thread). Or leave the run: /rewind, /fork."


def _cost_text(response: AgentResponse[aio_threads.Thread], seconds: float) -> str:
    usage = response.usage
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out · " if usage.output_tokens else ""
    return f"{tokens}{seconds:.1f} s"
