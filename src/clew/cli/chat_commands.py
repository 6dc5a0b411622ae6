"""What can be commanded in a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import typer

from clew.cli import json_shapes
from clew.cli.branches import checkpoint_text, fork_text
from clew.cli.errors import WrongUsage
from clew.cli.history import print_thread, runs
from clew.cli.options import Moment, moment
from clew.cli.output import one_line, shortened, write_json
from clew.cli.threads import print_tree
from clew.domain.runs.events import RunStarted

if TYPE_CHECKING:
    from clew.cli.chat_session import Chat
    from clew.domain.history import History, HistoryMessage
    from clew.sync.threads import Thread

BEGINNING = 60
"""Characters of a message that is told of."""


class Command(NamedTuple):
    """A command: what may stand behind its name, what it does in words, and what does it."""

    takes: str
    does: str
    do: Callable[[Chat, str], None]


def carry_out(chat: Chat, line: str) -> None:
    """Do what a line commands. Raises WrongUsage for what is no command, and what the command does."""
    name, _, rest = line[1:].strip().partition(" ")
    command, given = COMMANDS.get(name), rest.strip()
    if command is None:
        wrong = f"{one_line(shortened(f'/{name}', BEGINNING))!r} is no command; /help lists them. "
        raise WrongUsage(chat.context, f"{wrong}To say a line that begins with /, put a space before it")
    if given and not command.takes:
        raise WrongUsage(chat.context, f"/{name} takes nothing behind it")
    command.do(chat, given)


def _fork(chat: Chat, title: str) -> None:
    before = chat.thread.id
    chat.fork(title or None)
    summary = chat.thread.summary()
    if chat.as_json:
        write_json(json_shapes.thread(summary))
    else:
        typer.echo(f"{fork_text(summary)} You are on it now; back with: clew chat {quote(before)}")


def _checkpoint(chat: Chat, name: str) -> None:
    if not name:
        raise WrongUsage(chat.context, "/checkpoint needs a NAME")
    version = chat.thread.checkpoint(name)
    if chat.as_json:
        write_json(json_shapes.checkpoint(chat.thread.id, name, version))
    else:
        typer.echo(checkpoint_text(chat.thread.id, name, version))


def _rewind(chat: Chat, to: str) -> None:
    thread = chat.thread
    if to:
        when = moment(to, "/rewind")
        there = thread.history(at=when.at, at_message=when.at_message)
    else:
        there = thread.history(at=_before(chat, thread, thread.history()))
    version = thread.rewind(to=there.version)
    if chat.as_json:
        write_json(json_shapes.rewound(there, version))
        return
    count = len(there)
    typer.echo(
        f"Back at version {there.version}, with {count} message{'' if count == 1 else 's'}. Nothing was deleted: "
        f"/rewind {version - 1} undoes it."
    )


def _before(chat: Chat, thread: Thread, history: History) -> int:
    """The version before the user's last message, and before the run that began with it."""
    last: HistoryMessage | None = next((each for each in reversed(history.messages) if each.role == "user"), None)
    if last is None:
        raise WrongUsage(chat.context, "/rewind: there is no message of a user to go back before")
    before = next(thread.events(after=last.version - 2, at=last.version - 1))
    return before.version - 1 if isinstance(before.data, RunStarted) else before.version


def _tree(chat: Chat, _: str) -> None:
    id_ = chat.thread.id
    if chat.as_json:
        for branch in chat.conversations.tree(id_):
            write_json(json_shapes.branch(branch))
    else:
        print_tree(chat.conversations, id_, chat.console)


def _history(chat: Chat, _: str) -> None:
    if chat.as_json:
        found = chat.thread.history()
        write_json(json_shapes.history(found, runs(chat.conversations, found)))
    else:
        print_thread(chat.conversations, chat.thread.id, Moment(), chat.console)


def _help(chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        typer.echo(f"{f'/{name} {command.takes}':<24} {command.does}", err=chat.as_json)


def _quit(chat: Chat, _: str) -> None:
    chat.over = True


COMMANDS: dict[str, Command] = {
    "fork": Command("[TITLE]", "Go on in a new thread with the same past", _fork),
    "checkpoint": Command("NAME", "Name the version that the thread is at", _checkpoint),
    "rewind": Command("[X]", "Go back: to before your last message, or to a version or checkpoint", _rewind),
    "tree": Command("", "Draw the thread with its forks", _tree),
    "history": Command("", "Show what was said", _history),
    "help": Command("", "List these commands", _help),
    "quit": Command("", "Leave; so does Ctrl-D. Ctrl-C stops an answer", _quit),
}
