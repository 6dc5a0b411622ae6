"""A chat: one thread after the other, what is said on it, and what is told of it on the way."""

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

from clew.cli import json_shapes, rendering
from clew.cli.chat_terminal import Answers, followed
from clew.cli.errors import WrongUsage, report
from clew.cli.history import runs
from clew.cli.output import one_line, safe, write_json
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

    ``interactive`` is one with somebody before a terminal: then faults are told and the chat goes on. Otherwise they
    end it, as what comes next may count on what failed. With ``as_json`` nothing but JSON is written.
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
        self.console = rendering.console()
        self.as_json = as_json
        self.over = False
        self._engine = engine
        self._agent = agent
        self._runner = runner
        self._interactive = interactive
        self._began_here = False
        self._thread: aio_threads.Thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how the thread is taken up again."""
        if self._began_here:
            with suppress(WrongUsage):  # nothing was said
                self.note(f"Taken up again with: clew chat {quote(self.thread.id)}")

    @property
    def thread(self) -> threads.Thread:
        """The thread that is talked on. Raises WrongUsage while nothing was said on a new one."""
        try:
            return self.conversations.thread(self._thread.id)
        except UnknownThreadError:
            raise WrongUsage(self.context, "Nothing was said yet, so there is no thread") from None

    def begin(self) -> None:
        """Talk on a new thread, which begins with what is said first."""
        thread = self._engine.beginning("local")
        self._thread, self._began_here = thread, True
        if self._interactive:
            self.note(f"New thread {thread.id} · {self._agent.client.model} · /help")

    def take_up(self, id_: str) -> None:
        """Talk on a thread that is there. Raises UnsupportedThreadError for one whose history a service holds."""
        self._thread = self._runner.run(self._engine.thread(id_))
        if self._thread.kind == "remote":
            raise UnsupportedThreadError("clew chat", "remote", ("local",))
        if self._interactive:
            for line in self._state():
                self.note(line)

    def fork(self, title: str | None) -> str:
        """Talk on a fork of the thread, as it is now; returns its id."""
        fork = self.thread.fork(title=title)
        self._thread, self._began_here = self._runner.run(self._engine.thread(fork.id)), True
        return fork.id

    def converse(self, lines: Iterable[str], carry_out: Callable[[Chat, str], None]) -> None:
        """Answer what is said, and carry out what begins with a slash, until there is nothing more."""
        for line in lines:
            try:
                if line.startswith("/"):
                    carry_out(self, line)
                else:
                    self._say(line)
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
        """Say something about the chat: dimmed on a terminal, else on stderr, and not beside JSON."""
        if self._interactive:
            self.console.print(Text(safe(text), style="dim"), soft_wrap=True)
        elif not self.as_json:
            sys.stdout.flush()
            typer.echo(safe(text), err=True)

    def _say(self, text: str) -> None:
        answers = Answers(people=self._interactive)
        began = time.perf_counter()
        stream = self._agent.run(text, thread=self._thread, stream=True, on_conflict="wait")
        try:
            response = self._runner.run(followed(stream, answers.take if not self.as_json else lambda _: None))
        finally:
            answers.close()
        if response is None:
            if self._interactive:
                kept = "What came of the answer is kept." if answers.began else "Nothing had come of the answer."
                self.note(f"Stopped. {kept}")
            raise KeyboardInterrupt
        if self._interactive:
            self.note(_cost(response, time.perf_counter() - began))
        elif self.as_json:
            for message in response.messages:
                write_json({"thread_id": self._thread.id, **json_shapes.message(message)})
            sys.stdout.flush()

    def _state(self) -> Iterator[str]:
        """What is to be known of a thread that is taken up again."""
        history, summary = self.thread.history(), self.thread.summary()
        named = "" if summary.title is None else f"{one_line(summary.title)} · "
        count = f"{len(history)} message{'' if len(history) == 1 else 's'}"
        yield f"{named}{one_line(self._thread.id)} · {count} · {self._agent.client.model} · /help, /history"
        last = next(reversed(runs(self.conversations, history)), None)
        if last is None:
            return
        if last.outcome == "waiting":
            yield from self._waiting()
        elif last.outcome == "open":
            if self._runner.run(self._thread.runs.lease()) is not None:
                yield "Somebody else is being answered on this thread right now. What you say is answered after that."
            else:
                yield "The last answer broke off with its program. What had come of it is kept with what you say next."
        elif last.interrupted and history.messages and last.interrupted[-1].message == history.messages[-1].version:
            yield "The last answer was interrupted. What had come of it is kept."

    def _waiting(self) -> Iterator[str]:
        """The calls that another program's run waits to have approved. It has the tools, so it is to go on with it."""
        for approval in self._runner.run(self._thread.approvals()):
            call = one_line(f"{approval.call.name}({approval.call.arguments})")
            yield f"A run waits for an approval of {call}, version {approval.version}."
        yield "Decide in Python: thread.approvals(), agent.continue_run(thread). Or give the run up: /rewind, /fork."


def _cost(response: AgentResponse[aio_threads.Thread], seconds: float) -> str:
    usage = response.usage
    counted = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out · " if usage.output_tokens else ""
    return f"{counted}{seconds:.1f} s"
