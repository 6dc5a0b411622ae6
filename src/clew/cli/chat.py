"""A chat: it sends lines to an agent, shows the answers as they arrive, and runs commands that begin with a slash."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import typer
from rich.text import Text

from clew.cli.commands.history import print_thread, records_of, runs_of
from clew.cli.commands.thread_commands import checkpoint_text, fork_text
from clew.cli.commands.thread_directory import print_tree
from clew.cli.errors import WrongUsage, report
from clew.cli.options import Moment, parse_moment
from clew.cli.output import console as new_console
from clew.cli.output import one_line, plural, safe, shortened, write_json, write_json_lines, write_result
from clew.cli.rendering import json_shapes
from clew.cli.rendering.conversation import content_text
from clew.domain import messages as content_types
from clew.domain.errors import ClewError, UnknownThreadError
from clew.domain.runs.errors import UnsupportedThreadError
from clew.domain.runs.events import RunStarted

if TYPE_CHECKING:
    from clew.agents.response import AgentResponse, AgentUpdate
    from clew.agents.stream import AgentStream
    from clew.aio import threads as aio_threads
    from clew.conversations import Conversations
    from clew.domain.history import History
    from clew.engine import Agent, Engine
    from clew.sync import threads

UNKNOWN_COMMAND_LENGTH = 60
"""Characters of an unknown command in its error."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Chat:
    """A chat with an agent on a thread of a store.

    An ``interactive`` chat has a user at a terminal: it reports errors and continues. Otherwise an error ends the chat,
    as the next lines may depend on what failed. With ``as_json`` it writes nothing but JSON.
    """

    def __init__(
        self,
        conversations: Conversations,
        engine: Engine,
        agent: Agent,
        runner: asyncio.Runner,
        *,
        interactive: bool,
        as_json: bool,
    ) -> None:
        self.conversations = conversations
        self.console = new_console()
        self.as_json = as_json
        self.ended = False
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
            raise WrongUsage("There is no thread yet: say something first") from None

    def begin(self) -> None:
        """Use a new thread, which the first message starts."""
        self._thread, self._started_here = self._engine.unstarted_thread("local"), True
        if self._interactive:
            self.note(f"New thread {self._thread.id} · {self._agent.client.model} · /help")

    def resume(self, id_: str) -> None:
        """Use an existing thread. Raises UnsupportedThreadError if a service stores its history."""
        self._thread = self._runner.run(self._engine.thread(id_))
        if self._thread.kind == "remote":
            raise UnsupportedThreadError("clew chat", "remote", ("local",))
        if self._interactive:
            for line in self._status_lines():
                self.note(line)

    def fork(self, title: str | None) -> None:
        """Fork the thread as it is now and use the fork."""
        fork = self.thread.fork(title=title)
        self._thread, self._started_here = self._runner.run(self._engine.thread(fork.id)), True

    def converse(self, lines: Iterable[str]) -> None:
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
            if self.ended:
                return

    def note(self, text: str) -> None:
        """Write a note about the chat: dim on a terminal, otherwise to stderr; nothing in JSON mode."""
        if self._interactive:
            self.console.print(Text(safe(text), style="dim"), soft_wrap=True)
        elif not self.as_json:
            sys.stdout.flush()
            typer.echo(safe(text), err=True)

    def _answer(self, text: str) -> None:
        answer = AnswerWriter(verbose=self._interactive)
        start = time.perf_counter()
        stream = self._agent.run(text, thread=self._thread, stream=True, on_conflict="wait")
        try:
            response = self._runner.run(follow(stream, (lambda _: None) if self.as_json else answer.write))
        finally:
            answer.end_line()
        if response is None:
            if self._interactive:
                stored = "The part that had arrived is stored." if answer.started else "Nothing had arrived."
                self.note(f"Stopped. {stored}")
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
        last_run = next(reversed(runs_of(self.conversations, history)), None)
        if last_run is None:
            return
        if last_run.outcome == "waiting":
            yield from self._approval_lines()
        elif last_run.outcome == "open":
            if self._runner.run(self._thread.runs.lease()) is not None:
                yield "Another run is in progress on this thread. Your messages are answered after it."
            else:
                yield "The program of the last answer ended. What had arrived is stored with your next message."
        elif last_run.interrupted and last_run.interrupted[-1].message == _last_version(history):
            yield "The last answer was interrupted. The part that had arrived is stored."

    def _approval_lines(self) -> Iterator[str]:
        """The calls of another program's run that wait for approval. Only that program has the tools to continue it."""
        for approval in self._runner.run(self._thread.approvals()):
            call = one_line(f"{approval.call.name}({approval.call.arguments})")
            yield f"A run waits for approval of {call}, request {approval.request}."
        decide = f"clew approve {quote(self._thread.id)}"
        yield f"Decide with `{decide}` or `clew decline`; its own program continues it. Or leave it: /rewind, /fork."


def _last_version(history: History) -> int:
    return history.messages[-1].version if history.messages else 0


def _cost_text(response: AgentResponse[aio_threads.Thread], seconds: float) -> str:
    usage = response.usage
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out · " if usage.output_tokens else ""
    return f"{tokens}{seconds:.1f} s"


async def follow(
    stream: AgentStream[aio_threads.Thread], show: Callable[[AgentUpdate], None]
) -> AgentResponse[aio_threads.Thread] | None:
    """Show the updates of a run; None if Ctrl-C stopped it. The log then has the stop and the partial answer.

    Raises the errors of the run and of ``show``; both end the run. Raises SystemExit when the program must end, for
    example because its terminal was closed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if task is not None and not task.cancelling():  # a second Ctrl-C would not make it faster
            task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        async for update in stream:
            show(update)
        return await stream.get_final_response()
    except asyncio.CancelledError:
        for number in received:
            if number is not signal.SIGINT:
                raise SystemExit(128 + number) from None
        return None
    finally:
        await stream.aclose()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class AnswerWriter:
    """Writes the updates of a run: the text, and if ``verbose`` also reasoning, calls and results."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._console = new_console()
        self._open: Literal["text", "reasoning"] | None = None
        self._held_back = ""
        self._line_ended = True
        self._streamed = False
        self.started = False

    def write(self, update: AgentUpdate) -> None:
        """Write an update."""
        match update.type:
            case "text":
                self._write_piece("text", update.text)
            case "reasoning" if self._verbose:
                self._write_piece("reasoning", update.text)
            case "progress":
                self.end_line()
                part = "" if update.fraction is None else f" {update.fraction:.0%}"
                self._console.print(Text(one_line(f"{update.name}:{part} {update.text}"), style="dim"), soft_wrap=True)
            case "answer" | "result":
                self.end_line()
                for content in () if update.message is None else update.message.contents:
                    self._write_content(content)
                self._streamed = False

    def end_line(self) -> None:
        """End the line that is open."""
        if self._open is not None and (self._held_back or not self._line_ended):
            self._write(f"{safe(self._held_back)}\n", "text")
        self._open, self._held_back = None, ""

    def _write_content(self, content: content_types.Content) -> None:
        """Write what does not stream: calls and results, and the text of an answer that came as a whole."""
        match content:
            case content_types.Text(text=text):
                if not self._streamed:
                    self._write_piece("text", text)
                    self.end_line()
            case content_types.Reasoning():
                pass
            case _ if self._verbose:
                self._console.print(content_text(content), soft_wrap=True)

    def _write_piece(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._open not in {kind, None}:
            self.end_line()
        text = self._held_back + text
        self._held_back = "\r" if text.endswith("\r") else ""  # a newline may follow: together they are one line end
        self._open, self.started = kind, True
        self._streamed = self._streamed or kind == "text"
        self._write(safe(text.removesuffix("\r")), kind)

    def _write(self, text: str, kind: Literal["text", "reasoning"]) -> None:
        self._line_ended = text.endswith("\n") if text else self._line_ended
        if kind == "reasoning":
            self._console.print(Text(text, style="dim italic"), end="", soft_wrap=True)
        else:
            sys.stdout.write(text)
        sys.stdout.flush()


class Command(NamedTuple):
    """A command within a chat: its argument, its help and its function."""

    argument: str
    help: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    """Run the command of a line. Raises WrongUsage for an unknown one, and what the command raises."""
    name, _, rest = line[1:].strip().partition(" ")
    command, argument = COMMANDS.get(name), rest.strip()
    if command is None:
        start = one_line(shortened(f"/{name}", UNKNOWN_COMMAND_LENGTH))
        hint = "To send a message that begins with /, put a space before it"
        raise WrongUsage(f"{start!r} is not a command; /help lists them. {hint}")
    if argument and not command.argument:
        raise WrongUsage(f"/{name} takes no argument")
    command.run(chat, argument)


def _fork(chat: Chat, title: str) -> None:
    parent = chat.thread.id
    chat.fork(title or None)
    new = chat.thread.summary()
    text = f"{fork_text(new)} You are in it now. To go back: clew chat {quote(parent)}"
    write_result(json_shapes.thread(new), text, as_json=chat.as_json)


def _checkpoint(chat: Chat, name: str) -> None:
    if not name:
        raise WrongUsage("/checkpoint needs a NAME")
    id_, version = chat.thread.id, chat.thread.checkpoint(name)
    shape = json_shapes.checkpoint(id_, name, version)
    write_result(shape, checkpoint_text(id_, name, version), as_json=chat.as_json)


def _rewind(chat: Chat, to: str) -> None:
    thread = chat.thread
    when = parse_moment(to, "/rewind") if to else Moment(_before_last_message(thread, thread.history()))
    target = thread.history(at=when.at, at_message=when.at_message)
    version = thread.rewind(to=target.version)
    text = f"Back at version {target.version} with {plural(len(target), 'message')}. Nothing was deleted: "
    write_result(json_shapes.rewind(target, version), f"{text}/rewind {version - 1} undoes it.", as_json=chat.as_json)


def _before_last_message(thread: threads.Thread, history: History) -> int:
    """The version before the user's last message, and before the run that it started."""
    last = next((message for message in reversed(history.messages) if message.role == "user"), None)
    if last is None:
        raise WrongUsage("/rewind: there is no user message to go back to")
    before = next(thread.events(after=last.version - 2, at=last.version - 1))
    return before.version - 1 if isinstance(before.data, RunStarted) else before.version


def _tree(chat: Chat, _: str) -> None:
    id_ = chat.thread.id
    if chat.as_json:
        write_json_lines(map(json_shapes.branch, chat.conversations.tree(id_)))
    else:
        print_tree(chat.conversations, id_, chat.console)


def _history(chat: Chat, _: str) -> None:
    if chat.as_json:
        history = chat.thread.history()
        runs, records = runs_of(chat.conversations, history), records_of(chat.conversations, history)
        write_json(json_shapes.history(history, runs, records))
    else:
        print_thread(chat.conversations, chat.thread.id, Moment(), chat.console)


def _help(chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        typer.echo(f"{f'/{name} {command.argument}':<24} {command.help}", err=chat.as_json)


def _quit(chat: Chat, _: str) -> None:
    chat.ended = True


COMMANDS: dict[str, Command] = {
    "fork": Command("[TITLE]", "Continue in a new thread with the same past", _fork),
    "checkpoint": Command("NAME", "Name the current version of the thread", _checkpoint),
    "rewind": Command("[X]", "Go back before your last message, or to a version or a checkpoint", _rewind),
    "tree": Command("", "Draw the thread with its forks", _tree),
    "history": Command("", "Show the messages", _history),
    "help": Command("", "List these commands", _help),
    "quit": Command("", "Leave, as Ctrl-D does. Ctrl-C stops an answer", _quit),
}
